"""MAPA's policies and pal+mapa against an oracle over all sets and embeddings."""

import json
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import all_sets, clusters, requests
from small_machines import brute_agg, brute_bottleneck, brute_preserved, machines
from small_oracle import assert_best, chosen_of

from slurm_gpu_aware.model.cluster import each_gpu
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.job_hints import PATTERN
from slurm_gpu_aware.placement.facts import Chosen, Links
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.placement.selection.links import graph_of
from slurm_gpu_aware.topology.patterns import parse_pattern

POLICIES = ("pal+mapa", "mapa-preserve", "mapa-greedy", "mapa-baseline", "mapa-topo-aware")
MANY = settings(max_examples=300, deadline=None)


@st.composite
def patterns(draw):
    """A named pattern, or edges between up to five job GPUs as a user writes them."""
    if draw(st.booleans()):
        return draw(st.sampled_from(PATTERN.words))
    pairs = list(permutations(range(5), 2))
    edges = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=8))
    return ",".join(f"{a}-{b}" for a, b in edges)


@st.composite
def linked(draw):
    """Clusters of up to three different machines, some without links, and one request."""
    cluster = draw(clusters(most_slots=5))
    n, width = cluster.shape
    known = [draw(machines(width)) for _ in range(2)]
    graphs = tuple(draw(st.sampled_from([*known, None])) for _ in range(n))
    cluster = replace(cluster, graphs=draw(st.sampled_from([graphs, graphs, ()])))
    request = replace(
        draw(requests(cluster)),
        pattern=draw(patterns()),
        bandwidth_sensitive=draw(st.booleans()),
    )
    return request, cluster


def objective_of(policy, request):
    """What the policy maximises for this request."""
    if policy == "mapa-greedy":
        return "aggbw"
    pattern = parse_pattern(request.pattern)
    talks = pattern.has_edges(request.gpus)
    return "effbw" if request.bandwidth_sensitive and talks else "preserved"


def part_value(request, cluster, objective, node, slots):
    """Value of one node's part; larger is better. On a plain node: what Slurm's worst pick has."""
    graph, pattern = graph_of(cluster, node), parse_pattern(request.pattern)
    free = np.flatnonzero(cluster.free[node]).tolist()
    picks = [slots]
    if not cluster.indexed[node] and not request.nodes.whole:
        picks = list(combinations(free, len(slots)))
    if objective == "effbw":
        return min(
            (brute_bottleneck(graph, s, pattern), brute_agg(graph, s, pattern)) for s in picks
        )
    if objective == "aggbw":
        return min(brute_agg(graph, s, pattern) for s in picks)
    everything = brute_preserved(graph, free, ())
    return min(brute_preserved(graph, free, s) - everything for s in picks)


def set_value(request, cluster, objective, chosen):
    """Value of a set: its worst part (EffBW) or the sum of its parts."""
    parts = [part_value(request, cluster, objective, node, slots) for node, slots in chosen]
    return min(parts) if objective == "effbw" else sum(parts)


def best_of(request, cluster, objective, sets):
    return max(set_value(request, cluster, objective, chosen) for chosen in sets)


def preferred(cluster, sets):
    """On several nodes indexed ones come first: on plain nodes Slurm chooses the GPUs."""
    if len(sets[0]) == 1 or not cluster.same_indices:
        return sets
    return [s for s in sets if all(cluster.indexed[node] for node, _ in s)] or sets


def free_choice(request, cluster):
    """Uneven splits: counts per node are packed, not searched."""
    return not cluster.same_indices and request.gpus_per_node is None and not request.nodes.whole


@MANY
@given(linked(), st.sampled_from(["mapa-preserve", "mapa-greedy"]))
def test_mapa_agrees_with_brute_force(case, policy):
    """Fewest nodes, then the best value of the objective."""
    request, cluster = case
    sets = list(all_sets(request, cluster))
    got = make_policy(policy).place(request, cluster)
    assert (got is None) == (not sets)
    if got is None:
        return
    chosen = chosen_of(got)
    fewest = min(len(s) for s in sets)
    if free_choice(request, cluster) and fewest > 1:
        assert len(chosen) >= fewest
        return
    assert len(chosen) == fewest
    objective = objective_of(policy, request)
    rivals = preferred(cluster, [s for s in sets if len(s) == fewest])
    assert set_value(request, cluster, objective, chosen) == pytest.approx(
        best_of(request, cluster, objective, rivals)
    )


@MANY
@given(linked(), st.sampled_from(["mapa-preserve", "mapa-greedy"]))
def test_mapa_on_one_node_agrees_down_to_the_last_tie(case, policy):
    request, cluster = case
    request = replace(request, max_nodes=1, min_nodes=1, gpus_per_node=None)
    objective = objective_of(policy, request)

    def key(chosen):
        ((node, slots),) = chosen
        value = set_value(request, cluster, objective, chosen)
        worse = tuple(-v for v in value) if isinstance(value, tuple) else (-value,)
        return (*worse, int(cluster.free[node].sum()) - len(slots), node, slots)

    assert_best(policy, request, cluster, key)


