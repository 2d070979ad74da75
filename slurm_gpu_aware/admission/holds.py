"""Holds: resources of released jobs that Slurm has not started yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.admission.fitting import binds_sockets, fills_sockets
from slurm_gpu_aware.admission.sizes import least_with_gpus
from slurm_gpu_aware.features.sizes.resizing import as_shown
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import gpus_per_node
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.slurm.gres import bound_slots, shards_of
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmPartition


@dataclass(frozen=True)
class Hold:
    """Resources of a released job that Slurm has not started yet."""

    job_id: str
    nodes: tuple[str, ...]
    slots: tuple[int, ...]
    """The same on each node; empty if Slurm chooses the GPUs."""
    gpus_per_node: int
    cpus_per_node: int
    memory_mb_per_node: int
    end_s: float
    app_class: str | None = None
    whole_node: bool = False
    """It gets all GPUs and CPUs of its nodes."""
    shards: int = 0
    """It gets shards of its one GPU; 0: the whole GPU."""
    fills_sockets: bool = False
    """It gets all free CPUs beside its GPUs, each with ``memory_mb_per_cpu``."""
    memory_mb_per_cpu: int = 0
    victims: frozenset[str] = frozenset()
    """Jobs that Slurm preempts for it."""
    user: str = ""
    gpus: int = 0
    """GPUs on all of ``nodes`` together, of which Slurm chooses some; 0: it is no such job."""


def hold_of(
    gated: GatedJob,
    slurm: SlurmConfig,
    partitions: Mapping[str, SlurmPartition],
    app_class: str,
    now: float,
    *,
    victims: frozenset[str],
) -> Hold:
    """The hold of a released job that is bound to nodes; ``now`` is in Unix seconds."""
    job, original = gated.job, gated.original
    nodes = len(job.req_nodes)
    slots = bound_slots(job) or ()
    gpus = len(slots) or gpus_per_node(as_shown(job, original), nodes)
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
        app_class=app_class,
        whole_node=original.exclusive or job.exclusive,
        fills_sockets=binds_sockets(job, slurm) and fills_sockets(original, nodes),
        memory_mb_per_cpu=job.memory_mb_per_cpu or 0,
        victims=victims,
        shards=shards_of(original.tres_per_node),
        user=job.user,
    )


def as_running(hold: Hold, places: Mapping[str, int], usable: BoolArray, now: float) -> RunningJob:
    """A hold as a running job; if Slurm chooses the GPUs, any usable ones stand for them."""
    here = [places[name] for name in hold.nodes if name in places]
    if hold.gpus:
        return _any_of(hold, here, usable, now)
    most = None if hold.whole_node else hold.gpus_per_node
    return RunningJob(
        job_id=hold.job_id,
        gpus=tuple(
            (i, hold.slots or tuple(np.flatnonzero(usable[i])[:most].tolist())) for i in here
        ),
        end_s=hold.end_s if math.isinf(hold.end_s) else max(now, hold.end_s),
        cpus=dict.fromkeys(here, hold.cpus_per_node),
        memory_mb=dict.fromkeys(here, hold.memory_mb_per_node),
        app_class=hold.app_class,
        user=hold.user,
    )


def _any_of(hold: Hold, here: Sequence[int], free: BoolArray, now: float) -> RunningJob:
    """A hold of which Slurm chooses the nodes, too: its GPUs on the fullest ones stand for them."""
    gpus: list[tuple[int, tuple[int, ...]]] = []
    missing = hold.gpus
    for i in sorted(here, key=lambda i: (int(free[i].sum()), i)):
        if missing and (slots := np.flatnonzero(free[i])[:missing].tolist()):
            gpus.append((i, tuple(slots)))
            missing -= len(slots)
    return RunningJob(
        job_id=hold.job_id,
        gpus=tuple(gpus),
        end_s=hold.end_s if math.isinf(hold.end_s) else max(now, hold.end_s),
        app_class=hold.app_class,
        user=hold.user,
    )
