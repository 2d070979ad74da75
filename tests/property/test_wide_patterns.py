"""Wide edge lists: searched with bounds, against every permutation and against the frontier."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import combinations, permutations, product
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machines import brute_agg, brute_bottleneck, machines

from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology import general, wide
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, PAPER
from slurm_gpu_aware.topology.bounded import FORBIDDEN, NEVER, WAYS, improve
from slurm_gpu_aware.topology.general import mapping_values
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import (
    agg_table,
    best_sets,
    complete_search,
    eff_table,
    match,
)
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import masks_of_size, slots_of
from slurm_gpu_aware.topology.symmetry import first_of_orbit, lower_than
from slurm_gpu_aware.topology.wide import best_by_bottleneck, best_by_sum, best_layout

SOME = settings(max_examples=60, deadline=None)
FEW = settings(max_examples=6, deadline=None)
HOST = 12.0


def edge_lists(k):
    pairs = st.sampled_from(list(combinations(range(k), 2)))
    return st.sets(pairs, min_size=1).map(lambda chosen: tuple(sorted(chosen)))


@st.composite
def cases(draw, most=6):
    graph = draw(machines(most).filter(lambda graph: graph.n >= 2))
    k = draw(st.integers(2, graph.n))
    return graph, draw(edge_lists(k)), k


def torus(rows, columns, wrap=True):
    edges = set()
    for r, c in product(range(rows), range(columns)):
        for down, right in ((1, 0), (0, 1)):
            if wrap or (r + down < rows and c + right < columns):
                other = (r + down) % rows * columns + (c + right) % columns
                edges.add((min(r * columns + c, other), max(r * columns + c, other)))
    return tuple(sorted(edges))


@contextmanager
def all_wide():
    """No pattern is narrow enough for tables."""
    caches = (best_sets, match)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(general, "_way", lambda *_: "beam")
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


@SOME
@given(cases())
def test_best_sets_agree_with_every_permutation(case):
    """By both values, all of the sets that are as good, and the sum among some sets only."""
    graph, edges, k = case
    pattern, sets = Pattern("edges", edges), list(combinations(range(graph.n), k))
    sums = np.array([brute_agg(graph, s, pattern) for s in sets])
    slowest = np.array([brute_bottleneck(graph, s, pattern) for s in sets])
    for found, values in (
        (best_by_sum(graph.gbps, edges, k), sums),
        (best_by_bottleneck(graph.gbps, edges, k), slowest),
    ):
        assert found.complete
        assert found.gbps == values.max()
        assert found.sets.tolist() == (values == values.max()).tolist()
    among = slowest == slowest.max()
    found = best_by_sum(graph.gbps, edges, k, among)
    assert found.gbps == sums[among].max()
    assert found.sets.tolist() == (among & (sums == sums[among].max())).tolist()


@SOME
@given(machines(6, classes=True).filter(lambda graph: graph.n >= 2), st.data())
def test_every_way_finds_what_beats_the_floor_of_each_set(graph, data):
    k = data.draw(st.integers(2, graph.n))
    edges = data.draw(edge_lists(k))
    gains = np.where(graph.gbps > 0, graph.gbps - HOST, 0).astype(np.int64)
    sets = list(combinations(range(graph.n), k))
    base = HOST * len(edges)
    best = [brute_agg(graph, s, Pattern("edges", edges)) - base for s in sets]
    floor = np.array(
        [data.draw(st.sampled_from([-1, int(b) - 1, int(b), int(b) // 2, NEVER])) for b in best]
    )
    wanted = [int(b) if b > f else -1 for b, f in zip(best, floor.tolist(), strict=True)]
    for way in WAYS:
        if way == "machine" and k < graph.n:
            continue
        found = improve(gains, edges, k, floor, 1 << 20, way)
        assert found.complete
        assert found.value.tolist() == wanted
        for at in np.flatnonzero(found.value >= 0).tolist():
            seats = found.mapping(int(masks_of_size(graph.n, k)[at]))
            assert tuple(sorted(seats)) == sets[at]
            assert sum(gains[seats[a], seats[b]] for a, b in edges) == wanted[at]


@SOME
@given(machines(6, classes=True).filter(lambda graph: graph.n >= 3), st.data())
def test_forbidden_links_are_not_used(graph, data):
    k = graph.n
    edges = data.draw(edge_lists(k))
    allowed = np.where(graph.gbps > HOST, graph.gbps, -np.inf)
    sums = [
        total
        for p in permutations(range(k))
        if (total := sum(allowed[p[a], p[b]] for a, b in edges)) > 0
    ]
    found = best_layout(allowed, edges)
    total = sum(allowed[found.order[a], found.order[b]] for a, b in edges)
    assert sorted(found.order) == list(range(k))
    if sums:
        assert found.complete
        assert total == max(sums)
    gains = np.where(graph.gbps > HOST, 0, FORBIDDEN)
    for way in WAYS[:2]:
        assert bool(improve(gains, edges, k, np.array([-1]), 1 << 20, way).value[0] == 0) == bool(
            sums
        )


@pytest.mark.parametrize("way", WAYS[:2])
def test_no_bound_makes_up_for_a_forbidden_link(way):
    """Several items count on the links of a hub; their sum outweighed a forbidden link."""
    rng = np.random.default_rng(1)
    for _ in range(120):
        k = int(rng.integers(4, 7))
        gains = rng.integers(0, 3, (k, k))
        hub = int(rng.integers(k))
        gains[hub] = gains[:, hub] = int(rng.integers(3, 30))
        forbidden = rng.random((k, k)) < rng.random() * 0.7
        forbidden[hub] = forbidden[:, hub] = False
        gains = np.triu(np.where(forbidden, FORBIDDEN, gains), 1)
        gains += gains.T
        pairs = list(combinations(range(k), 2))
        chosen = rng.choice(len(pairs), int(rng.integers(k, len(pairs) + 1)), replace=False)
        edges = tuple(pairs[at] for at in sorted(chosen))
        orders = np.array(list(permutations(range(k))))
        links = gains[orders[:, np.array(edges)[:, 0]], orders[:, np.array(edges)[:, 1]]]
        wanted = np.where((links == FORBIDDEN).any(axis=1), -1, links.sum(axis=1)).max()
        found = improve(gains, edges, k, np.array([-1]), 1 << 20, way)
        assert found.complete
        assert found.value[0] == wanted
        if wanted >= 0:
            seats = found.mapping((1 << k) - 1)
            assert min(gains[seats[a], seats[b]] for a, b in edges) >= 0


@SOME
@given(cases(), st.booleans())
def test_the_match_of_a_wide_pattern_is_an_embedding_with_its_values(case, by_sum):
    graph, edges, k = case
    if graph.is_uniform:
        return
    gpus, pattern = tuple(range(graph.n - k, graph.n)), Pattern("edges", edges)
    with all_wide():
        found = match(graph, gpus, pattern, BOTTLENECK, by_sum=by_sum)
    assert found.complete
    assert tuple(sorted(found.order[0])) == gpus
    assert found.agg_gbps == brute_agg(graph, gpus, pattern)
    assert found.eff_gbps == brute_bottleneck(graph, gpus, pattern)
    assert (sum if by_sum else min)(found.links_gbps) == (
        found.agg_gbps if by_sum else found.eff_gbps
    )


@FEW
@given(st.integers(0, 2**32), st.integers(9, 12), st.booleans())
def test_best_sets_agree_with_the_frontier_search(seed, k, ladder):
    """Cycles with chords and ladders of 9 to 12 job GPUs on 12 GPUs; both can search these."""
    rng = np.random.default_rng(seed)
    n = 12
    values = np.triu(rng.choice([12.0, 25.0, 50.0], (n, n), p=[0.6, 0.25, 0.15]), 1)
    graph = HardwareGraph.build(values + values.T, [["SYS"] * n for _ in range(n)])
    edges = {(v, v + 1) for v in range(k - 1)}
    edges |= {(v, v + 2) for v in range(k - 2)} if ladder else {(0, k - 1)}
    pattern = Pattern("edges", tuple(sorted(edges)))
    assert complete_search(graph, pattern, k)
    total, slowest = agg_table(graph, pattern, k), eff_table(graph, pattern, k, BOTTLENECK)
    among = slowest == slowest.max()
    by_sum = best_sets(graph, pattern, k, BOTTLENECK, by_sum=True)
    by_eff = best_sets(graph, pattern, k, BOTTLENECK, by_sum=False)
    masks = masks_of_size(n, k)
    assert by_sum.complete
    assert by_eff.complete
    assert by_sum.agg_gbps == total.max()
    assert by_sum.masks.tolist() == masks[total == total.max()].tolist()
    assert (by_eff.eff_gbps, by_eff.agg_gbps) == (slowest.max(), total[among].max())
    assert by_eff.masks.tolist() == masks[among & (total == total[among].max())].tolist()


def test_values_are_those_of_the_frontier_search_at_its_full_width(monkeypatch):
    """A 3 x 3 torus on all sets of 10 GPUs, every one by the complete frontier search."""
    graph = machine("mapa-cubemesh-16").subgraph([0, 1, 2, 3, 4, 5, 6, 7, 12, 15])
    edges = torus(3, 3)
    monkeypatch.setattr(general, "_way", lambda *_: "frontier")
    total, slowest = mapping_values(graph.gbps, edges, 9)
    found = best_by_sum(graph.gbps, edges, 9)
    assert found.complete
    assert found.gbps == total.max()
    assert found.sets.tolist() == (total == total.max()).tolist()
    assert best_by_bottleneck(graph.gbps, edges, 9).gbps == slowest.max()


@FEW
@given(st.integers(0, 2**32), st.data())
def test_relabelling_and_better_links(seed, data):
    """A 3 x 3 torus on 11 GPUs: names of GPUs change no value, a better link makes none worse."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(16)[:11].tolist()
    graph = machine("mapa-torus-2d").subgraph(chosen)
    pattern = Pattern("edges", torus(3, 3))
    own = best_sets(graph, pattern, 9, BOTTLENECK, by_sum=False)
    new = data.draw(st.permutations(range(11)))
    other = best_sets(graph.subgraph(new), pattern, 9, BOTTLENECK, by_sum=False)
    assert own.complete
    assert other.complete
    assert (other.eff_gbps, other.agg_gbps) == (own.eff_gbps, own.agg_gbps)
    moved = {tuple(sorted(new[i] for i in slots_of(int(mask)))) for mask in other.masks}
    assert moved == {slots_of(int(mask)) for mask in own.masks}
    a, b = data.draw(st.sampled_from(list(combinations(range(11), 2))))
    gbps = graph.gbps.copy()
    gbps[a, b] = gbps[b, a] = gbps[a, b] + data.draw(st.sampled_from([0.5, 13.0, 100.0]))
    better = HardwareGraph.build(gbps, graph.classes)
    slowest = best_by_bottleneck(better.gbps, pattern.edges, 9)
    assert slowest.complete
    assert slowest.gbps >= own.eff_gbps
    most = [best_by_sum(g.gbps, pattern.edges, 9).gbps for g in (graph, better)]
    assert most[1] >= most[0]


