"""Fiduccia-Mattheyses against every bipartition and against Kernighan-Lin."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.placement.drb.bipartition import (
    cut_weight,
    fm_bipartition,
    fm_improve,
    halves,
)
from slurm_gpu_aware.topology.machines import machine


def random_graph(rng, n, density=1.0):
    weights = np.triu(rng.integers(0, 20, (n, n)) * (rng.random((n, n)) < density), 1)
    return (weights + weights.T).astype(float)


def side_of(n, members):
    return np.isin(np.arange(n), list(members))


def least_cut(weights, size):
    n = len(weights)
    return min(
        cut_weight(weights, side_of(n, (0, *rest))) for rest in combinations(range(1, n), size - 1)
    )


def test_two_cliques_are_separated_whatever_the_numbering():
    rng = np.random.default_rng(1)
    for n in (4, 6, 8, 16):
        near = np.where(np.arange(n)[:, None] % 2 == np.arange(n)[None, :] % 2, 1.0, 0.05)
        np.fill_diagonal(near, 0.0)
        order = rng.permutation(n)
        side = fm_bipartition(near[np.ix_(order, order)], n // 2)
        assert len({int(order[v]) % 2 for v in np.flatnonzero(side)}) == 1


@pytest.mark.parametrize("density", [1.0, 0.4])
def test_against_every_bipartition(density):
    """A heuristic: it must never claim less than the least cut, and seldom miss it."""
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(150):
        n = int(rng.integers(2, 9))
        size = int(rng.integers(1, n))
        weights = random_graph(rng, n, density)
        side = fm_bipartition(weights, size)
        assert side[0]
        assert side.sum() == size
        found, least = cut_weight(weights, side), least_cut(weights, size)
        assert found >= least
        missed += found > least
    assert missed <= 7  # 5%


def test_no_worse_than_kernighan_lin():
    rng = np.random.default_rng(3)
    worse = 0
    for seed in range(30):
        weights = random_graph(rng, 12)
        graph = nx.from_numpy_array(weights)
        first, _ = nx.algorithms.community.kernighan_lin_bisection(graph, seed=seed)
        theirs = cut_weight(weights, side_of(12, first))
        worse += cut_weight(weights, fm_bipartition(weights, 6)) > theirs
    assert worse <= 1


def test_improving_never_raises_the_cut_and_keeps_the_balance():
    rng = np.random.default_rng(5)
    for _ in range(100):
        n = int(rng.integers(3, 20))
        size = int(rng.integers(1, n))
        weights = random_graph(rng, n, 0.6)
        start = side_of(n, [0, *(1 + rng.permutation(n - 1)[: size - 1])])
        side = fm_improve(weights, start)
        assert side.sum() == size
        assert cut_weight(weights, side) <= cut_weight(weights, start)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ibm-minsky-4xp100", {0, 1}),
        ("ibm-ac922-6xv100", {0, 1, 2}),
        ("dgx-1-v100", {0, 1, 2, 3}),
        ("mapa-cubemesh-16", None),
    ],
)
def test_machines_fall_into_their_sockets(name, first):
    graph = machine(name)
    one, other = halves(graph, (1 << graph.n) - 1)
    assert one & other == 0
    assert one | other == (1 << graph.n) - 1
    if first is not None:
        assert one == sum(1 << s for s in first)


def test_sockets_of_unequal_size_and_machines_without_structure():
    words = [["PHB" if (a == 3) == (b == 3) else "SYS" for b in range(4)] for a in range(4)]
    graph = HardwareGraph.build(np.ones((4, 4)), words, [0, 0, 0, 1])
    assert halves(graph, 0b1111) == (0b0111, 0b1000)
    assert halves(uniform_graph(4), 0b1111) == (0b0011, 0b1100)
