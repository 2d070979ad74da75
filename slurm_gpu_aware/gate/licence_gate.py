"""The gate: the licence that a reservation holds, so that jobs asking for it wait.

The reservation ends a minute or two after the last heartbeat. If the selector dies, it runs out
and Slurm starts the parked jobs by itself. Opening the gate for one job is giving it back the
licences that the user asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.holding_pool import open_fields
from slurm_gpu_aware.gate.job_marker import HAND, marked
from slurm_gpu_aware.gate.restore import undo_fields
from slurm_gpu_aware.slurm.client import JobUpdate, NewReservation, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, array_tasks, split_arrays, update_ids

__all__ = [
    "closed_licences",
    "hand_over",
    "hold_gate",
    "is_parked",
    "open_gate",
    "release_by_hand",
]

log = logging.getLogger(__name__)


def hold_gate(
    client: SlurmClient, gate: GateConfig, now: float, *, check: bool = False
) -> tuple[float, bool]:
    """Make the reservation last ``lease_s`` from ``now``; create it if it is not there.

    With ``check`` also if it does not hold all of the licences, so that jobs would slip through.

    Returns (end of the reservation, whether it had to be created). Raises SourceError.
    """
    end_s = now + gate.lease_s
    if client.move_reservation(gate.reservation, end_s):
        held = _held(client, gate) if check else None
        if held is None or held >= gate.licence_count:
            return end_s, False
        return end_s, _replace(client, gate, held, end_s)
    try:
        client.create_reservation(_reservation(gate, gate.licence_count, end_s))
    except SourceError:
        # One that ended a moment ago may be purged between the two calls, or another one
        # may have created it.
        if not client.move_reservation(gate.reservation, end_s):
            raise
        return end_s, False
    return end_s, True


def _reservation(gate: GateConfig, count: int, end_s: float) -> NewReservation:
    licenses = f"{gate.licence}:{count}"
    return NewReservation(
        gate.reservation, end_s, licenses=licenses, flags=frozenset({"ANY_NODES"})
    )


def _held(client: SlurmClient, gate: GateConfig) -> int | None:
    """Licences of the gate that its reservation holds; None: there is no such reservation."""
    for reservation in client.reservations():
        if reservation.name == gate.reservation:
            return sum(count for name, count in reservation.licenses if name == gate.licence)
    return None


def _replace(client: SlurmClient, gate: GateConfig, held: int, end_s: float) -> bool:
    """Put a reservation of all licences in the place of one that holds too few.

    Slurm may start parked jobs between the two commands, as it might have before. If it does not
    give that many (slurm.conf counts fewer), the gate is held as it was. Raises SourceError.
    """

    def create(count: int) -> None:
        client.create_reservation(_reservation(gate, count, end_s))

    log.warning(
        "reservation %s holds %d licences %s instead of %d: it is made anew",
        gate.reservation,
        held,
        gate.licence,
        gate.licence_count,
    )
    client.delete_reservation(gate.reservation)
    try:
        create(gate.licence_count)
    except SourceError as exc:
        if not held:
            raise
        create(held)
        log.error(
            "the gate holds %d jobs only: Licenses in slurm.conf and gate.licence_count must"
            " agree: %s",
            held,
            exc,
        )
    return True


def is_parked(job: SlurmJob, gate: GateConfig) -> bool:
    """Waiting at the gate: pending, asking for the gate's licence, recorded by the filter."""
    return (
        job.state == "PENDING"
        and job.licence_count(gate.licence) > 0
        and parse(job.admin_comment) is not None
    )


def closed_licences(original: OriginalRequest, gate: GateConfig) -> str:
    """Value of ``Licenses`` that closes the gate for a job."""
    own = f"{original.licenses}," if original.licenses else ""
    return f"{own}{gate.licence}:1"


