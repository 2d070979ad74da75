"""Holding pool: the heartbeat keeps it closed, rounds fill and empty it.

`pool_choice` selects its jobs; `gate.holding_pool` explains the reservation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from itertools import islice

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.holding_pool import (
    LAST_S,
    LICENCE,
    create_pool,
    holding_pools,
    leave_pool_fields,
    lost_reservation,
)
from slurm_gpu_aware.gate.release import begin_fields
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids
from slurm_gpu_aware.slurm.updates import JobUpdate

__all__ = ["HoldingPool", "ages_there", "stranded"]

log = logging.getLogger(__name__)

_GAP_S = 30.0
"""The pool opens this long after the end of the gate, so that jobs next in line start first."""
_TRIED_S = 4.0
"""Time in which Slurm's scheduler tries a job that was taken from the pool.

A later job (another one blocks the partition) is placed untried; the start monitor sees what holds
it."""
_TRY_AGAIN_S = 600.0
"""Pause after Slurm refused to create a pool or to let a job in."""
_KIND_S = 60.0
"""Time between two tries of jobs like one that a limit holds."""
_UNUSED_S = 60.0
"""A pool in which no job waits is removed after this time."""
_SAVED_S = 15.0
"""After this time Slurm has saved a new reservation; only then may jobs name it."""
_STRANDED = 100
"""Jobs that one round takes from the holding pool because they do not age there."""
_LOCK_S = 1.0
"""Longest wait of a heartbeat for a round that creates or removes a pool."""


def ages_there(job: SlurmJob) -> bool:
    """Whether a job ages in a reservation that has not begun.

    Slurm starts to count there only for a job with an eligible time, and sets none. A job that is
    held (with enforced limits) loses eligible time and age. An array that its throttle holds loses
    only the eligible time, and goes on ageing.
    """
    return job.eligible_s is not None or job.accrue_s is not None


def stranded(jobs: Iterable[SlurmJob], split: Set[int]) -> list[SlurmJob]:
    """Up to `_STRANDED` jobs that were held and released in a pool and do not age there.

    The unsplit rest of an array with split tasks is left out: it can only be taken task by task.
    """
    aging_stopped = (
        job
        for job in jobs
        if job.holding_pool is not None
        and job.reason == "Reservation"
        and not ages_there(job)
        and not (job.array_tasks is not None and job.array_id in split)
    )
    return list(islice(aging_stopped, _STRANDED))


class HoldingPool:
    """The one closed pool, shared by rounds and heartbeat."""

    def __init__(
        self,
        client: SlurmClient,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        saved_s: float = _SAVED_S,
    ) -> None:
        self._client = client
        self._clock = clock
        self._timer = timer
        self._saved_s = saved_s
        self._lock = threading.Lock()
        self._name: str | None = None
        self._known = False
        self._made_at = -float("inf")
        self._refused_at = -float("inf")
        self._used_at = -float("inf")
        self._taken: dict[str, float] = {}
        self._unfit: dict[str, float] = {}
        """Job that Slurm did not let in -> when."""
        self._lain: set[str] = set()
        """Jobs that were in a holding pool."""
        self._tried: dict[Hashable, float] = {}

    @property
    def in_use(self) -> bool:
        """Whether there is a closed pool that takes jobs."""
        return self._name is not None and self._timer() - self._made_at >= self._saved_s

    def holds(self, job: SlurmJob) -> bool:
        """Whether a job is in the closed pool."""
        return job.holding_pool is not None and job.holding_pool == self._name

    def awaits(self, job: SlurmJob) -> bool:
        """Whether Slurm has not yet shown what holds a job that was taken from the holding pool.

        After an update a job has no reason until the next pass of Slurm's scheduler.
        """
        taken = self._taken.get(job.id)
        no_reason = job.reason in ("None", "Reservation")
        return no_reason and taken is not None and self._timer() - taken < _TRIED_S

    def may_try(self, kind: Hashable) -> bool:
        """Whether one more job of a kind that a limit holds may be tried.

        Slurm may not have noticed a changed limit, or the limit may not hold every such job.
        """
        now = self._timer()
        if now - self._tried.setdefault(kind, now) < _KIND_S:
            return False
        self._tried[kind] = now
        return True

    # -- the reservation ---------------------------------------------------------------------------

    def keep_closed(self, gate_ends_s: float) -> None:
        """Put the pool off until after the end of the gate. Raises SourceError."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            if not self._known:
                self._look()
            opens_s = gate_ends_s + _GAP_S
            if self._name is None or self._client.move_reservation(
                self._name, opens_s + LAST_S, start_s=opens_s
            ):
                return
            log.warning("holding pool %s has opened: its jobs wait at the gate", self._name)
            self._name = None
        finally:
            self._lock.release()

    def _look(self) -> None:
        """Take over the pool of an earlier selector if it is still closed."""
        now = self._clock()
        pools = holding_pools(self._client.reservations())
        self._known = True
        if pools and pools[-1].start_s > now:
            self._name = pools[-1].name
            self._used_at = self._timer()

    def _ready(self, gate_ends_s: float) -> str | None:
        """Name of the closed pool, created if there is none; None: none may be used yet."""
        with self._lock:
            now = self._timer()
            if self._name is None and now - self._refused_at > _TRY_AGAIN_S:
                try:
                    self._name = create_pool(self._client, self._clock(), gate_ends_s + _GAP_S)
                except SourceError as exc:
                    self._refused_at = now
                    log.warning(
                        "all parked jobs stay in Slurm's queue, which costs slurmctld time"
                        " (is %s among Licenses in slurm.conf?): %s",
                        LICENCE,
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
        now = self._timer()
        if self._name is None:
            return
        if any(self.holds(job) for job in lying):
            self._used_at = now
        if now - self._used_at <= _UNUSED_S:
            return
        with self._lock:
            try:
                self._client.delete_reservation(self._name)
                self._name = None
            except SourceError as exc:
                self._used_at = now  # so that not every round tries it
                log.info("holding pool %s stays: %s", self._name, exc)

    # -- jobs --------------------------------------------------------------------------------------

    def put(self, jobs: Sequence[SlurmJob], gate_ends_s: float) -> None:
        """Put parked jobs in the holding pool. Raises SourceError if Slurm does not answer."""
        now = self._timer()
        self._unfit = {i: at for i, at in self._unfit.items() if now - at < _TRY_AGAIN_S}
        wanted = [job for job in jobs if job.id not in self._unfit]
        name = self._ready(gate_ends_s) if wanted else None
        if name is None:
            return
        self._used_at = now
        refused = self._client.update_jobs(
            [JobUpdate(job.id, (("ReservationName", name),)) for job in wanted]
        )
        self._lain |= {job.id for job in wanted} - refused.keys()
        if any("reservation is invalid" in why for why in refused.values()):
            log.warning("holding pool %s is gone; another one is created", name)
            with self._lock:
                self._name = None
            return
        for job_id, why in refused.items():
            log.info("job %s stays in Slurm's queue: %s", job_id, why)
        self._unfit |= dict.fromkeys(refused, now)

    def take(self, jobs: Sequence[GatedJob]) -> None:
        """Take jobs from the pool, so that Slurm tries them. Raises SourceError."""
        now = self._timer()
        self._taken = {i: at for i, at in self._taken.items() if now - at < 2 * _TRIED_S}
        self._taken |= {job.id: now for job in jobs}
        begun = self._clock()
        self._send(
            [JobUpdate(j.id, leave_pool_fields(j.job) + begin_fields(j, begun)) for j in jobs]
        )

    def free(self, jobs: Iterable[SlurmJob], split: Set[int]) -> None:
        """Take jobs from any holding pool that must not be there.

        Such a job is `stranded`, or an operator opened its gate or changed its licences while a
        round put it there. ``split``: see `update_ids`. Raises SourceError if Slurm does not
        answer.
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
        """Release parked jobs that Slurm holds because it lost their pool.

        That happens when slurmctld starts and the reservation is no longer valid (its licence is
        gone) or was not saved. A job whose user named a reservation that is gone stays held, as in
        plain Slurm. ``asked_for_none``: whether a job was submitted without a reservation; asked
        for jobs that this selector has not seen in a holding pool.
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
            self._client.release_jobs(lost)

    def _send(self, updates: Sequence[JobUpdate]) -> None:
        for job_id, why in self._client.update_jobs(updates).items():
            log.warning("job %s could not be taken from the holding pool: %s", job_id, why)

    def forget(self, known: Set[str]) -> None:
        """Drop jobs that are gone."""
        self._lain &= known
