"""Jobs while we are taken out of Slurm: placed ones that wait, those that need features, records.

All placed jobs that wait are restored before, without the selector: they ask for these types, and
so do jobs that were requeued after the selector stopped.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.files import SELECTOR_LOCK, hold_selector_lock
from slurm_gpu_aware.gate.admin_comment import BOUND, is_ours, marker_of, parse
from slurm_gpu_aware.gate.gated_job import GatedJob, bound_orphan, gated_job
from slurm_gpu_aware.gate.licence_gate import gate_reservation, hold_gate, working_elsewhere
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient
from slurm_gpu_aware.slurm.gres import bound_slots
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob, record_id, split_arrays
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

_BOUND = frozenset({JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.REQUEUED})


@contextlib.contextmanager
def without_selector(client: SlurmClient, config: Config) -> Iterator[str | None]:
    """Keep this host's selector from starting; yield None, or why a selector works.

    A selector updates jobs by what it has just read. A second program that does the same beside it
    would mix the two requests of a job, so a job of ours is changed only while none can start.

    Raises SourceError if Slurm does not answer.
    """
    lease = gate_reservation(client, config.gate)
    only = Controllers(client.settings()).only
    other = working_elsewhere(lease, only, config, time.time())
    if other is not None:
        yield f"the selector of host {other.host} works; stop it first"
        return
    path = config.store.path
    with contextlib.ExitStack() as stack:
        why = None
        try:
            if (path.parent / SELECTOR_LOCK).exists():  # the file is not made here
                stack.enter_context(hold_selector_lock(path))
        except (SourceError, OSError) as exc:
            why = str(exc)
        yield why


@dataclass
class Restored:
    """Outcome for the placed jobs that wait."""

    left: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)  # Job -> why it could not be restored.
    kept: list[str] = field(default_factory=list)  # Unchanged jobs, for the reason ``kept_why``.
    kept_why: str = ""


def restore_all(client: SlurmClient, config: Config) -> Restored:
    """Restore the original requests of all placed jobs that wait, and open their gate for good.

    Meanwhile the gate is held and no selector can start. If a selector runs, the jobs stay
    unchanged: it restores them itself. Raises SourceError if Slurm does not answer.
    """
    with contextlib.ExitStack() as stack:
        ledger = None
        with contextlib.suppress(StoreError):
            ledger = Ledger(stack.enter_context(open_store(config.store.path, readonly=True)))
        ids = [job.id for job in _bound_jobs(client, config.gate, ledger)]
        if not ids:
            return Restored()
        works = stack.enter_context(without_selector(client, config))
        if works is not None:
            return Restored(kept=ids, kept_why=works)
        bound = list(_bound_jobs(client, config.gate, ledger))
        ids = [job.id for job in bound]
        now = time.time()
        try:
            _, created = hold_gate(client, config.gate, now)
        except SourceError as exc:
            why = f"the gate cannot be held meanwhile: {exc}"
            return Restored(wrong=dict.fromkeys(ids, why))
        try:
            wrong = restore(client, config.gate, bound, now, then=JobPhase.LEFT).wrong
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
        if gated is None and ledger and (bound_slots(job) is not None or job.req_nodes):
            for last in ledger.decisions(job.id)[-1:]:
                gated = bound_orphan(job, gate, last)
        if gated is not None and is_placed(job, gated):
            yield gated


def is_placed(job: SlurmJob, gated: GatedJob | None) -> bool:
    """Whether a pending job is bound to nodes or GPUs of a placement."""
    return bound_slots(job) is not None or (gated is not None and gated.phase in _BOUND)


def open_placements(config: Config) -> frozenset[str]:
    """Jobs that the ledger believes to run, or to start, where they were placed."""
    with contextlib.suppress(StoreError), open_store(config.store.path, readonly=True) as store:
        return frozenset(decision.job_id for decision in Ledger(store).open_decisions())
    return frozenset()


def all_jobs(client: SlurmClient) -> list[SlurmJob]:
    """All jobs. Raises SourceError also if one cannot be read."""
    jobs = client.jobs()
    if client.unread:
        number = min(client.unread)
        raise SourceError(f"job {number} cannot be read, see the log; nothing was changed")
    return jobs


def features_named(job: SlurmJob) -> set[str]:
    """Features that a job's constraint names."""
    return set(re.findall(r"[A-Za-z0-9_.=-]+", job.features or ""))


def jobs_text(ids: Sequence[str]) -> str:
    """``job 7``; ``jobs 7, 8``; of many the first ten and how many they are."""
    more = f", ... ({len(ids)} in all)" if len(ids) > 10 else ""
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(ids[:10])}{more}"


def own_comment(job: SlurmJob) -> str:
    """AdminComment of a job without our record: what the site had set before, mostly nothing."""
    original = parse(job.admin_comment)
    return (original and original.admin_comment) or ""


def is_bound(job: SlurmJob) -> bool:
    """Whether a job is bound to GPUs of a placement, or its marker says so."""
    marker = marker_of(job.admin_comment)
    return bound_slots(job) is not None or (marker is not None and marker.phase in BOUND)


def clear_records(client: SlurmClient, gate: GateConfig) -> list[str]:
    """Clear our AdminComment of jobs that need us no longer; return the ended jobs that keep it.

    A job that is bound to GPUs or at the gate keeps it: it is waited for. Slurm changes no job that
    has ended. A refused update is tried again by the next call.
    """
    jobs = all_jobs(client)
    split = split_arrays(jobs)
    ended, updates = [], []
    for job in jobs:
        if not is_ours(job.admin_comment):
            continue
        if job.state in ENDED:
            ended.append(job.id)
        elif not is_bound(job) and not job.licence_count(gate.licence):
            fields = (("AdminComment", own_comment(job)),)
            updates.append(JobUpdate(record_id(job, split), fields))
    client.update_jobs(updates)
    return ended
