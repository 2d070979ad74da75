"""Start monitor: polls released jobs until they run, and parks again those that cannot start.

A round on a large site takes seconds, so the monitor has a thread of its own. No other part of the
selector parks jobs again. A round that read a job before the monitor closed its gate does not touch
it (`StartMonitor.outdated`); its GPUs count as in use in that round, and the next follows at once.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from slurm_gpu_aware.admission.snapshot import NODE_TAKEN, NODES_TAKEN
from slurm_gpu_aware.bounds import ROLLOUT_HOLD
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.restore import FEW, close_gate, restore
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.backoff import HELD_BY, STALE_S, Backoff
from slurm_gpu_aware.selector.holding_pool import held_by_record
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, components_of

log = logging.getLogger(__name__)

_POLL_S = 1.0  # longest pause between two polls
_SOON_S = 0.5  # shortest pause between two polls
_QUICK_S = 0.5  # if it takes less to read all jobs, a poll of more than `FEW` reads them all
_STARTING = frozenset({"None", "Priority", "Resources", "Cleaning", NODE_TAKEN, NODES_TAKEN})
"""Reasons of a placed job that is about to start, or that another job placed there precedes."""
_NO_ROOM_S = 6.0
"""A job that Slurm tries in vain for so long is placed elsewhere; an epilog takes less."""
_HET_S = 90.0
"""Heterogeneous jobs are started by Slurm's backfill only, every 30 s by default (bf_interval)."""
_REFUSED_S = 10.0  # pause after Slurm refused to close the gate of a job
_NEVER_THERE = "BadConstraints"  # Slurm finds that the job can never start on its nodes
_Kind = Enum("_Kind", ["REQUEUED", "RECALLED", "NODE_LOST", "HELD", "NO_ROOM", "LATE"])
"""What keeps a released job from starting; ``HELD``: Slurm, which shows a reason."""
_NO_FAILURE = frozenset({_Kind.REQUEUED, _Kind.RECALLED, _Kind.NODE_LOST})
"""Its place was no worse than others: the next round plans the job again at once."""


@dataclass(frozen=True)
class _Cause:
    """Why a released job is parked again."""

    kind: _Kind
    why: str  # For its user.
    held_by: str = ""  # Slurm's reason.


