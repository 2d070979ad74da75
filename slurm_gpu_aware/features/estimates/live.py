"""Estimates of a round: run times of parked jobs, expected ends of running ones.

Reader of earlier runs, in a thread of its own: from sacct, and from the ledger.

A slurmdbd that hangs or fails delays no round. What is read is bounded in rows, bytes and time; the
newest runs come first. Until the first answer, and without any, time limits are the estimates.
"""

import logging
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import NamedTuple

from slurm_gpu_aware.admission.context import AdmissionContext, Known
from slurm_gpu_aware.bounds import PROBE_JOB
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.due_dates.shortest_runs import ShortestRuns
from slurm_gpu_aware.features.estimates.declared import EstimatesConfig
from slurm_gpu_aware.features.estimates.history import Estimate, JobKind, RunHistory, expected_end_s
from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.live import Live, Site, Told
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.slurm.accounting import Missing
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob
from slurm_gpu_aware.slurm.sacct import BAD_ROW, SacctRow, bounded_history
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.ledger import Decision, Event, Ledger

log = logging.getLogger(__name__)

COUNTED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "TIMEOUT"})
"""Ends that say something about the job; a preemption or a failed node does not."""
CUT = frozenset({"PREEMPTED", "REQUEUED", "NODE_FAIL"})
"""Ends after which the job may run again; that run may be the rest of its work (a checkpoint)."""
_DAY_S = 86_400.0
_REFRESH_S = 600.0
_OVERLAP_S = 7_200.0  # a refresh reads again what ended shortly before, as slurmdbd may be late
_MOST_RUNS = 50_000
_MOST_BYTES = 64 << 20  # of one answer of sacct
_ANSWER_S = 60.0  # longest wait for one answer of sacct
_FIRST_S = 300.0  # longest time of the first reading
_START_S = 60.0  # a job is decided at most this long after its start, by clocks that differ
_PER_ROUND = 1_000  # runs that one round adds to the history


class Run(NamedTuple):
    """A run that has ended. Times: Unix s."""

    end_s: float
    job_id: str
    start_s: float
    kind: JobKind
    work_s: float
    cut_off: bool
    restarted: bool = False  # An earlier run of the job was cut.
    node: str = ""  # The first one on which it ran; empty: not known.


class _Moved(NamedTuple):
    """The last start of a job that was moved."""

    start_s: float  # Unix s.
    run_s: Mapping[int, float]  # GPUs -> time of its work before that on so many median GPUs.


