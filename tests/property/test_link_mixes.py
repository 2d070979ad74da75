"""Distinct link mixes against all renumberings of all sets."""

from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.topology.bandwidth import eq2_terms
from slurm_gpu_aware.topology.link_mixes import LinkMix, informative_order, link_mixes
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import fitted_ring

LINKS = (("NV1", 25.0), ("NV2", 50.0), ("SYS", 10.0), ("SYS", 12.0))


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> HardwareGraph:
    n = draw(st.integers(2, most))
    kinds = st.sampled_from(LINKS[: draw(st.integers(1, len(LINKS)))])
    pairs = combinations(range(n), 2)
    return HardwareGraph.from_links([(a, b, *draw(kinds)) for a, b in pairs], n=n)


def canonical(graph: HardwareGraph, gpus: tuple[int, ...]) -> tuple[object, ...]:
    """The smallest list of links of all renumberings."""
    return min(
        tuple((graph.classes[a][b], graph.gbps.item(a, b)) for a, b in combinations(order, 2))
        for order in permutations(gpus)
    )


def by_brute_force(graph: HardwareGraph, size: int) -> list[LinkMix]:
    sets = list(combinations(range(graph.n), size))
    forms = [canonical(graph, gpus) for gpus in sets]
    counts = Counter(forms)
    return [LinkMix(sets[forms.index(form)], counts[form]) for form in dict.fromkeys(forms)]


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_mixes_are_those_of_brute_force(graph: HardwareGraph) -> None:
    sizes = range(2, graph.n + 1)
    expected = [mix for size in sizes for mix in by_brute_force(graph, size)]
    assert link_mixes(graph, sizes) == expected


def test_two_triangles_are_no_hexagon() -> None:
    """Both have two double links at every GPU, so the hash of the colours is the same."""
    rings = [{(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)}]
    rings += [{tuple(sorted((6 + i, 6 + (i + 1) % 6))) for i in range(6)}]
    double = rings[0] | rings[1]
    links = [(a, b, *LINKS[1 if (a, b) in double else 2]) for a, b in combinations(range(12), 2)]
    graph = HardwareGraph.from_links(links, n=12)
    mixes = {mix.gpus for mix in link_mixes(graph, [6])}
    assert {(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11)} <= mixes


@pytest.mark.parametrize("name", ["dgx-1-v100", "ibm-ac922-6xv100"])
def test_known_machines_up_to_five_gpus(name: str) -> None:
    graph = machine(name)
    expected = [mix for size in range(2, 6) for mix in by_brute_force(graph, size)]
    assert link_mixes(graph, range(2, 6)) == expected


def test_every_set_is_counted_once_and_equal_links_make_one_mix_per_size() -> None:
    assert sum(mix.sets for mix in link_mixes(machine("dgx-1-v100"), range(2, 9))) == 247
    assert [mix.sets for mix in link_mixes(machine("dgx-a100"), range(2, 9))] == [
        28, 56, 70, 56, 28, 8, 1,
    ]  # fmt: skip
    assert link_mixes(uniform_graph(64), [2]) == [LinkMix((0, 1), 120)]  # of the first 16 GPUs
    assert link_mixes(uniform_graph(2), range(2, 9)) == [LinkMix((0, 1), 1)]


@pytest.mark.parametrize("name", ["dgx-1-v100", "dgx-a100", "ibm-ac922-4xv100"])
def test_the_first_mixes_span_all_terms(name: str) -> None:
    graph = machine(name)
    mixes = link_mixes(graph, range(2, 9))
    ordered = informative_order(graph, mixes)
    assert sorted(ordered) == sorted(mixes)

    def rank(chosen: list[LinkMix]) -> int:
        rings = np.array([fitted_ring(graph, mix.gpus) for mix in chosen], dtype=float)
        return int(np.linalg.matrix_rank(eq2_terms(*rings.T)))

    full = rank(mixes)
    assert rank(ordered[:full]) == full
    rings = {fitted_ring(graph, mix.gpus) for mix in mixes}
    assert {fitted_ring(graph, mix.gpus) for mix in ordered[: len(rings)]} == rings


def test_no_mixes_have_an_order_too() -> None:
    assert informative_order(uniform_graph(1), []) == []
