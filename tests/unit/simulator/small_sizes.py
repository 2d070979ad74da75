"""Size tables and traces of moldable jobs for tests of the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from small_traces import random_trace

from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.arrays import area_until
from slurm_gpu_aware.model.size_table import SizeTable

IDLE_W, MAX_W = 50.0, 400.0
POWER = RunPower(idle_w=IDLE_W, max_w=MAX_W)
SIZES = np.array([1, 2, 4, 8])
CLOCKS = np.array([600, 900, 1200, 1410])


def table(parallel):
    """Amdahl's law; time falls with the clock, power rises with its cube above 900 MHz."""
    time_s = (1 - parallel + parallel / SIZES)[:, None] * (1410 / CLOCKS) ** 0.8
    each_w = 80 + 0.1 * CLOCKS + 170 * np.maximum(CLOCKS - 900, 0) ** 3 / 510**3
    return SizeTable(SIZES, CLOCKS, time_s, SIZES[:, None] * each_w)


TABLES = {name: table(share) for name, share in (("a", 0.99), ("b", 0.9), ("c", 0.6))}


def moldable(seed, *, elastic=True):
    names = sorted(TABLES)
    trace = random_trace(seed, sizes=(1, 2, 4, 8))
    jobs = (
        replace(
            job,
            model=(name := names[i % 3]),
            table=TABLES[name],
            sizes=(1, 2, 4, 8),
            elastic=elastic,
        )
        for i, job in enumerate(trace.jobs)
    )
    return replace(trace, jobs=tuple(jobs))


def check_energy(result, gpus=16):
    """The integral of the power is the energy of jobs and idle GPUs."""
    end = float(result.end_s.max())
    held = float(area_until(result.used_s, result.used_gpus, np.array([end]))[0])
    counted = float(result.energy.job_j.sum()) + IDLE_W * (gpus * end - held)
    assert result.energy.total_j(0.0, end) == pytest.approx(counted, rel=1e-9)
