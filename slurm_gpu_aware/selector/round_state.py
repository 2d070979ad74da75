"""State of one round: the jobs as it reads them, and its result.

Verdicts that a job is impossible: one counts when two rounds in a row come to the same.

Each round reads Slurm anew. What one reading alone shows (a node between two states, a record that
is just being written) takes no job its gate and is told to no user.

Jobs whose end an earlier round has read: a site has thousands of them, of no use to a round.

Jobs that an interrupted round bound: they get their own request back.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob, SlurmReservation

DOUBTFUL = "no place was found for it; the next round looks again"
log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """Result of a round."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    blocked: int = 0
    """Parked jobs that something other than the gate holds."""
    untried: int = 0
    """Parked jobs that have a place and that Slurm must try first."""
    unpooled: int = 0
    """Parked jobs that a later round puts into the holding pool."""
    doubtful: int = 0
    """Jobs that seem impossible, which only the next round can say."""
    full: bool = False
    """No GPU is free after the round."""
    ahead: bool = False
    """So many jobs are open that each GPU which is freed before the next round gets one."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0
    planned: Callable[[], Mapping[str, Any]] | None = None
    """Makes plain values of the plan and its input; None: no job was placed."""

    @property
    def served(self) -> bool:
        """Whether no job waits for a round to give it a GPU that is freed."""
        soon = self.untried or self.unpooled or self.doubtful
        return not soon and (self.ahead or not self.waiting)

    def note_full(self, cluster: Cluster, assignments: Sequence[Assignment]) -> None:
        """Note whether no GPU of the cluster is free once these jobs have started."""
        taken = sum(len(slots) for one in assignments for slots in one.slots)
        self.full = not cluster.free.sum() > taken


@dataclass(frozen=True)
class View:
    """The jobs as a round reads them."""

    now: float
    jobs: Sequence[SlurmJob]
    reservations: Sequence[SlurmReservation]
    gated: Sequence[GatedJob]
    parked: Sequence[GatedJob]  # jobs behind the closed gate, without ``outdated``
    released: Sequence[GatedJob]
    split: frozenset[int]  # arrays of several records
    gate_held: bool  # the gate was held; else a job that was read as parked may run by now
    outdated: frozenset[str]
    """Jobs that the start monitor has parked since, so that their records are old, jobs that their
    owners have just changed, and jobs whose own record could not be looked up."""
    complete: bool  # every record was read; else some GPUs and CPUs in use are not known
    all_ids: bool  # the id of every record is known


@dataclass
class Verdicts:
    """The verdicts of the last round: job -> reason."""

    _before: dict[str, str] = field(default_factory=dict)

    def confirmed(self, plan: Plan, *, complete: bool) -> tuple[Plan, int]:
        """(The plan with only the verdicts that the last round came to, too; how many the next one
        may confirm). ``complete``: whether every record of Slurm was read."""
        found = {one.job_id: one.reason for one in plan.waiting if one.infeasible}
        old = {job_id for job_id, why in found.items() if self._before.get(job_id) == why}
        self._before = found if complete else {}
        waiting = tuple(
            replace(one, infeasible=False, reason=DOUBTFUL)
            if one.infeasible and not (complete and one.job_id in old)
            else one
            for one in plan.waiting
        )
        return replace(plan, waiting=waiting), len(found) - len(old) if complete else 0


class EndedJobs:
    """The jobs that had ended in the last round."""

    def __init__(self) -> None:
        self._known: Mapping[int, SlurmJob] = {}

    def left_out(self, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
        """The jobs without those that had ended; a record that has changed since is another job."""
        return [job for job in jobs if self._known.get(job.raw_id) is not job]

    def note(self, jobs: Iterable[SlurmJob], tracked: Collection[str]) -> None:
        """Note which jobs have ended, after a round's tracker has seen them.

        ``tracked``: placed jobs whose end is still to be recorded. Tasks of arrays stay, as they
        tell that their array is split (`records.split_arrays`).
        """
        self._known = {
            job.raw_id: job
            for job in jobs
            if job.state in ENDED and job.array_id is None and job.id not in tracked
        }


@dataclass
class Interrupted:
    """Restores parked jobs that a round neither places nor leaves."""

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    _untouched: dict[int, GatedJob] = field(default_factory=dict)
    """Jobs with their own request, as last read: an unchanged record need not be looked at."""

    def restore(self, jobs: Sequence[GatedJob], now: float, split: Set[int]) -> None:
        """Restore what needs it of these jobs. Raises SourceError."""
        seen, placed = self._untouched, self.tracker.placed
        known = [job for job in jobs if seen.get(id(job)) is job and job.id not in placed]
        ids = {job.id for job in known}
        jobs = [job for job in jobs if job.id not in ids]
        done = restore(self.client, self.gate, jobs, now, split=split)
        self._untouched = {id(job): job for job in (*known, *done.untouched)}
        for job_id, why in done.wrong.items():
            log.warning("job %s is not restored; tried again in the next round: %s", job_id, why)
        for job in done.parked:
            if job.id not in done.wrong:
                self.tracker.withdraw(job.id, {"why": "interrupted"}, now)