def test_a_torus_of_sixteen_finds_itself_in_the_machine():
    """All NVLinks: 18 doubles and 14 singles; on the cube mesh no GPU order has more than this."""
    graph, pattern = machine("mapa-torus-2d"), Pattern("edges", torus(4, 4))
    assert not complete_search(graph, pattern, 16)
    found = match(graph, tuple(range(16)), pattern, BOTTLENECK)
    assert found.complete
    assert (found.eff_gbps, found.agg_gbps) == (25.0, graph.gbps[graph.gbps > HOST].sum() / 2)
    mesh = match(machine("mapa-cubemesh-16"), tuple(range(16)), pattern, BOTTLENECK)
    assert mesh.complete
    assert (mesh.eff_gbps, mesh.agg_gbps) == (12.0, 1097.0)
    rng = np.random.default_rng(3)
    gbps = machine("mapa-cubemesh-16").gbps
    for order in (rng.permutation(16) for _ in range(200)):
        assert sum(gbps[order[a], order[b]] for a, b in pattern.edges) <= 1097.0


def test_eq2_chooses_the_sets_and_the_pattern_the_sum_among_them():
    graph, pattern = machine("dgx-1-v100"), Pattern("edges", torus(2, 3, wrap=False))
    eff = eff_table(graph, Pattern("ring"), 6, PAPER)
    with all_wide():
        found = best_sets(graph, pattern, 6, PAPER, by_sum=False)
    top = np.flatnonzero(eff == eff.max())
    sums = [brute_agg(graph, slots_of(int(masks_of_size(8, 6)[at])), pattern) for at in top]
    assert (found.eff_gbps, found.agg_gbps) == (eff.max(), max(sums))
    assert len(found.masks) == sums.count(max(sums))


