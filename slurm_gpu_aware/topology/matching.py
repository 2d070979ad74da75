"""Pattern matching: the best GPUs of a machine for a communication pattern.

A table holds the value of the best embedding of the pattern (`patterns`, `general`) for
every set of k GPUs. It depends on the hardware graph, the pattern and k only, not on the free GPUs.
Tables are cached, so a decision on a known machine is a look-up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.bandwidth import EffBwModel, eq2, link_kinds
from slurm_gpu_aware.topology.general import best_mapping, is_exact, mapping_values
from slurm_gpu_aware.topology.patterns import (
    Pattern,
    RingCounts,
    Rings,
    Trees,
    pairs_in,
    parse_pattern,
)
from slurm_gpu_aware.topology.subsets import (
    MAX_EXACT,
    mask_of,
    masks_of_size,
    members_of_size,
    rank_of_mask,
)

_RING, _TREE = Pattern("ring"), Pattern("tree")
_SEARCHES: dict[str, type[Rings | Trees]] = {"ring": Rings, "tree": Trees}
_SMALL = 8  # GPUs of a machine up to which the search behind a table is cached: some kilobytes
_MOST_TABLES = 512

_edges_of = lru_cache(maxsize=512)(Pattern.edges_for)

_Key = tuple[HardwareGraph, Pattern, int]
_Tables = tuple[FloatArray, FloatArray]
_tables: dict[_Key, _Tables] = {}  # Best sums and best bottlenecks, the last used ones at the end.
_COUNT = 32.0  # base of the counts in a weight; rings have at most 16 links
_STEPS = 1024.0  # bandwidths are whole multiples of 1/1024 GB/s


@lru_cache(maxsize=MAX_EXACT + 1)
def _pairs(k: int) -> tuple[IntArray, IntArray]:
    """Positions (a, b) of all pairs a < b."""
    return np.triu_indices(k, 1)


def _link_tables(graph: HardwareGraph, pattern: Pattern, k: int) -> _Tables:
    """Best sum and best bottleneck of the pattern over every ``k``-set, in tie order."""
    key = (graph, pattern, k)
    tables = _tables.pop(key, None)
    if tables is None:
        tables = _build(graph, pattern, k)
        for table in tables:
            table.setflags(write=False)
        if len(_tables) >= _MOST_TABLES:
            del _tables[next(iter(_tables))]
    _tables[key] = tables
    return tables


@lru_cache(maxsize=_MOST_TABLES)
def _search(graph: HardwareGraph, name: str, k: int) -> Rings | Trees:
    """The search for the rings or trees of a small machine."""
    return _SEARCHES[name](graph.gbps, k, np.add, np.minimum)


def _build(graph: HardwareGraph, pattern: Pattern, k: int) -> _Tables:
    sets = masks_of_size(graph.n, k).size
    edges = _edges_of(pattern, k)
    if not edges:
        return np.zeros(sets), np.zeros(sets)
    if graph.is_uniform:
        link = float(graph.gbps.max())
        return np.full(sets, link * len(edges)), np.full(sets, link)
    if pattern.name in _SEARCHES:
        search = _search if graph.n <= _SMALL else _search.__wrapped__
        total, slowest = search(graph, pattern.name, k).values()
        return total, slowest
    if pattern.name == "ring+tree":
        ring, tree = _link_tables(graph, _RING, k), _link_tables(graph, _TREE, k)
        return ring[0] + tree[0], np.minimum(ring[1], tree[1])
    if pattern.name == "all-to-all":
        members = members_of_size(graph.n, k)
        first, second = _pairs(k)
        links = graph.gbps[members[first], members[second]]
        return links.sum(axis=0), links.min(axis=0)
    return mapping_values(graph.gbps, edges, k)


def agg_table(graph: HardwareGraph, pattern: Pattern, k: int) -> FloatArray:
    """(C(n, k),) AggBW (eq. 1) of the best embedding on every set, tie order. GB/s. Read-only.

    Raises ValueError if the machine has more than ``subsets.MAX_EXACT`` GPUs.
    """
    return _link_tables(graph, pattern, k)[0]


@lru_cache(maxsize=64)
def _fit_weights(graph: HardwareGraph) -> FloatArray:
    """(n, n) weights; a sum over a ring encodes bandwidth, double and single NVLinks."""
    kinds = link_kinds(graph)
    return graph.gbps * (_STEPS * _COUNT**2) + np.where(kinds == 2, _COUNT, kinds)


@lru_cache(maxsize=512)
def _fitted_counts(graph: HardwareGraph, k: int) -> tuple[IntArray, IntArray]:
    """(C(n, k),) double and single NVLinks of the fitted ring of every set.

    The fitted ring has the best slowest link, then the largest sum, then the most double, then the
    most single NVLinks.
    """
    slowest = _link_tables(graph, _RING, k)[1]
    sums = np.zeros(slowest.size)
    for least in np.unique(slowest).tolist():
        fast = np.where(graph.gbps >= least, _fit_weights(graph), -np.inf)
        here = slowest == least
        sums[here] = Rings(fast, k, np.add).values()[0][here]
    singles, doubles = sums % _COUNT, sums // _COUNT % _COUNT
    return doubles.astype(np.int64), singles.astype(np.int64)


@lru_cache(maxsize=512)
def _eq2_table(graph: HardwareGraph, k: int, model: EffBwModel) -> FloatArray:
    """Eq. 2 on every set: of the best ring (``paper``) or of the fitted ring (a refit)."""
    sets = masks_of_size(graph.n, k).size
    if k == 1:
        best = np.full(sets, float(eq2(0, 0, 0, model)))
    else:
        if model.of_fitted_ring:
            doubles, singles = _fitted_counts(graph, k)
            reach = np.zeros((k + 1, sets), dtype=np.uint32)
            reach[doubles, np.arange(sets)] = 1 << singles
        else:
            reach = RingCounts(link_kinds(graph), k).values()
        best = np.full(sets, -np.inf)
        for x, y in pairs_in(np.bitwise_or.reduce(reach, axis=1).tolist()):
            # One by one, so that equal rings have equal values.
            value = float(eq2(x, y, k - x - y, model))
            np.maximum(best, value, out=best, where=(reach[x] >> np.uint32(y) & 1) == 1)
    best.setflags(write=False)
    return best


def fitted_ring(graph: HardwareGraph, gpus: Sequence[int]) -> tuple[int, int, int]:
    """(x, y, z) of eq. 2 for the fitted ring over at most 16 GPUs."""
    k = len(gpus)
    if k == 1:
        return 0, 0, 0
    x, y = (counts.item(0) for counts in _fitted_counts(graph.subgraph(gpus), k))
    return x, y, k - x - y


def eff_table(graph: HardwareGraph, pattern: Pattern, k: int, model: EffBwModel) -> FloatArray:
    """(C(n, k),) EffBW of the best embedding on every set, tie order. GB/s. Read-only.

    Eq. 2 is a model of rings and scores rings for every pattern, as the authors' code does: the
    ring with the largest value as published, the fitted ring for a refit. The bottleneck of a
    pattern without edges is 0, because no link helps it.
    """
    if model.coefficients is not None:
        return _eq2_table(graph, k, model)
    return _link_tables(graph, pattern, k)[1]


def exact_tables(graph: HardwareGraph, pattern: Pattern, k: int) -> bool:
    """Say whether the tables hold the best of all embeddings (see ``general``).

    For a machine that is too large for tables: whether those of its parts do.
    """
    if pattern.name != "edges" or graph.is_uniform:
        return True
    return is_exact(_edges_of(pattern, k), k, min(graph.n, MAX_EXACT))


@dataclass(frozen=True)
class Match:
    """A set of GPUs and its best embedding."""

    gpus: tuple[int, ...]  # The set, ascending.
    order: tuple[tuple[int, ...], ...]
    """GPU of each position of the pattern; two entries for ``ring+tree``."""
    links_gbps: tuple[float, ...]
    """Bandwidth of each link that this embedding uses, in the order of ``Pattern.edges_for``."""
    agg_gbps: float  # AggBW: the largest sum of any embedding on the set.
    eff_gbps: float  # EffBW: the largest of any embedding on the set.
    exact: bool = True
    """False: the search did not compare all embeddings; the values are those of this one."""

    def pairs(self, pattern: str) -> tuple[tuple[int, int], ...]:
        """Pairs of GPUs that communicate by the pattern of the embedding, ascending, each once."""
        edges = (
            (order[a], order[b])
            for order, name in zip(self.order, pattern.split("+"), strict=True)
            for a, b in parse_pattern(name).edges_for(len(order))
        )
        return tuple(sorted({(min(edge), max(edge)) for edge in edges}))


@lru_cache(maxsize=4096)
def match(
    graph: HardwareGraph,
    gpus: tuple[int, ...],
    pattern: Pattern,
    model: EffBwModel,
    *,
    by_sum: bool = False,
) -> Match:
    """The best embedding on one set of at most 16 GPUs.

    ``by_sum``: by AggBW. Otherwise by EffBW and, under the bottleneck model, then by the sum.
    """
    k = len(gpus)
    exact = pattern.name != "edges" or exact_tables(graph.subgraph(gpus), pattern, k)
    agg, eff = _values(graph, gpus, pattern)
    by_eq2 = model.coefficients is not None and not by_sum
    if model.coefficients is not None:
        eff = float(_eq2_table(graph.subgraph(gpus), k, model)[0])
    orders: list[tuple[int, ...]] = []
    links: list[float] = []
    for piece in (_RING, _TREE) if pattern.name == "ring+tree" else (pattern,):
        edges = _edges_of(piece, k)
        ring_by_eq2 = by_eq2 and bool(edges) and piece.name == "ring"
        if ring_by_eq2 and not model.of_fitted_ring:
            ring = RingCounts(link_kinds(graph)[np.ix_(gpus, gpus)], k)
            best = ring.best(lambda x, y: float(eq2(x, y, k - x - y, model)))
            order = tuple(gpus[i] for i in best)
        else:
            slowest = 0.0 if by_sum else _values(graph, gpus, piece)[1]
            order = _layout(graph, gpus, piece, slowest, ring_by_eq2)
        orders.append(order)
        links += [graph.gbps.item(order[a], order[b]) for a, b in edges]
    if links and not exact:
        agg, eff = sum(links), (eff if by_eq2 else min(links))
    return Match(gpus, tuple(orders), tuple(links), agg, eff, exact)


def _values(graph: HardwareGraph, gpus: tuple[int, ...], pattern: Pattern) -> tuple[float, float]:
    """AggBW and bottleneck of one set, from the machine's table if it has one."""
    k, at = len(gpus), 0
    if (graph, pattern, k) in _tables and exact_tables(graph, pattern, k):
        at = rank_of_mask(graph.n, k).item(mask_of(gpus))
    else:
        graph = graph.subgraph(gpus)
    total, slowest = _link_tables(graph, pattern, k)
    return total.item(at), slowest.item(at)


