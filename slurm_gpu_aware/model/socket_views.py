"""Views of the cluster for jobs whose GPUs depend on sockets.

With ``--gres-flags=enforce-binding`` (`views`) Slurm gives a job only cores of the sockets of its
GPUs. If the request names single GPUs, as ours do, Slurm checks each GPU separately and removes the
cores of all other sockets: the job starts only if all its GPUs of a node lie on one socket. If the
request names no GPU, Slurm may take GPUs of several sockets (``_foreach_gres_filter_sock_core`` in
gres_filter.c).

With ``--gpus-per-socket`` (`_spread_views`) each of some sockets of a node gives equally many GPUs;
the CPUs may lie on any socket.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations, islice, product

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster, Sockets
from slurm_gpu_aware.model.request import Request

_MOST_SETS = 64
"""Index sets that are compared for ``--gpus-per-socket``; 8 GPUs on two sockets have 36 at most."""


def socket_views(request: Request, cluster: Cluster) -> Iterator[tuple[Request, Cluster]]:
    """Yield the views for a request whose GPUs depend on sockets (`Request.by_socket`)."""
    return (views if request.sockets.bound else _spread_views)(request, cluster)


def _spread_views(request: Request, cluster: Cluster) -> Iterator[tuple[Request, Cluster]]:
    """Yield the views for a request with ``gpus_per_socket``, lowest indices first.

    A view shows one index set, as many GPUs on each of its sockets as requested, on the nodes where
    all of them are free.

    Raises ValueError if the sockets of the cluster or the GPUs per node are not known.
    """
    sockets, each, per_socket = cluster.sockets, request.gpus_per_node, request.sockets.gpus_each
    if sockets is None or each is None or per_socket is None:
        raise ValueError(f"job {request.job_id}: its sockets are not known")
    there = cluster.free
    asked = request.on_any_sockets
    eligible = request.nodes.eligible
    rows = sockets.gpu if eligible is None else sockets.gpu[eligible]
    for row in np.unique(rows, axis=0):  # a site has few kinds of nodes
        alike = (sockets.gpu == row).all(axis=1)
        for slots in _spread_sets(tuple(row.tolist()), per_socket, each // per_socket):
            nodes = alike & there[:, slots].all(axis=1)
            if np.count_nonzero(nodes) >= request.fewest_nodes:
                mask = np.zeros_like(there)
                mask[np.ix_(nodes, slots)] = True
                yield asked, replace(cluster, free=mask)


@lru_cache(maxsize=256)
def _spread_sets(row: tuple[int, ...], per_socket: int, sockets: int) -> list[list[int]]:
    """Index sets of ``per_socket`` GPUs on each of ``sockets`` sockets. ``row``: socket by slot."""
    on = [[slot for slot, of in enumerate(row) if of == socket] for socket in sorted({*row} - {-1})]
    able = [slots for slots in on if len(slots) >= per_socket]
    sets = (
        sorted(chain(*parts))
        for chosen in combinations(able, sockets)
        for parts in product(*(combinations(slots, per_socket) for slots in chosen))
    )
    return list(islice(sets, _MOST_SETS))


def views(request: Request, cluster: Cluster) -> Iterator[tuple[Request, Cluster]]:
    """Yield the views for a bound request, fewest nodes first.

    For each node count the views with named GPUs come first, one per socket if a node gives several
    GPUs, then the view in which Slurm chooses. A view is a request without binding and a cluster
    that shows only the GPUs that the request may have.

    Raises ValueError if the sockets of the cluster are not known.
    """
    sockets = cluster.sockets
    if sockets is None:
        raise ValueError(f"job {request.job_id}: the sockets of the cluster are not known")
    there = cluster.free
    by_slurm = np.zeros_like(cluster.indexed)
    for nodes in request.node_counts(cluster.shape[1]):
        each, cpus = request.gpus // nodes, request.cpus_on_node(nodes)
        fixed = replace(request, min_nodes=nodes, max_nodes=nodes, gpus_per_node=each)
        asked = fixed.on_any_sockets
        named = ((mask, cluster.indexed) for mask in _one_socket(sockets, there, each, cpus))
        least = request.sockets.several
        several = least is not None and request.total_cpus // nodes >= least and each > 1
        by_number = ((mask, by_slurm) for mask in _any_sockets(sockets, there, each, cpus))
        for mask, indexed in chain(named, by_number if several else ()):
            if np.count_nonzero(mask.sum(axis=1) >= each) >= nodes:
                yield asked, replace(cluster, free=mask, indexed=indexed)


def _one_socket(sockets: Sockets, there: BoolArray, each: int, cpus: int) -> Iterator[BoolArray]:
    """(N, W) GPUs on sockets with enough free CPUs; one array per socket if ``each`` > 1."""
    known = sockets.gpu >= 0
    roomy = sockets.free_cpus >= max(1, cpus)
    beside: BoolArray = known & np.take_along_axis(roomy, np.where(known, sockets.gpu, 0), axis=1)
    beside &= there
    if each == 1:
        yield beside
        return
    for socket in range(sockets.cpus.shape[1]):
        yield beside & (sockets.gpu == socket)


def _any_sockets(sockets: Sockets, there: BoolArray, each: int, cpus: int) -> Iterator[BoolArray]:
    """(N, W) GPUs of the nodes where Slurm finds GPUs and cores for a request that names no GPU.

    Slurm adds sockets with GPUs, most free cores first, until the GPUs are enough, and then needs
    all CPUs on these sockets. Nodes with a placed job that has not started are left out: Slurm
    might choose the GPUs of that job.
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
    # If a GPU's socket is not known, Slurm's choice is not known either.
    able &= ~((sockets.gpu < 0) & there).any(axis=1) & sockets.quiet
    yield there & able[:, None]