@MANY
@given(linked())
def test_pal_mapa_is_as_fast_as_pal_and_has_the_best_links_among_such_sets(case):
    """The same slowdown as PAL; on one node no set in the cell has better links."""
    request, cluster = case
    pal = make_policy("pal").place(request, cluster)
    got = make_policy("pal+mapa").place(request, cluster)
    assert (got is None) == (pal is None)
    if got is None:
        return
    assert (got.score, got.slowdown, len(got.nodes)) == (pal.score, pal.slowdown, len(pal.nodes))
    if len(got.nodes) > 1:
        return
    scores = cluster.score(request.app_class)
    # The cell's level; a set of it may by chance lie in a tighter one, too.
    cell = next(cell for cell in got.why.plain()["cells"]["cells"] if cell["found"])
    level = next(one for one in cluster.levels if one.name == cell["level"])

    def in_cell(chosen):
        """One node, no GPU worse than the bound, inside the socket if the level is one."""
        ((node, slots),) = chosen
        values = scores[node, list(slots)]
        if not cluster.indexed[node] and not request.nodes.whole:
            values = scores[node][cluster.free[node]]
        if float(values.max()) > got.score:
            return False
        if level.group.ndim == 1:
            return True
        sockets = set(level.group[node, list(slots)].tolist())
        exact = bool(cluster.indexed[node]) or len(slots) == 1  # one GPU lies in one socket
        return exact and len(sockets) == 1

    objective = objective_of("pal+mapa", request)
    rivals = [s for s in all_sets(request, cluster) if len(s) == 1 and in_cell(s)]
    assert chosen_of(got) in rivals
    assert set_value(request, cluster, objective, chosen_of(got)) == pytest.approx(
        best_of(request, cluster, objective, rivals)
    )


@MANY
@given(linked(), st.sampled_from(POLICIES))
def test_no_gpu_twice_or_busy_exactly_those_asked_for_and_a_full_account(case, policy):
    request, cluster = case
    before = cluster.free.copy()
    got = make_policy(policy).place(request, cluster)
    again = make_policy(policy).place(request, cluster)
    assert got == again
    assert (cluster.free == before).all()
    if got is None:
        assert not list(all_sets(request, cluster))
        return
    for node, slots in chosen_of(got):
        assert list(slots) == sorted(set(slots))
        assert cluster.free[node, list(slots)].all()
    if not request.nodes.whole:
        assert len(each_gpu(got.gpus)) == request.gpus
    assert got.policy == policy
    assert Facts.read(json.loads(json.dumps(got.why.plain()))) == got.why
    assert got.why.text
    assert "GB/s" not in got.why.text
    measured = all(entry.measured for entry in got.why.of(Links).links)
    of_all = got.why.of(Links)
    assert measured == (of_all.preservedbw_gbps is not None) == (of_all.effbw_gbps is not None)
    for entry in got.why.of(Links).links:
        assert entry.taken_gbps >= 0
        chosen = dict(zip((cluster.nodes[n] for n in got.nodes), got.slots, strict=True))
        for order in entry.order:
            assert sorted(order) == list(entry.worst or chosen[entry.node])


@MANY
@given(linked(), st.sampled_from(["pal+mapa", "mapa-preserve", "mapa-greedy"]))
def test_the_account_tells_what_was_compared(case, policy):
    """On plain nodes with the worst set that Slurm may choose, and no sets of ours."""
    request, cluster = case
    got = make_policy(policy).place(request, cluster)
    if got is None or len(got.nodes) > 1:
        return
    objective = objective_of(policy, request)
    links = got.why.of(Links).links[0]
    value = set_value(request, cluster, objective, chosen_of(got))
    if objective == "effbw":
        assert (links.effbw_gbps, links.aggbw_gbps) == pytest.approx(value, abs=1e-3)
        named = request.nodes.whole or cluster.indexed[got.nodes[0]]
        assert bool(got.why.of(Chosen).considered) == named
        if named:
            assert got.why.of(Chosen).considered[0].value == pytest.approx(value[0], abs=1e-3)
    elif objective == "aggbw":
        assert links.aggbw_gbps == pytest.approx(value, abs=1e-3)
    else:
        assert -links.taken_gbps == pytest.approx(value, abs=1e-3)


@MANY
@given(machines(8), st.data())
def test_topo_aware_stays_on_one_socket_if_one_has_room(graph, data):
    from slurm_gpu_aware.placement.drb.bipartition import socket_first
    from slurm_gpu_aware.topology.subsets import mask_of, slots_of

    free = data.draw(st.sets(st.integers(0, graph.n - 1), min_size=1))
    k = data.draw(st.integers(1, len(free)))
    mask = socket_first(graph, (1 << graph.n) - 1, mask_of(sorted(free)), k)
    chosen = slots_of(mask)
    assert len(chosen) == k
    assert set(chosen) <= free
    room = [sum(graph.groups[g] == socket for g in free) for socket in set(graph.groups)]
    spanned = {graph.groups[g] for g in chosen}
    if max(room) >= k:
        assert len(spanned) == 1
        inside = sum(graph.groups[g] in spanned for g in free)
        assert inside == min(r for r in room if r >= k)
