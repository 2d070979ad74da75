"""Backfill: reservations for the first jobs that do not fit, and resources for jobs behind them.

The head is the first job that does not fit. It gets a *shadow reservation*: the earliest time at
which enough is free by the running jobs' time limits, and the GPUs that its policy chooses for that
time. A job behind the head may start now if it ends before the shadow start or uses nothing of the
reservation (Lifka, "The ANL/IBM SP scheduling system", 1995, with GPUs instead of counts). That is
EASY backfill, with one reservation. With more (`PlanSettings.reservations`) the next jobs that do
not fit get a reservation each, beside those before them, and a job behind delays none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, Gpus, RunningJob, each_gpu
from slurm_gpu_aware.model.facets import changed
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.left_to_slurm import fits_anyhow
from slurm_gpu_aware.planning.dispatcher import Dispatcher, shape_of
from slurm_gpu_aware.planning.facts import Reserved
from slurm_gpu_aware.planning.guard import leaves_core
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.reservation import Shadow, reserve
from slurm_gpu_aware.planning.timeline import NodeShare, Timeline, keep_least, take

_MOST_KEPT = 16  # nodes up to which reserved GPUs are listed
_MOST_NAMED = 2  # jobs for which reserved GPUs are named


class BackfillRoom:
    """Free resources for jobs behind the head, updated with each assignment.

    A head that waits by its own choice could start now. The first job behind it that does not fit
    would wait for the same GPUs without it, so that job has a reservation in any case.
    """

    def __init__(
        self,
        cluster: Cluster,
        head: Request,
        shadow: Shadow | None,
        *,
        settings: PlanSettings | None = None,
        most: int = 1,
    ) -> None:
        """Keep the reservation of the head.

        ``settings``: who gets no part of the head's nodes (`PlanSettings.guarded`); a heterogeneous
        job never does, as Slurm starts it seconds after its gate is open. None: all others do.
        ``most``: so many reservations are kept.
        """
        self.now = cluster
        """All free resources."""
        self.settings = settings or PlanSettings()
        self.head = head
        self.shadow = shadow
        self._outside = cluster
        self._most = most
        self._later: list[BackfillRoom] = []
        """The rooms beside the other reservations."""
        self._reserved = np.zeros(cluster.shape, dtype=np.bool_)
        """(N, W) GPUs that are reserved, in this room and those of ``_later``."""
        self._unreserved: set[object] = set()
        """Shapes of jobs that fit after no end."""
        if shadow is None:
            return
        for node, slots in shadow.gpus:
            self._reserved[node, list(slots)] = True
        self._outside = changed(cluster.copy(), asleep=cluster.asleep)
        self._set_outside(slice(None))
        if shadow.unpassed is not None:
            self._add(BackfillRoom(cluster, head, shadow.unpassed, settings=settings))

    @property
    def full(self) -> bool:
        """Whether no more reservations are kept: one on GPUs that are in use delays no job."""
        if len({room.head.job_id for room in self.each()}) >= self._most:
            return True
        if self.now.power_w is not None:
            return False
        return not (self.now.not_held & ~self._reserved).any()

    def keep(
        self,
        request: Request,
        running: Sequence[RunningJob],
        started: Sequence[RunningJob],
        dispatcher: Dispatcher,
    ) -> Shadow | None:
        """Keep another reservation, of a job behind the head that does not fit now.

        ``running``, ``started``: as of `Timeline`. None: all are in use, or it fits after no end.
        """
        if self.full or (shape := shape_of(request, self.now)) in self._unreserved:
            return None
        now, reserved = self.without_reserved()
        timeline = Timeline(running, dispatcher.now, started, reserved)
        shadow = reserve(request, now, timeline, dispatcher)
        if shadow is None:
            self._unreserved.add(shape)
            return None
        self._add(BackfillRoom(self.now, request, shadow))
        return shadow

    def _add(self, room: BackfillRoom) -> None:
        self._later += room.each()
        self._reserved |= room._reserved

    def without_reserved(self) -> tuple[Cluster, list[RunningJob]]:
        """(The free resources without the reserved GPUs, what holds these).

        They come back when the time limit of their job ends, counted from its expected start.
        """
        now, holders = replace(self.now.copy(), asleep=self.now.asleep), []
        now.free[self._reserved] = False
        for room in self.each():
            if (shadow := room.shadow) is not None:
                end_s = shadow.start_s + room.head.time_limit_s
                holder = RunningJob(f"(for {room.head.job_id})", shadow.gpus, end_s)
                own = replace(holder, user=room.head.user, alone=room.head.nodes.alone)
                holders.append(replace(own, sharing=room.head.nodes.sharing.planned))
        return now, holders

    @property
    def outside(self) -> Cluster:
        """Resources that a job may use past the start of each reservation."""
        least = self._outside
        for room in self._later:
            least = _least(least, room._outside)
        return least

    @property
    def reserved(self) -> tuple[Gpu, ...]:
        """The head's GPUs."""
        return () if self.shadow is None else each_gpu(self.shadow.gpus)

    def ends_before(self, request: Request, now_s: float) -> bool:
        """Say whether the job has a time limit and ends by it before the head starts."""
        limit, shadow = request.time_limit_s, self.shadow
        return shadow is None or (math.isfinite(limit) and now_s + limit <= shadow.start_s)

    def ends_before_each(self, request: Request, now_s: float) -> tuple[bool, ...]:
        """The same of each room's head."""
        return tuple(room.ends_before(request, now_s) for room in self.each())

    def each(self) -> list[BackfillRoom]:
        """The room of each reservation, the head's first."""
        return [self, *self._later]

    def view(self, request: Request, now_s: float) -> Cluster:
        """Return the cluster that the job may choose from."""
        view = self.beside(request, now_s)
        for room in self._later:
            if (other := room.beside(request, now_s)) is not self.now:
                view = other if view is self.now else _least(view, other)
        return view

    def beside(self, request: Request, now_s: float) -> Cluster:
        """The same by the reservation of the room's head alone."""
        view = self._beside(request, now_s)
        if self.shadow is None or (guarded := self._guarded(request)) is None:
            return view
        nodes = np.isin(np.arange(view.shape[0]), [node for node, _ in self.shadow.gpus])
        return _without(view, nodes & guarded)

    def _guarded(self, request: Request) -> BoolArray | None:
        """(N,) or (1,) nodes that it does not get if they are the head's; None: it gets all."""
        left, settings = request.left, self.settings
        slow = left is not None and (settings.guarded_core or len(left.parts) > 1)
        if settings.guarded or slow:
            return np.ones(1, dtype=np.bool_)
        return ~leaves_core(request, self.now) if settings.guarded_core else None

    def _beside(self, request: Request, now_s: float) -> Cluster:
        if self.shadow is None or self.ends_before(request, now_s):
            return self.now
        if request.left is not None:
            return self._for_slurm(request)
        if self.shadow.bound and not request.sockets.bound:
            return _keeping_cores(self._outside, request, self.shadow.gpus)
        if request.sockets.takes_all:
            return _unreserved_sockets(self._outside, request, self.now)
        return self._outside

    def why_kept(self, request: Request, now_s: float) -> str:
        """Why a job that would fit now does not start beside the reservation."""
        head = f"job {self.head.job_id}"
        if self.ends_before(request, now_s):
            kept = f"on nodes that are kept for {head}, as jobs that Slurm starts by itself wait"
            return f"would fit now, but only {kept}"
        what = "these GPUs" if self._outside.has_power(request.power_w) else "this power"
        if self.shadow is not None and self.shadow.early:
            return (
                f"would fit now, but {head} comes first and starts as soon as jobs without GPUs end"
            )
        past = f"its time limit reaches past the start of {head}"
        return f"would fit now, but {past}, which comes first and has {what} reserved"

    def take(
        self, request: Request, assignment: Assignment, now_s: float
    ) -> Mapping[int, NodeShare]:
        """Mark an assignment as held, in place; return its shares by node."""
        held = take(self.now, request, assignment)
        for room in self.each():
            room._taken(request, assignment, held, now_s)
        return held

    def _taken(
        self,
        request: Request,
        assignment: Assignment,
        held: Mapping[int, NodeShare],
        now_s: float,
    ) -> None:
        if self.shadow is None:
            return
        if not self.ends_before(request, now_s):
            for node, slots in assignment.gpus:
                share = held[node]
                if request.left is not None:
                    self.shadow.rest.choose(node, slots)
                self.shadow.rest.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
            self.shadow.rest.draw(request.power_w)
        anywhere = request.left is not None and request.left.fixed
        self._set_outside(slice(None) if anywhere else list(assignment.nodes))

    def _set_outside(self, rows: list[int] | slice) -> None:
        assert self.shadow is not None  # noqa: S101 - the callers have checked
        keep_least(self._outside, self.now, self.shadow.rest, rows)
        if self.shadow.by_slurm:
            # Exact GPUs of its nodes would keep it from them until their jobs have started.
            nodes = [node for node, _ in self.shadow.gpus]
            self._outside.leave_to_slurm(np.isin(np.arange(self.now.shape[0]), nodes))

    def _for_slurm(self, request: Request) -> Cluster:
        """The cluster for a job of which Slurm chooses the GPUs: no node with reserved ones."""
        kept = self._reserved_nodes(request)
        if request.left is not None and request.left.fixed:
            may = kept if request.nodes.eligible is None else kept & request.nodes.eligible
            kept = np.full(len(kept), bool(may.any()))
        elif self.shadow is None or (self.shadow.by_slurm and not takes_shards(request)):
            return self._outside  # on the nodes that it is planned for, counts suffice
        if not kept.any():
            return self._outside
        view = _without(self._outside, kept)
        return replace(view, by_slurm=self._outside.not_held & ~kept[:, None])

    def kept_off(self, answer: Assignment, request: Request, now_s: float) -> Assignment:
        """The assignment of a job whose GPUs Slurm chooses, kept off all reserved nodes.

        What is in use there may become free before it starts.
        """
        off = np.zeros(self.now.shape[0], dtype=np.bool_)
        for room in self.each():
            if room.shadow is not None and not room.ends_before(request, now_s):
                off |= room._reserved_nodes(request)
                off[[node for node, _ in room.shadow.gpus]] = True
        return replace(answer, kept_off=tuple(np.flatnonzero(off).tolist()))

    def _reserved_nodes(self, request: Request) -> BoolArray:
        """(N,) nodes with free GPUs that are reserved, or closed to its user later.

        Of the nodes of the head also those that lack what the job may take there beside it; for
        shards, which used GPUs have, too, all of them.
        """
        free = self.now.not_held & ~self._outside.not_held
        kept = np.asarray(free.any(axis=1), dtype=np.bool_)
        if self.now.users and self._outside.users:
            kept |= self.now.users.open_to(request) & ~self._outside.users.open_to(request)
        if self.shadow is not None:
            nodes = [node for node, _ in self.shadow.gpus]
            kept[nodes] |= takes_shards(request) | ~fits_anyhow(request, self._outside)[nodes]
        return kept

    def with_reserved(self, answer: Assignment, request: Request, now_s: float) -> Assignment:
        """The assignment, with free but reserved GPUs: ``kept_for``, ``kept``."""
        for room in reversed(self.each()[:_MOST_NAMED]):
            answer = _with_reserved(answer, room.head, self.now, room.beside(request, now_s))
        return answer


