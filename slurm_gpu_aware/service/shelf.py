"""The shelf's reservation, kept closed by the heartbeat, filled and emptied by rounds.

Few jobs are left in Slurm's own queue, so that a pass of its scheduler stays cheap whatever is
parked: those that are next in line. The others are put on the shelf. A job for which a plan has
free GPUs is taken from it first, and placed once Slurm has looked at it: only then does Slurm show
whether a limit holds it. Of jobs alike that a limit holds one is left in the queue, and shows when
the limit no longer does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.service.placing import Candidate, task_number
from slurm_gpu_aware.service.recovery import in_parts
from slurm_gpu_aware.slurm.gateway import Gateway, JobUpdate, SlurmJob
from slurm_gpu_aware.slurm.shelf import LICENCE, create_shelf, is_limit, left_fields, shelves

__all__ = ["TAKEN", "Shelf", "alike", "limits", "placeable", "spare"]

log = logging.getLogger(__name__)

_GAP_S = 1.0
"""The shelf opens so long behind the end of the gate."""
_LOOKED_S = 4.0
"""Within this time Slurm's scheduler looks at a job that was taken from the shelf. If it does not,
as while another job blocks the partition, the job is placed without: the look at placed jobs sees
what holds it."""
_TRY_AGAIN_S = 600.0
"""After Slurm has refused to make a shelf."""
_UNUSED_S = 60.0
"""A shelf on which nothing lies is removed after this time."""
_MOST = 500
"""Jobs that one round puts there; 2 ms each."""

TAKEN = "GPUs are free for it; it is placed as soon as Slurm has looked at its limits"
"""Why a job waits that has been taken from the shelf."""
_NO_TASK = 1 << 62

_Alike = tuple[object, ...]


def alike(job: SlurmJob) -> _Alike:
    """Of jobs with the same value a limit holds all or none."""
    asked = tuple(sorted(job.req_tres.items()))
    return (job.user, job.account, job.qos, job.partitions, asked)


def limits(jobs: Iterable[SlurmJob]) -> dict[_Alike, SlurmJob]:
    """For each kind of jobs one, not on a shelf, that Slurm shows as held by a limit."""
    found: dict[_Alike, SlurmJob] = {}
    for job in jobs:
        if job.shelf is None and is_limit(job.reason):
            found.setdefault(alike(job), job)
    return found


def spare(
    jobs: Sequence[SlurmJob], plannable: Set[str], room: int, split: Set[int]
) -> list[SlurmJob]:
    """Of parked jobs in Slurm's order those that need not stand in Slurm's own queue.

    Parameters
    ----------
    jobs : parked jobs, none of them on a closed shelf.
    plannable : reasons that say that nothing but the gate holds a job.
    room : how many stay there.
    split : arrays of several records; an update of what is left of one would touch them all.
    """
    tried = [
        job
        for job in jobs
        if job.reservation is None and (job.reason in plannable or is_limit(job.reason))
    ]
    if len(tried) <= room:
        return []
    shown = {job.id for job in limits(tried).values()}
    return [
        job
        for job in tried[room:]
        # Before its age counts a job must have been in the queue once.
        if job.accrue_s is not None
        and job.id not in shown
        and not (job.array_tasks is not None and job.array_id in split)
    ][:_MOST]


def placeable(
    assignments: Sequence[Assignment], candidates: Mapping[str, Candidate], shelf: Shelf
) -> tuple[list[Assignment], list[str]]:
    """(What can be placed now, ids of jobs at which Slurm looks first).

    Slurm rejects the later tasks of an array in a pass in which it has rejected one.
    """
    waits = [
        a.job_id
        for a in assignments
        if shelf.holds(candidates[a.job_id].job) or shelf.awaits(candidates[a.job_id].job)
    ]
    first: dict[int, int] = {}
    for job in (candidates[job_id].job for job_id in waits):
        if job.array_id is not None:
            first[job.array_id] = min(task_number(job.id), first.get(job.array_id, _NO_TASK))
    later = [
        a.job_id
        for a in assignments
        if task_number(a.job_id) > first.get(candidates[a.job_id].job.array_id or 0, _NO_TASK)
    ]
    stay = {*waits, *later}
    return [a for a in assignments if a.job_id not in stay], list(dict.fromkeys(waits + later))


class Shelf:
    """One reservation at a time that is closed; shared by the rounds and the heartbeat."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._timer = timer
        self._lock = threading.Lock()
        self._name: str | None = None
        self._known = False
        self._refused_at = -float("inf")
        self._used_at = -float("inf")
        self._taken: dict[str, float] = {}
        self._unfit: set[str] = set()
        """Jobs that Slurm does not let in."""

    def holds(self, job: SlurmJob) -> bool:
        """Whether a job lies on the closed shelf."""
        return job.shelf is not None and job.shelf == self._name

    def awaits(self, job: SlurmJob) -> bool:
        """Whether Slurm has yet to say what holds a job that was taken from the shelf."""
        taken = self._taken.get(job.id)
        return (
            job.reason == "Reservation" and taken is not None and self._timer() - taken < _LOOKED_S
        )

    def keep_closed(self, gate_ends_s: float) -> None:
        """Put the shelf off until behind the gate's end. Raises SourceError."""
        with self._lock:
            if not self._known:
                self._look()
            if self._name is None or self._gateway.put_off_reservation(
                self._name, gate_ends_s + _GAP_S
            ):
                return
            log.warning("shelf %s has opened: its jobs wait at the gate", self._name)
            self._name = None

    def _look(self) -> None:
        """Go on with a shelf that an earlier selector has left, if it is still closed."""
        now = self._clock()
        found = shelves(self._gateway.reservations())
        self._known = True
        if found and found[-1].start_s > now:
            self._name = found[-1].name
            self._used_at = self._timer()

    def tidy(self, jobs: Iterable[SlurmJob]) -> None:
        """``jobs``: all parked ones. Remove a shelf that has not been used for a while."""
        now = self._timer()
        if self._name is None:
            return
        if any(self.holds(job) for job in jobs):
            self._used_at = now
        elif now - self._used_at > _UNUSED_S:
            with self._lock:
                name, self._name = self._name, None
            try:
                self._gateway.delete_reservation(name)
            except SourceError as exc:
                log.info("shelf %s stays until Slurm removes it: %s", name, exc)

    def put(
        self,
        jobs: Sequence[SlurmJob],
        gate_ends_s: float,
        between: Callable[[], object] = lambda: None,
    ) -> int:
        """Put parked jobs on the shelf; how many are there now. Raises SourceError."""
        wanted = [job for job in jobs if job.id not in self._unfit]
        name = self._ready(gate_ends_s) if wanted else None
        if name is None:
            return 0
        self._used_at = self._timer()
        refused: dict[str, str] = {}
        updates = [JobUpdate(job.id, (("ReservationName", name),)) for job in wanted]
        for part in in_parts(updates):
            between()
            refused |= self._gateway.update_jobs(part)
        if any("reservation is invalid" in why for why in refused.values()):
            log.warning("shelf %s is gone: another one is made", name)
            with self._lock:
                self._name = None
            return 0
        for job_id, why in refused.items():
            log.info("job %s stays in Slurm's queue: %s", job_id, why)
        self._unfit |= refused.keys()
        return len(wanted) - len(refused)

    def _ready(self, gate_ends_s: float) -> str | None:
        """Name of the closed shelf; made if there is none. None: Slurm does not give one."""
        with self._lock:
            now = self._timer()
            if self._name is None and now - self._refused_at > _TRY_AGAIN_S:
                try:
                    self._name = create_shelf(self._gateway, self._clock(), gate_ends_s + _GAP_S)
                    log.info("parked jobs that are not next in line wait in %s", self._name)
                except SourceError as exc:
                    self._refused_at = now
                    log.warning(
                        "all parked jobs stay in Slurm's own queue, which costs slurmctld time"
                        " (is %s among Licenses in slurm.conf?): %s",
                        LICENCE,
                        exc,
                    )
            return self._name

    def take(self, jobs: Sequence[SlurmJob], between: Callable[[], object] = lambda: None) -> None:
        """Take jobs from the shelf, so that Slurm looks at them. Raises SourceError."""
        now = self._timer()
        self._taken = {i: at for i, at in self._taken.items() if now - at < 2 * _LOOKED_S}
        updates = []
        for job in jobs:
            self._taken[job.id] = now
            updates.append(JobUpdate(job.id, left_fields(job)))
        for part in in_parts(updates):
            between()
            for job_id, why in self._gateway.update_jobs(part).items():
                log.warning("job %s could not be taken from the shelf: %s", job_id, why)

    def forget(self, known: Set[str]) -> None:
        """Drop what is known of jobs that are gone."""
        self._unfit &= known
