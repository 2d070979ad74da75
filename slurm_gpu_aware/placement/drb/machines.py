"""Machines that a job may use, sorted into kinds, and the cost of their sets.

Machines with the same graph, the same GPUs and the same free GPUs are one kind: apart from
interference they have the same best set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.drb.bipartition import Machine, best_set, linked_enough, worst_set
from slurm_gpu_aware.placement.drb.interference import interference
from slurm_gpu_aware.placement.drb.options import TopoOptions
from slurm_gpu_aware.placement.drb.utility import Scale, Terms, extremes, free_shares, terms_of
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.masks import pack
from slurm_gpu_aware.placement.selection.link_kinds import graph_of, sorted_rows
from slurm_gpu_aware.placement.shapes import Split
from slurm_gpu_aware.topology.distances import network_of, path_sum

__all__ = ["Machines", "kind_mask", "scale_for"]


class _Idle:
    """Data that does not depend on jobs: graph and GPUs of each node, and the network."""

    def __init__(self, cluster: Cluster) -> None:
        self.of = (cluster.exists, cluster.graphs, cluster.levels)
        self.exists = pack(cluster.exists)
        distinct: dict[tuple[HardwareGraph, int], int] = {}
        self.number = np.zeros(cluster.shape[0], dtype=np.int64)
        for node, mask in enumerate(self.exists.tolist()):
            key = (graph_of(cluster, node), mask)
            self.number[node] = distinct.setdefault(key, len(distinct))
        self.kinds = tuple(distinct)
        self.network = network_of(cluster)


_last: _Idle | None = None


def _idle(cluster: Cluster) -> _Idle:
    """Cached by identity of the arrays, which the copies of a round share."""
    global _last
    now = (cluster.exists, cluster.graphs, cluster.levels)
    if _last is None or any(a is not b for a, b in zip(_last.of, now, strict=True)):
        _last = _Idle(cluster)
    return _last


def scale_for(
    request: Request, cluster: Cluster, choices: Sequence[Split], options: TopoOptions
) -> Scale:
    """Scale of a job's terms: the fewest idle machines that the job may use.

    With several machines the best is the tightest network level, the worst the widest.
    """
    idle = _idle(cluster)
    allowed = allowed_nodes(request, cluster)
    kinds = list(idle.kinds)
    if allowed is not None:
        there = np.bincount(idle.number[allowed], minlength=len(kinds)) > 0
        kinds = [kind for kind, used in zip(kinds, there.tolist(), strict=True) if used]
    nodes, counts = _fewest(request, choices, max((e.bit_count() for _, e in kinds), default=0))
    if request.whole_node:
        counts = [max((e.bit_count() for _, e in kinds), default=0)] * nodes
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


def _fewest(request: Request, choices: Sequence[Split], width: int) -> tuple[int, list[int]]:
    """The fewest nodes that any split allows, and the GPUs on each."""
    least = choices[0]
    if not least.uneven:
        return least.nodes, [least.per_node] * least.nodes
    nodes = max(request.min_nodes, len(request.required), -(-request.gpus // max(width, 1)), 1)
    even, more = divmod(request.gpus, nodes)
    return nodes, [even + 1] * more + [even] * (nodes - more)


class Machines:
    """The candidate rows of a cell as kinds of machines, with the job's interference on each."""

    def __init__(self, cell: Cell, options: TopoOptions, scale: Scale) -> None:
        self.cell = cell
        self.scale = scale
        self.cluster: Cluster = cell.supply.cluster
        profile, name = options.interference, cell.supply.request.application
        self.knows_interference = profile is not None and name is not None
        weights = options.weights
        self.weights = weights if self.knows_interference else weights.without_interference()
        self.idle = _idle(self.cluster)
        self.of_row, kinds = sorted_rows(cell, self.idle.number, len(self.idle.kinds))
        self.kinds = tuple(
            Machine(*self.idle.kinds[number], free, allowed) for number, free, allowed, _ in kinds
        )
        self.plain = tuple(plain for *_, plain in kinds)
        if profile is not None and name is not None:
            job = (name, cell.supply.request.gpus)
            self.i_of_row: FloatArray = interference(profile, job, self.cluster)[cell.units]
        else:
            self.i_of_row = np.ones(len(cell.units))

    @cached_property
    def left(self) -> IntArray:
        """(C,) free GPUs of each row's node."""
        counts = np.array([kind.free.bit_count() for kind in self.kinds], dtype=np.int64)
        return counts[self.of_row]

    def row_costs(self, masks: Sequence[int | None]) -> FloatArray:
        """(C,) cost of each row if it gives the mask of its kind; inf for None."""
        t = np.array(
            [
                0 if m is None else path_sum(k.graph, m)
                for k, m in zip(self.kinds, masks, strict=True)
            ]
        )
        w = np.array([self._share(k, m) for k, m in zip(self.kinds, masks, strict=True)])
        nothing = np.array([m is None for m in masks])
        of = self.of_row
        # All rows have the same offset in t, so the scale of the whole job orders them correctly.
        cost = self.scale.cost(self.weights, t[of] + self.scale.t_best, self.i_of_row, w[of])
        return np.where(nothing[of], np.inf, cost)

    @staticmethod
    def _share(kind: Machine, mask: int | None) -> float:
        if mask is None:
            return 0.0
        total, used = free_shares(kind.graph, kind.exists, kind.free, mask)
        return total / max(used, 1)

    def terms(self, rows: IntArray, masks: Sequence[int]) -> Terms:
        """Terms of a set: ``masks[i]`` of row ``rows[i]``.

        On several machines I is the mean over them.
        """
        total, used, inside = 0.0, 0, 0
        for row, mask in zip(self.of_row[rows].tolist(), masks, strict=True):
            kind = self.kinds[row]
            share, sockets = free_shares(kind.graph, kind.exists, kind.free, mask)
            total, used = total + share, used + sockets
            inside += path_sum(kind.graph, mask)
        t = inside
        if len(rows) > 1:
            gpus = np.array([mask.bit_count() for mask in masks], dtype=np.int64)
            t += self.idle.network.path_sum(self.cell.units[rows], gpus)
        i = float(self.i_of_row[rows].mean())
        return terms_of(self.scale, self.weights, t, i, total / max(used, 1))


def kind_mask(machines: Machines, kind: int, k: int, options: TopoOptions) -> int | None:
    """Mask of ``k`` GPUs on machines of a kind; None: they have no such set.

    By bipartition; on plain nodes the worst set that Slurm may choose.
    """
    machine, need = machines.kinds[kind], options.min_bandwidth_gbps
    if machine.allowed.bit_count() < k:
        return None
    if machines.cell.supply.request.whole_node:
        chosen = sure = machine.allowed
    elif machines.plain[kind]:
        chosen = worst_set(machine, k, machines.weights, machines.scale)
        sure = machine.allowed
    else:
        return best_set(machine, k, machines.weights, machines.scale, need)
    return chosen if need <= 0.0 or linked_enough(machine.graph, sure, need) else None
