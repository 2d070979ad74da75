"""PowerFlow's allocator against exhaustive search, and against Algorithm 1 as printed.

Run ``python benchmarks/reproduce/powerflow_sizes.py [--quick] [--write]``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from algorithm1 import algorithm1
from common import arguments, finish, paragraph, percent, table

from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.model.size_table import SizeTable

GPUS, CLOCKS = (1, 2, 4), (800, 1000, 1200, 1400)
IDLE_W, MAX_W = 40.0, 260.0
Case = tuple[list[SizingJob], int, float]


def training_table(rng: np.random.Generator) -> SizeTable:
    """A curve as of a training job: a part that clocks do not change, and synchronisation."""
    n, f = np.array(GPUS)[:, None], np.array(CLOCKS)[None, :]
    memory, sync = rng.uniform(0, 0.7), rng.uniform(0, 0.4)
    time_s = (memory + (1 - memory) * CLOCKS[-1] / f) / n + sync * np.log2(n)
    volts = np.maximum(0.8, f / CLOCKS[-1])
    each_w = 60 + rng.uniform(120, 240) * volts**2 * f / CLOCKS[-1]
    power_w = n * each_w * (1 - 0.1 * np.log2(n))
    return SizeTable(np.array(GPUS), np.array(CLOCKS), rng.uniform(0.5, 2) * time_s, power_w)


def random_table(rng: np.random.Generator) -> SizeTable:
    """Numbers without any shape: the worst that a table can be."""
    shape = (len(GPUS), len(CLOCKS))
    power_w = rng.uniform(50, 300, shape) * np.array(GPUS)[:, None]
    return SizeTable(np.array(GPUS), np.array(CLOCKS), rng.uniform(0.2, 2, shape), power_w)


def cases(curves: Callable[[np.random.Generator], SizeTable], count: int) -> list[Case]:
    """2 to 4 jobs on 4 to 10 GPUs with a limit of 40 to 110% of their power."""
    found: list[Case] = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        jobs = [
            SizingJob(str(i), GPUS, 300.0, curves(rng), work=float(rng.lognormal()))
            for i in range(rng.integers(2, 5))
        ]
        gpus = int(rng.integers(4, 11))
        found.append((jobs, gpus, float(rng.uniform(0.4, 1.1)) * gpus * MAX_W))
    return found


def optimum_s(jobs: Sequence[SizingJob], gpus: int, limit_w: float, *, rule: bool) -> float:
    """Least sum of times, of all sizes and clocks; ``rule``: no clock below the efficient one."""
    choices = []
    for job in jobs:
        assert job.table is not None
        time_s, power_w = job.work * job.table.time_s, job.table.power_w
        choices.append(
            [
                (size, float(power_w[row, column]), float(time_s[row, column]))
                for row, size in enumerate(job.sizes)
                for column in range(int(np.argmin(time_s[row] * power_w[row])) * rule, len(CLOCKS))
            ]
        )
    best = math.inf
    for chosen in product(*choices):
        used = sum(c[0] for c in chosen)
        if used <= gpus:
            drawn_w = sum(c[1] for c in chosen) + (gpus - used) * IDLE_W
            if drawn_w <= limit_w:
                best = min(best, sum(c[2] for c in chosen))
    return best


def total_s(case: Case) -> float:
    """Sum of times of our allocator; NaN: a job waits."""
    jobs, gpus, limit_w = case
    found = allocate(jobs, gpus, limit_w, idle_w=IDLE_W)
    assert found.power_w <= limit_w or not any(one.gpus for one in found.jobs.values())
    return sum(job.work * found.jobs[job.job_id].time_s for job in jobs)


def printed_s(case: Case, divisor: str) -> float:
    """Sum of times of Algorithm 1 as printed."""
    jobs, gpus, limit_w = case
    return sum(time_s for _, time_s, _ in algorithm1(jobs, gpus, limit_w, IDLE_W, divisor).values())


def gaps(some: Sequence[Case]) -> Mapping[str, list[float]]:
    """Times above the optimum's, as shares of it; of cases in which all jobs start."""
    found: dict[str, list[float]] = {
        "best sizes, clocks from the most efficient one up": [],
        "`features/power/powerflow.py`": [],
        "Algorithm 1, gain divided by power": [],
        "Algorithm 1, gain divided by energy": [],
    }
    for case in some:
        if math.isnan(ours := total_s(case)):
            continue
        best = optimum_s(*case, rule=False)
        values = (
            optimum_s(*case, rule=True),
            ours,
            printed_s(case, "power"),
            printed_s(case, "energy"),
        )
        for row, value in zip(found.values(), values, strict=True):
            row.append(value / best - 1)
    return found


def section(count: int) -> str:
    """The section of the page."""
    parts = []
    for title, curves in (
        ("curves of training jobs", training_table),
        ("random numbers", random_table),
    ):
        found = gaps(cases(curves, count))
        rows = [
            (
                name,
                percent(float(np.mean(values))),
                percent(float(np.quantile(values, 0.9))),
                percent(max(values)),
                percent(float(np.mean(np.array(values) < 1e-9))),
            )
            for name, values in found.items()
        ]
        head = (f"{title}, {len(next(iter(found.values())))} cases", "mean")
        parts.append(table((*head, "9 of 10 below", "worst", "optimal"), rows))
    return "\n\n".join(
        (
            "## PowerFlow: allocator",
            paragraph(
                "Sum of the times of the work left, above the least one of all sizes and clocks",
                "that keep the limit (exhaustive search): 2 to 4 jobs of 1, 2 or 4 GPUs and 4",
                f"clocks on 4 to 10 GPUs, limits of 40% to 110% of {MAX_W:.0f} W a GPU; cases in",
                "which all jobs start. None exceeds its limit.",
            ),
            *parts,
            paragraph(
                "The first row is the price of the rule that no job starts below its most",
                "efficient clock; all other rows share it. Algorithm 1 spends power on GPUs first",
                "and on clocks then; ours tries each number of GPU steps with the clocks that it",
                "leaves power for. A gain divided by energy does not know how scarce power is.",
            ),
        )
    )


if __name__ == "__main__":
    options = arguments(__doc__ or "")
    finish("powerflow_sizes", section(40 if options.quick else 600), write=options.write)
