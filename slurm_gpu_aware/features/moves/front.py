"""Front of the queue: waiting jobs that fit now, and the reservation of the first that does not.

It tells what a move of a running job would take from the waiting jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob, each_gpu
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.backfill import BackfillRoom, Shadow, reserve
from slurm_gpu_aware.planning.dispatcher import Dispatcher, shape_of
from slurm_gpu_aware.planning.postponing import awaited
from slurm_gpu_aware.planning.preempt import can_preempt
from slurm_gpu_aware.planning.timeline import Timeline, as_running, take


@dataclass(frozen=True, eq=False)
class Front:
    """The front of a queue on a snapshot."""

    starts: Mapping[str, tuple[Request, float]]
    """The jobs that fit now, placed one after the other in Slurm's order, and the expected time
    from now to their end as a multiple of their expected run time."""
    head: Request | None
    """The first job that fits later; None: there is none."""
    shadow: Shadow | None
    """Its reservation."""
    preempts: bool
    """The head may preempt others: what it takes is not known here."""
    rest: Cluster
    """The cluster with the jobs that fit now on it, which are ``started``."""
    started: Sequence[RunningJob]
    behind: Mapping[str, tuple[Request, float]] = field(default_factory=dict)
    """As ``starts``, the jobs behind the head that start now by backfill."""

    def keeps(self, before: Front) -> bool:
        """Say whether every job of an earlier front starts as soon as there."""
        if not before.starts.keys() <= self.starts.keys():
            return False
        if before.head is None or before.head is not self.head:  # else it starts now
            return True
        first, now = before.shadow, self.shadow
        return first is None or (now is not None and now.start_s <= first.start_s)

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
            more = ordered[place + 1 :] if behind else ()
            return replace(front, behind=_backfilled(more, after, request, shadow, dispatcher))
    return Front(starts, None, None, False, after, started)


def _backfilled(
    behind: Sequence[Request],
    cluster: Cluster,
    head: Request,
    shadow: Shadow,
    dispatcher: Dispatcher,
) -> dict[str, tuple[Request, float]]:
    """`Front.behind`."""
    starts: dict[str, tuple[Request, float]] = {}
    settings, now = dispatcher.settings, dispatcher.now
    if not (behind and settings.backfill):
        return starts
    room, failed = BackfillRoom(cluster.copy(), head, shadow), set[object]()
    for request in behind[: settings.backfill_depth]:
        kind = shape_of(request), room.ends_before(request, now)
        if kind in failed or not room.now.free.any():
            continue
        found = dispatcher.could_place(request, room.view(request, now))
        if found is None:
            failed.add(kind)
        else:
            room.take(request, found, now)
            starts[request.job_id] = request, found.slowdown
    return starts


def _until_end(
    request: Request, here: Assignment, cluster: Cluster, now: float, gone: Collection[Gpu]
) -> float:
    """Slowdown of a start now, or less if the job waits for better GPUs and none of them is gone.

    Then it is the time to its end there / its expected run time.
    """
    if (wait := request.postponed) is None:
        return here.slowdown
    gpus = awaited(request, wait, cluster)
    left = not any(gpu in gone for gpu in each_gpu(gpus))
    there = (wait.end_s - now) / request.expected_s
    return min(here.slowdown, there) if gpus and left else here.slowdown
