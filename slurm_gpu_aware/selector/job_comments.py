"""AdminComments of jobs: what they show while a job waits, and whose they are while it runs.

Slurm sends the AdminComment of a job to accounting at the job's end, and refuses later changes. So
a job's record is removed when the job has started and the ledger has it; a job that returns to the
queue gets it back, before anything else looks at the job.

Changes of waiting and placed jobs by their owners: settled before a round, and recorded.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import BOUND, is_ours, marked, parse, state_of, with_state
from slurm_gpu_aware.gate.gated_job import (
    Change,
    GatedJob,
    bound_orphan,
    gated_jobs,
    settle_changes,
)
from slurm_gpu_aware.gate.request_forms import kept_tasks
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.planning.plan import NEXT
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.selector.live import Lives
from slurm_gpu_aware.selector.passers import passes_gate
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob, split_arrays
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.ledger import Decision

log = logging.getLogger(__name__)

_SHOWN = "gpu-aware "  # Start of the AdminComment of a running job that shows its state.
_FREED_AT_ONCE = 200  # jobs of one round; the others follow in the next
_TOLD_AT_ONCE = 20  # waiting jobs whose text changes, in ...
_TOLD_S = 5.0  # ... so much time
_AGAIN_S = 60.0  # what the ledger did not know, or Slurm refused, is asked for again
_MOST_NODES = 3


def placed_text(nodes: Sequence[str], slots: Sequence[int] | None, score: float) -> str:
    """``n3:0,1,V=1.02``: nodes, GPU indices (none: Slurm chooses), score of the slowest GPU."""
    shown = nodes if len(nodes) <= _MOST_NODES else (nodes[0], f"{len(nodes) - 1}-others")
    gpus = "" if slots is None else ":" + ",".join(map(str, slots))
    return f"{'+'.join(shown)}{gpus},V={score:.2f}"


def waiting_text(entry: Mapping[str, Any]) -> str:
    """Short form of why a job waits, with few values; empty if Slurm shows it itself.

    ``entry``: of `Candidates.waiting`.
    """
    if entry.get("held_by"):
        return ""
    if entry.get("turn") == "behind":
        return "waits-its-turn"
    first = str(entry["reason"]).partition(";")[0]
    return f"next:{first.removeprefix(NEXT)}" if first.startswith(NEXT) else first


@dataclass
class JobComments:
    """Removes records of running jobs, returns them to requeued ones, shows why jobs wait."""

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    _kept: dict[str, float] = field(default_factory=dict)
    """Running job of which Slurm refused to take the record -> when, by the monotonic clock."""
    _virtual: frozenset[int] = frozenset()  # Running jobs whose record was read from the ledger.
    _told: float = field(default=-_TOLD_S)
    _others: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(Number, restarts) of requeued GPU jobs that the ledger does not know, so not of ours -> when
    it was asked. A ledger that could not be read knows none: it is asked again."""
    _shown: Mapping[int, tuple[SlurmJob, SlurmJob]] = field(default_factory=dict)
    """Number of a job that the last `give_back` gave its record -> (as read, with the record)."""
    unclear: frozenset[str] = frozenset()
    """Placed jobs of which the last `give_back` could not say whether their record was removed."""

    def give_back(self, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
        """The jobs with their records, also those that were removed from Slurm.

        A pending job gets its record back in Slurm, too, also one that had ended before its user
        requeued it. Raises SourceError.
        """
        self.unclear = frozenset(self.tracker.placed)
        unclear: set[str] = set()
        others: dict[tuple[int, int], float] = {}
        now = time.monotonic()
        known: dict[int, str] = {}
        back: list[JobUpdate] = []
        numbers: dict[str, int] = {}
        for job in jobs:
            if parse(job.admin_comment) is not None:
                continue
            placed, number = job.id in self.tracker.placed, (job.raw_id, job.restarts)
            if not placed and now - self._others.get(number, -math.inf) < _AGAIN_S:
                others[number] = self._others[number]
                continue
            if not placed and not (job.restarts and passes_gate(job)):
                continue
            unclear.add(job.id)
            text = None
            with contained("record of a requeued job", job.id):
                text = self._removed(job)
                unclear.discard(job.id)
            if text is None:
                if not placed and job.id not in unclear:
                    others[number] = now
                continue
            known[job.raw_id] = text
            if job.state == "PENDING":
                back.append(JobUpdate(job.id, (("AdminComment", text),)))
                numbers[job.id] = job.raw_id
        for job_id, why in self.client.update_jobs(back).items():
            log.warning("job %s: its record could not be returned: %s", job_id, why)
            del known[numbers[job_id]]
        self._virtual = frozenset(known.keys() - numbers.values())
        self.unclear, self._others = frozenset(unclear), others
        # What has not changed stays the same object, of which a round knows all else.
        shown = {
            job.raw_id: (job, self._with_record(job, known)) for job in jobs if job.raw_id in known
        }
        self._shown = shown
        return [shown[job.raw_id][1] if job.raw_id in shown else job for job in jobs]

    def _with_record(self, job: SlurmJob, known: Mapping[int, str]) -> SlurmJob:
        text, (read, shown) = known[job.raw_id], self._shown.get(job.raw_id, (None, job))
        same = read is job and shown.admin_comment == text
        return shown if same else replace(job, admin_comment=text)

    def _removed(self, job: SlurmJob) -> str | None:
        """Record and marker that were removed from a job; None: none were."""
        last: Tracked | Decision | None = self.tracker.placed.get(job.id)
        if job.state == "PENDING":
            decisions = self.tracker.ledger.decisions(job.id)
            if not decisions or bound_orphan(job, self.gate, decisions[-1]) is None:
                return None
            last = last or decisions[-1]
        elif job.state not in HOLDING:
            return None
        original = parse(last.record) if last is not None else None
        if last is None or last.record is None or original is None:
            return None
        text = job.admin_comment or ""
        if text != (original.admin_comment or "") and not text.startswith(_SHOWN):
            return None
        return marked(last.record, JobPhase.RELEASED, last.restarts, 0.0)

    def remove(self, gated: Iterable[GatedJob]) -> None:
        """Remove the records of jobs that run, if the ledger has them. Raises SourceError."""
        now = time.monotonic()
        self._kept = {key: at for key, at in self._kept.items() if now - at < _AGAIN_S}
        due = [job for job in gated if self._is_due(job)][:_FREED_AT_ONCE]
        updates = []
        for job in due:
            text = job.original.admin_comment or ""
            state = state_of(job.job.admin_comment)
            if self.gate.show_running and state and not text:
                text = f"{_SHOWN}{state}"
            updates.append(JobUpdate(job.id, (("AdminComment", text),)))
        for job_id, why in self.client.update_jobs(updates).items():  # it may have ended meanwhile
            log.info("job %s keeps its record: %s", job_id, why)
            self._kept[job_id] = now

    def _is_due(self, gated: GatedJob) -> bool:
        job, marker = gated.job, gated.marker
        if marker is None or job.state != "RUNNING":
            return False
        if job.raw_id in self._virtual or job.id in self._kept:
            return False
        if marker.phase not in BOUND:  # left to Slurm: it has the request that its user made
            return not job.licence_count(self.gate.licence)
        tracked = self.tracker.placed.get(job.id)
        return (
            tracked is not None
            and tracked.phase is JobPhase.STARTED
            and tracked.record is not None
            and tracked.decision is not None
            and tracked.decision.number is not None
        )

    def tell(
        self,
        parked: Iterable[GatedJob],
        waiting: Iterable[Mapping[str, Any]],
        split: Set[int | None],
    ) -> None:
        """Show in some parked jobs why they wait, if that has changed. Raises SourceError.

        An update of the rest of an array would change its split tasks, too, so it shows nothing.
        """
        if time.monotonic() - self._told < _TOLD_S:
            return
        reasons: dict[str, str] = {}
        for entry in waiting:
            job_id = str(entry["job_id"])
            reason = Facts.read(entry).short(waiting_text(entry))
            reasons.setdefault(job_id, reason)
            reasons.setdefault(job_id.partition("_")[0], reason)  # of the first task
        updates = []
        for gated in parked:
            job, text = gated.job, gated.job.admin_comment or ""
            if gated.phase not in (JobPhase.WAITING, JobPhase.HELD) or not is_ours(text):
                continue
            if job.id not in reasons or (job.array_tasks is not None and job.array_id in split):
                continue
            shown = with_state(text, reasons[job.id])
            if shown != text:
                fields = (("AdminComment", shown), *kept_tasks(gated.original))
                updates.append(JobUpdate(job.id, fields))
            if len(updates) == _TOLD_AT_ONCE:
                break
        if updates:
            self._told = time.monotonic()
            self.client.update_jobs(updates)  # a refused one is tried again


class OwnerChanges:
    """Settles changes, and tells each once."""

    def __init__(self, lives: Lives) -> None:
        self._site, self._lives = lives.site, lives
        self._refused: dict[str, Change] = {}
        """Job -> change of its owner that Slurm refused in the last round."""

    def settle(self, jobs: Sequence[SlurmJob], now: float) -> None:
        """Settle the changes that ``jobs`` show. Raises SourceError."""
        gate, tracker = self._site.config.gate, self._site.tracker
        changes = settle_changes(
            self._site.client, gate, gated_jobs(jobs, gate), split_arrays(jobs)
        )
        before = self._refused
        self._refused = {one.job.id: one for one in changes if one.refused is not None}
        for change in changes:
            job_id, why, marker = change.job.id, change.refused, change.job.marker
            if marker is not None and marker.phase is JobPhase.RELEASED:
                self._site.backoff.count(job_id)  # else changes could keep GPUs for it for ever
            tracker.withdraw(job_id, {"why": "changed by its owner"}, now)
            last = before.get(job_id)
            if last is not None and (last.record, last.refused) == (change.record, why):
                continue  # it was told
            if why is None:
                log.info("job %s was changed by its owner", job_id)
                self._site.backoff.clear(job_id)
                self._lives.each(methodcaller("changed", job_id, now))
                detail = {"record": change.record}
            else:
                log.warning("job %s keeps its request, Slurm refused its change: %s", job_id, why)
                detail = {"record": change.record, "refused": why}
            tracker.ledger.event(job_id, "changed", detail, now)