class RunReader:
    """Fills a `RunHistory`. One thread reads; rounds call `renew` and use ``history``."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.history = RunHistory()
        self.version = 0
        """Grows with each change of the history."""
        self._config, self._clock = config, clock
        self._shortest = ShortestRuns(config.events.runs_folder)
        self._days = config.of(EstimatesConfig).history_days
        self._first: RunHistory | None = None
        """The history of the first reading, until a round takes it."""
        self._taken = False
        self._later: deque[Run] = deque(maxlen=_MOST_RUNS)
        self._seen: set[tuple[str, float]] = set()
        """Job and start of the runs of the last reading."""
        self._cut: dict[tuple[str, str], float] = {}
        """Job and user -> end of its first run that was cut, Unix s; the last one read comes
        last."""
        self._read_at: float | None = None
        self._warned = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read, unless estimates are switched off."""
        if not self._days:
            self._shortest.write_all(self.history)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._work, name="history", daemon=True)
            self._thread.start()

    @property
    def is_first(self) -> bool:
        """Whether no round has taken the first reading yet, so that no run is known."""
        return self._thread is not None and not self._taken

    def stop(self) -> None:
        """Read no more; an answer that is under way is dropped."""
        self._stopped.set()

    def renew(self) -> bool:
        """Add what was read since; return whether all earlier estimates are void."""
        first, self._first = self._first, None
        if first is not None:
            self.history, self._taken = first, True
        users = set()
        for _ in range(min(_PER_ROUND, len(self._later))):
            run = self._later.popleft()
            self.history.add(run.kind, run.work_s, cut_off=run.cut_off, node=run.node)
            users.add(run.kind.user)
        self.version += first is not None or bool(users)
        if users:
            self._shortest.write(self.history, users)
        return first is not None

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                self.read()
            except Exception:
                log.exception("earlier runs cannot be read; tried again in %d s", _REFRESH_S)
            self._stopped.wait(_REFRESH_S)

    def read(self) -> None:
        """Read all days at first, later what is new."""
        now = self._clock()
        since_s = _DAY_S * self._days
        if self._read_at is not None:
            since_s = min(_DAY_S, now - self._read_at + _OVERLAP_S)
        runs = self._runs(since_s, now)
        new = sorted(run for run in runs if (run.job_id, run.start_s) not in self._seen)
        if self._read_at is None:
            history = RunHistory()
            for run in new:
                history.add(run.kind, run.work_s, cut_off=run.cut_off, node=run.node)
            self._shortest.write_all(history)
            self._first = history
            log.info("estimates of run times rest on %d earlier runs", len(new))
        else:
            self._shortest.find(run.kind.user for run in new)
            self._later.extend(new)
        self._seen = {(run.job_id, run.start_s) for run in runs}
        self._read_at = now

    def _runs(self, since_s: float, now: float) -> list[Run]:
        """Each run once: of sacct, or of the ledger if sacct does not answer."""
        slowdowns: dict[str, list[tuple[float, float]]] = {}
        decisions: list[Decision] = []
        moved: dict[str, _Moved] = {}
        try:
            with open_for_reading(self._config.store) as store:
                ledger = Ledger(store)
                # a job may have started long before it ended
                for job_id, at, slowdown in ledger.slowdowns(
                    now - since_s - 30 * _DAY_S, _MOST_RUNS
                ):
                    slowdowns.setdefault(job_id, []).append((at, slowdown))
                decisions = ledger.ended_decisions(now - since_s, _MOST_RUNS)
                kinds = ("move_begun", "moved")
                moved = _moved(ledger.events_since(kinds, now - since_s - 30 * _DAY_S))
        except StoreError as exc:
            log.debug("earlier runs without the ledger: %s", exc)
        found: dict[tuple[str, float], Run] = {}
        missing = Missing()
        try:
            for row in self._rows(since_s):
                with suppress(*BAD_ROW):
                    missing.note(row)
                    self._note_cut(row)
                run = _run_of_row(row, slowdowns)
                if run is not None and run.end_s >= now - since_s:  # else it may have been counted
                    found[run.job_id, run.start_s] = run
                if len(found) >= _MOST_RUNS:
                    break
            self._warned = False
            if self._read_at is None:
                for sentence in missing.of_history():
                    log.warning("earlier runs: %s", sentence)
        except SourceError as exc:
            if not self._warned:
                log.warning("sacct tells no more runs, those of the ledger count: %s", exc)
            self._warned = True
            for decision in decisions:
                run = run_of(decision)
                if run is not None:
                    found.setdefault((run.job_id, run.start_s), run)
        whole = (_whole(self._with_restarts(run), moved.get(run.job_id)) for run in found.values())
        return [run for run in whole if run is not None]

    def _note_cut(self, row: SacctRow) -> None:
        """Remember a run that was cut, as sacct tells it once. Raises one of ``BAD_ROW``."""
        if row.state not in CUT or row.is_step or row.end_s is None:
            return
        job = row.job_id, row.text("User")
        self._cut[job] = min(row.end_s, self._cut.pop(job, math.inf))
        while len(self._cut) > _MOST_RUNS:
            del self._cut[next(iter(self._cut))]

    def _with_restarts(self, run: Run) -> Run:
        cut_s = self._cut.get((run.job_id, run.kind.user), math.inf)
        return run._replace(restarted=True) if cut_s <= run.start_s else run

    def _rows(self, since_s: float) -> Iterator[SacctRow]:
        """Rows of sacct day by day, the newest first. Raises SourceError."""
        days, until = since_s / _DAY_S, 0.0
        deadline = time.monotonic() + _FIRST_S
        while until < days and time.monotonic() < deadline and not self._stopped.is_set():
            begin = min(days, until + 1.0)
            yield from bounded_history(begin, until, _ANSWER_S, _MOST_BYTES)
            until = begin


def _moved(events: Iterable[Event]) -> dict[str, _Moved]:
    """Job -> what its events say; oldest events first."""
    begun: dict[str, Mapping[int, float]] = {}
    found: dict[str, _Moved] = {}
    for event in events:
        if event.kind == "move_begun":
            begun[event.job_id] = {int(n): float(s) for n, s in event.detail.get("run_s", ())}
        else:
            start_s = float(event.detail.get("start_s", -math.inf))
            found[event.job_id] = _Moved(start_s, begun.get(event.job_id, {}))
    return found


def _whole(run: Run, moved: _Moved | None) -> Run | None:
    """A run with the work before its move; None: only a part of its work is known."""
    if moved is None:
        return None if run.restarted else run
    before_s = moved.run_s.get(run.kind.gpus)
    if before_s is None or abs(run.start_s - moved.start_s) > _START_S:
        return None
    return run._replace(work_s=before_s + run.work_s)


def _run_of_row(
    row: SacctRow, slowdowns: Mapping[str, Sequence[tuple[float, float]]]
) -> Run | None:
    """The run of a row; None: it has not ended, tells nothing, or cannot be read."""
    try:
        end, start = row.end_s, row.start_s
        if end is None or start is None or row.state not in COUNTED or row.is_step or row.on_mig:
            return None
        name, gpus = row.text("JobName"), row.gpus
        if not gpus or name.startswith(PROBE_JOB):
            return None
        limit, cut_off = row.time_limit_s, row.state == "TIMEOUT"
        kind = JobKind(row.text("User"), name, row.text("Account"), gpus, limit)
        decided = slowdowns.get(row.job_id, ())
        before = bisect_right([at for at, _ in decided], start + _START_S)
        slowdown = decided[before - 1][1] if before else 1.0
        node = next(iter(row.nodes), "")
        return Run(end, row.job_id, start, kind, (end - start) / slowdown, cut_off, node=node)
    except BAD_ROW:
        return None


