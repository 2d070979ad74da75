"""Input of PAL's reproductions: traces, profiles, drawn clusters; comparison of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import between, gain, geomean, percent, run, shared
from common import synthetic_timings as made_up

from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import (
    SimulatedSite,
    Timings,
    draw_scores,
    read_timings,
    synthetic_site,
    with_scores,
)
from slurm_gpu_aware.simulator.trace import Trace, poisson_trace, read_csv

CLASSES = ("A", "B", "C", "D")
APPS = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
"""Profile of each class in the authors' simulator."""
BASE = SimSettings(round_s=300.0, migration_s=0.0, classes=CLASSES)
PAL, PM, STICKY, LOOSE = "pal:non-sticky", "pm-first:non-sticky", "packed", "packed:non-sticky"
"""PAL and PM-First as published: each round places all jobs anew."""
PAL_STAYS = "pal"
"""Sticky PAL: a job keeps its GPUs, as on Slurm."""
WORDS = {
    STICKY: "packed, sticky (Tiresias)",
    LOOSE: "packed, non-sticky (Gandiva)",
    PM: "PM-First, non-sticky, as published",
    "pm-first": "PM-First, sticky",
    PAL: "PAL, non-sticky, as published",
    PAL_STAYS: "PAL, sticky",
}
PENALTY = 1.5
SLOW = 1.5
"""A GPU above this score is a slow one: no median over a GPU's runs comes near it."""
THEIRS = (2.7, 2.95)
"""The slowest GPU of the authors' draw is at 2.83."""
_SIA = "traces/sia-philly/pal/workload-{}.csv"
_SYNERGY = "traces/philly/synergy-like-{}.csv"


@dataclass(frozen=True)
class Size:
    """Size of a run."""

    traces: int = 8
    draws: int = 28
    """Beside the one that is like the authors'."""
    penalties: tuple[float, ...] = (1.0, 2.0, 3.0)
    loads: tuple[int, ...] = (8, 10, 12)
    clusters: int = 8
    """Draws of the large cluster."""
    anew: tuple[int, ...] = (10,)
    """Loads at which PAL places all jobs anew, too; 20 s of CPU time for each run."""
    anew_jobs: int = 1000
    """First jobs of the trace that these runs have."""
    orders: tuple[str, ...] = ("fifo", "las", "srtf")
    jobs: int = 160
    """Of a synthetic trace like Sia-Philly."""
    synergy_jobs: int = 4000
    """Of a synthetic trace like Synergy's."""


FULL = Size()
QUICK = Size(3, 5, (1.0, 3.0), (8,), 2, (), 200, ("fifo",))


def _needed(size: Size) -> list[str]:
    apps = sorted(set(APPS.values()))
    return [
        *(_SIA.format(i) for i in range(1, size.traces + 1)),
        *(_SYNERGY.format(load) for load in size.loads),
        *(f"variability/{site}_{app}.csv" for site in ("longhorn", "frontera") for app in apps),
        *(f"variability/runs/longhorn_{app}_runs.csv" for app in apps),
    ]


class Bench:
    """Traces and profiles, and their runs."""

    def __init__(self, size: Size, processes: int | None) -> None:
        self.data = shared(*_needed(size))
        self.size = size
        self.processes = processes
        self.traces = self._traces()

    def _traces(self) -> list[Trace]:
        if self.data is None:
            sizes = {1: 0.4, 4: 0.1, 6: 0.1, 8: 0.1, 12: 0.1, 16: 0.1, 24: 0.05, 32: 0.05}
            return [
                poisson_trace(self.size.jobs, 32.0, seed=seed, sizes=sizes, classes=CLASSES)
                for seed in range(self.size.traces)
            ]
        return [
            read_csv(self.data / _SIA.format(i), class_column="class_code")
            for i in range(1, self.size.traces + 1)
        ]

    def synergy(self, load: int) -> Trace:
        """The Synergy-like trace with this number of jobs per hour."""
        if self.data is None:
            sizes = {1: 0.945, 2: 0.02, 4: 0.02, 8: 0.015}
            return poisson_trace(self.size.synergy_jobs, load, seed=load, sizes=sizes)
        return read_csv(self.data / _SYNERGY.format(load), class_column="class_code")

    def profile(self, site: str, *, runs: bool = False) -> dict[str, Timings]:
        """Class -> timings of a site's GPUs (medians, or single runs)."""
        if self.data is None:
            slow = {"resnet": 0.014, "bert": 0.005, "pagerank": 0.0}
            made = {
                app: made_up(app, s, slow[app] if runs else 0, i)
                for i, (app, s) in enumerate(
                    (("resnet", 0.03), ("bert", 0.01), ("pagerank", 0.005))
                )
            }
            return {name: made[app] for name, app in APPS.items()}
        folder = self.data / "variability"
        path = folder / "runs" if runs else folder
        end = "_runs.csv" if runs else ".csv"
        return {name: read_timings(path / f"{site}_{app}{end}") for name, app in APPS.items()}

    def site(
        self,
        profile: Mapping[str, Timings] | None,
        how: str = "gpus",
        seed: int = 0,
        nodes: int = 16,
    ) -> SimulatedSite:
        """64 GPUs (or more), 4 per node, with drawn scores; None: all equal."""
        base = synthetic_site(
            nodes, 4, penalties={"node": 1.0, "cluster": PENALTY}, same_indices=False
        )
        if profile is None:
            return base
        return with_scores(base, draw_scores(profile, base.cluster.exists, how, seed))

    def like_theirs(self, profile: Mapping[str, Timings]) -> tuple[int, SimulatedSite]:
        """The first draw with exactly one GPU above ``SLOW``, and that one near 2.83x."""
        exists = self.site(None).cluster.exists
        for seed in range(2000):
            scores = draw_scores({"A": profile["A"]}, exists, "runs", seed).scores["A"]
            if (scores > SLOW).sum() == 1 and THEIRS[0] <= scores.max() <= THEIRS[1]:
                return seed, self.site(profile, "runs", seed)
        raise SystemExit("no draw with one GPU near 2.83x among 2000")

    def grid(
        self,
        what: str,
        sites: Sequence[SimulatedSite],
        policies: Sequence[str],
        base: SimSettings,
        every: int = 1,
    ) -> list[Found]:
        """Per site: policy -> results of all traces, or of every n-th trace."""
        traces = self.traces[::every]
        runs = [
            Run(t, s.cluster, s.truth, parse_policy(p, base))
            for s in sites
            for p in policies
            for t in traces
        ]
        found = iter(run(what, runs, self.processes))
        return [{p: [next(found) for _ in traces] for p in policies} for _ in sites]


