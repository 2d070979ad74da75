"""Hardware graphs: building, checking, sharing; patterns."""

import numpy as np
import pytest

from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.hardware_graph import (
    HardwareGraph,
    class_gbps,
    direct_links,
    uniform_graph,
)
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.patterns import heap_children, parse_pattern

LINKS = [(0, 1, "NV2", 50.0), (0, 2, "PHB", None), (2, 1, "SYS", 6.5)]


def test_links_of_a_probe_become_a_symmetric_graph():
    graph = HardwareGraph.from_links(LINKS, n=3, groups=[0, 0, 1])
    assert graph.gbps.tolist() == [[0, 50, 10], [50, 0, 6.5], [10, 6.5, 0]]
    assert graph.classes[1] == ("NV2", "X", "SYS")
    assert graph.groups == (0, 0, 1)
    with pytest.raises(ValueError, match="read-only"):
        graph.gbps[0, 1] = 1.0


def test_equal_machines_share_one_object():
    first = HardwareGraph.from_links(LINKS, n=3)
    assert HardwareGraph.from_links(reversed(LINKS), n=3) is first
    assert first != HardwareGraph.from_links(LINKS, n=3, groups=[0, 0, 1])
    assert machine("mapa-dgx-v") is machine("dgx-1-v100")
    assert len({machine("dgx-a100"), machine("dgx-h100"), machine("DGX-A100")}) == 2


def test_a_gpu_that_the_probe_missed_is_joined_through_the_host():
    graph = HardwareGraph.from_links([(0, 2, "NV1", 25.0)], n=4)
    assert graph.classes[1] == ("SYS", "X", "SYS", "SYS")
    assert graph.padded(6).gbps[5, 0] == class_gbps("SYS")
    assert graph.padded(4) is graph
    assert graph.subgraph([2, 0]).gbps[0, 1] == 25.0


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([(0, 0, "NV1", 25.0)], "bad or repeated"),
        ([(0, 1, "NV1", 25.0), (1, 0, "NV1", 25.0)], "bad or repeated"),
        ([(0, 1, "NVLINK", 25.0)], "unknown link class 'NVLINK'; known: NV1"),
        ([(0, 1, "NV1", float("nan"))], "must be finite"),
        ([(0, 1, "NV1", -1.0)], "not negative"),
        ([(0, -1, "NV1", 25.0)], "bad or repeated"),
    ],
)
def test_bad_links_are_refused(links, message):
    with pytest.raises(ValueError, match=message):
        HardwareGraph.from_links(links, n=3)


def test_bad_matrices_are_refused():
    with pytest.raises(ValueError, match="symmetric"):
        HardwareGraph.build([[0, 1], [2, 0]], [["X", "SYS"], ["SYS", "X"]])
    with pytest.raises(ValueError, match="two classes"):
        HardwareGraph.build([[0, 1], [1, 0]], [["X", "SYS"], ["PHB", "X"]])
    with pytest.raises(ValueError, match="socket numbers"):
        HardwareGraph.build([[0, 1], [1, 0]], [["X", "SYS"], ["SYS", "X"]], groups=[0])


def test_words_of_links():
    words = ("NV1", "NV18", "XGMI4", "PIX", "SYS")
    assert [direct_links(w) for w in words] == [1, 18, 4, 0, 0]
    assert [class_gbps(w) for w in words[:3]] == [25.0, 450.0, 200.0]
    for word in ("NV0", "XGMI", "XGMI100", "xgmi1", "X", "PIX2", "NV1 "):
        with pytest.raises(ValueError, match="unknown link class"):
            direct_links(word)
    near_to_far = [class_gbps(w) for w in ("NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS")]
    assert near_to_far == sorted(near_to_far, reverse=True)
    graph = HardwareGraph.from_links([(1, 0, "NV1", None)], n=2)
    assert graph.gbps[0, 1] == 25.0


def test_bandwidths_are_kept_to_a_1024th_so_that_sums_are_exact():
    rng = np.random.default_rng(1)
    weights = np.triu(rng.random((6, 6)) * 100, 1)
    graph = HardwareGraph.build(weights + weights.T, uniform_graph(6).classes)
    links = graph.gbps[np.triu_indices(6, 1)]
    assert len({float(rng.permutation(links).cumsum()[-1]) for _ in range(50)}) == 1
    assert np.abs(graph.gbps - weights - weights.T).max() <= 1 / 2048


@pytest.mark.parametrize("k", range(1, 17))
def test_heap_children_are_those_of_the_pattern(k):
    """Sizes counted by walking the pattern's own edges."""
    parent = {b: a for a, b in parse_pattern("tree").edges_for(k)}
    sides = [0, 0, 0]
    for node in range(1, k):
        while parent[node] != 0:
            node = parent[node]
        sides[node] += 1
    assert heap_children(k) == (sides[1], sides[2])


def test_patterns_list_their_edges():
    assert parse_pattern("ring").edges_for(2) == ((0, 1), (1, 0))
    assert parse_pattern("ring").edges_for(1) == ()
    assert parse_pattern("tree").edges_for(5) == ((0, 1), (0, 2), (1, 3), (1, 4))
    assert len(parse_pattern("ring+tree").edges_for(5)) == 9
    assert len(parse_pattern("all-to-all").edges_for(5)) == 10
    assert parse_pattern("none").edges_for(5) == ()
    edges = parse_pattern("2-1,0-1,1-2")
    assert edges.edges == ((0, 1), (1, 2))
    assert edges.edges_for(2) == ((0, 1),)
    assert not edges.has_edges(1)


@pytest.mark.parametrize("text", ["rings", "", "0-0", "0-1,", "0-1;2-3", "0-123"])
def test_unknown_patterns_are_refused_with_the_valid_ones(text):
    with pytest.raises(RequestError, match=r"valid: ring, tree, ring\+tree, all-to-all, none, or"):
        parse_pattern(text)


def test_unknown_machine_names_the_known_ones():
    with pytest.raises(ValueError, match="known: dgx-1-p100, dgx-1-v100"):
        machine("dgx-3")
