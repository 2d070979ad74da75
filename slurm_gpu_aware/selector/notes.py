"""Notes of stages in the ledger: each kind once for a job."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_gpu_aware.planning.plan import Note
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter

log = logging.getLogger(__name__)


class Notes:
    """Writes them, also after a restart of the selector only the first."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._there: set[tuple[str, str]] = set()
        """(job, kind) of the last round's notes, which the ledger has."""

    def write(self, notes: Sequence[Note], now: float) -> None:
        """Write the notes of a round that are new."""
        self._there &= {(note.job_id, note.kind) for note in notes}
        for job_id, kind, detail in notes:
            if (job_id, kind) in self._there:
                continue
            self._there.add((job_id, kind))
            if self._ledger.first_event(job_id, kind) is None:
                log.info("job %s: %s: %s", job_id, kind.replace("_", " "), detail)
                self._ledger.event(job_id, kind, detail, now)
