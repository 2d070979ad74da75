"""Whether a user who games the order of the queue gains: splits, renames, understates limits.

python benchmarks/reproduce/cheats.py [--quick] [--write]    about 5 minutes on an idle core
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import (
    arguments,
    finish,
    geomean,
    paragraph,
    percent,
    run,
    standard_error,
    table,
)

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.queue_order.simulated import RunOrder
from slurm_gpu_aware.features.queue_order.stage import OrderRule
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.slurm.multifactor import Multifactor

ORDERS = ("slurm", "backfill", "expected=0.1", "expected=1")
SITE = Cluster.uniform([f"n{i}" for i in range(8)], 8, locality_penalty=1.0)
SHARES = Multifactor(weight_age=10_000.0, weight_fairshare=1000.0)
"""All of the fair share is worth 17 hours of age."""
BASE = SimSettings(
    policy="packed",
    order="multifactor",
    multifactor=SHARES,
    backfill=True,
).put(RunEstimates("history"), RunOrder(OrderRule(age_per_s=SHARES.age_per_s)))
USERS, NAMES = 10, 4
CHEAT = "u0"
PARTS = 4
RESTART_S = 60.0
"""What each part of a job costs that is not the first."""
LOOSE = (1.8, 5.4)
"""Time limits are such multiples of the work."""
TURNS = 4
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
    jobs: int = 200
    per_hour: float = 24.0


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


class Play:
    """The jobs of a draw under one order, with one user who cheats in one way."""

    def __init__(self, jobs: Sequence[TraceJob], cheat: Cheat, order: str) -> None:
        self.settings = parse_policy(f"packed@{order}", BASE)
        self.chains = [cheat(job) if job.user == CHEAT else [job] for job in jobs]
        self.end_s: Mapping[str, float] = {}
        self.moved_s = np.inf
        """How far the last run moved a submission."""

    def next(self) -> Run:
        """The run with the parts submitted as the last run's ends say."""
        parts = [part for chain in self.chains for part in chain]
        return Run(Trace.of("cheats", parts), SITE, {}, self.settings)

    def take(self, result: Result) -> None:
        """Note the ends, and submit each part at that of the one before it."""
        ends = zip(result.trace.jobs, result.end_s.tolist(), strict=True)
        self.end_s = {job.job_id: at_s for job, at_s in ends}
        self.moved_s = 0.0
        for chain in self.chains:
            for n, before in enumerate(chain[:-1], 1):
                at_s = self.end_s[before.job_id]
                self.moved_s = max(self.moved_s, abs(at_s - chain[n].submit_s))
                chain[n] = replace(chain[n], submit_s=at_s)

    def completion_s(self, *, cheat: bool) -> float:
        """Average completion time of the work of the cheat, or of all others."""
        chains = [chain for chain in self.chains if (chain[0].user == CHEAT) == cheat]
        took = [self.end_s[chain[-1].job_id] - chain[0].submit_s for chain in chains]
        return float(np.mean(took))


def play(plays: Sequence[Play], processes: int | None) -> None:
    """Run all until their submissions stay."""
    for turn in range(TURNS):
        left = [one for one in plays if one.moved_s > 1.0]
        if left:
            results = run(f"turn {turn + 1}", [one.next() for one in left], processes)
            for one, result in zip(left, results, strict=True):
                one.take(result)


def section(count: Count, processes: int | None) -> str:
    """Run everything; the section of the page."""
    ways = {"honest": honest, **CHEATS}
    draws = [workload(count, seed) for seed in range(count.draws)]
    plays = {
        (order, way): [Play(jobs, cheat, order) for jobs in draws]
        for order in ORDERS
        for way, cheat in ways.items()
    }
    play([one for some in plays.values() for one in some], processes)
    rows = []
    for (order, way), cheats in plays.items():
        if way == "honest":
            continue
        cells = []
        for cheat in (True, False):
            pairs = zip(cheats, plays[order, "honest"], strict=True)
            ratios = [a.completion_s(cheat=cheat) / b.completion_s(cheat=cheat) for a, b in pairs]
            cells.append(f"{percent(1.0 - geomean(ratios))} ± {standard_error(np.log(ratios))}")
        rows.append((order, way, *cells))
    part = "" if count == Count() else " (a part of the runs)"
    return "\n\n".join(
        [
            f"## Users who game the order{part}",
            paragraph(
                f"Gain of one of {USERS} users, in average completion time of its work, over its "
                "own honest run of the same jobs, and what all others gain by it (geometric mean "
                f"and standard error over {count.draws} draws of {count.jobs} jobs on 64 GPUs, "
                f"{count.per_hour:g} an hour). All of the fair share is worth 17 h of age. EASY, "
                "run times from history. Splits: "
                f"{PARTS} parts, one after the other, each with its share of the limit. Renames: "
                "each job has a name of its own. Understates: the limit is "
                f"{1 / (PARTS - 0.5):.0%} of the work; the job is killed, and what is left is "
                f"submitted again. A part that is not the first costs {RESTART_S:g} s."
            ),
            table(["order", "cheat", "gain of the cheat", "gain of all others"], rows),
        ]
    )


QUICK = Count(1, 100)


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(QUICK if options.quick else Count(), options.processes)
    finish("cheats", text, write=options.write)


if __name__ == "__main__":
    main()
