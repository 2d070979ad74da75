"""Turns of jobs that a round cannot place: Slurm does when their turn comes."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.backoff import TRIES, Backoff
from slurm_gpu_aware.selector.candidates import Candidates

log = logging.getLogger(__name__)


@dataclass
class Turns:
    """Records that planning cannot place, and jobs whose gate opens until they start."""

    backoff: Backoff
    wake: Callable[[], object] = lambda: None
    """Starts another round."""
    unplaceable: dict[int, str] = field(default_factory=dict)
    """Number of a record -> why rounds plan it by counts only."""
    lasting: set[str] = field(default_factory=set)
    """Jobs with a gate that stays open until they start."""

    def leave(self, jobs: Sequence[tuple[GatedJob, str]], candidates: Candidates) -> None:
        """Plan these records by counts from the next round on; leave those that are, at once."""
        for job, reason in jobs:
            if candidates.planned_by_counts(job):
                candidates.leave.append((job, reason))
            else:
                log.info("job %s is left to Slurm in its turn: %s", job.id, reason)
                self.unplaceable[job.job.raw_id] = reason
                self.wake()

    def without_waiting_before(
        self, jobs: Sequence[tuple[GatedJob, str]], plan: Plan, candidates: Candidates
    ) -> list[tuple[GatedJob, str]]:
        """The records without those whose gate would open while a job before them waits.

        What its user asks can start nowhere by counts; with another request it would pass that job.
        """
        waits = {one.job_id for one in plan.waiting if not (one.infeasible or one.failed)}
        behind: set[int] = set()
        after = False
        for job_id, one in candidates.to_plan.items():  # in queue order
            after = after or job_id in waits
            if after:
                behind.add(one.gated.job.raw_id)
        return [
            (job, why)
            for job, why in jobs
            if job.job.raw_id not in behind or not candidates.planned_by_counts(job)
        ]

    def open_until_start(
        self, plan: Plan, candidates: Candidates, released: Sequence[GatedJob]
    ) -> Plan:
        """The plan in which jobs that did not start several times may start on any of their nodes.

        Slurm alone knows what a job lacks that fits by counts. So its gate stays open until it
        starts, no GPUs are kept for it, and no job before it waits: it is parked again when one
        does.
        """
        waits = {one.job_id for one in plan.waiting if not one.infeasible}
        starts = {one.job_id for one in plan.assignments}
        good = {
            job_id
            for job_id in takewhile(lambda i: i not in waits, candidates.to_plan)  # in queue order
            if job_id in starts
            and candidates.to_plan[job_id].request.left is not None
            and self.backoff.failures(job_id) >= TRIES
        }
        self.lasting = good | self.lasting.intersection(job.id for job in released)
        anywhere = (
            replace(one, kept_off=()) if one.job_id in good else one for one in plan.assignments
        )
        return replace(plan, assignments=tuple(anywhere))

    def forget(self, numbers: Collection[int]) -> None:
        """Drop records that are gone."""
        self.unplaceable = {n: why for n, why in self.unplaceable.items() if n in numbers}