def hand_over(job: SlurmJob, ids: Sequence[str], now: float) -> list[JobUpdate]:
    """Updates that open the gate of a parked job for good: unpinned, left alone by the selector.

    Whatever the selector had pinned is undone before the gate opens. ``ids``: those of
    `update_ids`. None for a job that the filter did not park. Raises ValueError if the gate cannot
    be opened; pins that cannot be undone stay.
    """
    original = parse(job.admin_comment)
    if original is None or job.admin_comment is None:
        return []
    comment = marked(job.admin_comment, HAND, job.restarts, now)
    fields = (("AdminComment", comment), *open_fields(job, original, now))
    if job.reservation is None and job.shelf is None:
        fields += (("ReservationName", ""),)  # a round may just be putting it on the shelf
    opened = [JobUpdate(job_id, fields) for job_id in ids]
    try:
        undo = undo_fields(job, original)
        unpinned = [JobUpdate(job_id, undo) for job_id in ids] if undo else []
    except (SourceError, ValueError) as exc:
        log.warning("job %s cannot be given back its request: %s", job.id, exc)
        unpinned = []
    return unpinned + opened


def open_gate(
    client: SlurmClient, jobs: Iterable[SlurmJob], now: float, split: Set[int] = frozenset()
) -> dict[str, str]:
    """Open the gate for parked jobs as an operator: unpinned, and left alone by the selector.

    Slurm then starts them as if we were not there. ``split``: arrays of several records. Returns
    Slurm's complaints by job id. Raises SourceError.
    """
    updates: list[JobUpdate] = []
    for job in jobs:
        try:
            updates += hand_over(job, update_ids(job, split), now)
        except ValueError as exc:
            raise SourceError(f"the gate of job {job.id} cannot be opened: {exc}") from None
    return client.update_jobs(updates)


def release_by_hand(
    client: SlurmClient, config: Config, job_ids: Sequence[str] | None
) -> list[str]:
    """Open the gate for these jobs (ids as users type them; None: all parked ones).

    ``98`` names a job, or all tasks of array 98 that are still parked; ``98_3`` one task.

    Returns
    -------
    Ids of the jobs whose gate was opened.

    Raises
    ------
    SourceError
        A named job is not parked, or would wait behind an earlier task of its array that is and
        was not named, or Slurm refused an update.
    """
    jobs = client.jobs()
    parked = [job for job in jobs if is_parked(job, config.gate)]
    if job_ids is None:
        chosen = parked
    else:
        chosen = []
        for job_id in job_ids:
            found = [named for job in parked if (named := _named(job_id, job)) is not None]
            if not found:
                raise SourceError(f"job {job_id} is not parked; see 'gpu-aware queue'")
            chosen += found
        _check_order(chosen, parked)
    refused = open_gate(client, chosen, time.time(), split_arrays(jobs))
    if refused:
        job_id, why = next(iter(refused.items()))
        raise SourceError(f"Slurm refused to open the gate of job {job_id}: {why}")
    return [job.id for job in chosen]


def _check_order(chosen: Sequence[SlurmJob], parked: Sequence[SlurmJob]) -> None:
    """Refuse a task that would not start: its array has an earlier one that stays at the gate.

    Once Slurm has rejected a task in a pass it does not look at the later tasks of that array.
    Only tasks with a record of their own do that; the unsplit rest comes last. Raises SourceError.
    """
    named = {job.id for job in chosen}
    for job in chosen:
        earlier = [
            other.id
            for other in parked
            if job.array_id is not None
            and other.array_id == job.array_id
            and other.array_tasks is None
            and other.id not in named
            and _task(other) < _task(job)
        ]
        if earlier:
            first = min(earlier, key=lambda job_id: int(job_id.partition("_")[2]))
            raise SourceError(
                f"job {job.id} would not start before {first}, an earlier task of its array that"
                f" is parked: release {first} first"
            )


def _task(job: SlurmJob) -> float:
    """Task number of a record; that of an unsplit rest is behind all."""
    task = job.id.partition("_")[2]
    return float(task) if task else float("inf")


def _named(job_id: str, job: SlurmJob) -> SlurmJob | None:
    """The job if an id names it; one task of an unsplit array as a record of its own."""
    if job_id in (job.id, str(job.raw_id), str(job.array_id)):
        return job
    array, _, task = job_id.partition("_")
    if not task.isdigit() or job.array_tasks is None or array != str(job.array_id):
        return None
    if int(task) not in array_tasks(job.array_tasks):
        return None
    return replace(job, id=f"{array}_{int(task)}", array_tasks=None)
