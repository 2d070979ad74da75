"""Machines that a job may use, sorted into kinds, and the cost of their sets.

Machines with the same graph, the same GPUs, the same free GPUs and the same neighbours are one
kind: they have the same best set.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.drb.bipartition import Machine, best_set, linked_enough, worst_set
from slurm_gpu_aware.placement.drb.utility import (
    InterferenceProfile,
    Neighbours,
    Scale,
    Terms,
    TopoOptions,
    Workload,
    extremes,
    free_shares,
    interference,
    neighbours_on,
)
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.level_views import MaskArray, by_identity, pack
from slurm_gpu_aware.placement.selection.links import graph_of, sorted_rows
from slurm_gpu_aware.placement.shapes import Split
from slurm_gpu_aware.topology.locality import Network, network_of, path_sum, sockets_of
from slurm_gpu_aware.topology.subsets import slots_of


class PlacedSet(NamedTuple):
    """GPUs of some rows of a cell, as masks, and the terms of their utility."""

    rows: IntArray
    masks: tuple[int, ...]
    terms: Terms


class _Idle(NamedTuple):
    """Data that does not depend on jobs."""

    number: IntArray  # (N,) number of each node's kind.
    kinds: tuple[tuple[HardwareGraph, int], ...]  # Graph and existing GPUs.
    network: Network
    sockets: MaskArray  # (N, W) GPUs of the socket of each GPU.


@by_identity
def _idle(
    exists: BoolArray, graphs: tuple[HardwareGraph | None, ...], levels: tuple[LocalityLevel, ...]
) -> _Idle:
    """Cached by identity of the arrays, which the copies of a round share."""
    cluster = Cluster.build([""] * len(exists), exists, graphs=graphs, levels=levels)
    distinct: dict[tuple[HardwareGraph, int], int] = {}
    number = [
        distinct.setdefault((graph_of(cluster, node), mask), len(distinct))
        for node, mask in enumerate(pack(exists).tolist())
    ]
    width = exists.shape[1]
    sockets = np.full((len(distinct), width), (1 << width) - 1, dtype=np.uint64)
    for row, (graph, mask) in enumerate(distinct):
        for socket in sockets_of(graph, mask):
            sockets[row, list(slots_of(socket))] = socket
    of_node = np.array(number, dtype=np.int64)
    return _Idle(of_node, tuple(distinct), network_of(cluster), sockets[of_node])


def slowdown_beside(
    profile: InterferenceProfile, job: Workload, cluster: Cluster, scope: str
) -> FloatArray:
    """(N, W) slowdown >= 1 of ``job`` on each GPU by the running jobs on its socket or machine."""
    sockets = _idle(cluster.exists, cluster.graphs, cluster.levels).sockets
    if scope == "machine":
        sockets = np.full_like(sockets, np.iinfo(np.uint64).max)
    number, known = neighbours_on(profile, job, cluster, sockets)
    width = cluster.shape[1]
    more = np.zeros((len(known), width))
    for row, neighbours in enumerate(known):
        for there in neighbours:
            more[row] += there.caused * np.array([there.sockets >> s & 1 for s in range(width)])
    return np.asarray(1.0 + more[number])


def scale_for(
    request: Request, cluster: Cluster, choices: Sequence[Split], options: TopoOptions
) -> Scale:
    """Scale of a job's terms, from the fewest idle machines that it may use."""
    idle = _idle(cluster.exists, cluster.graphs, cluster.levels)
    allowed = allowed_nodes(request, cluster)
    kinds = list(idle.kinds)
    if allowed is not None:
        there = np.bincount(idle.number[allowed], minlength=len(kinds)) > 0
        kinds = [kind for kind, used in zip(kinds, there.tolist(), strict=True) if used]
    width = max((e.bit_count() for _, e in kinds), default=0)
    nodes, counts = _fewest(request, choices[0], width)
    if request.nodes.whole:
        counts = [width] * nodes
        found = [extremes(graph, e, e.bit_count()) for graph, e in kinds]
    else:
        found = [extremes(g, e, k) for g, e in kinds for k in {*counts} if e.bit_count() >= k]
    distance = idle.network.distance
    pairs = (sum(counts) ** 2 - sum(c * c for c in counts)) // 2
    profile = options.interference if request.application is not None else None
    return Scale(
        t_best=nodes * min((t for t, _, _ in found), default=0) + pairs * distance[0],
        t_worst=nodes * max((t for _, t, _ in found), default=0) + pairs * distance[-1],
        i_worst=profile.worst if profile is not None else 1.0,
        w_worst=max((w for _, _, w in found), default=0.0),
    )