Found = dict[str, list[Result]]
"""Policy -> results, one per trace."""


def penalised(site: SimulatedSite, penalty: float) -> SimulatedSite:
    """The same cluster with another L."""
    node, across = site.cluster.levels
    levels = (node, replace(across, penalty=penalty))
    return replace(site, cluster=replace(site.cluster, levels=levels))


def slowest(site: SimulatedSite) -> int:
    """Row of the node with the GPU that is slowest for class A."""
    return int(site.truth["A"].max(axis=1).argmax())


def exchanged(site: SimulatedSite, one: int, other: int) -> SimulatedSite:
    """The same cluster with the scores of two nodes exchanged."""
    rows = np.arange(len(site.cluster.nodes))
    rows[[one, other]] = other, one
    scores = {name: values[rows] for name, values in site.cluster.scores.items()}
    truth = {name: values[rows] for name, values in site.truth.items()}
    return replace(site, cluster=replace(site.cluster, scores=scores), truth=truth)


def average(result: Result) -> float:
    """Average JCT, s."""
    return float(result.jct_s().mean())


def of_several_gpus(result: Result) -> float:
    """Average JCT of the jobs of two GPUs and more, s."""
    several = np.array([job.gpus > 1 for job in result.trace.jobs])
    return float(result.jct_s(several).mean())


def gains(
    found: Mapping[str, list[Result]],
    ours: str,
    theirs: str,
    value: Callable[[Result], float] = average,
) -> list[float]:
    """Gain of a policy over another in average JCT, or another value, of each trace."""
    pairs = zip(found[ours], found[theirs], strict=True)
    return [gain(value(a), value(b)) for a, b in pairs]


def together(shares: Iterable[float]) -> float:
    """Geometric mean of gains."""
    return gain(geomean(1.0 - share for share in shares), 1.0)


def better(
    found: Mapping[str, list[Result]],
    ours: str,
    theirs: str,
    value: Callable[[Result], float] = average,
) -> float:
    """Gain of a policy over another, as of `gains`: geometric mean over traces."""
    return together(gains(found, ours, theirs, value))


def spread(shares: Iterable[float]) -> str:
    """``1.5% (1.0% to 2.0%)``: geometric mean and range of gains."""
    values = list(shares)
    return f"{percent(together(values))} ({between(values)})"


def shorter(found: Mapping[str, list[Result]], ours: str, theirs: str) -> float:
    """Gain in makespan, likewise."""
    pairs = zip(found[ours], found[theirs], strict=True)
    return together(gain(a.makespan_s(), b.makespan_s()) for a, b in pairs)


def largest_is_slow(results: Sequence[Result]) -> int:
    """Traces in which the job with the most GPU time ran at more than ``SLOW`` x L on average.

    Without the slow GPU no job does.
    """
    count = 0
    for result in results:
        jobs = result.trace.jobs
        big = max(range(len(jobs)), key=lambda i: jobs[i].gpus * jobs[i].duration_s)
        count += bool(result.run_s[big] / jobs[big].duration_s > SLOW * PENALTY)
    return count
