"""Release of orphans: left to Slurm with the request of their users."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.orphans import bound_orphan, unbound_orphan
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.leaver import Leaver
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Orphans"]

log = logging.getLogger(__name__)

_WHY = "its AdminComment was overwritten"


class Orphans:
    """Finds orphans and opens their gate."""

    def __init__(
        self,
        gate: GateConfig,
        ledger: LedgerWriter,
        tracker: JobTracker,
        backoff: Backoff,
        leaver: Leaver,
    ) -> None:
        self._gate = gate
        self._ledger = ledger
        self._tracker = tracker
        self._backoff = backoff
        self._leaver = leaver

    def leave(
        self, pending: Iterable[SlurmJob], now: float, split: Set[int], *, gate_held: bool
    ) -> None:
        """Leave orphans to Slurm; bound ones only while the gate is held.

        A job that the ledger does not know is no orphan: a user may ask for the gate's licence, an
        operator for GPUs by index.
        """
        orphans: list[tuple[GatedJob, str]] = []
        for job in pending:
            if not self._looks_ours(job) or self._backoff.wait_s(job.id, "Licenses") is not None:
                continue
            decisions = self._ledger.decisions(job.id)
            bound = bound_orphan(job, self._gate, decisions[-1] if decisions else None)
            if bound is not None:
                if gate_held:
                    orphans.append((bound, _WHY))
            elif job.licence_count(self._gate.licence) and self._known(job):
                orphans.append((unbound_orphan(job, self._gate), _WHY))
        self._leaver.leave(orphans, now, split)

    def _looks_ours(self, job: SlurmJob) -> bool:
        """Whether a job without a record has the gate's licence or a binding, or was placed."""
        return parse(job.admin_comment) is None and (
            job.licence_count(self._gate.licence) > 0
            or job.id in self._tracker.placed
            or placed_slots(job.tres_per_node) is not None
            or placed_slots(job.tres_per_job) is not None
        )

    def _known(self, job: SlurmJob) -> bool:
        """Whether the job, or its array before the split, was parked."""
        names = dict.fromkeys([job.id, str(job.array_id or job.id)])
        return any(self._ledger.has_event(name, "parked") for name in names)
