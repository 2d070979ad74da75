"""Admission context: what a round knows of the site, with its rules of preemption; a job in it.

Slurm preempts. The planner must know which jobs, so that it binds a job to GPUs of victims only if
Slurm makes room. A suspended job keeps its GPUs, so only modes that end or requeue a job make
victims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypedDict

import numpy as np

from slurm_gpu_aware.admission.node_use import gets_whole_nodes, is_alone, sharing_of
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Form
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.class_history import ClassHistory
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import (
    NodeGroups,
    PreemptionRights,
    Request,
    Sharing,
    Wait,
    in_tier,
)
from slurm_gpu_aware.slurm.records import (
    HOLDING,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
)
from slurm_gpu_aware.slurm.topology import TREE, Fabric

if TYPE_CHECKING:
    from slurm_gpu_aware.admission.holds import Hold

_FREEING = frozenset({"REQUEUE", "CANCEL"})  # Modes that free a victim's GPUs.
_PREEMPTED = HOLDING - {"COMPLETING"}
_MOST = 0xFFFF  # Higher priorities of a QOS count as this one (preempt/qos).
_NO_GROUP = frozenset[str]()


@dataclass(frozen=True)
class PreemptionRules:
    """The rules of one cluster."""

    slurm: SlurmConfig
    partitions: Mapping[str, SlurmPartition] = field(default_factory=dict)
    qos: Mapping[str, SlurmQos] = field(default_factory=dict)

    def tier(self, partition: SlurmPartition) -> float | None:
        """Preemption tier of a waiting job in a partition; None: Slurm does not preempt by tier."""
        return float(partition.priority_tier) if self._by_tier else None

    def preempts(self, job: SlurmJob) -> frozenset[str]:
        """Groups of jobs that a waiting job may preempt."""
        own = self._own_qos(job)
        return own.preempts - {own.name} if own is not None else _NO_GROUP

    def preempts_lower(self, job: SlurmJob) -> frozenset[str]:
        """Groups of which it may preempt jobs of lower priority: its own QOS with ``WITHIN``."""
        own = self._own_qos(job)
        within = own is not None and "WITHIN" in own.preempt_mode | self.slurm.preempt_mode
        return frozenset({own.name}) if own is not None and within else _NO_GROUP

    def group(self, job: SlurmJob) -> str | None:
        """Group of a waiting job: its QOS, if Slurm preempts by QOS."""
        own = self._own_qos(job)
        return None if own is None else own.name

    def with_standing(self, running: RunningJob, job: SlurmJob, now: float) -> RunningJob:
        """The running job with what may preempt it."""
        own, slurm = self._own_qos(job), self.slurm
        if job.state not in _PREEMPTED or self._is_spared(job, now):
            return running
        cost, modes = None, frozenset[str]()
        if self._by_tier:
            known = [self.partitions[p] for p in job.partitions if p in self.partitions]
            if known and known[0].preempt_mode & _FREEING:
                cost, modes = float(known[0].priority_tier), _FREEING
        elif own is not None:
            modes = own.preempt_mode or slurm.preempt_mode
            if modes & (_FREEING | {"SUSPEND"}):
                cost = float(min(own.priority, _MOST))
        if cost is None:
            return running
        return replace(
            running,
            preemptable_by=cost,
            preempt_group=self.group(job),
            keeps_gpus=not modes & _FREEING,
            priority=float(job.priority),
        )

    @property
    def grace_s(self) -> float:
        """The longest time that a victim may still run (GraceTime). Units: s."""
        if self._by_tier:
            return max((p.grace_s for p in self.partitions.values()), default=0.0)
        if self.slurm.preempt_type == "qos":
            return max((qos.grace_s for qos in self.qos.values()), default=0.0)
        return 0.0

    @property
    def _by_tier(self) -> bool:
        return self.slurm.preempt_type == "partition_prio"

    def _own_qos(self, job: SlurmJob) -> SlurmQos | None:
        """The job's QOS if Slurm preempts by QOS."""
        return self.qos.get(job.qos or "") if self.slurm.preempt_type == "qos" else None

    def _is_spared(self, job: SlurmJob, now: float) -> bool:
        """Whether Slurm spares the job: for a time after its start, or by its high priority."""
        if job.priority > self.slurm.spared_above:
            return True
        own = self.qos.get(job.qos or "")
        exempt_s = self.slurm.preempt_exempt_s
        if own is not None and own.exempt_s is not None:
            exempt_s = own.exempt_s
        return exempt_s > 0 and now < (job.start_s or now) + exempt_s


