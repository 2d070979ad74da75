"""Places of jobs whose GPUs Slurm chooses: nodes by counts of GPUs, CPUs and memory.

A part without GPUs is spread by its tasks; one of whole nodes gets nodes on which no job runs.

Slurm chooses the nodes, too, but on these the job fits, so a round can keep them for it. GPUs of
several nodes may be spread unevenly, as Slurm spreads them. The fullest node that suffices comes
first; a job that needs several nodes gets the emptiest, which are the fewest.

Slurm starts the components of a heterogeneous job on nodes of their own (backfill.c,
``_het_job_start_now``). A search part by part may miss such a place. Where it misses one even on
the idle cluster that has nodes enough, components may share nodes, and those without GPUs count
alone, so that no job is called impossible by the order of a search.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpus
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.node_users import left_open
from slurm_gpu_aware.model.request import Part, Request
from slurm_gpu_aware.placement.account import level_of
from slurm_gpu_aware.placement.facts import BySlurm
from slurm_gpu_aware.placement.feasible import users_words
from slurm_gpu_aware.placement.policy import Policy, Reason

_Counts = dict[int, int]  # Node -> GPUs there.
_MOST_PERMUTED, _MOST_IN_TURN = 3, 8  # parts that are tried in all orders, in some


class LeftPolicy(Policy):
    """The nodes that a round keeps for a job until Slurm has started it."""

    name = "slurm"

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        found = _place(request, cluster)
        if found is None:
            return None
        nodes = tuple(sorted(found))
        slots = tuple(tuple(_first(cluster.not_held[node], found[node])) for node in nodes)
        level = level_of(cluster, nodes, slots) if all(slots) else cluster.levels[0]
        return Assignment(
            job_id=request.job_id,
            nodes=nodes,
            slots=slots,
            policy=self.name,
            score=1.0,
            level=level.name,
            slowdown=level.of(request.app_class)[0],
            exact=False,
            why=Facts((BySlurm(_why(request), request.gpus),)),
        )

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        started = replace(cluster, starting=None)
        if cluster.starting is not None and _place(request, started) is not None:
            return Reason("other jobs are about to start on its nodes")
        room = _Room(request, cluster)
        if request.nodes.whole and len(room.parts) == 1:
            return Reason(room.whole_words())
        needs = f"needs {request.gpus} free GPU{'' if request.gpus == 1 else 's'}"
        if room.exists < request.gpus:
            return Reason(f"{needs}; the nodes that it may use have {room.exists} in all")
        free = int(room.counts.sum())
        if free < request.gpus:
            others = f"; {words}" if (words := users_words(request, cluster)) else ""
            return Reason(f"{needs}; on the nodes that it may use {free} are free{others}")
        beside = f"{needs} on its nodes, with CPUs and memory beside them"
        several = sum(not part.elsewhere for part in room.parts)
        apart = f", each of its {several} components on nodes of its own" if several > 1 else ""
        return Reason(f"{beside}{apart}")


def _why(request: Request) -> str:
    assert request.left is not None  # noqa: S101 - the policy of such requests
    return request.left.reason


def _first(free: BoolArray, count: int) -> list[int]:
    found: list[int] = np.flatnonzero(free)[:count].tolist()
    return found


def _place(request: Request, cluster: Cluster) -> _Counts | None:
    """Node -> GPUs of the whole job; None: it has no place."""
    assert request.left is not None  # noqa: S101 - the policy of such requests
    found = _apart(request, cluster)
    if found is not None or len(request.left.parts) == 1:
        return found
    idle = cluster.empty()
    if _apart(request, idle) is not None or not _Room(request, idle).has_nodes():
        return None
    found = _Room(request, cluster).place()
    if found is None and _Room(request, idle).place() is None:
        return _Room(request, cluster).place(alone=True)
    return found


def _apart(request: Request, cluster: Cluster) -> _Counts | None:
    """The same with nodes of its own for each part."""
    first = _Room(request, cluster)
    found = first.place(apart=True)
    for order in _orders(len(first.parts)) if found is None and not first.closed else ():
        found = _Room(request, cluster).place(order, apart=True)
        if found is not None:
            break
    return found


def _orders(parts: int) -> Iterable[tuple[int, ...]]:
    """Further orders of the search: all of few parts, with each one first of some, else none."""
    if parts <= _MOST_PERMUTED:
        return islice(permutations(range(parts)), 1, None)
    if parts > _MOST_IN_TURN:
        return ()
    return ((i, *range(i), *range(i + 1, parts)) for i in range(1, parts))


class _Room:
    """What is free for one job, less the parts that have a place."""

    def __init__(self, request: Request, cluster: Cluster) -> None:
        assert request.left is not None  # noqa: S101 - the policy of such requests
        self.request, self.cluster, self.parts = request, cluster, request.left.parts
        if request.nodes.whole and len(self.parts) == 1:  # older records say it of the job only
            self.parts = (replace(self.parts[0], whole=True),)
        allowed = request.nodes.eligible
        self.allowed = np.ones(cluster.shape[0], np.bool_) if allowed is None else allowed
        self.exists = int(np.count_nonzero(cluster.exists & self.allowed[:, None]))
        """Usable GPUs of the nodes that it may use."""
        self.allowed = left_open(self.allowed, cluster.users, request)
        here = self.allowed if cluster.starting is None else self.allowed & ~cluster.starting
        self.closed = request.left.fixed and not np.array_equal(here, self.allowed)
        """It might get a node on which another job is about to start."""
        self.counts: IntArray = np.where(here, cluster.not_held.sum(axis=1), 0)
        self.cpus, self.memory_mb = cluster.free_cpus.copy(), cluster.free_memory_mb.copy()
        self.here: BoolArray = here & cluster.exists.any(axis=1)

    def has_nodes(self) -> bool:
        """Whether there are nodes for each part."""
        most = max(int(self.counts.max(initial=0)), 1)  # GPUs of a node
        parts = (part for part in self.parts if not part.elsewhere)
        least = sum(max(part.min_nodes, -(-part.gpus // most)) for part in parts)
        return int(self.here.sum()) >= least

    def place(
        self, by: Sequence[int] = (), *, apart: bool = False, alone: bool = False
    ) -> _Counts | None:
        """Node -> GPUs of the whole job; None: none is found.

        ``by``: positions of the parts in the usual order, in which they are placed. ``apart``: no
        two parts share a node. ``alone``: as if a part that asks for no GPUs and no whole nodes
        were alone there.
        """
        if self.closed:
            return None
        found: _Counts = {}
        wanted = [self.request.nodes.required, *((),) * len(self.parts)]  # of the first one
        order = sorted(zip(self.parts, wanted, strict=False), key=_hardest_first)
        for part, required in [order[i] for i in by] or order:
            own = alone and not part.gpus and not part.whole
            room = _Room(self.request, self.cluster) if own else self
            nodes = room._part(part, required)
            if nodes is None:
                return None
            for node, units in nodes.items():
                found[node] = found.get(node, 0) + room._take(part, node, units)
                if apart:
                    self.here[node], self.counts[node] = False, 0
        return found

    def _take(self, part: Part, node: int, units: int) -> int:
        """Take a part's share of a node; returns the GPUs there that it gets."""
        gpus = units if part.gpus else 0
        if part.whole:
            gpus = int(self.counts[node])
            self.cpus[node] = self.memory_mb[node] = 0
        else:
            cpus, memory_mb = _needs(part, units)
            self.cpus[node] -= cpus
            self.memory_mb[node] -= memory_mb
        self.counts[node] -= gpus
        return gpus

    def _part(self, part: Part, required: Sequence[int]) -> _Counts | None:
        """Node -> units of a part there: GPUs, or tasks where it asks for no GPUs."""
        if part.elsewhere:
            return {}
        if part.shards and part.gpus == 1 and (node := self._shared(part)) is not None:
            return {node: 0}
        able = self._capacity(part)
        if part.per_node is not None:
            return self._even(part, able, required)
        fewest = max(part.min_nodes, len(required))
        if fewest <= 1:
            whole = dict.fromkeys(self._by_fit(able >= _units(part), required)[:1], _units(part))
            if whole:
                return whole
        return self._uneven(part, able, fewest, required)

    def _shared(self, part: Part) -> int | None:
        """The first node without a free GPU and with shards of a used one; None: there is none."""
        if self.cluster.shards is None:
            return None
        enough = (self.cluster.shards.free >= part.shards).any(axis=1) & (self.counts == 0)
        cpus, memory_mb = _needs(part, _units(part))
        enough &= self.here & (self.cpus >= cpus) & (self.memory_mb >= memory_mb)
        nodes = np.flatnonzero(enough)
        return int(nodes[0]) if len(nodes) else None

    def _capacity(self, part: Part) -> IntArray:
        """(N,) units of each node that GPUs, CPUs and memory allow; whole nodes: all or none."""
        most = self.counts.copy() if part.gpus else np.where(self.here, _units(part), 0)
        by_units = 0 if part.node_memory_mb else part.memory_mb
        for free, total in ((self.cpus, part.cpus), (self.memory_mb, by_units)):
            if total > 0:
                most = np.minimum(most, np.maximum(free, 0) * _units(part) // total)
        able = np.maximum(self.memory_mb, 0) >= part.node_memory_mb
        return np.where(able & self._wholly_free() if part.whole else able, most, 0)

    def _wholly_free(self) -> BoolArray:
        """(N,) nodes on which no job holds anything, as far as is known."""
        free = self.here & (self.counts == self.cluster.exists.sum(axis=1))
        if self.cluster.cpus is not None:
            free &= self.cpus >= self.cluster.cpus
        return np.asarray(free, dtype=np.bool_)

    def whole_words(self) -> str:
        """What a job of whole nodes needs, and what is there."""
        required, mask = self.request.nodes.required, self._wholly_free()
        nodes = max(self.parts[0].min_nodes, len(required))
        free, there = int(mask.sum()), int(self.allowed.sum())
        needs = f"needs {nodes} wholly free node{'' if nodes == 1 else 's'}"
        if used := [self.cluster.nodes[node] for node in required if not mask[node]]:
            return f"{needs}; {used[0]} is not free"
        if free >= nodes:
            return f"{needs}, with the CPUs and memory that it asks for"
        return f"{needs}; of the {there} that it may use {free} {'is' if free == 1 else 'are'} free"

    def _by_fit(self, able: BoolArray, required: Sequence[int]) -> list[int]:
        """Able nodes, required ones first, then those with the fewest free GPUs."""
        nodes = np.flatnonzero(able)
        wanted = np.isin(nodes, required)
        if len(required) > int(wanted.sum()):
            return []
        found: list[int] = nodes[np.lexsort((nodes, self.counts[nodes], ~wanted))].tolist()
        return found

    def _even(self, part: Part, able: IntArray, required: Sequence[int]) -> _Counts | None:
        assert part.per_node is not None  # noqa: S101 - the caller has checked
        count = max(1, part.gpus // part.per_node)
        nodes = self._by_fit(able >= part.per_node, required)[:count]
        if len(nodes) * part.per_node < part.gpus:
            return None
        return dict.fromkeys(nodes, part.per_node)

    def _uneven(
        self, part: Part, able: IntArray, fewest: int, required: Sequence[int]
    ) -> _Counts | None:
        """The fewest nodes that suffice, each with at least one unit."""
        units, nodes = _units(part), np.flatnonzero(able > 0)
        wanted = np.isin(nodes, required)
        if len(required) > int(wanted.sum()):
            return None
        order = nodes[np.lexsort((nodes, -able[nodes], ~wanted))]
        total = np.cumsum(able[order])
        number = max(fewest, int(np.searchsorted(total, units)) + 1)
        most = math.inf if part.max_nodes is None else part.max_nodes
        if number > len(order) or number > min(most, units):
            return None
        found = dict.fromkeys(order[:number].tolist(), 1)
        rest = units - number
        for node in found:
            more = min(rest, int(able[node]) - 1)
            found[node] += more
            rest -= more
        return found if rest == 0 else None


def _units(part: Part) -> int:
    """What is spread over the nodes of a part: GPUs, else tasks, at least one for each node."""
    return part.gpus or max(part.tasks, part.min_nodes)


def _hardest_first(one: tuple[Part, Sequence[int]]) -> tuple[bool, bool, int, bool]:
    """Named nodes, whole nodes, many CPUs at once: others find room beside them."""
    part, required = one
    return not required, not part.whole, -part.cpus // _units(part), part.gpus == 0


def _share(total: int, units: int, of: int) -> int:
    return -(-total * units // of) if of else total


def _needs(part: Part, units: int) -> tuple[int, int]:
    """CPUs and memory (MB) of so many units of a part on one node."""
    memory_mb = part.node_memory_mb or _share(part.memory_mb, units, _units(part))
    return _share(part.cpus, units, _units(part)), memory_mb


def fits_anyhow(request: Request, cluster: Cluster) -> BoolArray:
    """(N,) nodes with CPUs and memory for as much of the job as Slurm may put there."""
    assert request.left is not None  # noqa: S101 - the policy of such requests
    free = cluster.not_held.sum(axis=1)
    cpus, memory_mb = np.zeros((2, len(free)), np.int64)
    for part in request.left.parts:
        if part.elsewhere or part.whole:  # one of whole nodes gets none of the head's before it
            continue
        units = _units(part)
        most = part.per_node or units - (max(part.min_nodes, 1) - 1)
        there = np.minimum(free, most) if part.gpus else np.full(len(free), most)
        cpus += -(-part.cpus * there // units)
        each_mb = np.where(there > 0, part.node_memory_mb, 0)
        memory_mb += each_mb if part.node_memory_mb else -(-part.memory_mb * there // units)
    return np.asarray((cluster.free_cpus >= cpus) & (cluster.free_memory_mb >= memory_mb))


def left_demand(request: Request, gpus: Gpus) -> Mapping[int, tuple[int, int]]:
    """Node -> CPUs and memory (MB) that the job takes there, if it gets these GPUs.

    The nodes that give no GPU share what the parts without GPUs take, or the shards of used GPUs.
    """
    assert request.left is not None  # noqa: S101 - the policy of such requests
    bare = sum(not slots for _, slots in gpus)
    every = [part for part in request.left.parts if not part.elsewhere]
    with_gpus = [part for part in every if part.gpus] if 0 < bare < len(gpus) else every
    without = [part for part in every if not part.gpus] or every
    node_mb = every[0].node_memory_mb if len(every) == 1 else 0
    found = {}
    for node, slots in gpus:
        parts, units, of = (with_gpus, len(slots), request.gpus) if slots else (without, 1, bare)
        cpus, memory_mb = sum(p.cpus for p in parts), sum(p.memory_mb for p in parts)
        found[node] = _share(cpus, units, of), node_mb or _share(memory_mb, units, of)
    return found
