"""Restore of all placed jobs that wait, without the selector: Slurm then places them.

For the removal of slurm-gpu-aware: a placed job asks for GPUs by index types, which are about to be
removed. So does a job that was requeued after the selector stopped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_job
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.licence_gate import hold_gate
from slurm_gpu_aware.gate.orphans import bound_orphan
from slurm_gpu_aware.gate.release import release
from slurm_gpu_aware.instance_lock import SELECTOR_LOCK, hold_selector_lock
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger

__all__ = ["Restored", "bound_jobs", "restore_all"]

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
    with _ledger(config.store.path) as decisions:
        bound = bound_jobs(client.jobs(), config.gate, decisions)
        if not bound:
            return Restored()
        try:
            with _no_selector(config):
                return _restore_all(client, config, decisions)
        except _SelectorRunsError as exc:
            return Restored(kept=[job.id for job in bound], kept_why=str(exc))


def _restore_all(
    client: SlurmClient, config: Config, decisions: Callable[[str], Sequence[Decision]]
) -> Restored:
    bound = bound_jobs(client.jobs(), config.gate, decisions)
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


class _SelectorRunsError(SourceError):
    """The instance lock is held, or cannot be read."""


@contextlib.contextmanager
def _no_selector(config: Config) -> Iterator[None]:
    """Hold the instance lock if its file exists; do not make the file."""
    store = config.store.path
    with contextlib.ExitStack() as stack:
        try:
            if (store.parent / SELECTOR_LOCK).exists():
                stack.enter_context(hold_selector_lock(store))
        except (SourceError, OSError) as exc:
            raise _SelectorRunsError(str(exc)) from None
        yield


def bound_jobs(
    jobs: Sequence[SlurmJob], gate: GateConfig, decisions: Callable[[str], Sequence[Decision]]
) -> list[GatedJob]:
    """Pending jobs that are bound to GPUs of a placement, with any gate."""
    bound = []
    for job in jobs:
        if job.state != "PENDING":
            continue
        gated = gated_job(job, gate)
        if gated is None and _typed(job):
            known = decisions(job.id)
            gated = bound_orphan(job, gate, known[-1] if known else None)
        if gated is not None and (gated.phase in _BOUND or _typed(job)):
            bound.append(gated)
    return bound


def _typed(job: SlurmJob) -> bool:
    texts = (job.tres_per_node, job.tres_per_job)
    return any(placed_slots(text) is not None for text in texts)


@contextlib.contextmanager
def _ledger(path: Path) -> Iterator[Callable[[str], Sequence[Decision]]]:
    """Job id -> its decisions in the ledger; none without a readable store."""
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(open_store(path, readonly=True))
        except StoreError:
            yield lambda job_id: ()
            return
        yield Ledger(store).decisions
