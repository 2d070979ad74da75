"""Holding pool: the heartbeat keeps it closed, rounds fill and empty it.

`gate.licence_gate` explains the reservation. Only the jobs that are next in line stay in Slurm's
queue. A job for which a plan has free GPUs is taken from the pool first, and placed after Slurm has
tried it, because only then does Slurm show whether a limit holds it. Of jobs alike that a limit
holds, one stays in the queue and shows when the limit is free.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

from slurm_gpu_aware.admission.snapshot import NODE_TAKEN, NODES_TAKEN
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import in_holding_pool
from slurm_gpu_aware.gate.gated_job import GatedJob, queue_order
from slurm_gpu_aware.gate.licence_gate import (
    POOL_LAST_S,
    POOL_LICENCE,
    create_pool,
    leave_pool_fields,
    lost_reservation,
)
from slurm_gpu_aware.gate.request_forms import kept_tasks
from slurm_gpu_aware.gate.restore import begin_fields
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids
from slurm_gpu_aware.slurm.updates import JobUpdate

log = logging.getLogger(__name__)

PLANNABLE = frozenset({"Licenses", "Priority", "Resources", "None", NODE_TAKEN, NODES_TAKEN})
"""Reasons of parked jobs that only the gate holds."""
UNTRIED = "GPUs are free for it; it is placed as soon as Slurm has checked its limits"
"""Why a job waits that was taken from the pool."""
NO_REASON_S = 10.0
"""So long a limit counts of jobs that show no reason: a pass of Slurm's scheduler takes less."""
_MAX_JOBS = 500  # jobs that one round puts into the pool; 2 ms each
_AT_ONCE = 8
_PUT_S = 0.2
"""A round puts jobs into the pool for so long: meanwhile no freed GPU gets its next job."""
_GAP_S = 30.0
"""The pool opens this long after the end of the gate, so that jobs next in line start first."""
_TRIED_S = 4.0
"""A job that Slurm has not tried so long after it was taken from the pool is placed untried."""
_TRY_AGAIN_S = 600.0  # pause after Slurm refused to create a pool or to let a job in
_KIND_S = 60.0  # time between two tries of jobs like one that a limit holds
_UNUSED_S = 60.0  # a pool in which no job waits is removed after this time
_STRANDED = 100  # jobs that one round takes from the holding pool because they do not age there
_LOCK_S = 1.0  # longest wait of a heartbeat for a round that creates or removes a pool


def alike(job: SlurmJob) -> Hashable:
    """Key of jobs that a limit holds all or none of."""
    asked = tuple(sorted(job.req_tres.items()))
    limit = (job.time_limit_s, job.time_min_s)
    return (job.user, job.account, job.qos, job.partitions, asked, *limit)


def limits(jobs: Iterable[SlurmJob]) -> dict[Hashable, SlurmJob]:
    """For each kind of jobs the first one, not in a pool, that a limit holds."""
    limited: dict[Hashable, SlurmJob] = {}
    for job in jobs:
        if job.holding_pool is None and is_limit(job):
            limited.setdefault(alike(job), job)
    return limited


def spare(jobs: Iterable[GatedJob], room: int, split: Set[int | None]) -> list[SlurmJob]:
    """Parked jobs beyond the first ``room`` that need not stay in Slurm's queue.

    ``jobs``: in Slurm's order, none of them in a closed pool. ``split``: arrays of several records.
    """
    tried = [
        gated.job
        for gated in jobs
        if gated.job.reservation is None
        and not kept_tasks(gated.original)  # an update must not change its tasks
        and (gated.job.reason in PLANNABLE or is_limit(gated.job) or gated.only_deferred)
    ]
    shown = {job.id for job in limits(tried).values()} if len(tried) > room else set()
    fit = (j for j in tried[room:] if _ages_there(j) and _is_whole(j, split) and j.id not in shown)
    return list(islice(fit, _MAX_JOBS))


def stranded(jobs: Iterable[SlurmJob], split: Set[int]) -> list[SlurmJob]:
    """Up to `_STRANDED` jobs that were held and released in a pool and do not age there."""
    inside = (job for job in jobs if job.holding_pool is not None and job.reason == "Reservation")
    found = (job for job in inside if not _ages_there(job) and _is_whole(job, split))
    return list(islice(found, _STRANDED))


def _ages_there(job: SlurmJob) -> bool:
    """Whether a job ages in a reservation that has not begun; Slurm sets no eligible time there.

    A held job loses eligible time and age; an array that its throttle holds goes on ageing.
    """
    return job.eligible_s is not None or job.accrue_s is not None


def _is_whole(job: SlurmJob, split: Set[int] | Set[int | None]) -> bool:
    """Whether an update of the record changes no other: it is not the rest of a split array."""
    return job.array_tasks is None or job.array_id not in split


def is_limit(job: SlurmJob) -> bool:
    """Whether a limit of accounting holds it, which Slurm checks only when it tries a job."""
    return is_limit_reason(job.reason)


