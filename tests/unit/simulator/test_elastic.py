"""Rounds that size all jobs anew: what the sizing says is what runs, and no limit is exceeded."""

from dataclasses import replace

import numpy as np
import pytest
from small_sizes import IDLE_W, MAX_W, POWER, TABLES, moldable
from small_traces import FLAT

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob


def packed(trace, cluster=FLAT, power=POWER, **settings):
    base = SimSettings(policy="packed", overrun="extend")
    settings = replace(base, **settings).put(RunEstimates("exact"), power)
    return simulate(trace, cluster, settings, keep_placements=True)


@pytest.mark.parametrize("eta", [0.4, 0.6, 0.9, np.inf])
def test_jobs_of_one_round_get_what_the_allocator_gives_them(eta):
    jobs = [
        TraceJob(str(i), 0.0, 1, 100.0 + 50 * i, model=n, sizes=(1, 2, 4, 8), table=TABLES[n])
        for i, n in enumerate("abcab")
    ]
    power = replace(POWER, eta=eta)
    result = packed(Trace.of("t", jobs), mode="powerflow", power=power)
    wanted = [
        SizingJob(j.job_id, j.sizes, MAX_W, j.table, work=1.0 / j.table.time_s[0, -1]) for j in jobs
    ]
    found = allocate(wanted, 16, eta * 16 * MAX_W, idle_w=IDLE_W, gpus_per_node=4, whole_nodes=True)
    first = {p["job_id"]: sum(map(len, p["slots"])) for p in result.placements if not p["at_s"]}
    assert first == {name: one.gpus for name, one in found.jobs.items() if one.gpus}
    assert result.energy.power_w[0] == pytest.approx(found.power_w, abs=0.01)


def test_a_job_grows_when_gpus_become_free_and_pays_a_restart_for_it():
    """Alone, a job of 1000 s takes all of its 8 GPUs; on 4 GPUs beside another until that ends."""
    one = Cluster.uniform(1, 8)
    jobs = [
        TraceJob(n, 0.0, 1, d, model="a", sizes=(1, 2, 4, 8), elastic=True, table=TABLES["a"])
        for n, d in (("long", 10_000.0), ("short", 1000.0))
    ]
    result = packed(Trace.of("t", jobs), one, mode="powerflow", migration_s=60.0)
    pace = [0.01 + 0.99 / 4, 0.01 + 0.99 / 8]
    short_end = 1000 * pace[0]
    assert result.end_s[1] == pytest.approx(short_end)
    done = short_end / pace[0]
    assert result.end_s[0] == pytest.approx(short_end + 60 + (10_000 - done) * pace[1])
    assert result.migrations.tolist() == [1, 0]


def test_a_job_that_is_not_elastic_keeps_its_size():
    result = packed(moldable(2, elastic=False), mode="powerflow", power=replace(POWER, eta=0.6))
    assert result.done.all()
    sizes = {}
    for placed in result.placements:
        sizes.setdefault(placed["job_id"], set()).add(sum(map(len, placed["slots"])))
    assert all(len(each) == 1 for each in sizes.values())
    assert {size for each in sizes.values() for size in each} > {1}


def test_zeus_keeps_sizes_and_lowers_clocks():
    asked = packed(moldable(3), mode="as-asked")
    zeus = packed(moldable(3), mode="zeus")
    assert [p["job_id"] for p in asked.placements] == [p["job_id"] for p in zeus.placements]
    assert zeus.energy.job_j.sum() < 0.95 * asked.energy.job_j.sum()
    assert (zeus.run_s > asked.run_s).all()
