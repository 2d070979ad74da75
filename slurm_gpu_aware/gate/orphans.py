"""Orphans: jobs of ours whose AdminComment, and so their record, was overwritten.

That such a job is ours, and what its user asked for, only the ledger knows.
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
    """What the ledger's last decision about a job number says."""

    @property
    def user(self) -> str: ...

    @property
    def nodes(self) -> Sequence[str]: ...

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """GPU indices on each node; None: Slurm picks them."""

    @property
    def record(self) -> str | None:
        """AdminComment that the job was parked with; None: not known."""


def bound_orphan(job: SlurmJob, gate: GateConfig, decided: Decided | None) -> GatedJob | None:
    """A job without its record that is bound to what was decided; None: it is not.

    A number may have been given anew, so user and binding must be those of the decision.
    """
    if decided is None or decided.user != job.user:
        return None
    slots = placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job)
    there = bool(job.req_nodes) and set(job.req_nodes) == set(decided.nodes)
    original = parse(decided.record)
    if original is None or (slots != decided.gpus if slots is not None else not there):
        return None
    marker = JobMarker(JobPhase.RELEASED, job.restarts, 0.0)  # placing may have changed anything
    return GatedJob(job, original, marker, JobPhase.RELEASED).as_seen(job, gate)


def unbound_orphan(job: SlurmJob, gate: GateConfig) -> GatedJob:
    """A job without its record behind the closed gate, which keeps all but the gate's licence."""
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
