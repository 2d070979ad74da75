"""Jobs of whole nodes without a word about GPUs, of partitions that also have nodes without GPUs.

On nodes with GPUs, all of which Slurm gives it there, such a job waits for its turn like a GPU job.
On the others it need not wait: its gate opens at once with the nodes of rounds in its ExcNodeList,
and there Slurm's own order counts. Rounds plan it nevertheless. When its turn has come, or its
owner holds it, the gate closes again, and it is placed like the others.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.reach import on_other_nodes, rounds_nodes
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.gate.admin_comment import marked, state_of
from slurm_gpu_aware.gate.gated_job import ELSEWHERE, GatedJob, gated_jobs, is_changed
from slurm_gpu_aware.gate.request_forms import Fields, differences, excluded, own_excluded
from slurm_gpu_aware.gate.restore import close_gate, open_fields, read_jobs, restore
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.candidates import Candidates, task_ids
from slurm_gpu_aware.selector.holding_pool import held_by_record, is_limit
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import record_id
from slurm_gpu_aware.slurm.updates import JobUpdate

log = logging.getLogger(__name__)

OPEN = "on nodes without GPUs it may start at any time"  # Of its reason, for its user.
_AT_ONCE = 250  # records of which one round opens the gate, or closes it
_AGAIN_S = 60.0  # pause after Slurm refused an update
_MOST_PLANNED = 200
"""Records that rounds plan: thousands of these jobs need no GPUs."""


def as_parked(gated: GatedJob) -> GatedJob:
    """The job as if its gate were closed, to plan it."""
    job = gated.job
    reason = job.reason if is_limit(job) else "Licenses"
    job = replace(job, exc_nodes=own_excluded(gated.original), reason=reason)
    return replace(gated, job=job, phase=JobPhase.WAITING)


def to_plan(jobs: Sequence[GatedJob]) -> list[GatedJob]:
    """The first of those that are open elsewhere, in Slurm's order."""
    first = sorted(jobs, key=lambda one: (-one.job.priority, one.job.submit_s))
    return [as_parked(one) for one in first[:_MOST_PLANNED]]


def goes_elsewhere(gated: GatedJob, context: AdmissionContext) -> bool:
    """Whether nodes without GPUs suffice for a parked job of whole nodes."""
    asked = gated.original
    if asked.left != WHOLE_NODES or asked.partial:
        return False
    nodes = gated.job.min_nodes if asked.nodes is None else asked.nodes[0]
    return on_other_nodes(replace(gated.job, min_nodes=nodes), context)


