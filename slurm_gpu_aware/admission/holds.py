"""Holds: resources that released jobs take when Slurm starts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu_aware.admission.sizes import least_with_gpus
from slurm_gpu_aware.admission.socket_binding import fills_sockets, is_bound
from slurm_gpu_aware.admission.translate import class_of
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.request_forms import gpus_per_node
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmPartition

__all__ = ["Hold", "hold_of"]


@dataclass(frozen=True)
class Hold:
    """Resources of a released job that Slurm has not started yet."""

    job_id: str
    nodes: tuple[str, ...]
    slots: tuple[int, ...]
    """The same on each node; empty if Slurm picks the GPUs."""
    gpus_per_node: int
    cpus_per_node: int
    memory_mb_per_node: int
    end_s: float
    app_class: str | None = None
    whole_node: bool = False
    """It gets all GPUs and CPUs of its nodes."""
    fills_sockets: bool = False
    """It gets all free CPUs beside its GPUs, each with ``memory_mb_per_cpu``."""
    memory_mb_per_cpu: int = 0
    victims: frozenset[str] = frozenset()
    """Jobs that Slurm preempts for it."""


def hold_of(
    gated: GatedJob,
    slurm: SlurmConfig,
    partitions: Mapping[str, SlurmPartition],
    config: Config,
    now: float,
    *,
    victims: frozenset[str],
) -> Hold:
    """The hold of a released job that is bound to nodes.

    ``now``: Unix seconds. ``victims``: jobs that Slurm preempts for it.
    """
    job, original = gated.job, gated.original
    nodes = len(job.req_nodes)
    slots = placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job) or ()
    gpus = len(slots) or gpus_per_node(original, nodes)
    cpus, memory_mb = least_with_gpus(job, original, slurm, partitions)
    return Hold(
        job_id=job.id,
        nodes=job.req_nodes,
        slots=slots,
        gpus_per_node=gpus,
        # The record shows defaults per GPU only after Slurm has tried the job.
        cpus_per_node=max(-(-job.cpus // nodes), cpus * gpus),
        memory_mb_per_node=max(job.req_tres.get("mem", 0) // nodes, memory_mb * gpus),
        end_s=now + job.time_limit_s,
        app_class=class_of(job, config),
        whole_node=original.exclusive or job.exclusive,
        fills_sockets=is_bound(job, slurm) and fills_sockets(original, nodes),
        memory_mb_per_cpu=job.memory_mb_per_cpu or 0,
        victims=victims,
    )
