"""Ledger reader: opens the store or its public copy for questions about jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.gate.job_view import LiveJob
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord
from slurm_gpu_aware.time_text import age

__all__ = ["Reader", "event_json", "open_reader", "reason_for", "still_open", "waiting_of"]


@dataclass(frozen=True)
class Reader:
    """An open ledger, read-only."""

    store: Store
    ledger: Ledger
    copy_age_s: float | None
    """Age of the public copy; None: the live store is open."""

    def note(self) -> str | None:
        """A sentence for readers of the copy; None for the live store."""
        if self.copy_age_s is None:
            return None
        return f"From the selector's public copy, {age(self.copy_age_s)} old."


@contextmanager
def open_reader(config: Config) -> Iterator[Reader]:
    """Open the ledger for reading. Raises StoreError that names the next step."""
    path = config.store.path
    try:
        store = open_store(path, readonly=True)
    except StoreError as exc:
        raise StoreError(
            f"no ledger to read ({exc}); the selector writes it on the controller, with a copy for"
            " all users beside it: run this command there; if it still fails, ask an"
            f" administrator for read permission on {path.parent} (gpu-aware doctor checks it)"
        ) from None
    with store:
        yield Reader(store, Ledger(store), None if store.path == path else _age_s(store.path))


def _age_s(path: Path) -> float:
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
    """Entry of a job in :func:`waiting_of`; for an array that of its first waiting task."""
    if job_id in waiting:
        return waiting[job_id]
    return next((e for j, e in waiting.items() if j.startswith(f"{job_id}_")), None)


def event_json(event: Event) -> dict[str, Any]:
    """An event as JSON; times in Unix seconds."""
    return {"at": event.at, "kind": event.kind, "detail": dict(event.detail)}


def still_open(
    decisions: Iterable[Decision], jobs: Sequence[LiveJob] | None, *, away: bool
) -> list[Decision]:
    """Open decisions of the ledger without those of jobs that have ended in Slurm.

    ``away``: the selector records nothing, so a job that Slurm does not show has ended, and a
    running one has started. ``jobs`` None: Slurm does not answer.
    """
    if jobs is None:
        return list(decisions)
    shown = {job.id: job for job in jobs}
    still = []
    for decision in decisions:
        job = shown.get(decision.job_id)
        if (job is None and away) or (job is not None and job.ended):
            continue
        runs = job is not None and job.state == "RUNNING"
        still.append(replace(decision, state="started") if away and runs else decision)
    return still
