"""Front of the queue: waiting jobs that fit now, and the reservations of the first that do not.

It tells what a move of a running job would take from the waiting jobs.

Shrinking: a running job gives GPUs back, so that waiting jobs start.

A moldable job is restarted with fewer GPUs if that saves the waiting jobs more time than it costs
the job, its restart and the margin of a move counted. The first job in turn would else start when
enough running jobs are expected to have ended. For a job behind it that starts too, the same time
counts, as it would hardly start before it; one that fits now in any case counts nothing.

No job with a due date shrinks, nor one that would then be expected to exceed its time limit. None
shrinks for a job that stands below it (`_may_get`), or that could not start where it was placed
lately: that would waste the restart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

from msgspec import structs

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.moves.declared import Moved
from slurm_gpu_aware.features.moves.movable import Movable, Move, Restarts
from slurm_gpu_aware.features.moves.moved import after_move
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob, each_gpu
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.backfill import BackfillRoom
from slurm_gpu_aware.planning.dispatcher import Dispatcher, shape_of
from slurm_gpu_aware.planning.later import expected_ends
from slurm_gpu_aware.planning.postponing import awaited
from slurm_gpu_aware.planning.preempt import can_preempt
from slurm_gpu_aware.planning.reservation import Shadow, reserve
from slurm_gpu_aware.planning.timeline import Timeline, as_running, take

_TRIED = 8  # smaller sizes for which GPUs are searched, those that cost their jobs least


@dataclass(frozen=True, eq=False)
class Front:
    """The front of a queue on a snapshot."""

    starts: Mapping[str, tuple[Request, float]]
    """The jobs that fit now, placed one after the other in Slurm's order, and the expected time
    from now to their end as a multiple of their expected run time."""
    head: Request | None  # The first job that fits later; None: there is none.
    shadow: Shadow | None  # Its reservation.
    preempts: bool  # The head may preempt others: what it takes is not known here.
    rest: Cluster  # The cluster with the jobs that fit now on it, which are ``started``.
    started: Sequence[RunningJob]
    behind: Mapping[str, tuple[Request, float]] = field(default_factory=dict)
    """As ``starts``, the jobs behind the head that start now by backfill."""
    kept: Mapping[str, float] = field(default_factory=dict)
    """The jobs behind the head that have a reservation, and its start."""

    def keeps(self, before: Front) -> bool:
        """Say whether every job of an earlier front starts as soon as there."""
        if not before.starts.keys() <= self.starts.keys():
            return False
        starting, then, earlier = self.starts.keys() | self.behind.keys(), self._kept, before._kept
        return all(
            job_id in starting or then.get(job_id, math.inf) <= start_s
            for job_id, start_s in earlier.items()
        )

    @property
    def _kept(self) -> dict[str, float]:
        """The jobs with a reservation, the head among them, and its start."""
        if self.head is None or self.shadow is None:
            return {**self.kept}
        return {self.head.job_id: self.shadow.start_s, **self.kept}

    def later(self, before: Front) -> Iterator[Request]:
        """Jobs of an earlier front that end later than there, or do not start by backfill now."""
        now = {**self.starts, **self.behind}
        for job_id, (request, ratio) in {**before.starts, **before.behind}.items():
            if job_id not in now or now[job_id][1] > ratio:
                yield request

    def loses_gpu_s(self, before: Front) -> float:
        """GPU time by which the jobs of an earlier front end later, less that of earlier ends."""
        lost = 0.0
        for request, ratio in before.starts.values():
            if (then := self.starts[request.job_id][1]) != ratio:
                lost += request.gpus * request.expected_s * (then - ratio)
        return lost if lost < math.inf else math.inf  # also of run times that are not known


def front_of(
    ordered: Sequence[Request],
    cluster: Cluster,
    dispatcher: Dispatcher,
    now: float,
    gone: Collection[Gpu] = (),
    *,
    behind: bool = False,
) -> Front:
    """Return the front of a queue in Slurm's order; ``gone``: GPUs taken since the last round.

    A job that fits but waits for better GPUs counts as one that fits. An infeasible job is left
    out. ``behind``: find the jobs behind the head, too.
    """
    after = cluster.copy()
    started: list[RunningJob] = []
    starts: dict[str, tuple[Request, float]] = {}
    free = int(after.free.sum())
    for place, request in enumerate(ordered):
        found = dispatcher.could_place(request, after) if request.gpus <= free else None
        if found is not None:
            held = take(after, request, found)
            started.append(as_running(request, found, now, held))
            starts[request.job_id] = request, _until_end(request, found, cluster, now, gone)
            free -= request.gpus
            continue
        if can_preempt(request, cluster.running):
            return Front(starts, request, None, True, after, started)
        shadow = reserve(request, after, Timeline(cluster.running, now, started), dispatcher)
        if shadow is not None:
            front = Front(starts, request, shadow, False, after, started)
            return _with_backfilled(front, ordered[place + 1 :], dispatcher) if behind else front
    return Front(starts, None, None, False, after, started)


def _with_backfilled(front: Front, behind: Sequence[Request], dispatcher: Dispatcher) -> Front:
    """The front with the jobs behind its head: `Front.behind`, `Front.kept`."""
    settings, now, head = dispatcher.settings, dispatcher.now, front.head
    if head is None or not settings.backfill:
        return front
    starts: dict[str, tuple[Request, float]] = {}
    kept: dict[str, float] = {}
    started = [*front.started]
    most = settings.reservations
    room, failed = BackfillRoom(front.rest.copy(), head, front.shadow, most=most), set[object]()
    for request in behind[: settings.backfill_depth]:
        kind = shape_of(request, room.now), room.ends_before_each(request, now)
        found = None
        if kind not in failed and room.now.free.any():
            found = dispatcher.could_place(request, room.view(request, now))
        if found is not None:
            held = room.take(request, found, now)
            started.append(as_running(request, found, now, held))
            starts[request.job_id] = request, found.slowdown
            continue
        failed.add(kind)
        if (shadow := room.keep(request, front.rest.running, started, dispatcher)) is not None:
            kept[request.job_id] = shadow.start_s
    return replace(front, behind=starts, kept=kept)


def _until_end(
    request: Request, here: Assignment, cluster: Cluster, now: float, gone: Collection[Gpu]
) -> float:
    """Slowdown of a start now, or less if the job waits for better GPUs and none of them is gone.

    Then it is the time to its end there / its expected run time.
    """
    if (wait := request.wait.postponed) is None:
        return here.slowdown
    gpus = awaited(request, wait, cluster)
    left = not any(gpu in gone for gpu in each_gpu(gpus))
    there = (wait.end_s - now) / request.expected_s
    return min(here.slowdown, there) if gpus and left else here.slowdown


def best_shrink(
    able: Sequence[Movable], ordered: Sequence[Request], restarts: Restarts, margin_s: float
) -> Move | None:
    """The restart with fewer GPUs that gains most; None: none gains more than the margin.

    Parameters
    ----------
    able : running jobs that may move now.
    ordered : the queue in Slurm's order, as the round places it.
    """
    smaller = sorted(_smaller(able, restarts), key=itemgetter(0))
    if not smaller:
        return None
    front = front_of(ordered, restarts.cluster, restarts.dispatcher, restarts.now)
    wait_s = _wait_s(front, restarts)
    if front.head is None or not wait_s < math.inf:
        return None
    lacking = front.head.gpus - int(front.rest.free.sum())
    enough = [
        (one, n)
        for _, one, n in smaller
        if one.request.gpus - n >= lacking and _may_get(front.head, one.request)
    ]
    found = (_shrink(one, n, front, ordered, restarts, wait_s) for one, n in enough[:_TRIED])
    paying = (move for move in found if move is not None and move.gain_s > margin_s)
    return max(paying, key=attrgetter("gain_s"), default=None)


def _smaller(able: Sequence[Movable], restarts: Restarts) -> Iterator[tuple[float, Movable, int]]:
    """(time that it costs the job at equal slowdown, job, smaller size) of all jobs."""
    for one in able:
        request, left_s = one.request, restarts.remaining[one.request.job_id]
        if request.get(DUE_DATE) is None:
            for gpus in (size for size in request.sizes if size < request.gpus):
                if (ratio := restarts.time_ratio(request, gpus)) != 1.0:
                    yield left_s * (ratio - 1) + one.restart_s, one, gpus


def _wait_s(front: Front, restarts: Restarts) -> float:
    """Expected time until the head starts without any move; inf: not known."""
    if front.head is None or front.preempts:
        return math.inf
    jobs = [*restarts.cluster.running, *front.started]
    ends = expected_ends(jobs, restarts.now).tolist()
    expected = [replace(job, end_s=end) for job, end in zip(jobs, ends, strict=True)]
    timeline = Timeline(expected, restarts.now)
    shadow = reserve(front.head, front.rest, timeline, restarts.dispatcher)
    return math.inf if shadow is None else shadow.start_s - restarts.now


def _shrink(
    one: Movable,
    gpus: int,
    front: Front,
    ordered: Sequence[Request],
    restarts: Restarts,
    wait_s: float,
) -> Move | None:
    """The restart of a job with fewer GPUs beside the head; None: the head starts no sooner so."""
    head, dispatcher, now = front.head, restarts.dispatcher, restarts.now
    assert head is not None  # noqa: S101 - the caller checks
    if (sooner_s := wait_s - one.restart_s) <= 0:
        return None
    trial = Timeline([one.job], now).at(front.rest, math.inf)
    if (place := dispatcher.could_place(head, trial)) is None:
        return None
    take(trial, head, place)
    if (move := restarts.resized(one, trial, gpus)) is None or _exceeds_limit(move):
        return None
    then = front_of(ordered, after_move(restarts.cluster, move, now), dispatcher, now)
    starts = [request for job_id, (request, _) in then.starts.items() if job_id not in front.starts]
    if head not in starts:
        return None
    starts = [
        r
        for r in starts
        if r is head or (_may_get(r, one.request) and dispatcher.could_place(r, front.rest) is None)
    ]
    return _explained(replace(move, others_s=len(starts) * sooner_s), starts)


def _may_get(waiting: Request, running: Request) -> bool:
    """Whether a running job gives GPUs back for a waiting one.

    It stands below the running one in a lower partition tier, a QOS that its QOS may preempt, or as
    the job of another user by Slurm's priority: that of a running job stays as it was at its start,
    and those of waiting jobs rise with their age.
    """
    below = waiting.tier < running.tier or waiting.preemption.own_group in running.preemption.groups
    return not (below or waiting.is_behind(running) or waiting.wait.refused)


def _exceeds_limit(move: Move) -> bool:
    """Whether Slurm is expected to kill the job on fewer GPUs: its limit begins anew, and ends."""
    known = move.of.job.expected_end_s is not None  # else the limit counts, far more than it needs
    return known and move.remaining_s - move.saves_s > move.request.time_limit_s


def _explained(move: Move, starts: Sequence[Request]) -> Move:
    """The move with the jobs that start by it, also in its facts."""
    names = tuple(request.job_id for request in starts)
    moved = move.assignment.why.of(Moved)
    assert moved is not None  # noqa: S101 - a move says what it moves
    moved = structs.replace(moved, starts=names, others_s=round(move.others_s, 1))
    return replace(move, assignment=move.assignment.explained(moved), starts=names)
