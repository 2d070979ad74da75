"""Preemption rules of the site's Slurm: by partition tier or by QOS.

Slurm preempts. The planner must know which jobs, so that it binds a job to GPUs of victims only if
Slurm makes room. A suspended job keeps its GPUs, so only modes that end or requeue a job make
victims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.slurm.records import HOLDING, SlurmConfig, SlurmJob, SlurmPartition, SlurmQos

_FREEING = frozenset({"REQUEUE", "CANCEL"})
"""Modes that free a victim's GPUs."""
_PREEMPTED = HOLDING - {"COMPLETING"}
_MOST = 0xFFFF
"""Higher priorities of a QOS count as this one (preempt/qos)."""
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
