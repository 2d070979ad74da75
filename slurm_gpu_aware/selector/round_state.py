"""State of one round: the jobs as it reads them, and its result; counts of all rounds.

Verdicts that a job is impossible: one counts when two rounds in a row come to the same.

Each round reads Slurm anew. What one reading alone shows (a node between two states, a record that
is just being written) takes no job its gate and is told to no user.

Jobs whose end an earlier round has read: a site has thousands of them, of no use to a round.

Jobs that an interrupted round bound: they get their own request back.

What the selector has counted since its start, in a small file beside the store.

The ledger keeps rounds that change something; these counts are of all of them. The file has no
job's or user's name, so every user may read it. It is written after rounds, every few seconds.
"""

import logging
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import open_plain, write_owned
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.records import number, whole
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.libslurm import CALLS, UPDATES, CallCounts
from slurm_gpu_aware.slurm.records import ENDED, HOLDING, SlurmJob, SlurmReservation
from slurm_gpu_aware.store.files import counters_path
from slurm_gpu_aware.text_file import decoded, parse_json

log = logging.getLogger(__name__)

DOUBTFUL = "no place was found for it; the next round looks again"


@dataclass
class Outcome:
    """Result of a round."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    blocked: int = 0  # Parked jobs that something other than the gate holds.
    untried: int = 0  # Parked jobs that have a place and that Slurm must try first.
    unpooled: int = 0  # Parked jobs that a later round puts into the holding pool.
    doubtful: int = 0  # Jobs that seem impossible, which only the next round can say.
    full: bool = False  # No GPU is free after the round.
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
    elsewhere: Sequence[GatedJob] = ()  # open for nodes without GPUs only


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
    """The jobs that had ended in the last round, and those that held something in it."""

    def __init__(self) -> None:
        self._known: Mapping[int, SlurmJob] = {}
        self._held: Mapping[int, tuple[str, ...]] = {}
        """Number of a record -> its nodes."""

    def freed(self, jobs: Iterable[SlurmJob], unread: Iterable[int] = ()) -> set[str]:
        """Nodes on which a job of the last round holds nothing any more.

        ``jobs``: all; ``unread``: numbers of records that could not be read.
        """
        before = self._held
        still = {number: before[number] for number in unread if number in before}
        self._held = still | {job.raw_id: job.nodes for job in jobs if job.state in HOLDING}
        return {node for number in before.keys() - self._held.keys() for node in before[number]}

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


ROUND_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the histogram of rounds' durations, without the infinite one."""
_WRITE_S = 5.0
_LONGEST = 16_384  # Bytes of a file that is read.

Unix = Annotated[float, number(0, MAX_TIME_S)]
Count = Annotated[int, whole(0, 1 << 53)]


@dataclass(frozen=True)
class Counters:
    """Counts since the start of the selector. Times are Unix seconds."""

    started_at: Unix
    at: Unix  # When this was written.
    round_at: Unix = 0.0  # End of the last round that succeeded; 0: none yet.
    failed_rounds: Count = 0
    placed: Count = 0  # Jobs that rounds have placed.
    round_buckets: tuple[Count, ...] = (0,) * (len(ROUND_BOUNDS_S) + 1)
    """Rounds that succeeded, by `ROUND_BOUNDS_S`; the last ones took longer than all bounds."""
    rounds_s: Annotated[float, number(0, 1e12)] = 0.0  # Duration of all these rounds.
    calls: dict[str, Count] = field(default_factory=dict)
    """Outcome (`libslurm.CALLS`) -> calls to Slurm."""
    updates: dict[str, Count] = field(default_factory=dict)
    """Outcome (`libslurm.UPDATES`) -> updates of jobs."""

    @property
    def rounds(self) -> int:
        """Rounds that succeeded."""
        return sum(self.round_buckets)


def read_counters(store: Path) -> Counters:
    """What the selector of this host counted last. Raises OSError and SourceError."""
    path = counters_path(store)
    stream, _ = open_plain(path)
    with stream:
        data = stream.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise SourceError(f"{path}: larger than {_LONGEST} bytes")
    try:
        found = records.read(parse_json(decoded(data, path), path), Counters)
    except ValueError as exc:
        raise SourceError(f"{path}: {exc}") from None
    if len(found.round_buckets) != len(ROUND_BOUNDS_S) + 1:
        raise SourceError(f"{path}: round_buckets: expected {len(ROUND_BOUNDS_S) + 1} numbers")
    # Outcomes become labels.
    calls = {name: found.calls.get(name, 0) for name in CALLS}
    updates = {name: found.updates.get(name, 0) for name in UPDATES}
    return replace(found, calls=calls, updates=updates)


class CounterFile:
    """Counts of this process, and the file that others read."""

    def __init__(
        self,
        store: Path,
        counts: CallCounts,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._counts, self._clock, self._timer = store, counts, clock, timer
        self._now = Counters(clock(), clock())
        self._written = -math.inf
        self._complained = False

    def round_done(self, outcome: Outcome | None) -> None:
        """Count a round; None: it failed."""
        now = self._now
        if outcome is None:
            self._now = replace(now, failed_rounds=now.failed_rounds + 1)
            return
        buckets = list(now.round_buckets)
        buckets[bisect_left(ROUND_BOUNDS_S, outcome.took_s)] += 1
        self._now = replace(
            now,
            round_at=self._clock(),
            placed=now.placed + len(outcome.placed),
            round_buckets=tuple(buckets),
            rounds_s=now.rounds_s + max(0.0, outcome.took_s),
        )

    def write(self, *, force: bool = False) -> None:
        """Write the file, at most every few seconds unless ``force``; a failure is logged once."""
        if not force and self._timer() - self._written < _WRITE_S:
            return
        self._written = self._timer()
        self._now = replace(
            self._now,
            at=self._clock(),
            calls=dict(self._counts.of_calls),
            updates=dict(self._counts.of_updates),
        )
        try:
            write_owned(counters_path(self._path), asdict(self._now))
            self._complained = False
        except SourceError as exc:
            if not self._complained:
                log.warning("metrics of the selector are not written: %s", exc)
            self._complained = True

    def remove(self) -> None:
        """Remove the file: another host's selector works."""
        with suppress(OSError):
            os.unlink(counters_path(self._path))