def is_limit_reason(reason: str) -> bool:
    """Whether Slurm's reason names a limit of accounting."""
    return reason.startswith(("QOS", "Assoc"))


@dataclass
class HoldingPool:
    """The one closed pool, shared by rounds and heartbeat."""

    client: SlurmClient
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    saved_s: float = 15.0
    """After this time Slurm has saved a new reservation; only then may jobs name it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _name: str | None = None
    _known: bool = False
    _made_at: float = -math.inf
    _refused_at: float = -math.inf
    _used_at: float = -math.inf
    _taken_at: dict[str, float] = field(default_factory=dict)
    _unfit: dict[str, float] = field(default_factory=dict)  # job that Slurm did not let in -> when
    _lain: set[str] = field(default_factory=set)  # jobs that were in a holding pool
    _tried: dict[Hashable, float] = field(default_factory=dict)
    _limits: dict[Hashable, tuple[SlurmJob, float]] = field(default_factory=dict)
    """Kind of jobs -> the job that showed a limit, and when."""

    @property
    def in_use(self) -> bool:
        """Whether there is a closed pool that takes jobs."""
        return self._name is not None and self.timer() - self._made_at >= self.saved_s

    def holds(self, job: SlurmJob) -> bool:
        """Whether a job is in the closed pool."""
        return job.holding_pool is not None and job.holding_pool == self._name

    def awaits(self, job: SlurmJob) -> bool:
        """Whether Slurm has not yet shown what holds a job that was taken from the pool."""
        taken_at = self._taken_at.get(job.id, -math.inf)
        return job.reason in ("None", "Reservation") and self.timer() - taken_at < _TRIED_S

    def limits(self, jobs: Sequence[SlurmJob]) -> dict[Hashable, SlurmJob]:
        """For each kind of jobs one that a limit holds, as it shows or showed just before.

        While Slurm's scheduler goes through the queue, the jobs that it has not reached show no
        reason.
        """
        now = self.timer()
        shown = limits(jobs)
        kept = {k: one for k, one in self._limits.items() if now - one[1] < NO_REASON_S}
        if kept.keys() - shown.keys():
            free = {alike(job) for job in jobs if job.reason in ("Licenses", "Resources")}
            kept = {kind: one for kind, one in kept.items() if kind not in free}
        self._limits = kept | {kind: (job, now) for kind, job in shown.items()}
        return {kind: job for kind, (job, _) in self._limits.items()}

    def may_try(self, kind: Hashable) -> bool:
        """Whether one more job may be tried of a kind that a limit holds, maybe no longer."""
        now = self.timer()
        if now - self._tried.setdefault(kind, now) < _KIND_S:
            return False
        self._tried[kind] = now
        return True

    def keep_closed(self, gate_ends_s: float) -> None:
        """Put the pool off until after the end of the gate. Raises SourceError."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            if not self._known:
                self._take_over()
            opens_s = gate_ends_s + _GAP_S
            if self._name is None or self.client.move_reservation(
                self._name, opens_s + POOL_LAST_S, start_s=opens_s
            ):
                return
            log.warning("holding pool %s has opened: its jobs wait at the gate", self._name)
            self._name = None
        finally:
            self._lock.release()

    def _take_over(self) -> None:
        """Use the newest pool of an earlier selector if it is still closed."""
        now = self.clock()
        pools = [r for r in self.client.reservations() if in_holding_pool(r.name)]
        self._known = True
        last = max(pools, key=lambda pool: pool.start_s, default=None)
        if last is not None and last.start_s > now:
            self._name = last.name
            self._used_at = self.timer()

    def _ready(self, gate_ends_s: float) -> str | None:
        """Name of the closed pool, created if there is none; None: none may be used yet."""
        with self._lock:
            now = self.timer()
            if self._name is None and now - self._refused_at > _TRY_AGAIN_S:
                try:
                    self._name = create_pool(self.client, self.clock(), gate_ends_s + _GAP_S)
                except SourceError as exc:
                    self._refused_at = now
                    log.warning(
                        "all parked jobs stay in Slurm's queue, which costs slurmctld time"
                        " (is %s among Licenses in slurm.conf?): %s",
                        POOL_LICENCE,
                        exc,
                    )
                    return None
                self._made_at = self._used_at = now
                log.info("parked jobs that are not next in line wait in %s", self._name)
            return self._name if self.in_use else None

    def tidy(self, jobs: Iterable[SlurmJob]) -> None:
        """Remove a pool that has not been used for a while. ``jobs``: all pending ones."""
        lying = [job for job in jobs if job.holding_pool is not None]
        self._lain |= {job.id for job in lying}
        now = self.timer()
        if any(self.holds(job) for job in lying):
            self._used_at = now
        if self._name is None or now - self._used_at <= _UNUSED_S:
            return
        with self._lock:
            try:
                self.client.delete_reservation(self._name)
                self._name = None
            except SourceError as exc:
                self._used_at = now  # so that not every round tries it
                log.info("holding pool %s stays: %s", self._name, exc)

    def fill(
        self, parked: Iterable[GatedJob], room: int, split: Set[int | None], gate_ends_s: float
    ) -> int:
        """Put the parked jobs that are `spare` in the pool; see `put`."""
        queue = sorted(parked, key=lambda gated: queue_order(gated.job))
        stay = [gated for gated in queue if not self.holds(gated.job)]
        return self.put(spare(stay, room, split), gate_ends_s)

    def put(self, jobs: Iterable[SlurmJob], gate_ends_s: float) -> int:
        """Put parked jobs in the holding pool; returns how many are left to a later round.

        Raises SourceError if Slurm does not answer.
        """
        now = self.timer()
        self._unfit = {i: at for i, at in self._unfit.items() if now - at < _TRY_AGAIN_S}
        wanted = [job.id for job in jobs if job.id not in self._unfit]
        name = self._ready(gate_ends_s) if wanted else None
        if name is None:
            return 0
        self._used_at = now
        into, sent = (("ReservationName", name),), 0
        refused: dict[str, str] = {}
        while sent < len(wanted) and self.timer() - now < _PUT_S:
            part = wanted[sent : sent + _AT_ONCE]
            refused |= self.client.update_jobs([JobUpdate(job_id, into) for job_id in part])
            sent += len(part)
        self._lain |= set(wanted[:sent]) - refused.keys()
        if any("reservation is invalid" in why for why in refused.values()):
            log.warning("holding pool %s is gone; another one is created", name)
            with self._lock:
                self._name = None
            return 0
        for job_id, why in refused.items():
            log.info("job %s stays in Slurm's queue: %s", job_id, why)
        self._unfit |= dict.fromkeys(refused, now)
        return len(wanted) - sent

    def take(self, jobs: Sequence[GatedJob]) -> None:
        """Take jobs from the pool, so that Slurm tries them. Raises SourceError."""
        now, begun = self.timer(), self.clock()
        self._taken_at = {i: at for i, at in self._taken_at.items() if now - at < 2 * _TRIED_S}
        self._taken_at |= {job.id: now for job in jobs}
        leaving = ((j.id, leave_pool_fields(j.job) + begin_fields(j, begun)) for j in jobs)
        self._send([JobUpdate(job_id, fields) for job_id, fields in leaving])

    def free(self, jobs: Iterable[SlurmJob], split: Set[int]) -> None:
        """Take jobs from any holding pool that must not be there. Raises SourceError.

        Such a job is `stranded`, or an operator opened its gate or changed its licences while a
        round put it there. ``split``: see `update_ids`.
        """
        updates = []
        for job in jobs:
            if job.holding_pool is None:
                continue
            try:
                updates += [JobUpdate(i, leave_pool_fields(job)) for i in update_ids(job, split)]
                log.info("job %s is taken from the holding pool", job.id)
            except ValueError as exc:
                log.error("take job %s from its reservation by hand: %s", job.id, exc)
        self._send(updates)

    def rescue(self, jobs: Iterable[SlurmJob], asked_for_none: Callable[[SlurmJob], bool]) -> None:
        """Release parked jobs that Slurm holds because it lost their pool when it started.

        A job whose user named a reservation that is gone stays held, as in plain Slurm.
        ``asked_for_none``: whether a job was submitted without a reservation; asked for jobs that
        this selector has not seen in a holding pool.
        """
        lost = [
            job.id
            for job in jobs
            if job.holding_pool is None
            and lost_reservation(job)
            and (job.id in self._lain or asked_for_none(job))
        ]
        if lost:
            log.warning("Slurm has lost the holding pool: %d jobs are released from it", len(lost))
            self.client.release_jobs(lost)

    def _send(self, updates: Sequence[JobUpdate]) -> None:
        for job_id, why in self.client.update_jobs(updates).items():
            log.warning("job %s could not be taken from the holding pool: %s", job_id, why)

    def forget(self, known: Set[str]) -> None:
        """Drop jobs that are gone."""
        self._lain &= known


def blocked_by(gated: GatedJob, now: float, components: Iterable[SlurmJob] = ()) -> str | None:
    """What holds a parked job beside the gate, in Slurm's word; None: nothing that is known.

    ``components``: the other ones of a heterogeneous job. Their reasons may be of an earlier try.
    """
    job = gated.job
    of_ours = gated.only_deferred or (job.reason == "Reservation" and job.reservation is None)
    if job.reason not in PLANNABLE and not of_ours:
        return job.reason
    return held_by_record(gated, now, (job, *components))


def held_by_record(gated: GatedJob, now: float, parts: Iterable[SlurmJob]) -> str | None:
    """What holds any of its components by their records alone, in Slurm's word; None: nothing.

    Slurm shows no reason for a job that it has not tried yet.
    """
    found = (_waits_for(replace(gated, job=one), now) for one in parts)
    return next(filter(None, found), None)


def _waits_for(gated: GatedJob, now: float) -> str | None:
    job = gated.job
    if not job.priority:
        return "JobHeldUser"
    if job.dependency is not None:
        return "Dependency"
    ahead = job.eligible_s is not None and job.eligible_s > now
    return "BeginTime" if ahead and not gated.deferred else None
