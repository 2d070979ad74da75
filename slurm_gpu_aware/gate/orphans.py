"""Orphans: gated jobs that have lost their record, because AdminComment was overwritten.

Only the ledger still knows that such a job is gated, and its original request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.job_marker import JobMarker
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Decided", "bound_orphan", "unbound_orphan"]


class Decided(Protocol):
    """The ledger's last decision about a job number."""

    @property
    def user(self) -> str: ...

    @property
    def nodes(self) -> Sequence[str]: ...

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """GPU indices on each node; None: Slurm picks them."""

    @property
    def record(self) -> str | None:
        """AdminComment of the parked job; None: not known."""


def bound_orphan(job: SlurmJob, gate: GateConfig, decided: Decided | None) -> GatedJob | None:
    """The gated job of an orphan that is bound as decided; None: it is not.

    Slurm can reuse a job number, so user and binding must be those of the decision.
    """
    if decided is None or decided.user != job.user:
        return None
    slots = placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job)
    same_nodes = bool(job.req_nodes) and set(job.req_nodes) == set(decided.nodes)
    original = parse(decided.record)
    if original is None or (slots != decided.gpus if slots is not None else not same_nodes):
        return None
    marker = JobMarker(JobPhase.RELEASED, job.restarts, 0.0)  # so that every field is restored
    return GatedJob(job, original, marker, JobPhase.RELEASED).as_seen(job, gate)


def unbound_orphan(job: SlurmJob, gate: GateConfig) -> GatedJob:
    """The gated job of an orphan at the gate: its present request without the gate's licence."""
    own = ",".join(f"{name}:{n}" for name, n in job.licenses if name != gate.licence)
    original = OriginalRequest(
        tres_per_node=job.tres_per_node,
        tres_per_job=job.tres_per_job,
        tres_per_task=job.tres_per_task,
        cpus_per_tres=job.cpus_per_tres,
        licenses=own or None,
        req_nodes=",".join(job.req_nodes) or None,
        tres_freq=job.tres_freq,
    )
    return GatedJob(job, original, None, JobPhase.WAITING)
