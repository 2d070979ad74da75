"""Preemption rules of the site's Slurm: by partition tier or by QOS.

Slurm preempts. The planner must know which jobs, so that it binds a job to GPUs of victims only if
Slurm makes room. A suspended job keeps its GPUs, so only modes that end or requeue a job make
victims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_gpu_aware.slurm.records import HOLDING, SlurmConfig, SlurmJob, SlurmPartition, SlurmQos

__all__ = ["PreemptionRules", "Standing"]

_FREEING = frozenset({"REQUEUE", "CANCEL"})
"""Modes that free a victim's GPUs."""
_PREEMPTED = HOLDING - {"COMPLETING"}
_MOST = 0xFFFF
"""Higher priorities of a QOS count as this one (preempt/qos)."""
_SUSPENDING = frozenset({"SUSPEND"})
_NO_GROUP = frozenset[str]()


@dataclass(frozen=True)
class Standing:
    """Which jobs may preempt a running job, in the planner's terms."""

    preemptable_by: float | None = None
    """Jobs of a higher tier may preempt it; with a group: the cost of preempting it."""
    group: str | None = None
    """Jobs that name this group may preempt it."""
    keeps_gpus: bool = False
    """It would only be suspended."""


@dataclass(frozen=True)
class PreemptionRules:
    """The rules of one cluster; the default: no job may preempt another."""

    slurm: SlurmConfig | None = None
    partitions: Mapping[str, SlurmPartition] = field(default_factory=dict)
    qos: Mapping[str, SlurmQos] = field(default_factory=dict)

    def tier(self, partition: SlurmPartition) -> float | None:
        """Preemption tier of a waiting job in a partition; None: Slurm does not preempt by tier."""
        return float(partition.priority_tier) if self._by("partition_prio") else None

    def preempts(self, job: SlurmJob) -> frozenset[str]:
        """Groups of jobs that a waiting job may preempt."""
        own = self._own_qos(job)
        return own.preempts - {own.name} if own is not None else _NO_GROUP

    def preempts_lower(self, job: SlurmJob) -> frozenset[str]:
        """Groups of which it may preempt jobs of lower priority: its own QOS with ``WITHIN``."""
        own = self._own_qos(job)
        if self.slurm is None or own is None:
            return _NO_GROUP
        within = "WITHIN" in own.preempt_mode | self.slurm.preempt_mode
        return frozenset({own.name}) if within else _NO_GROUP

    def standing(self, job: SlurmJob, now: float) -> Standing:
        """Which jobs may preempt a running job."""
        if self.slurm is None or job.state not in _PREEMPTED or self._is_spared(job, now):
            return Standing()
        if self._by("partition_prio"):
            known = [self.partitions[p] for p in job.partitions if p in self.partitions]
            if known and known[0].preempt_mode & _FREEING:
                return Standing(float(known[0].priority_tier))
        own = self._own_qos(job)
        if own is None:
            return Standing()
        modes = own.preempt_mode or self.slurm.preempt_mode
        if modes & (_FREEING | _SUSPENDING):
            cost = float(min(own.priority, _MOST))
            return Standing(cost, own.name, keeps_gpus=not modes & _FREEING)
        return Standing()

    @property
    def grace_s(self) -> float:
        """The longest time that a victim may still run (GraceTime). Units: s."""
        if self._by("partition_prio"):
            return max((p.grace_s for p in self.partitions.values()), default=0.0)
        if self._by("qos"):
            return max((qos.grace_s for qos in self.qos.values()), default=0.0)
        return 0.0

    def _by(self, kind: str) -> bool:
        slurm = self.slurm
        return slurm is not None and slurm.preempt_type == kind

    def _own_qos(self, job: SlurmJob) -> SlurmQos | None:
        """The job's QOS if Slurm preempts by QOS."""
        return self.qos.get(job.qos or "") if self._by("qos") else None

    def _is_spared(self, job: SlurmJob, now: float) -> bool:
        """Whether Slurm spares the job: for a time after its start, or by its high priority."""
        assert self.slurm is not None  # noqa: S101 - the caller has checked it
        if job.priority > self.slurm.spared_above:
            return True
        exempt_s = self.slurm.preempt_exempt_s
        own = self.qos.get(job.qos or "")
        if own is not None and own.exempt_s is not None:
            exempt_s = own.exempt_s
        return exempt_s > 0 and now < (job.start_s or now) + exempt_s
