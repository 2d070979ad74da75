"""Leaver: opens the gate of jobs that are left to Slurm, and records why.

The ledger gets only the updates that Slurm accepts. A refused job stays parked and is tried again
after a back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.gated_job import GatedJob, bound_orphan, unbound_orphan
from slurm_gpu_aware.gate.index_types import bound_slots
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Leaver"]

log = logging.getLogger(__name__)

_OVERWRITTEN = "its AdminComment was overwritten"
_AT_ONCE = 100  # jobs of one call; the ledger is written after each, as Slurm may stop answering


@dataclass(frozen=True)
class Leaver:
    """Leaves jobs to Slurm, among them orphans."""

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    backoff: Backoff

    def leave(
        self, jobs: Sequence[tuple[GatedJob, str]], now: float, split: Set[int] = frozenset()
    ) -> tuple[set[str], dict[str, str]]:
        """Open the gate for jobs that cannot be placed, each with the reason.

        ``split``: arrays of which tasks have records of their own; see `update_ids`. Returns (ids
        of the updated jobs, job that stays parked -> why). Raises SourceError if Slurm does not
        answer.
        """
        stays: dict[str, str] = {}
        due: dict[str, GatedJob] = {}
        for job, _ in jobs:
            wait_s = self.backoff.wait_s(job.id, "Licenses")
            if wait_s is not None:
                stays[job.id] = f"cannot be left to Slurm; tried again in {wait_s:.0f} s"
            else:
                due[job.id] = job
        reasons = {job.id: reason for job, reason in jobs}
        gated = list(due.values())
        for start in range(0, len(gated), _AT_ONCE):
            stays |= self._leave(gated[start : start + _AT_ONCE], reasons, now, split)
        return set(due), stays

    def _leave(
        self,
        jobs: Sequence[GatedJob],
        reasons: Mapping[str, str],
        now: float,
        split: Set[int],
    ) -> dict[str, str]:
        """Open the gate of some jobs and record it; return job that stays parked -> why."""
        stays: dict[str, str] = {}
        done = restore(self.client, self.gate, jobs, now, then=JobPhase.LEFT, split=split)
        for job_id, ids in done.left.items():
            reason = reasons[job_id]
            for name in dict.fromkeys([*ids, job_id] if job_id not in done.wrong else ids):
                self.tracker.ledger.event(name, "released", {"left_to_slurm": reason}, now)
            if job_id not in done.wrong:
                log.info("job %s is left to Slurm: %s", job_id, reason)
                self.tracker.withdraw(job_id, {"why": reason}, now)
        for job_id, why in done.wrong.items():
            wait_s = self.backoff.punish(job_id)
            stays[job_id] = f"could not be left to Slurm: {why}"
            log.warning("job %s %s; tried again in %.0f s", job_id, stays[job_id], wait_s)
        return stays

    def leave_orphans(
        self, pending: Iterable[SlurmJob], now: float, split: Set[int], *, gate_held: bool
    ) -> None:
        """Leave orphans to Slurm; bound ones only while the gate is held.

        A job that the ledger does not know is no orphan: a user may ask for the gate's licence, an
        operator for GPUs by index.
        """
        orphans: list[tuple[GatedJob, str]] = []
        for job in pending:
            if not self._looks_ours(job) or self.backoff.wait_s(job.id, "Licenses") is not None:
                continue
            decisions = self.tracker.ledger.decisions(job.id)
            bound = bound_orphan(job, self.gate, decisions[-1] if decisions else None)
            if bound is not None:
                if gate_held:
                    orphans.append((bound, _OVERWRITTEN))
            elif job.licence_count(self.gate.licence) and self._known(job):
                orphans.append((unbound_orphan(job, self.gate), _OVERWRITTEN))
        self.leave(orphans, now, split)

    def _looks_ours(self, job: SlurmJob) -> bool:
        """Whether a job without a record has the gate's licence or a binding, or was placed."""
        return parse(job.admin_comment) is None and (
            job.licence_count(self.gate.licence) > 0
            or job.id in self.tracker.placed
            or bound_slots(job) is not None
        )

    def _known(self, job: SlurmJob) -> bool:
        """Whether the job, or its array before the split, was parked."""
        names = dict.fromkeys([job.id, str(job.array_id or job.id)])
        return any(self.tracker.ledger.first_event(name, "parked") is not None for name in names)