def _fewest(request: Request, split: Split, width: int) -> tuple[int, list[int]]:
    """The fewest nodes that the split allows, and the GPUs on each."""
    if not split.uneven:
        return split.nodes, [split.per_node] * split.nodes
    nodes = max(request.fewest_nodes, -(-request.gpus // max(width, 1)))
    even, more = divmod(request.gpus, nodes)
    return nodes, [even + 1] * more + [even] * (nodes - more)


class Machines:
    """The candidate rows of a cell as kinds of machines, with the job's interference on each."""

    def __init__(self, cell: Cell, options: TopoOptions, scale: Scale) -> None:
        self.cell = cell
        self.scale = scale
        self.need = options.min_bandwidth_gbps
        self.cluster: Cluster = cell.supply.cluster
        profile, name = options.interference, cell.supply.request.application
        self.weights = options.weights
        self.knows_interference = profile is not None and name is not None
        idle = _idle(self.cluster.exists, self.cluster.graphs, self.cluster.levels)
        self.network = idle.network
        number, most = idle.number, len(idle.kinds)
        known: list[tuple[Neighbours, ...]] = [()]
        if profile is None or name is None:
            self.weights = self.weights.without_interference()
        else:
            sockets = idle.sockets
            if options.interference_scope == "machine":
                sockets = np.full_like(sockets, np.iinfo(np.uint64).max)
            job = (name, cell.supply.request.gpus)
            beside, known = neighbours_on(profile, job, self.cluster, sockets)
            number = beside * most + number
        self.of_row, kinds = sorted_rows(cell, number, most * len(known))
        self.kinds = tuple(
            Machine(*idle.kinds[at % most], free, allowed, known[at // most])
            for at, free, allowed, _ in kinds
        )
        self.plain = tuple(plain for *_, plain in kinds)

    @cached_property
    def left(self) -> IntArray:
        """(C,) free GPUs of each row's node."""
        counts = np.array([kind.free.bit_count() for kind in self.kinds], dtype=np.int64)
        return counts[self.of_row]

    def masks(self, k: int) -> list[int | None]:
        """Mask of ``k`` GPUs of each kind, by bipartition, on plain nodes the worst; None: none."""
        return [self._mask(*each, k) for each in zip(self.kinds, self.plain, strict=True)]

    def _mask(self, kind: Machine, plain: bool, k: int) -> int | None:
        if kind.allowed.bit_count() < k:
            return None
        if self.cell.supply.request.nodes.whole:
            chosen = kind.allowed
        elif plain:
            chosen = worst_set(kind, k, self.weights, self.scale)
        else:
            return best_set(kind, k, self.weights, self.scale, self.need)
        fine = self.need <= 0.0 or linked_enough(kind.graph, kind.allowed, self.need)
        return chosen if fine else None

    def row_costs(self, masks: Sequence[int | None]) -> FloatArray:
        """(C,) cost of each row if it gives the mask of its kind; inf for None."""
        pairs = zip(self.kinds, masks, strict=True)
        terms = [(0, 1.0, 0.0) if mask is None else kind.terms(mask) for kind, mask in pairs]
        t, i, w = np.array(terms, dtype=np.float64).T[:, self.of_row]
        # All rows have the same offset in t, so the scale of the whole job orders them correctly.
        cost = self.scale.cost(self.weights, t + self.scale.t_best, i, w)
        return np.where(np.array([mask is None for mask in masks])[self.of_row], np.inf, cost)

    def placed(self, rows: IntArray, masks: Sequence[int]) -> PlacedSet:
        """The set of ``masks[i]`` of row ``rows[i]``. On several machines I is their mean."""
        total, used, t, i = 0.0, 0, 0, 0.0
        for kind, mask in zip(self.of_row[rows].tolist(), masks, strict=True):
            this = self.kinds[kind]
            share, sockets = free_shares(this.graph, this.exists, this.free, mask)
            total, used = total + share, used + sockets
            t += path_sum(this.graph, mask)
            i += interference(this.neighbours, mask) / len(masks)
        if len(rows) > 1:
            gpus = np.array([mask.bit_count() for mask in masks], dtype=np.int64)
            t += self.network.path_sum(self.cell.units[rows], gpus)
        w = total / max(used, 1)
        cost = float(self.scale.cost(self.weights, float(t), i, w))
        return PlacedSet(rows, tuple(masks), Terms(t, i, w, cost))