def run_of(decision: Decision) -> Run | None:
    """The run of a decision whose job has ended; None: it tells nothing, or too little."""
    outcome, asked = decision.outcome, decision.asked
    start, end, state = outcome.get("start_s"), decision.outcome_at, outcome.get("state")
    if not isinstance(start, int | float) or end is None or end <= start or state not in COUNTED:
        return None
    if "shards" in asked:
        return None  # jobs beside it decide how fast it is
    sized = "gpus_range" in asked  # it may have run with another number than it asked for
    gpus = sum(map(len, decision.slots)) if sized else int(asked.get("gpus") or 1)
    kind = JobKind(
        decision.user,
        str(asked.get("name") or ""),
        str(asked.get("account") or ""),
        gpus,
        float(asked.get("time_limit_s") or math.inf),
    )
    work = (end - start) / (decision.slowdown or 1.0)
    again = decision.restarts > 0
    node = next(iter(decision.nodes), "")
    return Run(end, decision.job_id, float(start), kind, work, state == "TIMEOUT", again, node)


class Estimates(Live):
    """What the rounds know of run times."""

    name = "estimates"

    def __init__(self, site: Site) -> None:
        self.reader = RunReader(site.config)
        self._ends: dict[tuple[str, float], float] = {}
        """Job and start -> expected end, which holds until it has passed."""

    def start(self) -> None:
        """Begin to read."""
        self.reader.start()

    def stop(self) -> None:
        """Read no more."""
        self.reader.stop()

    def know(self, known: Known, view: View) -> Known:
        """Take in what was read since the last round."""
        with contained(self.name):
            if self.reader.renew():
                self._ends.clear()
        return replace(known, version=known.version + self.reader.version)

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """With its run time; jobs beside it decide how fast a job on shards is."""
        found = None if request.get(SHARDS) else self.of(gated.job, request)
        if found is None:
            return request
        told.why["estimate"] = {**asdict(found), "limit_s": request.time_limit_s}
        return replace(request, estimate_s=found.seconds) if found.runs else request

    def of(self, job: SlurmJob, request: Request) -> Estimate | None:
        """The estimate of a parked job; None: there is no history at all."""
        if not len(self.reader.history):
            return None
        return self.reader.history.estimate(_kind(job, request.gpus, request.time_limit_s))

    def runs(self, job: SlurmJob) -> tuple[tuple[int, float], ...]:
        """(GPUs, work) of the last runs of the job's user and name."""
        return self.reader.history.runs(job.user, job.name) if job.user and job.name else ()

    def nodes(self, job: SlurmJob) -> tuple[str, ...]:
        """The first node of each of these runs."""
        return self.reader.history.nodes(job.user, job.name) if job.user and job.name else ()

    def admit(self, context: AdmissionContext, jobs: Sequence[SlurmJob]) -> AdmissionContext:
        """The context with the expected ends of running jobs."""
        if not len(self.reader.history):
            return context
        cluster, now = context.cluster, context.now
        records = {job.id: job for job in jobs}
        ends: dict[tuple[str, float], float] = {}
        running = tuple(
            self._with_end(one, records.get(one.job_id), cluster, now, ends)
            for one in cluster.running
        )
        self._ends = ends
        return replace(context, cluster=replace(cluster, running=running))

    def _with_end(
        self,
        one: RunningJob,
        job: SlurmJob | None,
        cluster: Cluster,
        now: float,
        ends: dict[tuple[str, float], float],
    ) -> RunningJob:
        if job is None or not one.gpus or any(share.shards for share in job.shares):
            return one
        started = job.state in HOLDING and job.start_s is not None
        start = job.start_s if started and job.start_s is not None else now  # it starts just now
        end = self._ends.get((one.job_id, start))
        if end is None or end < now:
            shares = sum(len(share.gpus) for share in job.shares)
            gpus = shares or sum(len(slots) for _, slots in one.gpus)
            nodes, slots = zip(*one.gpus, strict=True)
            _, _, slowdown = predicted_slowdown(cluster, one.app_class or "", nodes, slots)
            kind = _kind(job, gpus, job.longest_s)
            end = expected_end_s(self.reader.history, kind, slowdown, start, one.end_s, now)
        if started:
            ends[one.job_id, start] = end
        return replace(one, expected_end_s=end)


def _kind(job: SlurmJob, gpus: int, time_limit_s: float) -> JobKind:
    return JobKind(job.user, job.name, job.account or "", gpus, time_limit_s)


LIVES = (Estimates,)
