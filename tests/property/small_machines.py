"""Random link graphs, and matchings by trial of every permutation."""

from itertools import combinations, permutations

import numpy as np
from hypothesis import strategies as st

from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.bandwidth import eq2, link_kinds
from slurm_gpu_aware.topology.patterns import Pattern

WORDS = {50.0: "NV2", 25.0: "NV1", 12.0: "SYS"}
NAMED = tuple(Pattern(name) for name in ("ring", "tree", "ring+tree", "all-to-all", "none"))


@st.composite
def machines(draw, most=6, *, classes=None):
    """A machine of up to ``most`` GPUs: NVLink classes at random, or measured values."""
    n = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes = draw(st.booleans()) if classes is None else classes
    values = rng.choice(list(WORDS), (n, n)) if classes else rng.random((n, n)) * 60
    values = np.triu(values, 1)
    values = values + values.T
    words = [[WORDS.get(float(v), "PHB") for v in row] for row in values]
    return HardwareGraph.build(values, words, rng.integers(0, 2, n))


@st.composite
def patterns(draw):
    """A named pattern or a random edge list on up to six job GPUs."""
    if draw(st.booleans()):
        return draw(st.sampled_from(NAMED))
    pairs = list(combinations(range(6), 2))
    chosen = draw(st.sets(st.sampled_from(pairs), min_size=1, max_size=8))
    return Pattern("edges", tuple(sorted(chosen)))


def link_counts(graph, gpus, edges):
    """(x, y, z) of eq. 2: kinds of the links of ``edges`` when position i is ``gpus[i]``."""
    kinds = [int(link_kinds(graph)[gpus[a], gpus[b]]) for a, b in edges]
    return kinds.count(2), kinds.count(1), kinds.count(0)


def orders(gpus):
    return permutations(gpus)


def brute_agg(graph, gpus, pattern):
    """AggBW of the best embedding on a set."""
    if pattern.name == "ring+tree":
        return sum(brute_agg(graph, gpus, Pattern(part)) for part in ("ring", "tree"))
    edges = pattern.edges_for(len(gpus))
    return max(sum(graph.gbps[p[a], p[b]] for a, b in edges) for p in orders(gpus))


def brute_bottleneck(graph, gpus, pattern):
    """Slowest link of the best embedding on a set; 0 without links."""
    if pattern.name == "ring+tree":
        return min(brute_bottleneck(graph, gpus, Pattern(part)) for part in ("ring", "tree"))
    edges = pattern.edges_for(len(gpus))
    if not edges:
        return 0.0
    return max(min(graph.gbps[p[a], p[b]] for a, b in edges) for p in orders(gpus))


def brute_eq2(graph, gpus):
    """Eq. 2 of the best ring on a set."""
    edges = Pattern("ring").edges_for(len(gpus))
    return max(float(eq2(*link_counts(graph, p, edges))) for p in orders(gpus))


def brute_fitted(graph, gpus):
    """(x, y, z) of the ring that a refit of eq. 2 counts on a set of two or more GPUs."""
    edges = Pattern("ring").edges_for(len(gpus))

    def worth(order):
        links = [graph.gbps[order[a], order[b]] for a, b in edges]
        return min(links), sum(links), *link_counts(graph, order, edges)

    return max(map(worth, orders(gpus)))[2:]


def brute_preserved(graph, free, gpus):
    """Sum of links among the free GPUs that remain."""
    rest = [g for g in free if g not in gpus]
    return sum(graph.gbps[a, b] for a, b in combinations(rest, 2))
