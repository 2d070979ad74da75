"""Runs of the stochastic scheduler's experiment: schedulers, cases, their outcomes."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from sts_baselines import average, conditional, dynamic_programming, edf, longest, random_greedy
from sts_instances import (
    ARRIVALS,
    CLUSTERS,
    PAPER,
    Network,
    Setting,
    instance,
    paper_networks,
)
from sts_simulation import Outcome, Scheduler, simulate, sts

OURS = "STS"
ANEW = "STS, all jobs placed anew"
REVISES = "EDF, all sizes anew"
FASTEST = "EDF, always the fastest size"
ADAPTIVE = "EDF, mean given what is done"
MADE: Mapping[str, Callable[[], Scheduler]] = {
    OURS: lambda: sts(keeps=True),
    ANEW: lambda: sts(keeps=False),
    "EDF": lambda: edf(longest, keeps=True),
    "RG": lambda: random_greedy(longest, 0),
    "DP": lambda: dynamic_programming(longest),
    "avgEDF": lambda: edf(average, keeps=True),
    "avgRG": lambda: random_greedy(average, 0),
    "avgDP": lambda: dynamic_programming(average),
    ADAPTIVE: lambda: edf(conditional),
    REVISES: lambda: edf(longest),
    FASTEST: lambda: edf(longest, fastest=True),
}


NETWORKS = tuple(paper_networks())


@dataclass(frozen=True)
class Case:
    """One run."""

    scheduler: str
    cluster: str
    arrivals: str
    nodes: int
    seed: int
    networks: tuple[Network, ...] = NETWORKS
    setting: Setting = PAPER


def outcome(case: Case) -> Outcome:
    """Simulate a case; the same seed gives the same instance for each scheduler."""
    rng = np.random.default_rng([case.seed, case.nodes, ARRIVALS.index(case.arrivals)])
    models = CLUSTERS[case.cluster]
    made = instance(case.networks, models, case.nodes, case.arrivals, rng, case.setting)
    return simulate(made, MADE[case.scheduler]())


class Results:
    """Outcomes of cases, simulated once each."""

    def __init__(self, processes: int | None) -> None:
        self.processes = processes
        self.known: dict[Case, Outcome] = {}

    def run(self, what: str, cases: Sequence[Case]) -> None:
        started = time.perf_counter()
        new = [case for case in dict.fromkeys(cases) if case not in self.known]
        new.sort(key=lambda case: -case.nodes)
        if self.processes == 1:
            found = [outcome(case) for case in new]
        else:
            with ProcessPoolExecutor(self.processes) as pool:
                found = list(pool.map(outcome, new))
        self.known |= dict(zip(new, found, strict=True))
        took = time.perf_counter() - started
        print(f"{what}: {len(new)} runs in {took:.0f} s", file=sys.stderr, flush=True)

    def ratios(self, cases: Sequence[Case], name: str, what: str) -> list[float]:
        """Cost of a scheduler over that of ours, for each case of ours."""
        return [
            float(getattr(self.known[replace(case, scheduler=name)], what))
            / float(getattr(self.known[case], what))
            for case in cases
        ]

    def late(self, cases: Sequence[Case], name: str = OURS) -> float:
        """Mean share of jobs that end late."""
        return float(np.mean([self.known[replace(case, scheduler=name)].late for case in cases]))


def cases_of(
    size: tuple[int, int],
    clusters: Iterable[str] = CLUSTERS,
    arrivals: Iterable[str] = ARRIVALS,
    networks: tuple[Network, ...] = NETWORKS,
    setting: Setting = PAPER,
) -> list[Case]:
    """Cases of our scheduler; ``size``: nodes, instances of each kind."""
    nodes, count = size
    kinds = product(clusters, arrivals, range(count))
    return [Case(OURS, c, a, nodes, seed, networks, setting) for c, a, seed in kinds]


def reduction(ratio: float) -> float:
    """Percentage cost reduction from a ratio of costs."""
    return 1 - 1 / ratio
