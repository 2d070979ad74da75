"""Feasible GPUs of a request by the rules that all policies share, and the reason if none fit.

The rules: eligible nodes, GPU model, required nodes, CPUs and memory beside the GPUs,
``--exclusive`` and plain nodes.
"""

from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import all_memory_free, node_demand, room_beside
from slurm_gpu_aware.placement.level_views import (
    LevelView,
    MaskArray,
    ScoreTable,
    by_identity,
    every,
    pack,
    popcount,
)
from slurm_gpu_aware.placement.shapes import Split, splits
from slurm_gpu_aware.time_text import counted

_MOST_NAMES = 3  # nodes that a reason names


def allowed_nodes(request: Request, cluster: Cluster) -> BoolArray | None:
    """(N,) nodes that eligibility and GPU model allow; None: all."""
    allowed = request.nodes.eligible
    if request.nodes.gpu_model is not None:
        none = np.zeros(len(cluster.model), dtype=np.bool_)
        named = _model_masks(cluster.model).get(request.nodes.gpu_model.lower(), none)
        allowed = named if allowed is None else allowed & named
    return allowed


def open_nodes(request: Request, cluster: Cluster) -> BoolArray | None:
    """(N,) those of `allowed_nodes` that jobs of other users leave to it now; None: all."""
    allowed = allowed_nodes(request, cluster)
    if cluster.users is None:
        return allowed
    is_open = cluster.users.open_to(request)
    return is_open if allowed is None else allowed & is_open


def users_words(request: Request, cluster: Cluster) -> str | None:
    """On which nodes jobs of other users keep free GPUs from a request; None: on none."""
    if cluster.users is None:
        return None
    allowed = allowed_nodes(request, cluster)
    kept = cluster.not_held.any(axis=1) & ~cluster.users.open_to(request)
    nodes = np.flatnonzero(kept if allowed is None else kept & allowed).tolist()
    if not nodes:
        return None
    names = ", ".join(cluster.nodes[node] for node in nodes[:_MOST_NAMES])
    names += f" and {len(nodes) - _MOST_NAMES} more" if len(nodes) > _MOST_NAMES else ""
    if request.nodes.alone:
        return f"it shares no node with other users, and their jobs run on {names}"
    return f"jobs that run on {names} keep others off the free GPUs there"


@by_identity
def _model_masks(models: tuple[str | None, ...]) -> dict[str, BoolArray]:
    """Model in lower case -> (N,) nodes."""
    names = np.array([(m or "").lower() for m in models])
    return {str(name): names == name for name in np.unique(names)}


@by_identity
def all_gpus(exists: BoolArray) -> MaskArray:
    """(N,) masks of all GPUs of each node."""
    return pack(exists)


def enough_free(request: Request, cluster: Cluster) -> bool:
    """Say whether enough GPUs are free for some split of a request, without any other rule."""
    if np.count_nonzero(cluster.free) < request.gpus:
        return False
    on_nodes = popcount(pack(cluster.free))

    def enough(split: Split) -> bool:
        enough_nodes = np.count_nonzero(on_nodes >= split.per_node) >= split.nodes
        if not (enough_nodes and split.same_slots):
            return bool(enough_nodes)
        of_slots = np.count_nonzero(cluster.free, axis=0)
        return bool(np.count_nonzero(of_slots >= split.nodes) >= split.per_node)

    return any(map(enough, splits(request, cluster)))


