"""What is held of nodes against jobs that wait at no gate, for the first job that waits.

Jobs of a higher priority among these come before it: what one of them needs is not held.
All functions are pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy, left_demand
from slurm_gpu_aware.planning.plan import Guarded, Plan, Waiting
from slurm_gpu_aware.planning.postponing import row_of

CORE_CPUS = 4  # A core has up to four threads.


class _Held(NamedTuple):
    guarded: Guarded
    priority: float  # Of the job for which it is held.
    above: float  # Of those against which it is held, but for jobs of whole nodes.
    until_s: float  # When the job is to start; -inf: at any time.

    def yields_to(self, job: Request, now: float) -> bool:
        """Whether it is not held against a job that Slurm places.

        One without GPUs that ends before delays nothing, and none of those gets a GPU in its place:
        they come after it, or need the whole node.
        """
        if job.priority > self.priority:
            return True
        asks = job.nodes.whole or (job.left is not None and any(p.gpus for p in job.left.parts))
        ends = now + job.time_limit_s <= self.until_s
        return ends and not asks and job.priority > self.above


def guarded(
    plan: Plan,
    cluster: Cluster,
    queue: Mapping[str, Request],
    now: float,
    *,
    passing: bool,
    parts: bool = True,
    cores: Set[str] = frozenset(),
    above: float = -math.inf,
    outside: Iterable[Request] = (),
) -> dict[str, Guarded]:
    """Node -> what jobs that do not wait at the gate must leave to the first job that waits.

    That is what it would start on now but for such jobs without GPUs, and if others may take GPUs
    (``passing``), also the GPUs that the plan keeps for it; if these all need whole nodes (not
    ``parts``), a core keeps them off. Without nodes on which a placed job is about to start, but
    for that core (``cores``, as of `cores_left`): it needs what a reservation would take.
    ``above``: highest priority of those that need a part of a node only. ``outside``: pending jobs
    that do not wait at the gate (`admission.left.Outside`).
    """
    busy = _starts(plan, cluster)
    first = _first(plan)
    gpus = _kept_for(first, cluster) if passing and first is not None else {}
    head = next((one for one in plan.waiting if one.held_up), None)
    early = {} if head is None else dict(head.held_up)
    whole = head is not None and _lacks_memory(early, queue[head.job_id], cluster)
    kept: dict[int, _Held] = {}
    late = None if first is None else first.shadow_start_s
    rest = _rest(plan, cluster, queue)
    for node, slots in (gpus | early).items():
        if busy[node] and (node not in gpus or cluster.nodes[node] not in cores):
            continue
        if busy[node] or not (parts or node in early):
            core = Guarded(0, 0, False, 1)
            assert first is not None  # noqa: S101 - else nothing is kept there
            until_s = -math.inf if late is None else late
            kept[node] = _Held(core, queue[first.job_id].priority, above, until_s)
            continue
        free, exist = int(cluster.free[node, list(slots)].sum()), int(cluster.exists[node].sum())
        cpus: int | None = 0
        if head is not None and node in early:
            cpus = None if whole else _cpus_on(len(slots), queue[head.job_id], len(early), cluster)
        held_for = [one for one, nodes in ((first, gpus), (head, early)) if one and node in nodes]
        priority = max(queue[one.job_id].priority for one in held_for)
        guard = Guarded(len(slots), free, len(slots) == exist, cpus)
        until_s = -math.inf if late is None or node in early else late
        kept[node] = _Held(guard, priority, above, until_s)
    left = _beside(kept, outside, rest, now)
    return {cluster.nodes[node]: one for node, one in left.items()}


def cores_left(
    plan: Plan, cluster: Cluster, queue: Mapping[str, Request], before: Set[str]
) -> frozenset[str]:
    """Names of nodes of the first job that waits of which jobs that start there leave a core.

    Without it no job of whole nodes starts there, however long the others take to do so.
    ``before``: those of the last round. A core that is held later may be one that they need.
    """
    if (first := _first(plan)) is None:
        return frozenset()
    exact, rest = _starts(plan, cluster), _rest(plan, cluster, queue)
    if cluster.starting is not None:
        exact &= ~cluster.starting | np.array([name in before for name in cluster.nodes])
    for one in plan.assignments:
        request, nodes = queue.get(one.job_id), list(one.nodes)
        exact[nodes] &= (
            request is not None and request.left is None and leaves_core(request, cluster)[nodes]
        )
    if cluster.by_slurm is not None:
        exact &= ~cluster.by_slurm.any(axis=1)
    exact &= rest.free_cpus >= CORE_CPUS
    return frozenset(cluster.nodes[node] for node in _kept_for(first, cluster) if exact[node])


def leaves_core(request: Request, cluster: Cluster) -> BoolArray:
    """(N,) nodes on which a job leaves at least one core."""
    if request.nodes.whole or request.sockets.takes_all:
        return np.zeros(cluster.shape[0], dtype=np.bool_)
    free = cluster.free_cpus
    if request.sockets.bound:  # Slurm may reserve a core of any socket
        if (sockets := cluster.sockets) is None:
            return np.zeros(cluster.shape[0], dtype=np.bool_)
        beside = np.take_along_axis(sockets.free_cpus, np.maximum(sockets.gpu, 0), axis=1)
        free = np.where(sockets.gpu >= 0, beside, cluster.free_cpus[:, None]).min(axis=1)
    most = max((request.cpus_on_node(n) for n in request.node_counts(cluster.shape[1])), default=0)
    return np.asarray(free >= most + CORE_CPUS, dtype=np.bool_)


def _first(plan: Plan) -> Waiting | None:
    return next((one for one in plan.waiting if one.reserved or one.postponement), None)


def _starts(plan: Plan, cluster: Cluster) -> BoolArray:
    """(N,) nodes on which jobs are about to start."""
    busy = np.zeros(cluster.shape[0], np.bool_)
    if cluster.starting is not None:
        busy |= cluster.starting
    if cluster.by_slurm is not None:
        busy |= cluster.by_slurm.any(axis=1)
    for one in plan.assignments:
        busy[list(one.nodes)] = True
    return busy


def _rest(plan: Plan, cluster: Cluster, queue: Mapping[str, Request]) -> Cluster:
    """The cluster without the CPUs and memory of the jobs that start."""
    rest = cluster.copy()
    for one in plan.assignments:
        for node, slots in one.gpus if one.job_id in queue else ():
            rest.take(node, (), *node_demand(queue[one.job_id], len(one.nodes), len(slots)))
    return rest


def _beside(
    kept: Mapping[int, _Held], outside: Iterable[Request], rest: Cluster, now: float
) -> dict[int, Guarded]:
    """Node -> what is held there beside jobs that come before the one that it is held for.

    On as few nodes as such a job needs its CPUs are not held, and no more, or Slurm starts others
    on what is left. One with GPUs, of whole nodes or alone gets the node. ``rest``: what the round
    leaves.
    """
    given: dict[int, bool] = {}  # Whether all of the node.
    slurm = LeftPolicy()
    for job in sorted(outside, key=lambda one: -one.priority) if kept else ():
        before = {node for node, one in kept.items() if one.yields_to(job, now)}
        if not before:
            continue
        above = {node: one.guarded for node, one in kept.items() if node not in before}
        held = above | {node: one.guarded for node, one in kept.items() if node not in given}
        found = slurm.place(job, _less(rest, held))
        if found is None:
            found = slurm.place(job, _less(rest, above))
            if found is None:
                continue
            for node in held.keys() & found.nodes:
                all_of = job.nodes.whole or job.nodes.alone or any(found.slots)
                given[node] = given.get(node, False) or all_of
        taken = left_demand(job, found.gpus)
        for node, slots in zip(found.nodes, found.slots, strict=True):
            rest.free[node, list(slots)] = False
            rest.take(node, (), *taken[node])
            if job.nodes.whole:
                rest.free[node], rest.free_cpus[node] = False, 0
    for running in rest.running:
        for node, cpus in running.cpus.items() if running.end_s <= now else ():
            rest.free_cpus[node] += cpus  # it is ending
    left = {node: one.guarded for node, one in kept.items() if node not in given}
    for node in [node for node, all_of in given.items() if not all_of]:
        cpus, own = max(0, int(rest.free_cpus[node])), kept[node].guarded
        if own.cpus is not None:
            cpus = min(cpus, max(own.gpus, own.cpus))
        # With GPUs Slurm may refuse it: cores go with the GPUs of their socket
        left[node] = Guarded(0, 0, False, cpus)
    return left


def _less(cluster: Cluster, held: Mapping[int, Guarded]) -> Cluster:
    """The cluster without what is held; with a share of its GPUs a node gives none."""
    if not held:
        return cluster
    less = cluster.copy()
    less.free[[*held]] = False
    for node, one in held.items():
        cpus = less.free_cpus[node] if one.cpus is None else max(one.gpus, one.cpus)
        less.free_cpus[node] = max(0, less.free_cpus[node] - cpus)
        if one.cpus is None:
            less.free_memory_mb[node] = 0
    return less


def _kept_for(first: Waiting, cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """Node -> GPUs that the plan keeps for a waiting job."""
    if first.postponement is None:
        return dict(first.reserved)
    rows = row_of(cluster.nodes)  # it waits by its own choice
    return {rows[name]: slots for name, slots in first.postponement.gpus if name in rows}


def _lacks_memory(early: Mapping[int, Sequence[int]], job: Request, cluster: Cluster) -> bool:
    """Whether a node lacks memory for it: none can be kept, and one CPU more may take all of it."""
    return any(
        cluster.free_memory_mb[node] < node_demand(job, len(early), len(slots))[1]
        for node, slots in early.items()
    )


def _cpus_on(gpus: int, job: Request, nodes: int, cluster: Cluster) -> int | None:
    """CPUs that it needs there; None: it shares the node with no job, or one CPU would close it."""
    whole = job.nodes.whole or job.memory.whole or cluster.users is not None
    return None if whole else node_demand(job, nodes, gpus)[0]
