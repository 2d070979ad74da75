"""Restore of all placed jobs that wait, without the selector: Slurm then places them.

For the removal of slurm-gpu-aware: a placed job asks for GPUs by index types, which are about to be
removed. So does a job that was requeued after the selector stopped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_job
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.licence_gate import hold_gate
from slurm_gpu_aware.gate.orphans import bound_orphan
from slurm_gpu_aware.gate.release import release
from slurm_gpu_aware.lockfile import SELECTOR_LOCK, hold_selector_lock
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

__all__ = ["Restored", "restore_all"]

_BOUND = frozenset({JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.REQUEUED})


@dataclass
class Restored:
    """Outcome for the placed jobs that wait."""

    opened: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    """Job -> why it could not be restored."""
    kept: list[str] = field(default_factory=list)
    """Unchanged jobs, for the reason ``kept_why``."""
    kept_why: str = ""


def restore_all(client: SlurmClient, config: Config) -> Restored:
    """Restore the original requests of all placed jobs that wait, and open their gate for good.

    Meanwhile the gate is held and no selector can start. If a selector runs, the jobs stay
    unchanged: it restores them itself. Raises SourceError if Slurm does not answer.
    """
    path = config.store.path
    with contextlib.ExitStack() as stack:
        ledger = None
        with contextlib.suppress(StoreError):
            ledger = Ledger(stack.enter_context(open_store(path, readonly=True)))
        ids = [job.id for job in _bound_jobs(client, config.gate, ledger)]
        if not ids:
            return Restored()
        try:
            if (path.parent / SELECTOR_LOCK).exists():  # the file is not made here
                stack.enter_context(hold_selector_lock(path))
        except (SourceError, OSError) as exc:
            return Restored(kept=ids, kept_why=str(exc))
        bound = list(_bound_jobs(client, config.gate, ledger))
        ids = [job.id for job in bound]
        now = time.time()
        try:
            _, created = hold_gate(client, config.gate, now)
        except SourceError as exc:
            why = f"the gate cannot be held meanwhile: {exc}"
            return Restored(wrong=dict.fromkeys(ids, why))
        try:
            wrong = release(client, config.gate, bound, now, then=JobPhase.LEFT).wrong
        finally:
            if created:
                client.delete_reservation(config.gate.reservation)
    return Restored([job_id for job_id in ids if job_id not in wrong], wrong)


def _bound_jobs(client: SlurmClient, gate: GateConfig, ledger: Ledger | None) -> Iterator[GatedJob]:
    """Pending jobs that are bound to GPUs of a placement, with any gate."""
    for job in client.jobs():
        if job.state != "PENDING":
            continue
        gated = gated_job(job, gate)
        if gated is None and _typed(job):
            known = ledger.decisions(job.id) if ledger else ()
            gated = bound_orphan(job, gate, known[-1] if known else None)
        if gated is not None and (gated.phase in _BOUND or _typed(job)):
            yield gated


def _typed(job: SlurmJob) -> bool:
    return any(placed_slots(text) is not None for text in (job.tres_per_node, job.tres_per_job))