@dataclass
class StartMonitor:
    """Released jobs that have not started; parks again those that cannot start."""

    client: SlurmClient
    config: Config
    tracker: JobTracker
    backoff: Backoff
    gate_held: Callable[[float], bool]
    wake: Callable[[], object] = lambda: None
    """Starts a round: jobs have started, or were parked again, which frees GPUs."""
    clock: Callable[[], float] = time.time
    on_move: Callable[[str], bool] = lambda job_id: False
    """Whether the selector has requeued a job to move it."""
    is_ahead: Callable[[str], bool] = lambda job_id: False
    """Whether a job may wait at its open gate: it was opened ahead, or until it starts."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: threading.Event = field(default_factory=threading.Event)
    _stopping: bool = False
    _starting: dict[str, float] = field(default_factory=dict)
    """Released job -> monotonic time at which it was first seen; last polled ones last."""
    _lost_nodes: frozenset[str] = frozenset()
    _grace_s: float = 0.0
    _in_hand: frozenset[str] = frozenset()
    _outdated: set[str] = field(default_factory=set)
    _seen_at: float = -math.inf
    """When a round last told of all released jobs, by ``time.monotonic``."""
    _all_took_s: float = math.inf
    _held_at: float = -math.inf
    """When a rollout was last seen to keep all jobs from starting, Unix seconds."""
    _recalled: frozenset[str] = frozenset()
    _refused: dict[str, float] = field(default_factory=dict)
    """Job with a gate that Slurm refused to close -> monotonic time of the next try."""

    def __post_init__(self) -> None:
        self._timer = self.backoff.timer  # a change of the clock must not keep a job bound
        self._thread = threading.Thread(target=self._run, name="start monitor", daemon=True)

    def round_begins(self) -> None:
        """Note that a round is about to read all jobs."""
        with self._lock:
            self._outdated = set(self._in_hand)

    def outdated(self, read_s: float) -> frozenset[str]:
        """Jobs parked again since the round began; ``read_s``: how long it read all jobs."""
        with self._lock:
            self._all_took_s = read_s
            return frozenset(self._outdated)

    def watch(
        self, released: Sequence[GatedJob], lost_nodes: frozenset[str], *, grace_s: float = 0.0
    ) -> None:
        """Set the released jobs that have not started, as a round read them.

        ``lost_nodes``: nodes on which no job can start. ``grace_s``: additional time of a job that
        preempts others, which its victims may use.
        """
        now = self._timer()
        with self._lock:
            self._lost_nodes, self._grace_s, self._seen_at = lost_nodes, grace_s, time.monotonic()
            self._refused = {i: until for i, until in self._refused.items() if until > now}
            waiting = {job.id: job for job in released if job.id not in self._outdated}
            since = {i: self._starting.get(i, now) for i in waiting}
            urgent = [i for i, job in waiting.items() if self._why_not(job, since[i]) is not None]
            turn = dict.fromkeys([*urgent, *self._starting, *waiting])
            self._starting = {i: since[i] for i in turn if i in since}
        if urgent:
            self._asked.set()

    def add(self, job_ids: Iterable[str]) -> None:
        """Add jobs that were just released."""
        with self._lock:
            self._starting |= dict.fromkeys(job_ids, self._timer())

    def recall(self, job_ids: frozenset[str]) -> None:
        """Park jobs again that stand behind others now, unless they start first."""
        with self._lock:
            self._recalled = job_ids
            turn = dict.fromkeys([*(i for i in self._starting if i in job_ids), *self._starting])
            self._starting = {i: self._starting[i] for i in turn}
        if job_ids:
            self._asked.set()

    @property
    def starting(self) -> list[str]:
        """Released jobs that have not started, as far as is known."""
        with self._lock:
            return list(self._starting)

    def start(self) -> None:
        """Poll from a thread of its own until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present poll."""
        self._stopping = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.config.selector.command_timeout_s + 1)

    def _run(self) -> None:
        pause_s = _SOON_S
        while not self._stopping:
            asked = self._asked.wait(pause_s)
            self._asked.clear()
            if self._stopping:
                return
            began = time.monotonic()
            if not asked and began - self._seen_at < _SOON_S:
                continue  # a round has just read them, and asks for a poll where there is a reason
            try:
                if self.poll():
                    self.wake()
            except SourceError as exc:
                log.warning("released jobs are polled again later: %s", exc)
            except Exception:
                log.exception("released jobs are polled again later")
            # Short polls take at most a quarter of the time.
            pause_s = min(_POLL_S, max(_SOON_S, 3 * (time.monotonic() - began)))

    def poll(self) -> int:
        """Poll released jobs; park again those that cannot start. Raises SourceError.

        If it takes long to read all jobs, only the `FEW` that were polled longest ago. Returns how
        many jobs were parked again, have started or are gone.
        """
        now = self.clock()
        ids = self.starting
        if not ids or not self.gate_held(now):
            return 0
        if len(ids) > FEW and self._all_took_s <= _QUICK_S:
            began = self._timer()
            read = self.client.jobs()
            self._all_took_s = self._timer() - began
        else:
            ids = ids[:FEW]
            read = self.client.jobs_of(ids)
        by_id = {job.id: job for job in gated_jobs(read, self.config.gate) if job.released}
        components = components_of(read)
        if self._is_held(by_id.values()):
            self._held_at = now
            return 0
        with self._lock:
            polled = {i: self._starting.pop(i) for i in ids if i in self._starting}
            stuck = {
                job_id: (job, why)
                for job_id, since in polled.items()
                if (job := by_id.get(job_id)) is not None
                and (why := self._why_not(job, since, components.get(job.job.raw_id, ())))
            }
            self._starting |= {i: at for i, at in polled.items() if i in by_id and i not in stuck}
            self._in_hand = frozenset(stuck)
            self._outdated |= stuck.keys()
        changed = sum(job_id not in by_id for job_id in polled)
        again: Set[str] = stuck.keys()
        try:
            if stuck:
                again = self._park_again(stuck, now)
            return changed + len(stuck) - len(again)
        finally:
            with self._lock:
                self._starting |= {job_id: polled[job_id] for job_id in again}
                self._in_hand = frozenset()

    def _is_held(self, jobs: Iterable[GatedJob]) -> bool:
        """Whether no job can start because a rollout reconfigures Slurm, for some seconds."""
        if all(job.job.reason in _STARTING for job in jobs):
            return False
        return any(held.name == ROLLOUT_HOLD for held in self.client.reservations())

    def _why_not(
        self, job: GatedJob, since: float, components: Iterable[SlurmJob] = ()
    ) -> _Cause | None:
        """Why a released job must be parked again; None: it can still start.

        ``components``: the later ones of a heterogeneous job. Slurm shows no reason at the first.
        """
        if self._refused.get(job.id, -math.inf) > self._timer():
            return None
        if job.phase is JobPhase.REQUEUED:
            return _Cause(_Kind.REQUEUED, "requeued")
        if job.id in self._recalled:
            return _Cause(_Kind.RECALLED, "its turn is not next any more")
        tracked = self.tracker.placed.get(job.id)
        if tracked is not None and tracked.released_s is not None:
            since = tracked.released_s
        open_s = self._timer() - since
        lost = sorted(self._lost_nodes.intersection(job.job.req_nodes))
        if lost:
            return _Cause(_Kind.NODE_LOST, f"node {lost[0]} cannot be used")
        stale = _is_stale(job, tracked, open_s) or (job.job.tried_at_s or 0.0) <= self._held_at
        if job.job.reason not in _STARTING and not stale:
            return _Cause(_Kind.HELD, f"{HELD_BY}{job.job.reason}", held_by=job.job.reason)
        if held_by := held_by_record(job, self.clock(), components):
            return _Cause(_Kind.HELD, f"{HELD_BY}{held_by}", held_by=held_by)
        if self.is_ahead(job.id):
            return None
        # Another job took the room on its nodes after the round had read them.
        preempts = tracked is not None and bool(tracked.victims)
        # A job without nodes of its own waits for all that it may use if it waits for a node.
        full = {"Resources"} if job.job.req_nodes else {"Resources", NODE_TAKEN}
        tried_in_vain = job.job.reason in full and _was_tried(job, tracked)
        if tried_in_vain and not (preempts or job.job.het) and open_s > _NO_ROOM_S:
            return _Cause(_Kind.NO_ROOM, "no room is left on its nodes")
        limit_s = self.config.selector.start_timeout_s
        limit_s += self._grace_s if preempts else 0.0
        limit_s = max(limit_s, _HET_S) if job.job.het else limit_s
        if open_s > limit_s:
            return _Cause(_Kind.LATE, f"not started within {limit_s:g} s")
        return None

    def _park_again(self, stuck: Mapping[str, tuple[GatedJob, _Cause]], now: float) -> Set[str]:
        """Park jobs again; return those whose gate Slurm did not close."""
        wrong: dict[str, str] = {}
        gate, jobs = self.config.gate, [job for job, _ in stuck.values()]
        parked = close_gate(self.client, gate, jobs, now, wrong)
        for job in parked:  # before they are restored: Slurm may stop answering
            self._write(job, stuck[job.id][1], now)
        for job_id, why in wrong.items():
            cause = stuck[job_id][1].why
            log.warning("job %s (%s) could not be parked again: %s", job_id, cause, why)
        with self._lock:
            self._refused |= dict.fromkeys(wrong, self._timer() + _REFUSED_S)
        for job_id, why in restore(self.client, gate, parked, now, just_read=True).wrong.items():
            log.warning("job %s is not restored, the next round tries again: %s", job_id, why)
        return wrong.keys()

    def _write(self, job: GatedJob, cause: _Cause, now: float) -> None:
        moved = cause.kind is _Kind.REQUEUED and self.on_move(job.id)
        why = "moved" if moved else cause.why
        detail = {"why": why, "restarts": job.job.restarts}
        self.tracker.withdraw(job.id, detail, now)
        self.tracker.ledger.event(job.id, "parked", detail, now)
        if cause.kind in _NO_FAILURE:
            log.info("job %s parked again: %s", job.id, why)
            return
        held = cause.kind is _Kind.HELD
        blocked = held or cause.kind is _Kind.NO_ROOM
        wait_s = self.backoff.punish(
            job.id,
            blocked=blocked,
            misplaced=not blocked or cause.held_by == _NEVER_THERE,
            unexplained=not held,
            silent=job.job.het,
            why=why,
            held_by=cause.held_by,
            nodes=None if job.job.het else job.job.req_nodes,  # its try keeps jobs off all nodes
        )
        log.warning("job %s parked again: %s; not planned for %.0f s", job.id, why, wait_s)


def _is_stale(job: GatedJob, tracked: Tracked | None, open_s: float) -> bool:
    """Whether the reason is still the gate's licence or the filter's begin time."""
    untried = job.job.reason == "Licenses" and not _was_tried(job, tracked)
    return open_s < STALE_S and (job.only_deferred or untried)


def _was_tried(job: GatedJob, tracked: Tracked | None) -> bool:
    """Whether Slurm has tried the job after the second in which its gate opened."""
    if tracked is None or tracked.released_at is None or job.job.tried_at_s is None:
        return False
    return job.job.tried_at_s > tracked.released_at
