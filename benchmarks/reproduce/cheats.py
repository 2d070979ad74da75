"""Whether a user who games the order of the queue gains: splits, renames, understates limits.

python benchmarks/reproduce/cheats.py [--quick] [--write]    about 4 minutes on an idle core
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.multifactor import Multifactor
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

ORDERS = ("slurm", "backfill", "expected=0.1", "expected=1")
SITE = Cluster.uniform([f"n{i}" for i in range(8)], 8, locality_penalty=1.0)
SHARES = Multifactor(weight_age=1000.0, weight_fairshare=1000.0)
BASE = SimSettings(
    order="multifactor", multifactor=SHARES, backfill=True, estimate="history", policy="packed"
)
USERS, NAMES = 10, 4
CHEAT = "u0"
PARTS = 4
RESTART_S = 60.0
"""What each part of a job costs that is not the first."""
LOOSE = (1.8, 5.4)
"""Time limits are such multiples of the work."""
TURNS = 8
"""Runs until the submissions of later parts, which follow from the ends of earlier ones, stay."""

Parts = list[TraceJob]
"""One after the other: a part is submitted when the one before has ended."""
Cheat = Callable[[TraceJob], Parts]


def honest(job: TraceJob) -> Parts:
    """The job as it is."""
    return [job]


def splits(job: TraceJob) -> Parts:
    """Equal parts, with the same share of the limit."""
    parts = []
    for n in range(PARTS):
        restart_s = RESTART_S if n else 0.0
        limit_s = job.time_limit_s / PARTS + restart_s
        parts.append(_part(job, n, job.duration_s / PARTS + restart_s, limit_s, f"{job.name}.{n}"))
    return parts


def renames(job: TraceJob) -> Parts:
    """A name of its own, so that no earlier run has it."""
    return [replace(job, name=f"{job.name}.{job.job_id}")]


def understates(job: TraceJob) -> Parts:
    """A limit far below the work; what is left is submitted again from a checkpoint."""
    parts, left_s, limit_s = Parts(), job.duration_s, job.duration_s / (PARTS - 0.5)
    for n in range(PARTS):
        restart_s = RESTART_S if n else 0.0
        parts.append(_part(job, n, left_s + restart_s, limit_s + restart_s, job.name))
        left_s -= limit_s
    return parts


def _part(job: TraceJob, n: int, work_s: float, limit_s: float, name: str | None) -> TraceJob:
    part_id = f"{job.job_id}_{n}"
    return replace(job, job_id=part_id, duration_s=work_s, time_limit_s=limit_s, name=name)


CHEATS: Mapping[str, Cheat] = {
    "splits": splits, "renames": renames, "understates": understates
}  # fmt: skip


@dataclass(frozen=True)
class Count:
    """Number of draws and jobs."""

    draws: int = 4
    jobs: int = 400
    per_hour: float = 32.0


def workload(count: Count, seed: int) -> list[TraceJob]:
    """Jobs of users with programs of their own; a program's run times scatter."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(3600.0 / count.per_hour, count.jobs))
    typical_s = 60.0 * 10.0 ** rng.uniform(1.2, 2.8, (USERS, NAMES))
    jobs = []
    for i, submit_s in enumerate(at_s.tolist()):
        user, name = int(rng.integers(USERS)), int(rng.integers(NAMES))
        work_s = float(typical_s[user, name] * np.exp(rng.normal(0.0, 0.4)))
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.6, 0.15, 0.15, 0.1]))
        jobs.append(
            TraceJob(
                *(str(i), submit_s, gpus, work_s),
                time_limit_s=work_s * float(rng.uniform(*LOOSE)),
                user=f"u{user}",
                account=f"a{user // 2}",
                name=f"p{name}",
            )
        )
    return jobs


def completion_s(
    jobs: Sequence[TraceJob], cheat: Cheat, settings: SimSettings, simulate: Callable[[Run], Result]
) -> tuple[float, float]:
    """Average completion time of the cheat's work, and of all others' jobs."""
    chains = [cheat(job) if job.user == CHEAT else [job] for job in jobs]
    for turn in range(TURNS):
        parts = [part for chain in chains for part in chain]
        result = simulate(Run(Trace.of("cheats", parts), SITE, {}, settings))
        ends = zip(result.trace.jobs, result.end_s.tolist(), strict=True)
        end_s = {job.job_id: at_s for job, at_s in ends}
        moved = 0.0
        for chain in chains:
            for n, before in enumerate(chain[:-1], 1):
                at_s = end_s[before.job_id]
                moved = max(moved, abs(at_s - chain[n].submit_s))
                chain[n] = replace(chain[n], submit_s=at_s)
        if moved < 1.0 or turn == TURNS - 1:
            break
    took: dict[bool, list[float]] = {True: [], False: []}
    for chain in chains:
        took[chain[0].user == CHEAT].append(end_s[chain[-1].job_id] - chain[0].submit_s)
    return float(np.mean(took[True])), float(np.mean(took[False]))
