"""Who may preempt whom, as the site's Slurm has it: by partition tier or by QOS.

Slurm does the preempting. The planner has to know which jobs it would, so that it pins a job to
GPUs of victims only where Slurm will make room. Jobs that would be suspended keep their GPUs, so
only modes that end a job or send it back to the queue make victims.
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
"""A QOS of higher priority is preempted as readily as one of this (preempt/qos)."""
_SUSPENDING = frozenset({"SUSPEND"})
NOBODY = frozenset[str]()


@dataclass(frozen=True)
class Standing:
    """How a running job stands to preemption, in the planner's terms."""

    preemptable_by: float | None = None
    """Jobs of a higher tier may preempt it; for a job of a group: what it costs to preempt it."""
    group: str | None = None
    """Jobs that name this group may preempt it."""
    keeps_gpus: bool = False
    """They only suspend it."""


@dataclass(frozen=True)
class PreemptionRules:
    """The rules of one cluster; the default: no job may preempt another."""

    slurm: SlurmConfig | None = None
    partitions: Mapping[str, SlurmPartition] = field(default_factory=dict)
    qos: Mapping[str, SlurmQos] = field(default_factory=dict)

    def tier(self, partition: SlurmPartition) -> float | None:
        """Preemption tier of a waiting job in a partition; None: tiers mean nothing here."""
        return float(partition.priority_tier) if self._by("partition_prio") else None

    def preempts(self, job: SlurmJob) -> frozenset[str]:
        """Groups whose jobs a waiting job may preempt."""
        own = self._own_qos(job)
        return own.preempts - {own.name} if own is not None else NOBODY

    def preempts_lower(self, job: SlurmJob) -> frozenset[str]:
        """Groups whose jobs of lower priority it may preempt: its own QOS with ``WITHIN``."""
        own = self._own_qos(job)
        if self.slurm is None or own is None:
            return NOBODY
        within = "WITHIN" in own.preempt_mode | self.slurm.preempt_mode
        return frozenset({own.name}) if within else NOBODY

    def standing(self, job: SlurmJob, now: float) -> Standing:
        """How a running job stands: who may preempt it."""
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
        """The longest time that a victim may go on after it was told (GraceTime). Units: s."""
        if self._by("partition_prio"):
            return max((p.grace_s for p in self.partitions.values()), default=0.0)
        if self._by("qos"):
            return max((qos.grace_s for qos in self.qos.values()), default=0.0)
        return 0.0

    def _by(self, kind: str) -> bool:
        slurm = self.slurm
        return slurm is not None and slurm.preempt_type == kind

    def _own_qos(self, job: SlurmJob) -> SlurmQos | None:
        """The job's QOS where these preempt."""
        return self.qos.get(job.qos or "") if self._by("qos") else None

    def _is_spared(self, job: SlurmJob, now: float) -> bool:
        """Slurm spares a job for a while after its start, and those of high priority."""
        assert self.slurm is not None  # noqa: S101 - the caller looked
        if job.priority > self.slurm.spared_above:
            return True
        exempt_s = self.slurm.preempt_exempt_s
        own = self.qos.get(job.qos or "")
        if own is not None and own.exempt_s is not None:
            exempt_s = own.exempt_s
        return exempt_s > 0 and now < (job.start_s or now) + exempt_s