@dataclass
class Elsewhere:
    """Opens and closes their gates."""

    client: SlurmClient
    gate: GateConfig
    timer: Callable[[], float] = time.monotonic
    _refused: dict[str, float] = field(default_factory=dict)
    """Job of which Slurm refused an update -> when, by the timer."""

    def called(
        self, assignments: Sequence[Assignment], candidates: Candidates, view: View
    ) -> list[Assignment]:
        """The assignments of jobs at the closed gate; it closes for those whose turn has come.

        Raises SourceError if Slurm does not answer.
        """
        there = {one.job.raw_id: one for one in view.elsewhere}
        numbers = {a.job_id: candidates.to_plan[a.job_id].gated.job.raw_id for a in assignments}
        turn = [there[n] for n in dict.fromkeys(numbers.values()) if n in there]
        parked = self.close(turn, view.now, view.split) if turn else {}
        found = []
        for one in assignments:
            number = numbers[one.job_id]
            if number in parked:
                gated = parked[number].task(one.job_id)
                planned = candidates.to_plan[one.job_id]
                candidates.to_plan[one.job_id] = replace(planned, gated=gated)
            elif number in there:
                candidates.waits(one.job_id, "its turn comes with the next round")
                continue
            found.append(one)
        return found

    def keep(
        self, stay: Sequence[GatedJob], candidates: Candidates, view: View, split: Set[int | None]
    ) -> list[GatedJob]:
        """Open the gate of parked jobs for nodes without GPUs; return those that stay parked.

        ``split``: arrays that this round has split are left alone, as their records are outdated.
        Raises SourceError if Slurm does not answer.
        """
        context = candidates.context
        outdated = self.outdated(view.elsewhere, context)
        if outdated:
            self.close(outdated, view.now, view.split)
        whole = (one for one in stay if one.job.array_id not in split)
        opened = self.open(whole, context, view.split)
        gone = {one.id for one in outdated}
        there = [one for one in view.elsewhere if one.id not in gone]
        there += [one for one in stay if one.id in opened]
        told = {str(entry["job_id"]): entry for entry in candidates.waiting}
        for one in there:
            ids = dict.fromkeys((one.id, *task_ids(one.job)))
            entries = [told[i] for i in ids if i in told]
            for entry in entries:
                entry["reason"] = f"{entry['reason']}; {OPEN}"
            if not entries:
                candidates.waits(one.id, OPEN)
        return [one for one in stay if one.id not in opened]

    def close(self, jobs: Sequence[GatedJob], now: float, split: Set[int]) -> dict[int, GatedJob]:
        """Close the gate of jobs; number of a record -> the job, parked with its own request.

        One that starts meanwhile stays as it is. Raises SourceError if Slurm does not answer.
        """
        wrong: dict[str, str] = {}
        parked = close_gate(self.client, self.gate, jobs[:_AT_ONCE], now, wrong)
        for job_id, why in wrong.items():
            log.warning("job %s waits on nodes without GPUs only: %s", job_id, why)
        done = restore(self.client, self.gate, parked, now, split=split, just_read=True)
        again = gated_jobs(read_jobs(self.client, [one.id for one in parked]), self.gate)
        ready = (one for one in again if one.id in {job.id for job in parked})
        return {one.job.raw_id: one for one in ready if one.parked and one.id not in done.wrong}

    def outdated(self, jobs: Iterable[GatedJob], context: AdmissionContext) -> list[GatedJob]:
        """Those that their owners hold, or that might get a node of rounds by now."""

        @cache
        def closed(partitions: tuple[str, ...], off: tuple[str, ...]) -> bool:
            return rounds_nodes(partitions, context).issubset(off)

        return [
            one
            for one in jobs
            if not closed(one.job.partitions, one.job.exc_nodes)
            or held_by_record(one, context.now, (one.job,))
        ]

    def open(
        self,
        parked: Iterable[GatedJob],
        context: AdmissionContext,
        split: Set[int],
    ) -> set[str]:
        """Let jobs start on nodes without GPUs; return those that may.

        Raises SourceError if Slurm does not answer.
        """
        now, since = context.now, self.timer() - _AGAIN_S
        self._refused = {job_id: at for job_id, at in self._refused.items() if at > since}
        chosen = islice((one for one in parked if self._may(one, context)), _AT_ONCE)
        fields: dict[str, tuple[GatedJob, Fields]] = {}
        for one in chosen:
            try:
                off = excluded(one.original, sorted(rounds_nodes(one.job.partitions, context)))
            except ValueError as exc:
                log.warning("job %s waits for nodes with GPUs: %s", one.id, exc)
                continue
            comment = one.job.admin_comment or ""
            comment = marked(comment, JobPhase.PREPARED, one.job.restarts, now, ELSEWHERE)
            if state_of(comment) == ELSEWHERE:
                fields[one.id] = one, (*off, ("AdminComment", comment))
        if not fields:
            return set()
        ids = {job_id: record_id(one.job, split) for job_id, (one, _) in fields.items()}
        wrong = self.client.update_jobs([JobUpdate(ids[i], own) for i, (_, own) in fields.items()])
        seen = {one.id: one for one in gated_jobs(read_jobs(self.client, [*fields]), self.gate)}
        ready = {
            one.id: one
            for one in map(seen.get, fields)
            if one is not None and one.parked and not is_changed(one.job, self.gate)
            if ids[one.id] not in wrong and not differences(one.job, fields[one.id][1])
        }
        opening = [
            JobUpdate(ids[i], open_fields(one, now, JobPhase.RELEASED)) for i, one in ready.items()
        ]
        wrong |= self.client.update_jobs(opening)
        for job_id in fields.keys() - ready.keys() | {i for i in ready if ids[i] in wrong}:
            why = wrong.get(ids[job_id], "it does not show what was set")
            self._refused[job_id] = self.timer()
            log.warning("job %s waits for nodes with GPUs: %s", job_id, why)
        return {job_id for job_id in ready if ids[job_id] not in wrong}

    def _may(self, one: GatedJob, context: AdmissionContext) -> bool:
        return (
            goes_elsewhere(one, context)
            and one.id not in self._refused
            and held_by_record(one, context.now, (one.job,)) is None
            and not is_changed(one.job, self.gate)
        )
