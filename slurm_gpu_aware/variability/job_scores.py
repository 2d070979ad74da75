"""Scores of GPUs from finished jobs: how long jobs ran on them, against jobs of the same kind.

They are weaker than a sweep's: input data differ from job to job, and a job on several GPUs is as
slow as the slowest one, which is not known. So they are shown beside the sweep's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from slurm_gpu_aware.model.profile import Gpu

FEWEST_JOBS = 3


class JobRun(NamedTuple):
    """A finished job."""

    app_class: str
    kind: Hashable
    """Jobs of one kind do the same work: same user, name, number of GPUs and nodes, model."""
    gpus: Sequence[Gpu]
    run_s: float
    """> 0"""


class JobScore(NamedTuple):
    """Score of a GPU from jobs."""

    node: str
    slot: int
    app_class: str
    score: float
    """Median over the jobs of run time over the median of the kind; 1.1 = 10% slower."""
    jobs: int


def job_scores(runs: Iterable[JobRun]) -> list[JobScore]:
    """Scores of the GPUs with 3 jobs or more of a class, of kinds with 3 jobs or more.

    The run time of a job counts for each of its GPUs. Sorted by class, node and GPU.
    """
    kinds: dict[Hashable, list[JobRun]] = {}
    for run in runs:
        kinds.setdefault((run.app_class, run.kind), []).append(run)
    ratios: dict[tuple[str, str, int], list[float]] = {}
    for own in kinds.values():
        if len(own) < FEWEST_JOBS:
            continue
        middle = median(run.run_s for run in own)
        for run in own:
            for node, slot in run.gpus:
                ratios.setdefault((run.app_class, node, slot), []).append(run.run_s / middle)
    return [
        JobScore(node, slot, app_class, median(found), len(found))
        for (app_class, node, slot), found in sorted(ratios.items())
        if len(found) >= FEWEST_JOBS
    ]
