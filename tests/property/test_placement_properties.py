"""Every policy against an oracle over all sets, and properties of all policies."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from make import with_fields
from small_clusters import all_sets, cases, cost, level_index
from small_oracle import assert_best, chosen_of

from slurm_gpu_aware.model.cluster import each_gpu
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.placement.feasible import enough_free
from slurm_gpu_aware.placement.policies.pal import best_cell
from slurm_gpu_aware.placement.policy import make_policy

POLICIES = ("pal", "pm-first", "packed", "best-fit", "lowest-index", "random")
MANY = settings(max_examples=600, deadline=None)


@MANY
@given(cases())
def test_pal_agrees_with_brute_force(case):
    """Least L x V; then the tighter level, and among even splits fewest nodes, least sum."""
    request, cluster = case
    scores = cluster.score(request.app_class)

    def key(chosen):
        worst, total = cost(request, cluster, chosen, scores)
        level = level_index(request, cluster, chosen)
        uneven = not cluster.same_indices and request.gpus_per_node is None and len(chosen) > 1
        count = 2 if uneven and not request.nodes.whole else len(chosen)
        if uneven and request.max_nodes is not None:
            total = 0  # the sum is not minimised under a bound on nodes
        return (cluster.levels[level].penalty * worst, level, count, total)

    got = assert_best("pal", request, cluster, key)
    if got is not None:
        worst, _ = cost(request, cluster, chosen_of(got), scores)
        level = cluster.levels[level_index(request, cluster, chosen_of(got))].name
        assert (got.score, got.slowdown, got.level) == (worst, key(chosen_of(got))[0], level)


@MANY
@given(cases())
def test_pal_on_one_node_agrees_with_brute_force_down_to_the_last_tie(case):
    request, cluster = case
    request = replace(request, max_nodes=1, min_nodes=1, gpus_per_node=None)
    scores = cluster.score(request.app_class)

    def key(chosen):
        """..., GPUs left on the node, as good ones in the domain, node, domain, slots."""
        worst, total = cost(request, cluster, chosen, scores)
        ((node, slots),) = chosen
        index = level_index(request, cluster, chosen)
        level = cluster.levels[index]
        ours = cluster.indexed[node] or request.nodes.whole  # else Slurm chooses, in any domain
        inner = level.group.ndim == 2 and ours
        domain = level.group[node] if inner else np.zeros(cluster.shape[1])
        inside = domain == domain[slots[0]]
        free = cluster.free[node]
        good = free & inside
        if ours:
            good &= scores[node] <= worst
        return (
            level.penalty * worst,
            index,
            total,
            int(free.sum()) - len(slots),
            int(good.sum()),
            node,
            int(np.flatnonzero(inside)[0]),
            sorted((scores[node, s], s) for s in slots) if cluster.indexed[node] else [],
        )

    assert_best("pal", request, cluster, key)


@MANY
@given(cases())
def test_pm_first_agrees_with_brute_force(case):
    """Least worst score on any nodes; then the least sum."""
    request, cluster = case
    scores = cluster.score(request.app_class)
    bounded = not cluster.same_indices and request.max_nodes is not None

    def key(chosen):
        worst, total = cost(request, cluster, chosen, scores)
        return (worst, 0 if bounded else total)

    assert_best("pm-first", request, cluster, key)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=150, deadline=None)
@given(cases())
def test_what_is_given_is_among_all_sets(name, case):
    """Free GPUs only, exactly as many as asked, every bound of the request kept; found if any."""
    request, cluster = case
    got = make_policy(name).place(request, cluster)
    sets = set(all_sets(request, cluster))
    assert (got is None) == (not sets)
    if got is None:
        return
    assert got.policy == name
    assert enough_free(request, cluster)
    if bool(cluster.indexed[list(got.nodes)].all()) or request.nodes.whole:
        assert chosen_of(got) in sets
    if not request.nodes.whole:
        assert len(each_gpu(got.gpus)) == request.gpus
    assert got.nodes == tuple(sorted(set(got.nodes)))
    for node, slots in chosen_of(got):
        assert cluster.free[node, list(slots)].all()
        assert slots == tuple(sorted(set(slots)))
    assert Facts.read(json.loads(json.dumps(got.why.plain()))).text
    exact = bool(cluster.indexed[list(got.nodes)].all()) and not request.nodes.whole
    assert got.exact == exact


@pytest.mark.parametrize("name", [*POLICIES, "slurm", "topo-aware"])
@settings(max_examples=60, deadline=None)
@given(cases())
def test_same_input_same_answer_and_nothing_changed(name, case):
    request, cluster = case
    before = cluster.free.copy()
    first = make_policy(name).place(request, cluster)
    twin = replace(
        cluster,
        scores={c: v.copy() for c, v in cluster.scores.items()},
        exists=cluster.exists.copy(),
    )
    assert make_policy(name).place(request, twin) == first
    assert (cluster.free == before).all()


@settings(max_examples=200, deadline=None)
@given(cases())
def test_predicted_slowdown_is_what_the_assignment_says(case):
    request, cluster = case
    got = make_policy("pal").place(request, cluster)
    if got is not None and got.exact:
        assert predicted_slowdown(cluster, "A", got.nodes, got.slots) == (
            got.score,
            got.level,
            got.slowdown,
        )


@MANY
@given(cases())
def test_best_cell_holds_all_and_only_equal_one_node_sets(case):
    """A composition chooses among all sets equal to PAL's own, and no other."""
    request, cluster = case
    request = with_fields(request, max_nodes=1, min_nodes=1, gpus_per_node=None, whole=False)
    cluster = replace(cluster, indexed=np.ones(cluster.shape[0], dtype=bool))
    cell = best_cell(request, cluster)
    scores = cluster.score("A")
    if cell is None:
        assert not list(all_sets(request, cluster))
        return
    offered = set()
    for node, row in zip(cell.units, cell.allowed, strict=True):
        slots = np.flatnonzero(row)
        offered |= {((int(node), s),) for s in combinations(slots.tolist(), cell.split.per_node)}
    equal = {
        chosen
        for chosen in all_sets(request, cluster)
        if cluster.levels[level_index(request, cluster, chosen)].name == cell.level.name
        and cost(request, cluster, chosen, scores)[0] == cell.score
    }
    assert equal <= offered
    tightest = cell.level.name
    for chosen in offered - equal:  # a tighter set of the same level, never a worse one
        index = level_index(request, cluster, chosen)
        names = [level.name for level in cluster.levels]
        assert index < names.index(tightest)
