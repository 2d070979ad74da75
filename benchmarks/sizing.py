"""Time of sizing: PowerFlow's allocator against Algorithm 1 with two heaps, and AFS.

Run ``python benchmarks/sizing.py``. Target: 10,000 jobs on 10,000 GPUs in 1 s (issue 22).
"""

import time
from collections.abc import Callable

import numpy as np
from reproduce.algorithm1 import algorithm1

from slurm_gpu_aware.features.baselines.afs_and_zeus import afs
from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.model.size_table import SizeTable

SIZES = (1, 2, 4, 8, 16)
CLOCKS = np.arange(510, 1411, 15)
IDLE_W, MAX_W, TARGET_S = 50.0, 300.0, 1.0


def jobs_of(count: int, tables: int, running: float = 0.0) -> list[SizingJob]:
    """Jobs of so many applications; a share of them runs and keeps its GPU."""
    rng = np.random.default_rng(1)
    n, f = np.array(SIZES)[:, None], CLOCKS[None, :]
    shared = []
    for _ in range(tables):
        memory, sync = rng.uniform(0.1, 0.7), rng.uniform(0, 0.2)
        time_s = (memory + (1 - memory) * CLOCKS[-1] / f) / n + sync * np.log2(n)
        each_w = 70 + rng.uniform(150, 230) * np.maximum(0.7, f / CLOCKS[-1]) ** 2 * f / CLOCKS[-1]
        shared.append(SizeTable(np.array(SIZES), CLOCKS, time_s, n * each_w))
    return [
        SizingJob(
            str(i),
            SIZES[:1] if runs else SIZES,
            MAX_W,
            shared[rng.integers(tables)],
            work=float(rng.lognormal(8, 1)),
            order=float(i),
            must_run=bool(runs),
        )
        for i, runs in enumerate(rng.random(count) < running)
    ]


def best_s(action: Callable[[], object], repetitions: int = 3) -> float:
    """Least time of some calls."""
    spent = []
    for _ in range(repetitions):
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return min(spent)


def main() -> None:
    """Print the table."""
    print(f"{'jobs':>7}{'GPUs':>8}{'tables':>8}{'runs':>6}{'eta':>6}{'allocate, s':>13}", end="")
    print(f"{'two heaps, s':>14}{'ratio':>8}  of the target")
    for count, gpus, tables, running, etas in (
        (100, 400, 20, 0.0, (0.3, 0.6, 0.9)),
        (1000, 4000, 50, 0.0, (0.3, 0.6, 0.9)),
        (10_000, 10_000, 50, 0.0, (0.3, 0.6, 0.9)),
        (10_000, 10_000, 50, 0.8, (0.6,)),
        (10_000, 40_000, 50, 0.0, (0.6,)),
        (10_000, 10_000, 1000, 0.0, (0.6,)),
    ):
        jobs = jobs_of(count, tables, running)
        for eta in etas:
            limit_w = eta * gpus * MAX_W
            ours = best_s(lambda: allocate(jobs, gpus, limit_w, idle_w=IDLE_W))  # noqa: B023
            heaps = best_s(lambda: algorithm1(jobs, gpus, limit_w, IDLE_W), 1)  # noqa: B023
            share = f"{ours / TARGET_S:.2f}" if count == 10_000 else ""
            print(
                f"{count:>7,}{gpus:>8,}{tables:>8,}{running:>6.0%}{eta:>6}{ours:>13.3f}"
                f"{heaps:>14.3f}{heaps / ours:>8.1f}  {share}",
                flush=True,
            )
    jobs = jobs_of(1000, 50)
    spent = {
        sizing: best_s(lambda: sizing(jobs, 1500, idle_w=IDLE_W), 1)  # noqa: B023
        for sizing in (allocate, afs)
    }
    print(
        f"\n1,000 jobs on 1,500 GPUs: allocate {spent[allocate]:.3f} s, AFS {spent[afs]:.3f} s, "
        f"ratio {spent[afs] / spent[allocate]:.1f}"
    )


if __name__ == "__main__":
    main()
