"""Sockets: which one a GPU is bound to, and the free cores beside it (``enforce-binding``).

Slurm gives a job with ``--gres-flags=enforce-binding`` only cores of the sockets of its GPUs. Of a
request that names GPUs one by one, as ours do, it looks at each by itself and takes the cores of
all other sockets away in between: such a request starts only if all its GPUs of a node lie on one
socket. A request that names no GPU may get those of several sockets. So a bound request is placed
in *views* of the cluster: on each, what is free is on one socket of a node, with cores enough; and
where no socket has both, nodes where Slurm itself finds GPUs on several, as on a plain node.
(``_foreach_gres_filter_sock_core`` in Slurm's gres_filter.c.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import BoolArray, Cluster, IntArray
    from slurm_gpu_aware.model.request import Request

__all__ = ["Sockets", "views"]


@dataclass(frozen=True, eq=False)
class Sockets:
    """The S sockets of N nodes with W slots; nodes with fewer have no CPUs on those they lack."""

    gpu: IntArray
    """(N, W) socket of each GPU, -1: not known, or several."""
    cpus: IntArray
    """(N, S) CPUs of the cores that jobs may get, held or not."""
    free_cpus: IntArray
    """(N, S) CPUs of the cores that nobody holds."""
    per_core: IntArray
    """(N,) CPUs that a core counts as."""
    quiet: BoolArray
    """(N,) nobody was placed there whom Slurm has not started yet, so that Slurm may choose."""

    def copy(self) -> Sockets:
        """The same with its own ``free_cpus`` and ``quiet``."""
        return replace(self, free_cpus=self.free_cpus.copy(), quiet=self.quiet.copy())

    def idle(self) -> Sockets:
        """The same if nobody held anything."""
        return replace(self, free_cpus=self.cpus, quiet=np.ones_like(self.quiet))

    def least(self, other: Sockets) -> Sockets:
        """What is free in both."""
        free = np.minimum(self.free_cpus, other.free_cpus)
        return replace(self, free_cpus=free, quiet=self.quiet & other.quiet)

    def share(
        self, node: int, slots: Sequence[int], cpus: int, *, all_free: bool = False
    ) -> tuple[int, ...]:
        """CPUs of each socket that Slurm takes for GPUs of a node.

        Whole cores, beside the GPUs first; ``all_free``: every free one beside the GPUs.
        """
        free = np.maximum(self.free_cpus[node], 0)
        near = np.zeros(len(free), dtype=np.bool_)
        near[[s for s in self.gpu[node, list(slots)].tolist() if s >= 0]] = True
        if all_free:
            return tuple(np.where(near, free, 0).tolist())
        core = max(1, int(self.per_core[node]))
        left = -(-cpus // core) * core
        taken = np.zeros_like(free)
        for socket in np.lexsort((-free, ~near)):
            taken[socket] = min(left, int(free[socket]))
            left -= int(taken[socket])
        return tuple(taken.tolist())


def views(
    request: Request, cluster: Cluster, *, idle: bool = False
) -> Iterator[tuple[Request, Cluster]]:
    """What a bound request may choose from, by the number of nodes; fewest first.

    Of as many nodes first the views in which GPUs are named, one per socket if a node gives
    several, then the one in which Slurm chooses. Each view is a request without bounds by socket
    and a cluster that shows it only GPUs that it may have. ``idle``: if nobody held anything; then
    ``exists`` is what the view shows.
    """
    sockets = cluster.sockets
    if sockets is None:
        raise ValueError(f"job {request.job_id}: the sockets of the cluster are not known")
    there = cluster.exists if idle else cluster.free
    if idle:
        sockets = sockets.idle()
    for nodes in request.node_counts(cluster.shape[1]):
        each, cpus = request.gpus // nodes, request.cpus_on_node(nodes)
        asked = replace(
            request,
            min_nodes=nodes,
            max_nodes=nodes,
            gpus_per_node=each,
            bound=False,
            several_sockets=None,
        )
        for mask in _one_socket(sockets, there, each, cpus):
            if _enough(mask, each, nodes):
                yield asked, _showing(cluster, mask, idle)
        least = request.several_sockets
        if least is not None and request.total_cpus // nodes >= least and each > 1:
            mask = there & _several_sockets(sockets, there, each, cpus)[:, None]
            if _enough(mask, each, nodes):
                by_slurm = np.zeros_like(cluster.indexed)
                yield asked, replace(_showing(cluster, mask, idle), indexed=by_slurm)


def _enough(mask: BoolArray, each: int, nodes: int) -> bool:
    return int(np.count_nonzero(mask.sum(axis=1) >= each)) >= nodes


def _showing(cluster: Cluster, mask: BoolArray, idle: bool) -> Cluster:
    return replace(cluster, free=mask, exists=mask if idle else cluster.exists)


def _one_socket(sockets: Sockets, there: BoolArray, each: int, cpus: int) -> Iterator[BoolArray]:
    """(N, W) GPUs on sockets with the CPUs free: of any socket if one GPU is enough, else of one
    socket of each node at a time."""
    known = sockets.gpu >= 0
    roomy = sockets.free_cpus >= max(1, cpus)
    beside: BoolArray = known & np.take_along_axis(roomy, np.where(known, sockets.gpu, 0), axis=1)
    beside &= there
    if each == 1:
        yield beside
        return
    for socket in range(sockets.cpus.shape[1]):
        yield beside & (sockets.gpu == socket)


def _several_sockets(sockets: Sockets, there: BoolArray, each: int, cpus: int) -> BoolArray:
    """(N,) nodes where Slurm finds GPUs and cores for a request that names none.

    It goes from the socket with the most free cores on, takes in those with GPUs until these are
    enough, and then wants all CPUs on these sockets. Nodes that somebody else was sent to are left
    out: Slurm might choose his GPUs.
    """
    n, s = sockets.cpus.shape
    gpus = np.zeros((n, s), dtype=np.int64)
    node, slot = np.nonzero(there & (sockets.gpu >= 0))
    np.add.at(gpus, (node, sockets.gpu[node, slot]), 1)
    free = np.maximum(sockets.free_cpus, 0)
    gpus[free < 1] = 0
    order = np.argsort(-free, axis=1, kind="stable")
    gpus = np.take_along_axis(gpus, order, axis=1)
    free = np.take_along_axis(free, order, axis=1)
    before = np.cumsum(gpus, axis=1) - gpus
    used = (gpus > 0) & (before < each)
    able: BoolArray = gpus.sum(axis=1) >= each
    able &= np.where(used, free, 0).sum(axis=1) >= cpus
    # Where one GPU's socket is not known, nobody can say what Slurm will find.
    able &= ~((sockets.gpu < 0) & there).any(axis=1) & sockets.quiet
    return able
