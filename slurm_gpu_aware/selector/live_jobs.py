"""Jobs, nodes and the gate as Slurm shows them to every user at one moment."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import is_ours
from slurm_gpu_aware.gate.gated_job import gated_job, has_task, queue_order
from slurm_gpu_aware.gate.licence_gate import gate_reservation, is_silent
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.updates import TRES_FIELDS

_PLACE_OFF = re.compile(r"\bplace=off\b")
_MODEL = re.compile(r"\bgpu_([A-Za-z0-9_.-]+)")
"""Feature that a GPU type becomes (`deploy.render.feature_of`)."""


@dataclass(frozen=True)
class LiveJob:
    """A job as Slurm shows it to every user."""

    job: SlurmJob
    reason: str  # ``Licenses`` for each job that waits for the selector.
    parked: bool  # It waits at the gate.
    placed_at: float | None  # When the selector placed it, Unix seconds; None: not placed.
    ours: bool  # The filter parked it at submission.
    by_hand: bool
    """Its gate was opened for good: by an operator, or by the selector, which left it to Slurm."""
    passed: bool
    """It started with the gate's licence: the gate was open because the selector did not run."""
    left: str | None = None
    """Why Slurm chooses its GPUs, as sbatch said; None: the selector does, or that is not known."""


def live_jobs(config: Config) -> list[LiveJob]:
    """All jobs that Slurm shows. Raises SourceError if it does not answer."""
    jobs = open_client(config.selector.command_timeout_s).jobs()
    return [live_job(job, config) for job in jobs]


def parked_of(jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """Jobs that wait at the gate, by priority as in Slurm."""
    parked = [job for job in jobs if job.parked]
    return sorted(parked, key=lambda live: queue_order(live.job))


def find_job(jobs: Iterable[LiveJob], job_id: str) -> LiveJob | None:
    """One job by the id that users type or by Slurm's number; None: there is no such job."""
    for live in jobs:
        if job_id in (live.job.id, str(live.job.raw_id)) or has_task(live.job, job_id):
            return live
    return None


def live_job(job: SlurmJob, config: Config) -> LiveJob:
    """The view of one job."""
    gated = gated_job(job, config.gate)
    marker = gated.marker if gated is not None else None
    # In the pool, on its way there, and until Slurm tries it again, it waits as at the gate.
    waits_for_us = job.reason == "Reservation" and job.reservation is None
    waits_for_us = waits_for_us or (gated is not None and gated.only_deferred)
    asks = job.licence_count(config.gate.licence) > 0
    return LiveJob(
        job,
        reason="Licenses" if waits_for_us else job.reason,
        parked=gated is not None and (gated.parked or gated.elsewhere),
        placed_at=marker.at if marker is not None and marker.phase is JobPhase.RELEASED else None,
        ours=is_ours(job.admin_comment),
        by_hand=marker is not None and marker.phase in (JobPhase.LEFT, JobPhase.OPENED),
        passed=job.state != "PENDING" and asks and bool(job.nodes),
        left=gated.original.left if gated is not None else None,
    )


def asks_for_gpus(job: SlurmJob) -> bool:
    """Whether its own request names GPUs."""
    fields = (getattr(job, name) or "" for name in TRES_FIELDS.values())
    return "gres/gpu" in job.req_tres or any("gpu" in text for text in fields)


def asks_for_shards(job: SlurmJob) -> bool:
    """Whether its own request names shards."""
    return any("shard" in (getattr(job, name) or "") for name in TRES_FIELDS.values())


def why_by_form(job: SlurmJob) -> str | None:
    """Why Slurm places a job that was not parked, by its own fields; None: not known."""
    if job.het:
        return "it is a heterogeneous job"
    if asks_for_shards(job):
        return "it asks for shards in a way that is left to Slurm"
    if _PLACE_OFF.search(job.comment or ""):
        return "its comment says place=off"
    if model := _MODEL.search(job.features or ""):
        return (
            f"it asked for GPU type {model[1]} while nodes still had that type (now the feature"
            f" {model[0]}, since 'gpu-aware setup --roll'), or in an unsupported request form"
        )
    return None


@dataclass(frozen=True)
class GateView:
    """The gate's reservation. Times are Unix seconds."""

    exists: bool  # It is there and has not ended: parked jobs wait.
    silent: bool  # The last heartbeat is older than that of a running selector.
    start_s: float | None = None  # None: there is no reservation.
    end_s: float | None = None
    heartbeat_s: float | None = None  # Of the last heartbeat.
    used: bool = True  # False: there is no reservation, and no selector has worked on this host.


@dataclass(frozen=True)
class SlurmView:
    """One answer of Slurm."""

    at: float
    jobs: Sequence[LiveJob]
    nodes: Sequence[SlurmNode]
    gate: GateView | None  # None: Slurm hides reservations from this user.


def slurm_view(
    client: SlurmClient, config: Config, clock: Callable[[], float] = time.time
) -> SlurmView:
    """Ask Slurm. Raises SourceError; takes at most the client's time limit for each of 4 calls."""
    client.parking_licence = config.gate.licence
    jobs = [live_job(job, config) for job in client.jobs()]
    nodes = client.nodes()
    found = gate_reservation(client, config.gate)
    now = clock()
    gate: GateView | None
    if found is not None:
        silent = is_silent(found.end_s, config, now)
        beat = found.end_s - config.gate.lease_s
        gate = GateView(found.end_s > now, silent, found.start_s, found.end_s, beat)
    else:
        hidden = client.config().private_reservations
        gate = None if hidden else GateView(exists=False, silent=True)
    return SlurmView(now, jobs, nodes, gate)
