"""What Slurm itself says right now, for commands that also work without it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import paragraph, say
from slurm_gpu_aware.errors import SourceError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.slurm.client import SlurmClient
    from slurm_gpu_aware.slurm.records import SlurmJob
    from slurm_gpu_aware.store.ledger import Decision

__all__ = [
    "GateState",
    "LiveJob",
    "client_of",
    "find_job",
    "gate_state",
    "live_job",
    "live_jobs",
    "network_groups_of",
    "parked_of",
    "still_open",
]


@dataclass(frozen=True)
class LiveJob:
    """A job as Slurm shows it to anybody."""

    id: str
    """``98``, or ``98_3`` for an array task."""
    raw_id: int
    """Slurm's own number of the record."""
    array_id: int | None
    array_tasks: str | None
    """Tasks of an array that have no record of their own yet; None: a single job or task."""
    shown: str
    """The same, with the tasks that an array still holds: ``98_[1-3]``."""
    user: str
    state: str
    ended: bool
    """Slurm is done with it."""
    reason: str
    parked: bool
    """It waits at our gate."""
    shelved: bool
    """On the shelf: Slurm's own scheduler does not look at it meanwhile."""
    placed_at: float | None
    """When the selector placed it, Unix seconds; None: it did not."""
    ours: bool
    """The filter parked it when it was submitted."""
    by_hand: bool
    """Its gate was opened for good: by an operator, or by the selector, which left it to Slurm."""
    passed: bool
    """It started with the gate's licence: the gate was open because the selector was away."""
    gpus: int | None
    """None: Slurm does not count GPUs (AccountingStorageTRES lacks gres/gpu)."""
    submit_s: float
    priority: int


@dataclass(frozen=True)
class GateState:
    """The reservation that holds the gate's licences."""

    reservation: str
    exists: bool
    end_s: float | None = None
    left_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def client_of(config: Config) -> SlurmClient:
    """Slurm's client, with the configured time limit per call. Raises SourceError."""
    from slurm_gpu_aware.slurm.client import open_client

    return open_client(config.selector.command_timeout_s)


def network_groups_of(config: Config, used: Collection[str]) -> dict[str, dict[str, str]]:
    """Level -> node -> group of Slurm's network, if one of its levels is among ``used``.

    Without an answer none, and a word about it.
    """
    from slurm_gpu_aware.model.penalties import NETWORK_LEVELS

    wanted = [name for name in NETWORK_LEVELS if name in used]
    if not wanted:
        return {}
    from slurm_gpu_aware.slurm.topology import network_groups

    try:
        found = network_groups(client_of(config).topology(), NETWORK_LEVELS)
    except SourceError as exc:
        say(paragraph(f"The network's levels are left out: {exc}."))
        return {}
    lacking = [name for name in wanted if name not in found]
    if lacking:
        say(f"Slurm's topology has no level {', '.join(lacking)}; locality counts without it.")
    return found


def live_jobs(config: Config) -> list[LiveJob] | None:
    """All jobs that Slurm shows; None if it does not answer."""
    try:
        return [live_job(job, config) for job in client_of(config).jobs()]
    except SourceError:
        return None


def parked_of(jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """Jobs that wait at the gate, in Slurm's order."""
    parked = [job for job in jobs if job.parked]
    return sorted(parked, key=lambda j: (-j.priority, j.submit_s, j.id))


def find_job(jobs: Iterable[LiveJob], job_id: str) -> LiveJob | None:
    """One job by the id that users type or by Slurm's own number; None: not there."""
    for job in jobs:
        if job_id in (job.id, str(job.raw_id)) or _is_task_of(job_id, job):
            return job
    return None


def still_open(
    decisions: Iterable[Decision], jobs: Sequence[LiveJob] | None, *, away: bool
) -> list[Decision]:
    """Open decisions of the ledger without those of jobs that Slurm says have ended.

    ``away``: the selector does not write down what happens, so a job that Slurm does not show has
    ended, and one that runs has started. ``jobs`` None: Slurm does not answer.
    """
    if jobs is None:
        return list(decisions)
    shown = {job.id: job for job in jobs}
    found = []
    for decision in decisions:
        job = shown.get(decision.job_id)
        if (job is None and away) or (job is not None and job.ended):
            continue
        runs = job is not None and job.state == "RUNNING"
        found.append(replace(decision, state="started") if away and runs else decision)
    return found


def gate_state(config: Config) -> GateState | None:
    """State of the gate; None if Slurm does not answer, or hides reservations from this user."""
    name = config.gate.reservation
    try:
        client = client_of(config)
        reservations = client.reservations()
        seen = any(found.name == name for found in reservations)
        if not seen and os.geteuid() != 0 and client.config().private_reservations:
            return None
    except SourceError:
        return None
    for found in reservations:
        if found.name == name:
            left = found.end_s - time.time()
            return GateState(name, left > 0, found.end_s, max(0.0, left))
    return GateState(name, False)


def live_job(job: SlurmJob, config: Config) -> LiveJob:
    from slurm_gpu_aware.admission.snapshot import ENDED
    from slurm_gpu_aware.gate.admin_comment import is_ours
    from slurm_gpu_aware.gate.deferral import only_deferred
    from slurm_gpu_aware.gate.job_marker import HAND, RELEASED, mark_of
    from slurm_gpu_aware.gate.licence_gate import is_parked

    mark = mark_of(job.admin_comment)
    # On the shelf, on its way there, and until Slurm has looked at it afterwards, it waits for us
    # as at the gate.
    ours = only_deferred(job) or (job.reason == "Reservation" and job.reservation is None)
    gated = job.licence_count(config.gate.licence) > 0
    shown = f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id
    return LiveJob(
        id=job.id,
        raw_id=job.raw_id,
        array_id=job.array_id,
        array_tasks=job.array_tasks,
        shown=shown,
        user=job.user,
        state=job.state,
        ended=job.state in ENDED,
        reason="Licenses" if ours else job.reason,
        parked=is_parked(job, config.gate),
        shelved=job.shelf is not None,
        placed_at=mark.at if mark is not None and mark.state == RELEASED else None,
        ours=is_ours(job.admin_comment),
        by_hand=mark is not None and mark.state == HAND,
        passed=job.state != "PENDING" and gated and bool(job.nodes),
        gpus=job.req_tres.get("gres/gpu"),
        submit_s=job.submit_s,
        priority=job.priority,
    )


def _is_task_of(job_id: str, job: LiveJob) -> bool:
    """Whether ``98_5`` is one of the tasks that an unsplit array record still holds."""
    array, _, task = job_id.partition("_")
    if not task or not job.array_tasks or str(job.array_id) != array:
        return False
    number = int(task)
    for part in job.array_tasks.split("%")[0].split(","):
        first, _, last = part.partition(":")[0].partition("-")
        if first.isdigit() and int(first) <= number <= int(last or first):
            return True
    return False
