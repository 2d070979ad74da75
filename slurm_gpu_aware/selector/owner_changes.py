"""Changes of waiting and placed jobs by their owners: settled before a round, and recorded."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay
from slurm_gpu_aware.features.waiting.live import Postponements
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.gate.owner_change import Change, settle_changes
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, split_arrays

log = logging.getLogger(__name__)


class OwnerChanges:
    """Settles changes, and tells each once."""

    def __init__(
        self,
        client: SlurmClient,
        gate: GateConfig,
        tracker: JobTracker,
        backoff: Backoff,
        postponements: Postponements,
        moves: MovesUnderWay,
    ) -> None:
        self._moves = moves
        self._client, self._gate, self._tracker = client, gate, tracker
        self._backoff, self._postponements = backoff, postponements
        self._refused: dict[str, Change] = {}
        """Job -> change of its owner that Slurm refused in the last round."""

    def settle(self, jobs: Sequence[SlurmJob], now: float) -> None:
        """Settle the changes that ``jobs`` show. Raises SourceError."""
        gated = gated_jobs(jobs, self._gate)
        changes = settle_changes(self._client, self._gate, gated, split_arrays(jobs))
        before = self._refused
        self._refused = {one.job.id: one for one in changes if one.refused is not None}
        for change in changes:
            job_id, why = change.job.id, change.refused
            self._tracker.withdraw(job_id, {"why": "changed by its owner"}, now)
            last = before.get(job_id)
            if last is not None and (last.record, last.refused) == (change.record, why):
                continue  # it was told
            if why is None:
                log.info("job %s was changed by its owner", job_id)
                self._backoff.clear(job_id)
                self._postponements.changed(job_id)
                self._moves.changed(job_id, now)
                detail = {"record": change.record}
            else:
                log.warning("job %s keeps its request, Slurm refused its change: %s", job_id, why)
                detail = {"record": change.record, "refused": why}
            self._tracker.ledger.event(job_id, "changed", detail, now)
