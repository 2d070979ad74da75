"""topo-aware against every set of small clusters, and properties of all answers."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import with_fields
from small_clusters import all_sets, clusters, requests
from small_oracle import chosen_of

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.bipartition import Machine, best_set, machine_cost
from slurm_gpu_aware.placement.drb.utility import (
    InterferenceProfile,
    Neighbours,
    Scale,
    Weights,
    extremes,
)
from slurm_gpu_aware.placement.policies.topo_aware import Utility
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology.machines import machine

MINSKY = machine("ibm-minsky-4xp100")
SOME = settings(max_examples=300, deadline=None)
WEIGHTS = (Weights(), Weights(0.5, 0.0, 0.5), Weights(1.0, 0.0, 0.0), Weights(0.0, 0.0, 1.0))


def scale_of(graph, k):
    t_best, t_worst, w = extremes(graph, (1 << graph.n) - 1, k)
    return Scale(t_best, t_worst, 1.0, w)


def shares(graph, free, k, weights, neighbours=()):
    """(cost of bipartition, least cost of all sets); None if too few are free."""
    everything = (1 << graph.n) - 1
    this = Machine(graph, everything, free, free, neighbours)
    scale = replace(scale_of(graph, k), i_worst=1.5)
    found = best_set(this, k, weights, scale)
    slots = [s for s in range(graph.n) if free >> s & 1]
    sets = [sum(1 << s for s in c) for c in combinations(slots, k)]
    if not sets:
        assert found is None
        return None
    assert found in sets
    least = min(machine_cost(this, m, weights, scale) for m in sets)
    return machine_cost(this, found, weights, scale), least


@pytest.mark.parametrize("weights", WEIGHTS)
def test_bipartition_is_exact_on_two_sockets_of_two(weights):
    for free in range(16):
        for k in range(1, 5):
            for beside in ((), (Neighbours(3, 1, 1.4, 0.2), Neighbours(15, 2, 2.0, 0.0))):
                pair = shares(MINSKY, free, k, weights, beside)
                assert pair is None or pair[0] == pair[1]


@pytest.mark.parametrize(
    ("name", "equal_share", "worst_gap"),
    [("ibm-ac922-6xv100", 0.99, 0.1), ("dgx-1-v100", 0.95, 0.26), ("dgx-1-p100", 0.95, 0.26)],
)
def test_bipartition_against_all_sets_of_larger_machines(name, equal_share, worst_gap):
    """A heuristic: how often it finds the best set, and its largest loss of utility."""
    graph = machine(name)
    rng = np.random.default_rng(11)
    pairs = []
    for free in rng.integers(1, 1 << graph.n, 120).tolist():
        for k in range(1, graph.n + 1):
            pair = shares(graph, free, k, Weights(0.5, 0.0, 0.5))
            if pair is not None:
                pairs.append(pair)
    gaps = np.array([found - least for found, least in pairs])
    assert len(gaps) > 100
    assert gaps.min() >= 0.0
    assert (gaps == 0.0).mean() >= equal_share
    assert gaps.max() <= worst_gap


@st.composite
def on_minsky(draw):
    cluster = draw(clusters())
    if draw(st.booleans()) and cluster.shape[1] == 4:
        cluster = replace(cluster, graphs=(MINSKY,) * cluster.shape[0])
    return draw(requests(cluster)), cluster


@SOME
@given(on_minsky())
def test_finds_a_valid_set_exactly_when_there_is_one(case):
    request, cluster = case
    found = make_policy("topo-aware").place(request, cluster)
    sets = list(all_sets(request, cluster))
    assert (found is None) == (not sets)
    if found is not None:
        assert chosen_of(found) in sets
        assert len(found.nodes) == min(len(s) for s in sets)
        assert 0.0 <= found.why.of(Utility).utility <= 1.0
        assert found.policy == "topo-aware"
        assert found.why.text
        json.dumps(found.why.plain())


@SOME
@given(on_minsky(), st.floats(0.0, 1.0))
def test_postponing_never_places_below_the_threshold(case, threshold):
    request, cluster = case
    always = make_policy("topo-aware").place(request, cluster)
    options = {"minimal_utility": threshold}
    found = make_policy("topo-aware-p", options).place(request, cluster)
    if always is None:
        assert found is None
    else:
        assert (found is None) == (always.why.of(Utility).utility < threshold - 1e-4) or (
            abs(always.why.of(Utility).utility - threshold) < 2e-4  # told to four digits
        )
        aged = make_policy("topo-aware-p", options)
        waited = with_fields(request, waited_s=3600.0)
        assert chosen_of(aged.place(waited, cluster)) == chosen_of(always)


@st.composite
def minskys(draw):
    """Up to five machines of two sockets, with measured neighbours."""
    n = draw(st.integers(1, 5))
    cluster = Cluster.uniform(n, 4, graph=MINSKY, same_indices=draw(st.booleans()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cluster.free[rng.random((n, 4)) < draw(st.sampled_from([0.0, 0.3, 0.6]))] = False
    return cluster


@SOME
@given(minskys(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_relabelling_nodes_changes_no_utility(cluster, gpus, random):
    order = list(range(cluster.shape[0]))
    random.shuffle(order)
    other = replace(cluster, free=cluster.free[order], nodes=tuple(f"m{i}" for i in order))
    policy = make_policy("topo-aware")
    one, two = policy.place(Request("1", gpus), cluster), policy.place(Request("1", gpus), other)
    assert (one is None) == (two is None)
    if one is not None:
        assert one.why.of(Utility).utility == two.why.of(Utility).utility
        if len(one.nodes) == 1:
            assert one.why.of(Utility).terms == two.why.of(Utility).terms


@SOME
@given(minskys(), st.integers(1, 4))
def test_one_machine_has_the_best_utility_of_all_sets(cluster, gpus):
    """On machines of two sockets of two the whole search is exact."""
    found = make_policy("topo-aware").place(Request("1", gpus, max_nodes=1), cluster)
    scale = scale_of(MINSKY, gpus)
    costs = [
        machine_cost(Machine(MINSKY, 15, free, free), mask, Weights(0.5, 0.0, 0.5), scale)
        for row in cluster.free
        for free in [sum(1 << s for s in np.flatnonzero(row).tolist())]
        for mask in range(16)
        if mask.bit_count() == gpus and mask & ~free == 0
    ]
    assert (found is None) == (not costs)
    if found is not None:
        base = 0.5 * scale.communication(2.0 * scale.t_best)  # machine_cost counts t from 0
        assert found.why.of(Utility).utility == pytest.approx(1.0 - (min(costs) - base), abs=1e-4)


@SOME
@given(st.lists(st.floats(0.1, 100.0), min_size=3, max_size=3), st.integers(1, 2))
def test_utility_stays_within_bounds_with_any_profile(times, gpus):
    solo, beside, other = times
    profile = InterferenceProfile(
        {("a", 1): solo, ("a", 2): solo, ("b", 1): other},
        {
            (("a", gpus), ("b", 1)): beside,
            (("b", 1), ("a", gpus)): beside,
        },
    )
    cluster = Cluster.uniform(2, 4, graph=MINSKY)
    cluster.take(0, [0, 2])
    cluster.take(1, [0])
    running = (
        RunningJob("1", ((0, (0,)),), 1.0, application="b"),
        RunningJob("2", ((0, (2,)), (1, (0,))), 1.0, application="b"),
    )
    found = make_policy("topo-aware", {"interference": profile}).place(
        Request("1", gpus, application="a"), replace(cluster, running=running)
    )
    assert 0.0 <= found.why.of(Utility).utility <= 1.0
    assert found.why.of(Utility).terms["interference"]["I"] >= 1.0