class CannotPlanError(Exception):
    """A job cannot be planned. ``leave``: never, so it is left to Slurm; False: not now."""

    def __init__(self, reason: str, *, leave: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.leave = leave


@dataclass(frozen=True)
class BeforeMove:
    """What Slurm no longer says of a job that the selector has requeued."""

    submit_s: float  # Its first submission, Unix seconds.
    gpus: int  # GPUs that it had.


@dataclass(frozen=True)
class Known:
    """What the translation of jobs knows beside Slurm's records."""

    classes: ClassHistory = field(default_factory=ClassHistory)
    """What is known of the classes of jobs with ``class=auto``."""
    moved: Mapping[str, BeforeMove] = field(default_factory=dict)
    """By job ID, of the jobs that the selector has moved."""
    holds: Sequence[Hold] = ()  # What is kept for jobs that hold nothing in Slurm.
    version: int = 0  # Number of a history that is read in between: a translation rests on it.


@dataclass(frozen=True)
class AdmissionContext:
    """State of the site for the translation of its jobs."""

    config: Config
    slurm: SlurmConfig
    nodes: Mapping[str, SlurmNode]
    partitions: Mapping[str, SlurmPartition]
    reservations: Sequence[SlurmReservation]
    cluster: Cluster
    now: float
    rules: PreemptionRules
    known: Known = field(default_factory=Known)
    fabric: Fabric = field(default_factory=Fabric)  # Node groups of Slurm's default topology.
    eligible: dict[object, BoolArray] = field(default_factory=dict)
    """Cache of node masks by their inputs. Jobs with equal masks share the array, by which the
    planner sees that they fit alike."""
    idle: dict[object, int] = field(default_factory=dict)
    """Cache of `fitting.fits_idle`, and of numbers of nodes, by their inputs."""

    @cached_property
    def groups(self) -> NodeGroups | None:
        """Groups of nodes of which a job must not leave one; None: no such rule."""
        if self.fabric.kind == TREE and self.slurm.topology_optional:
            return None  # they hold only with --switches, which is left to Slurm
        return self.fabric.of(self.cluster.nodes)

    @cached_property
    def empty(self) -> Cluster:
        """The cluster without any job."""
        return self.cluster.empty()

    @cached_property
    def repaired(self) -> Cluster:
        """The same with all nodes and GPUs that are down or drained now."""
        repaired = self.cluster.empty(repaired=True)
        return self.empty if np.array_equal(repaired.exists, self.empty.exists) else repaired

    @cached_property
    def usable(self) -> BoolArray:
        """(N,) nodes on which Slurm starts jobs if they are free."""
        return np.asarray(self.cluster.exists.any(axis=1), dtype=np.bool_)

    @cached_property
    def cpus(self) -> IntArray:
        """(N,) schedulable CPUs of each node with GPUs."""
        return np.array([self.nodes[name].cpus for name in self.cluster.nodes], dtype=np.int64)

    @cached_property
    def memory_mb(self) -> IntArray:
        """(N,) memory of each node with GPUs, in MB."""
        return np.array([self.nodes[name].memory_mb for name in self.cluster.nodes], dtype=np.int64)

    @cached_property
    def partial(self) -> frozenset[str]:
        """Names of reservations that hold only some CPUs or GPUs of their nodes."""
        return partial_reservations(self.reservations, self.nodes)

    def chosen(self, mask: BoolArray) -> list[SlurmNode]:
        """The nodes of an (N,) mask."""
        return [self.nodes[self.cluster.nodes[i]] for i in np.flatnonzero(mask)]


def partial_reservations(
    reservations: Sequence[SlurmReservation], nodes: Mapping[str, SlurmNode]
) -> frozenset[str]:
    """Names of those that hold only some CPUs or GPUs of their nodes."""
    names = set()
    for reservation in reservations:
        there = [nodes[name] for name in reservation.nodes if name in nodes]
        cpus = sum(node.cpus for node in there)
        gpus = sum(count for node in there for _, count in node.gpus)
        if (reservation.cpus is not None and reservation.cpus < cpus) or (
            reservation.gpus is not None and reservation.gpus < gpus
        ):
            names.add(reservation.name)
    return frozenset(names)


class Standing(TypedDict):
    """Fields of a `Request` that tell its place in the queue, and which jobs it may preempt."""

    priority: float
    submit_s: float
    preemption: PreemptionRights
    wait: Wait


@dataclass(frozen=True)
class QueueEntry:
    """A parked job in one of its partitions."""

    gated: GatedJob
    form: Form
    partition: SlurmPartition
    context: AdmissionContext

    @property
    def job(self) -> SlurmJob:
        """Slurm's record of the job."""
        return self.gated.job

    @property
    def original(self) -> OriginalRequest:
        """What the user asked for."""
        return self.gated.original

    @property
    def limit_s(self) -> float:
        """Its time limit, else the partition's default, else the partition's largest."""
        if self.job.time_limit_s is not None:
            return self.job.time_limit_s
        default_s = self.partition.default_time_s
        return default_s if default_s is not None else self.partition.max_time_s

    @property
    def whole_node(self) -> bool:
        """Whether it gets its nodes for itself."""
        return self.original.exclusive or gets_whole_nodes(self.job, self.context.partitions)

    @property
    def alone(self) -> bool:
        """Whether it shares its nodes with jobs of its own user only."""
        return is_alone(self.job, self.context.partitions)

    @property
    def sharing(self) -> Sharing:
        """How its CPUs are shared, in the first of its partitions where they are."""
        return sharing_of(self.job, self.context.partitions)

    @property
    def before_move(self) -> BeforeMove | None:
        """What it was before the selector moved it; None: it was not moved."""
        return self.context.known.moved.get(self.job.id)

    def standing(self) -> Standing:
        """Its place in the queue."""
        job, rules = self.job, self.context.rules
        preemption = PreemptionRights(
            tier=rules.tier(self.partition),
            groups=rules.preempts(job),
            lower_groups=rules.preempts_lower(job),
            priority=float(job.priority),
            own_group=rules.group(job),
        )
        return {
            "priority": in_tier(self.partition.priority_tier, job.priority),
            "submit_s": job.submit_s,
            "preemption": preemption,
            "wait": Wait(ineligible_s=max(0.0, (job.accrue_s or 0.0) - job.submit_s)),
        }


class Part(Protocol):
    """The part of a feature in the request of a job."""

    def __call__(self, request: Request, entry: QueueEntry, hints: JobHints, /) -> Request:
        """The request with it. Raises CannotPlanError."""