def _without(cluster: Cluster, nodes: BoolArray) -> Cluster:
    """The cluster without the free GPUs and shards of some (N,) nodes."""
    others, shards = ~nodes[:, None], cluster.shards
    return replace(
        cluster,
        free=cluster.free & others,
        by_slurm=None if cluster.by_slurm is None else cluster.by_slurm & others,
        shards=None if shards is None else replace(shards, free=shards.free * others),
    )


def _least(one: Cluster, other: Cluster) -> Cluster:
    """What is free in both."""
    both = replace(one.copy(), asleep=one.asleep)
    keep_least(both, one, other, slice(None))
    if both.shards is None or other.shards is None:
        return both
    least = np.minimum(both.shards.free, other.shards.free)
    return replace(both, shards=replace(both.shards, free=least))


def takes_shards(request: Request) -> bool:
    """Whether Slurm gives it shards, maybe of a GPU that is in use."""
    return request.left is not None and any(part.shards for part in request.left.parts)


def _keeping_cores(cluster: Cluster, request: Request, head: Gpus) -> Cluster:
    """On the nodes of ``head``, only GPUs with enough free CPUs on their socket.

    Slurm takes cores beside the GPUs first, so it takes no reserved ones.
    """
    sockets = cluster.sockets
    if sockets is None:
        return cluster
    most = max((request.cpus_on_node(n) for n in request.node_counts(cluster.shape[1])), default=0)
    free = cluster.free.copy()
    for node, _ in head:
        socket = sockets.gpu[node]
        free[node] &= (socket >= 0) & (sockets.free_cpus[node, np.maximum(socket, 0)] >= most)
    return replace(cluster, free=free)


