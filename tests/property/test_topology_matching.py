"""Exact matching against every permutation, and properties of all machines."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machines import (
    brute_agg,
    brute_bottleneck,
    brute_eq2,
    brute_fitted,
    brute_preserved,
    link_counts,
    machines,
    patterns,
)

from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology import general, matching
from slurm_gpu_aware.topology.bandwidth import (
    BOTTLENECK,
    PAPER,
    PUBLISHED,
    eq2,
    eq2_model,
    preserved_bw,
)
from slurm_gpu_aware.topology.general import mapping_values, order_values
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import (
    agg_table,
    eff_table,
    fitted_ring,
    match,
)
from slurm_gpu_aware.topology.patterns import Pattern, RingCounts, Rings, Trees
from slurm_gpu_aware.topology.subsets import mask_of, masks_of_size, rank_of_mask, slots_of

MANY = settings(max_examples=150, deadline=None)
RING = Pattern("ring")


@st.composite
def matchings(draw, most=6):
    graph = draw(machines(most))
    return graph, draw(patterns()), draw(st.integers(1, graph.n))


def test_sets_stand_in_the_order_of_their_lowest_members():
    for n in (1, 5, 8):
        for k in range(n + 1):
            sets = [slots_of(int(mask)) for mask in masks_of_size(n, k)]
            assert sets == list(combinations(range(n), k))
            ranks = rank_of_mask(n, k)[[mask_of(s) for s in sets]]
            assert ranks.tolist() == list(range(len(sets)))


@MANY
@given(matchings())
def test_tables_agree_with_every_permutation(case):
    graph, pattern, k = case
    sets = list(combinations(range(graph.n), k))
    assert agg_table(graph, pattern, k).tolist() == [brute_agg(graph, s, pattern) for s in sets]
    assert eff_table(graph, pattern, k, BOTTLENECK).tolist() == [
        brute_bottleneck(graph, s, pattern) for s in sets
    ]


@MANY
@given(machines(6), st.sets(st.sampled_from(list(combinations(range(5), 2))), min_size=1))
def test_order_by_order_agrees_with_every_permutation(graph, edges):
    k = 5
    if graph.n < k:
        return
    pattern = Pattern("edges", tuple(sorted(edges)))
    total, slowest = order_values(graph.gbps, pattern.edges, k)
    sets = list(combinations(range(graph.n), k))
    assert total.tolist() == [brute_agg(graph, s, pattern) for s in sets]
    assert slowest.tolist() == [brute_bottleneck(graph, s, pattern) for s in sets]


def test_a_beam_finds_embeddings_that_exist(monkeypatch):
    """Never better than the best for any set, and usually the best."""
    graph = machine("dgx-1-v100")
    edges = tuple((a, b) for a, b in combinations(range(6), 2) if (a + b) % 3)
    exact = mapping_values(graph.gbps, edges, 6)
    assert general.is_exact(edges, 6, 8)
    monkeypatch.setattr(general, "_way", lambda *_: "beam")
    monkeypatch.setattr(general, "_BEAM", 200)
    assert not general.is_exact(edges, 6, 8)
    for found, best in zip(mapping_values(graph.gbps, edges, 6), exact, strict=True):
        assert (found <= best).all()
        assert (found > 0).all()
        assert (found == best).mean() > 0.5


def test_a_match_that_is_not_exact_has_the_values_of_its_embedding(monkeypatch):
    """A 3 x 3 torus: near the best values."""
    graph, gpus = machine("mapa-cubemesh-16"), tuple(range(9))
    steps = [(3 * r + c, 3 * ((r + d) % 3) + (c + 1 - d) % 3)
             for r in range(3) for c in range(3) for d in (0, 1)]  # fmt: skip
    torus = Pattern("edges", tuple(sorted((min(e), max(e)) for e in steps)))
    best = match(graph, gpus, torus, BOTTLENECK, by_sum=True)
    assert best.exact
    monkeypatch.setattr(general, "_way", lambda *_: "beam")
    monkeypatch.setattr(general, "_BEAM", 2000)
    match.cache_clear()
    matching._tables.clear()
    found = match(graph, gpus, torus, BOTTLENECK, by_sum=True)
    match.cache_clear()
    matching._tables.clear()
    assert not found.exact
    assert sorted(found.order[0]) == list(gpus)
    assert (sum(found.links_gbps), min(found.links_gbps)) == (found.agg_gbps, found.eff_gbps)
    assert 0.9 * best.agg_gbps <= found.agg_gbps <= best.agg_gbps


@MANY
@given(machines(6), st.data())
def test_eq2_tables_agree_with_every_ring(graph, data):
    k = data.draw(st.integers(1, graph.n))
    sets = list(combinations(range(graph.n), k))
    table = eff_table(graph, Pattern("tree"), k, PAPER)
    assert table.tolist() == [brute_eq2(graph, s) for s in sets]
    chosen = sets[int(table.argmax())]
    order = match(graph, chosen, RING, PAPER).order[0]
    counts = link_counts(graph, order, RING.edges_for(k))
    assert float(eq2(*counts)) == table.max()


@MANY
@given(machines(6), st.data())
def test_a_refit_looks_at_the_ring_that_it_was_fitted_to(graph, data):
    """The best slowest link, the largest sum, the most doubles, the most singles."""
    assert fitted_ring(graph, (0,)) == (0, 0, 0)
    if graph.n < 2:
        return
    k = data.draw(st.integers(2, graph.n))
    sets = list(combinations(range(graph.n), k))
    model = eq2_model(PUBLISHED)
    table = eff_table(graph, RING, k, model)
    for at, gpus in enumerate(sets):
        counts = brute_fitted(graph, gpus)
        assert fitted_ring(graph, gpus) == counts
        assert table[at] == float(eq2(*counts))
    order = match(graph, sets[-1], RING, model).order[0]
    assert link_counts(graph, order, RING.edges_for(k)) == counts


@MANY
@given(machines(8), st.data())
def test_preserved_bandwidth_agrees_with_the_sum_over_pairs(graph, data):
    free = sorted(data.draw(st.sets(st.integers(0, graph.n - 1), min_size=1)))
    k = data.draw(st.integers(1, len(free)))
    table = preserved_bw(graph, mask_of(free), masks_of_size(graph.n, k))
    for gpus in combinations(free, k):
        value = table[rank_of_mask(graph.n, k)[mask_of(gpus)]]
        assert value == brute_preserved(graph, free, gpus)


@MANY
@given(matchings())
def test_the_match_is_an_embedding_with_the_values_of_the_set(case):
    graph, pattern, k = case
    gpus = tuple(range(graph.n - k, graph.n))
    for by_sum in (False, True):
        found = match(graph, gpus, pattern, BOTTLENECK, by_sum=by_sum)
        assert all(tuple(sorted(order)) == gpus for order in found.order)
        assert len(found.links_gbps) == len(pattern.edges_for(k))
        if by_sum:
            assert sum(found.links_gbps) == found.agg_gbps
        elif found.links_gbps:
            assert min(found.links_gbps) == found.eff_gbps
        assert found.agg_gbps == brute_agg(graph, gpus, pattern)


def test_eq2_as_published_is_not_monotone():
    """The worst upgrade of one PCIe link to a double: 49.2 -> 21.3 GB/s."""
    assert float(eq2(1, 1, 3)) < float(eq2(0, 2, 3)) - 25


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["ring", "tree", "0-1,1-2,2-3,3-4,4-5,5-0"]))
def test_eight_gpus_against_random_embeddings(seed, name):
    """No random embedding beats the table on machines of eight GPUs."""
    from slurm_gpu_aware.topology.patterns import parse_pattern

    rng = np.random.default_rng(seed)
    values = np.triu(rng.choice([12.0, 25.0, 50.0], (8, 8)), 1)
    graph = HardwareGraph.build(values + values.T, [["SYS"] * 8 for _ in range(8)])
    pattern = parse_pattern(name)
    for k in (6, 7, 8):
        edges = np.array(pattern.edges_for(k))
        best = agg_table(graph, pattern, k)
        slowest = eff_table(graph, pattern, k, BOTTLENECK)
        for _ in range(100):
            order = rng.permutation(8)[:k]
            links = graph.gbps[order[edges[:, 0]], order[edges[:, 1]]]
            at = rank_of_mask(8, k)[mask_of(order.tolist())]
            assert links.sum() <= best[at]
            assert links.min() <= slowest[at]


def test_sixteen_gpus_ring_of_the_torus():
    """A Hamiltonian ring of NVLinks exists for every even size that a torus' rows can close."""
    gbps = machine("mapa-torus-2d").gbps
    rings = Rings(gbps, 16, np.add, np.minimum)
    total, slowest = rings.values()
    assert slowest.tolist() == [25.0]
    order = rings.best((1 << 16) - 1)
    links = [gbps[a, b] for a, b in pairwise([*order, order[0]])]
    assert sorted(order) == list(range(16))
    assert sum(links) == total[0] == 13 * 50 + 3 * 25
    # A 4 x 4 torus is bipartite: odd rings of NVLinks do not exist, even ones from 4 on do.
    for k in range(3, 9):
        (slowest,) = Rings(gbps, k, np.minimum).values()
        assert slowest.max() == (12.0 if k % 2 else (50.0 if k == 8 else 25.0))