def test_a_search_that_is_given_up_says_so_and_has_a_mapping(monkeypatch):
    graph, edges = machine("mapa-cubemesh-16"), torus(3, 4)
    monkeypatch.setattr(wide, "_MOST_STATES", 200)
    found = best_by_sum(graph.gbps, edges, 12)
    assert not found.complete
    assert found.gbps <= 797.0  # the best one
    layout = best_layout(graph.gbps, torus(4, 4))
    assert not layout.complete
    assert sorted(layout.order) == list(range(16))


def test_sets_that_are_known_at_the_limit_stay(monkeypatch):
    """No set at all was left, which the sum then took as every set."""
    rng = np.random.default_rng(0)
    pairs = list(combinations(range(8), 2))
    cut = 0
    for _ in range(40):
        weights = np.triu(rng.choice([8.0, 12.0, 25.0, 50.0], (9, 9), p=[0.3, 0.2, 0.2, 0.3]), 1)
        weights += weights.T
        chosen = rng.choice(len(pairs), int(rng.integers(9, 16)), replace=False)
        edges = tuple(pairs[at] for at in sorted(chosen))
        monkeypatch.setattr(wide, "_MOST_STATES", int(rng.integers(200, 3000)))
        found = best_by_bottleneck(weights, edges, 8)
        assert found.sets.any()
        cut += not found.complete
    assert cut


@SOME
@given(edge_lists(5))
def test_one_mapping_of_each_class_meets_the_conditions_of_symmetry(edges):
    k = 5
    used = {
        frozenset((min(p[a], p[b]), max(p[a], p[b])) for a, b in edges)
        for p in permutations(range(k))
    }
    higher = lower_than(edges, k, tuple(range(k)))
    kept = [
        frozenset((min(p[a], p[b]), max(p[a], p[b])) for a, b in edges)
        for p in permutations(range(k))
        if all(p[v] < p[x] for v in range(k) for x in higher[v])
    ]
    assert len(kept) == len(used)
    assert set(kept) == used
    assert factorial(k) % len(used) == 0
    degree = [sum(v in edge for edge in edges) for v in range(k)]
    assert {degree[v] for v in first_of_orbit(edges, k)} == set(degree)