class Supply:
    """The free GPUs that one request may use, as masks, for one decision."""

    def __init__(self, request: Request, cluster: Cluster, table: ScoreTable) -> None:
        self.request = request
        self.cluster = cluster
        self.table = table
        self.free: MaskArray = pack(cluster.free)
        self._allowed = open_nodes(request, cluster)
        self.memo: dict[object, Any] = {}
        """Cache of search results, with the keys of each step."""
        self.sets_cut = False
        """A search for common index sets ended early."""
        self._whole = all_gpus(cluster.exists) if request.nodes.whole else None
        self._indexed: BoolArray | None = None
        """(N,) nodes on which GPUs can be chosen; None: all, or whole nodes are taken."""
        if not request.nodes.whole and not every(cluster.indexed):
            self._indexed = cluster.indexed

    def usable(self, split: Split) -> MaskArray:
        """(N,) masks of the free GPUs on nodes with room for the split's share, 0 elsewhere."""
        found: MaskArray | None = self.memo.get(split)
        if found is None:
            found = self.memo[split] = self.free * self._carrying(split)
        return found

    def at_most(self, split: Split, index: int) -> MaskArray:
        """Like :meth:`usable`, but only GPUs with a score of at most ``table.values[index]``."""
        usable = self.usable(split)
        masks: MaskArray = usable & self.table.at_most(index)
        if self._whole is not None:
            return np.asarray(masks * (masks == self._whole))
        if self._indexed is not None:
            masks = masks * (self._indexed | (masks == usable))
        return masks

    def capacity(self, nodes: IntArray, masks: MaskArray) -> IntArray:
        """(C,) GPUs of each row (node and mask) that CPUs and memory allow in an uneven split."""
        request, cluster = self.request, self.cluster
        most = popcount(masks).astype(np.int64)
        total = request.total_cpus
        if total > 0:
            cpus = np.maximum(cluster.free_cpus[nodes], 0)
            most = np.minimum(most, cpus * request.gpus // total)
        memory = np.maximum(cluster.free_memory_mb[nodes], 0)
        if request.memory.per_gpu_mb:
            most = np.minimum(most, memory // request.memory.per_gpu_mb)
        elif request.memory.per_cpu_mb and total > 0:
            cpus = memory // request.memory.per_cpu_mb
            most = np.minimum(most, cpus * request.gpus // total)
        elif request.memory.per_node_mb:
            most = np.where(memory >= request.memory.per_node_mb, most, 0)
        if request.memory.whole:
            most = np.where(all_memory_free(cluster)[nodes], most, 0)
        return most

    def _carrying(self, split: Split) -> BoolArray:
        request, cluster = self.request, self.cluster
        if split.uneven:
            carrying = np.ones(cluster.shape[0], dtype=np.bool_)
        else:
            share = request.cpus_on_node(split.nodes), request.memory_on_node(split.nodes)
            carrying = room_beside(request, cluster, *share)[1]
        if self._allowed is not None:
            carrying &= self._allowed
        if split.pool == "indexed":
            carrying &= cluster.indexed
        elif split.pool == "plain":
            carrying &= ~cluster.indexed
        if split.nodes == 1 and request.nodes.required:
            only = np.zeros_like(carrying)
            only[list(request.nodes.required)] = True
            carrying &= only
        return carrying


def fitting_groups(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> BoolArray:
    """(groups,) groups that hold a set of these (C,) rows; each can give ``split.per_node``."""
    if split.uneven:
        return _uneven_groups(supply, level, nodes, masks)
    counts = np.bincount(level.group[nodes], minlength=level.groups)
    return (counts >= split.nodes) & _required_ok(supply, level, nodes)


def _required_ok(supply: Supply, level: LevelView, nodes: IntArray) -> BoolArray:
    """(groups,) groups that hold all required nodes, each among the candidate rows."""
    fine = np.ones(level.groups, dtype=np.bool_)
    required = list(supply.request.nodes.required)
    if required:
        fine[:] = False
        groups = set(level.group[required].tolist())
        if len(groups) == 1 and bool(np.isin(required, nodes).all()):
            fine[groups.pop()] = True
    return fine


def _uneven_groups(
    supply: Supply, level: LevelView, nodes: IntArray, masks: MaskArray
) -> BoolArray:
    """(groups,) groups with enough GPUs on an allowed number of nodes."""
    request = supply.request
    capacity = supply.capacity(nodes, masks)
    has = capacity > 0
    group = level.group[nodes]
    number = np.bincount(group[has], minlength=level.groups)
    total = np.bincount(group, weights=capacity, minlength=level.groups)
    fine: BoolArray = (number >= request.fewest_nodes) & (total >= request.gpus)
    fine &= _required_ok(supply, level, nodes[has])
    if request.max_nodes is not None:
        for g in np.flatnonzero(fine):
            inside = group == g
            chosen = widest_nodes(
                request.nodes.required, nodes[inside], capacity[inside], request.max_nodes
            )
            fine[g] = int(capacity[inside][chosen].sum()) >= request.gpus
    return fine


def widest_nodes(
    required: tuple[int, ...], nodes: IntArray, capacity: IntArray, most: int
) -> IntArray:
    """Positions of the ``most`` rows that give the most GPUs, required nodes first."""
    optional = ~np.isin(nodes, list(required))
    return np.lexsort((nodes, -capacity, optional))[:most]


def common_reason(request: Request, cluster: Cluster) -> str:
    """Say in one sentence why no free GPUs fit: the widest constraint that leaves too few.

    If a set exists, it says that the policy waits for better GPUs.
    """
    choices = splits(request, cluster)
    width = cluster.shape[1]
    if not choices:
        return f"{_asked(request)} cannot be split evenly over nodes of at most {_gpus(width)}"
    allowed = allowed_nodes(request, cluster)
    exists = cluster.exists if allowed is None else cluster.exists & allowed[:, None]
    if not exists.any():
        what = f"GPU model {request.nodes.gpu_model}" if request.nodes.gpu_model else "usable GPUs"
        return f"no node that the job may use has {what}"
    is_open = open_nodes(request, cluster)
    free = exists & cluster.free if is_open is None else exists & cluster.free & is_open[:, None]
    few = _too_few(request, cluster, choices, "free ", free.sum(axis=1))
    if few is not None and (others := users_words(request, cluster)) is not None:
        few = f"{few}; {others}"
    return (
        _too_few(request, cluster, choices, "", exists.sum(axis=1))
        or few
        or _not_beside(request, cluster, choices, free.sum(axis=1))
    )


def _gpus(count: int, what: str = "") -> str:
    """``1 free GPU``, ``2 free GPUs``."""
    return counted(count, f"{what}GPU")


def _asked(request: Request) -> str:
    text = _gpus(request.gpus)
    if request.gpus_per_node is not None and request.gpus_per_node != request.gpus:
        text += f" ({request.gpus_per_node} per node)"
    return text


def _too_few(
    request: Request, cluster: Cluster, choices: tuple[Split, ...], what: str, counts: IntArray
) -> str | None:
    """Reason why (N,) ``counts`` of GPUs are too few for every split, without CPUs and memory."""
    if request.nodes.whole:
        counts = np.where(counts == cluster.exists.sum(axis=1), counts, 0)
    for node in request.nodes.required:
        if not counts[node]:
            return f"required node {cluster.nodes[node]} has no {what}GPU that the job may use"
    for split in choices:
        many = (counts >= split.per_node).sum() >= split.nodes
        if counts.sum() >= request.gpus if split.uneven else many:
            return None
    entire = "entirely free " if request.nodes.whole and what else ""
    if len(choices) == 1 and choices[0].nodes > 1:
        only = choices[0]
        have = int((counts >= only.per_node).sum())
        return (
            f"needs {only.nodes} {entire}nodes with {_gpus(only.per_node, what)} each; "
            f"{counted(have, 'node has', 'nodes have')} that many"
        )
    if choices[0].nodes == 1:
        return (
            f"needs {_gpus(request.gpus, what)} on one {entire}node; "
            f"the most on any node it may use is {int(counts.max())}"
        )
    return f"needs {_asked(request)}; the nodes it may use have {_gpus(int(counts.sum()), what)}"


def _not_beside(
    request: Request, cluster: Cluster, choices: tuple[Split, ...], counts: IntArray
) -> str:
    """Reason why enough free GPUs, (N,) ``counts``, do not fit."""
    for split in choices:
        nodes = max(split.nodes, 1)
        per_node = split.per_node or 1
        cpus, memory = node_demand(request, nodes, per_node)
        enough = counts >= per_node
        with_cpus, with_both = (
            enough & room for room in room_beside(request, cluster, cpus, memory)
        )
        if int(enough.sum()) >= nodes and int(with_both.sum()) < nodes:
            wanted = "all CPUs free" if request.nodes.whole else counted(cpus, "free CPU")
            mb = "all their memory free" if request.memory.whole else f"{memory} MB of memory"
            short = wanted if int(with_cpus.sum()) < nodes else mb
            return f"GPUs are free, but too few nodes have {short}"
    several = [s for s in choices if s.same_slots]
    if several:
        least = several[0]
        indices = "GPU index" if least.per_node == 1 else f"{least.per_node} GPU indices"
        return f"no {least.nodes} nodes have the same {indices} free, as Slurm needs"
    if request.nodes.required:
        return "its required nodes do not fit together with the rest of the request"
    return "the policy waits for better GPUs than the free ones"