def test_ring_counts_are_the_bits_of_every_ring():
    """Two GPUs: the link counts twice."""
    kinds = np.array([[0, 2, 1], [2, 0, 0], [1, 0, 0]], dtype=np.int8)
    assert RingCounts(kinds, 2).values()[:, :2].T.tolist() == [[0, 0, 1], [1 << 2, 0, 0]]
    assert RingCounts(kinds, 3).values()[:, 0].tolist() == [0, 1 << 1, 0, 0]


@settings(max_examples=40, deadline=None)
@given(machines(8), st.sampled_from(["ring", "tree"]), st.data())
def test_a_search_of_the_whole_machine_finds_what_one_of_the_set_alone_finds(graph, name, data):
    """A small machine's own search answers for its sets, ties included, where that is allowed."""
    k = data.draw(st.integers(min(3, graph.n), graph.n))
    gpus = tuple(sorted(data.draw(st.permutations(range(graph.n)))[:k]))
    inside = graph.gbps[np.ix_(gpus, gpus)]
    kind = Rings if name == "ring" else Trees
    for by_sum in (False, True):
        found = match(graph, gpus, Pattern(name), BOTTLENECK, by_sum=by_sum)
        least = 0.0 if by_sum else found.eff_gbps
        if len(set(inside[np.triu_indices(k, 1)].tolist())) > 1:  # else any order will do
            allowed = np.where(inside >= least, inside, -np.inf)
            alone = kind(allowed, k, np.add).best((1 << k) - 1)
            assert found.order == (tuple(gpus[i] for i in alone),)


def test_same_input_same_answer_whatever_was_asked_before():
    graph = machine("dgx-1-v100")
    first = [match(graph, (0, 2, 3, 5), RING, BOTTLENECK).order]
    match.cache_clear()
    agg_table(graph, RING, 5)
    assert match(graph, (0, 2, 3, 5), RING, BOTTLENECK).order == first[0]