def _layout(
    graph: HardwareGraph, gpus: tuple[int, ...], piece: Pattern, slowest: float, of_fit: bool
) -> tuple[int, ...]:
    """GPU of each position of the embedding with the largest sum and no link below ``slowest``.

    ``of_fit``: the largest sum of :func:`_fit_weights` instead.
    """
    k, edges = len(gpus), _edges_of(piece, len(gpus))
    if not edges or piece.name == "all-to-all":
        return gpus
    index = np.ix_(gpus, gpus)
    gbps = graph.gbps[index]
    weights = _fit_weights(graph)[index] if of_fit else gbps
    links = weights[_pairs(k)]
    if links.min() == links.max():
        return gpus
    kind = _SEARCHES.get(piece.name)
    # The result of the table's search is usually the answer; its slowest link decides.
    if kind and not of_fit and graph.n <= _SMALL:
        order = _search(graph, piece.name, k).best(mask_of(gpus))
        if min(graph.gbps.item(order[a], order[b]) for a, b in edges) >= slowest:
            return order
    allowed = np.where(gbps >= slowest, weights, -np.inf)
    full = (1 << k) - 1
    order = kind(allowed, k, np.add).best(full) if kind else best_mapping(allowed, edges)
    return tuple(gpus[i] for i in order)
