"""The ledger as the one who asks may see it: the live store, or the copy for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.errors import StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.store.database import Store
    from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord

__all__ = [
    "Reader",
    "decision_json",
    "event_json",
    "open_reader",
    "reason_for",
    "round_json",
    "waiting_of",
]


@dataclass(frozen=True)
class Reader:
    """An open ledger, read-only."""

    store: Store
    ledger: Ledger
    copy_age_s: float | None
    """Age of the published copy if that is what was opened; None: the live store."""

    def note(self) -> str | None:
        """A sentence for people who read the copy; None for the live store."""
        if self.copy_age_s is None:
            return None
        from slurm_gpu_aware.cli.output import age

        return f"From the selector's public copy, {age(self.copy_age_s)} old."


@contextmanager
def open_reader(config: Config) -> Iterator[Reader]:
    """Open the ledger for reading. Raises StoreError with the next step in it."""
    from slurm_gpu_aware.store.database import open_store
    from slurm_gpu_aware.store.ledger import Ledger

    path = config.store.path
    try:
        store = open_store(path, readonly=True)
    except StoreError as exc:
        raise StoreError(f"no ledger to read ({exc}); {_cure(path)}") from None
    with store:
        live = store.path == path
        yield Reader(store, Ledger(store), None if live else _age(store.path))


def _cure(path: Path) -> str:
    return (
        "on the controller the selector writes it, with a copy for everybody beside it: run this"
        f" command there, and if it still fails ask an administrator whether {path.parent} may be"
        " read (gpu-aware doctor says so)"
    )


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def waiting_of(record: RoundRecord | None) -> dict[str, Mapping[str, Any]]:
    """Job id -> why it waits, as the newest round recorded it; empty if it recorded nothing."""
    entries = record.detail.get("waiting", ()) if record is not None else ()
    if not isinstance(entries, list | tuple):
        return {}
    return {str(e["job_id"]): e for e in entries if isinstance(e, Mapping) and "job_id" in e}


def reason_for(job_id: str, waiting: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Entry of a job in :func:`waiting_of`; for an array that of its first task that waits."""
    if job_id in waiting:
        return waiting[job_id]
    return next((e for j, e in waiting.items() if j.startswith(f"{job_id}_")), None)


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON; field names as in the ledger, times in Unix seconds."""
    from dataclasses import asdict

    return asdict(decision)


def event_json(event: Event) -> dict[str, Any]:
    """An event as JSON."""
    return {"at": event.at, "kind": event.kind, "detail": dict(event.detail)}


def round_json(record: RoundRecord) -> dict[str, Any]:
    """A round as JSON, without the list of waiting jobs."""
    return {
        "started_at": record.started_at,
        "took_ms": record.took_ms,
        "trigger": record.trigger,
        "queued": record.queued,
        "placed": record.placed,
        "waiting": record.waiting,
    }
