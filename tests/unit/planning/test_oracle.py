"""Distance from the optimum on small instances: exhaustive search over orders and sets."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

PAGE = Path(__file__).parents[3] / "docs" / "policies" / "eft.md"
INSTANCES = 40
POLICIES = ("packed", "pal", "eft")


def instance(seed):
    """Two nodes of 2 to 4 GPUs and 3 to 6 jobs of 1 GPU to a node; GPUs of 1.0, 1.1 and 1.5."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 5))
    scores = rng.choice([1.0, 1.1, 1.5], (2, width), p=[0.5, 0.3, 0.2])
    cluster = Cluster.uniform(2, width, scores={"B": scores}, same_indices=False)
    jobs, at = [], 0.0
    for number in range(int(rng.integers(3, 7))):
        at += float(rng.exponential(600.0))
        gpus = int(rng.integers(1, width + 1))
        jobs.append(TraceJob(str(number), at, gpus, float(rng.integers(600, 7200))))
    return Trace.of(f"oracle-{seed}", jobs), cluster


class Optimum:
    """Least sum of ends: branch and bound over orders of start and sets, idling allowed.

    Jobs in order of their starts, each as soon as its GPUs are free: some optimal schedule has this
    form, because an earlier start delays no job.
    """

    def __init__(self, trace, cluster, best):
        n, width = cluster.shape
        self.gpus = [(node, slot) for node in range(n) for slot in range(width)]
        self.score = [float(cluster.score("B")[gpu]) for gpu in self.gpus]
        self.jobs = trace.jobs
        self.best = best
        self.sets = {}
        for count in {job.gpus for job in self.jobs}:
            self.sets[count] = [
                (chosen, self._slowdown(cluster, chosen))
                for chosen in combinations(range(len(self.gpus)), count)
            ]
        self.fastest = {count: min(v for _, v in sets) for count, sets in self.sets.items()}

    def _slowdown(self, cluster, chosen):
        on = {}
        for node, slot in (self.gpus[g] for g in chosen):
            on.setdefault(node, []).append(slot)
        return predicted_slowdown(cluster, "B", list(on), list(on.values()))[2]

    def search(self, left, free, last, total):
        if not left:
            self.best = min(self.best, total)
            return
        bound, order = total, sorted(free)
        for at in left:
            job = self.jobs[at]
            start = max(job.submit_s, last, order[job.gpus - 1])
            bound += start + job.duration_s * self.fastest[job.gpus]
        if bound >= self.best - 1e-6:
            return
        for at in left:
            job, tried = self.jobs[at], set()
            options = []
            for chosen, slowdown in self.sets[job.gpus]:
                start = max(job.submit_s, last, *(free[g] for g in chosen))
                options.append((start + job.duration_s * slowdown, start, chosen))
            for end, start, chosen in sorted(options):
                key = tuple(sorted((self.gpus[g][0], self.score[g], free[g]) for g in chosen))
                if key in tried:
                    continue
                tried.add(key)
                after = list(free)
                for g in chosen:
                    after[g] = end
                self.search([other for other in left if other != at], after, start, total + end)


def distances(seed):
    """Policy -> mean completion time over the least possible one, less 1."""
    trace, cluster = instance(seed)
    submitted = sum(job.submit_s for job in trace.jobs)
    ends = {}
    for policy in POLICIES:
        settings = SimSettings(policy=policy, backfill=True).put(RunEstimates("exact"))
        result = simulate(trace, cluster, settings)
        assert result.done.all()
        ends[policy] = float(result.end_s.sum())
    search = Optimum(trace, cluster, min(ends.values()) + 1e-3)
    search.search(list(range(len(trace.jobs))), [0.0] * len(search.gpus), 0.0, 0.0)
    least = search.best
    return {p: (end - submitted) / (least - submitted) - 1.0 for p, end in ends.items()}


@pytest.fixture(scope="module")
def found():
    every = [distances(seed) for seed in range(INSTANCES)]
    return {policy: [one[policy] for one in every] for policy in POLICIES}


def test_no_policy_beats_the_optimum(found):
    assert min(min(values) for values in found.values()) > -1e-6


def test_eft_is_nearer_to_the_optimum_than_packed_and_pal(found):
    mean = {policy: np.mean(values) for policy, values in found.items()}
    assert mean["eft"] < min(mean["packed"], mean["pal"])


def test_the_page_has_the_distances(found):
    rows = dict(re.findall(r"^\| (eft|pal|packed) \| (.*) \|$", PAGE.read_text(), re.M))
    for policy, values in found.items():
        assert rows[policy] == f"{100 * np.mean(values):.1f}% | {100 * max(values):.0f}%"