def _unreserved_sockets(cluster: Cluster, request: Request, now: Cluster) -> Cluster:
    """Only GPUs on sockets with no reserved cores, nor memory that Slurm adds for each core."""
    if cluster.sockets is None or now.sockets is None:
        return cluster
    all_free = now.sockets.free_cpus
    whole = cluster.sockets.free_cpus >= all_free
    if request.memory.per_cpu_mb:
        memory_mb = np.minimum(request.memory.per_cpu_mb * all_free, now.free_memory_mb[:, None])
        whole &= cluster.free_memory_mb[:, None] >= memory_mb
    socket = cluster.sockets.gpu
    beside = np.take_along_axis(whole, np.maximum(socket, 0), axis=1)
    return replace(cluster, free=cluster.free & (socket >= 0) & beside)


def _with_reserved(
    assignment: Assignment, head: Request, here: Cluster, view: Cluster
) -> Assignment:
    kept = here.free & ~view.free
    nodes = np.flatnonzero(kept.any(axis=1)).tolist()
    if not nodes:
        return assignment
    slots = [np.flatnonzero(kept[node]).tolist() for node in nodes]
    words = set_words(here, nodes, slots)
    each = zip(nodes, slots, strict=True) if len(nodes) <= _MOST_KEPT else ()
    return assignment.explained(
        Reserved(head.job_id, words, {here.nodes[n]: tuple(s) for n, s in each})
    )
