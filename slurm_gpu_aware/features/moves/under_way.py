"""Moves under way: jobs that were requeued to better GPUs and do not run there yet.

A move is written to the ledger (``move_begun``) before Slurm is asked, and when the job runs again
(``moved``). A selector that dies in between leaves a running job, or one in Slurm's queue that
starts again where it was, after Slurm's delay of requeued jobs; its successor reads the ledger and
carries on.
"""

import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_gpu_aware import records
from slurm_gpu_aware.admission.context import BeforeMove, Known
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.features.moves.declared import RATE_S, MovesConfig
from slurm_gpu_aware.features.moves.movable import RETURNING
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.holding_pool import PLANNABLE
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.live import Live, Seen, Site
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.ledger import Event

log = logging.getLogger(__name__)

_NOT_REQUEUED_S = 20.0  # a job that still runs after this was not requeued
_GIVEN_UP_S = 3600.0  # after this a job that is not back waits like any other
_DELAY_S = 300.0  # Slurm's delay of requeued jobs is two minutes; a longer one is the owner's
_OWNERS = {"JobHeldUser", "Dependency"}  # reasons to wait that owners set
_STOPPED_S = 2.0  # slurmd refuses a job in the second in which it revoked its first run
_BLOCKED_S = 120.0  # a job that waits for something else than its turn after this is not back soon
_RETURN = "return"  # step of jobs that were requeued, and do not come back at once
_MEASURED = 20  # moves of the site of which the median restart counts


@dataclass(frozen=True)
class UnderWay:
    """A move that has begun and not ended; in the ledger the detail of ``move_begun``."""

    restarts: int  # Slurm's count before the move.
    nodes: Sequence[str]  # New nodes; ``slots`` are the GPUs on each of them.
    slots: Sequence[int]
    left: Sequence[str]  # Nodes that it leaves.
    cpus_per_node: int
    memory_mb_per_node: int
    limit_end_s: float | None  # End by its time limit, Unix seconds; None: no limit.
    ends_s: float  # Expected end, Unix seconds.
    submit_s: float  # First submission of the job, Unix seconds; Slurm counts anew after a requeue.
    gpus: int  # GPUs that it leaves.
    why: Mapping[str, Any]  # Its facts, as `Facts.plain`.
    user: str = ""  # Its owner; empty: not known (a move of an earlier release).
    power_w: float = 0.0
    """Power above that of idle GPUs that is kept for it; 0: no power limit was in force."""
    work_done: float = 0.0
    """Work that the job with a due date has done, in the unit of `work_rates`."""
    run_s: Sequence[tuple[int, float]] = ()
    """(GPUs, time of all work that the job has done, on so many median GPUs). Units: s."""

    @property
    def new_gpus(self) -> int:
        """GPUs that it gets."""
        return len(self.nodes) * len(self.slots)

    def kept(self, job_id: str) -> Hold:
        """The hold that keeps the new GPUs for the job."""
        return Hold(
            job_id=job_id,
            nodes=tuple(self.nodes),
            slots=tuple(self.slots),
            gpus_per_node=len(self.slots),
            cpus_per_node=self.cpus_per_node,
            memory_mb_per_node=self.memory_mb_per_node,
            end_s=math.inf if self.limit_end_s is None else self.limit_end_s,
        )


class MovesUnderWay(Live):
    """The moves of a site that have begun, and what earlier ones took."""

    name = "moves under way"
    tells = (RETURNING,)

    def __init__(self, site: Site) -> None:
        self.client, self.ledger, self._clock = site.client, site.ledger, site.clock
        self._again_s = site.config.of(MovesConfig).again_s
        self.jobs: dict[str, UnderWay] = {}
        self.times: list[tuple[float, str]] = []
        """(begin, Unix seconds; user) of the moves that count for the rates."""
        self.began: dict[str, float] = {}
        """Job -> begin of its last move, Unix seconds."""
        self._past: dict[str, tuple[UnderWay, int]] = {}
        """Job -> its last move after which it was requeued, and Slurm's count of restarts since."""
        self._read: set[str] = set()  # Requeued jobs of which the ledger was asked.
        self._took: dict[str, float] = {}
        """Job -> longest time from a requeue to the start; the last one moved comes last."""

    def load(self) -> None:
        """Read the moves that count from the ledger."""
        since = self._clock() - max(RATE_S, self._again_s)
        for event in self.ledger.events_since(("move_begun", "moved", "error"), since):
            job_id, detail = event.job_id, event.detail
            if event.kind == "move_begun":
                if (move := _move(event)) is not None:
                    self._note(job_id, move, event.at)
            elif event.kind == "moved":
                self.jobs.pop(job_id, None)
                self._measure(job_id, float(detail.get("after_s") or 0.0))
            elif detail.get("step") == "move":
                self._drop(job_id)
            elif detail.get("step") == _RETURN:
                self.jobs.pop(job_id, None)

    def begin(self, job_id: str, move: UnderWay, now: float) -> str | None:
        """Record a move and requeue the job; return why Slurm refuses. Raises SourceError."""
        self.ledger.event(job_id, "move_begun", asdict(move), now)
        self._note(job_id, move, now)
        why = self.client.requeue_job(job_id)
        if why is not None:
            self._fail(job_id, f"Slurm does not requeue it: {why}", now)
        return why

    def restart_s(self, job_id: str) -> float:
        """Time that a requeue and start took: of the job, else the median of the site; 0: no move.

        What the job does before its first step and after its last checkpoint is not in it.
        """
        known = list(self._took.values())[-_MEASURED:]
        return self._took.get(job_id, statistics.median(known) if known else 0.0)

    def settle(self, gated: Sequence[GatedJob], now: float) -> list[GatedJob]:
        """Follow the moves; return the jobs, those that are back without Slurm's delay.

        Slurm lets a requeued job wait for two minutes, also one that its owner has held and
        released since; two seconds suffice. Raises SourceError.
        """
        known = {job.id: job for job in gated}
        for one in gated:
            if one.job.restarts and one.id not in self._read:
                self._recall(one)
        for job_id in list(self.jobs):
            self._follow(job_id, known.get(job_id), now)
        self._forget(known)
        back = {
            job_id: replace(job, job=replace(job.job, eligible_s=now, reason="Licenses"))
            for job_id in self._past
            if (job := known.get(job_id)) is not None
            and job.parked
            and job.job.reason == "BeginTime"
            and not 0.0 <= now - job.job.submit_s < _STOPPED_S  # Slurm's time of the requeue
            and (job_id in self.jobs or _begins_late(job.job))
        }
        updates = [JobUpdate(job_id, (("StartTime", "now"),)) for job_id in back]
        for job_id, why in self.client.update_jobs(updates).items():
            log.warning("moved job %s waits for Slurm's delay of requeued jobs: %s", job_id, why)
            del back[job_id]
        return [back.get(job.id, job) for job in gated]

    @property
    def awaits(self) -> bool:
        """Whether a move is under way."""
        return bool(self.jobs)

    def requeued(self, job_id: str) -> bool:
        """Whether the job is on a move."""
        return job_id in self.jobs

    def know(self, known: Known, view: View) -> Known:
        """With the GPUs that are kept, and what moved jobs had before."""
        holds: Sequence[Hold] = ()
        with contained(self.name):
            holds = self.kept(view.parked, view.now)
        return replace(known, moved=self.before, holds=(*known.holds, *holds))

    def inputs(self, seen: Seen) -> Iterator[tuple[Facet[Any], Any]]:
        """The GPUs to which jobs return."""
        if seen.queue:
            context = seen.context
            yield RETURNING, self.targets(context.cluster.nodes, seen.queue, context.now)

    def kept(self, parked: Iterable[GatedJob], now: float) -> list[Hold]:
        """Holds of the new GPUs of jobs that a round cannot place yet.

        Slurm delays a requeued job some time before it gives that as the reason.
        """
        back = {gated.id for gated in parked if not _delayed(gated.job, now)}
        return [move.kept(job_id) for job_id, move in self.jobs.items() if job_id not in back]

    @property
    def before(self) -> dict[str, BeforeMove]:
        """What jobs that were moved had before; of one that shrinks the GPUs that it gets."""
        return {
            i: BeforeMove(move.submit_s, min(move.gpus, move.new_gpus))
            for i, (move, _) in self._past.items()
        }

    def last(self, job_id: str) -> UnderWay | None:
        """The last move of a job after which it was requeued; None: it was not moved."""
        return self._past[job_id][0] if job_id in self._past else None

    @property
    def power_w(self) -> dict[str, float]:
        """Job -> power above that of idle GPUs that is kept for it, of those that have some."""
        return {job_id: move.power_w for job_id, move in self.jobs.items() if move.power_w > 0}

    def targets(
        self, nodes: Sequence[str], queue: Iterable[Request], now: float
    ) -> dict[str, Assignment]:
        """Job -> its new GPUs, by position in ``nodes``; for `moved.place_moved`.

        A job of the queue that now asks for more GPUs than it had or was to get has none.
        """
        for request in queue:
            move = self.jobs.get(request.job_id)
            if move is not None and request.least_gpus > max(move.gpus, move.new_gpus):
                self._give_up(request.job_id, "it asks for more GPUs than it had", now)
        places = {name: i for i, name in enumerate(nodes)}
        found = {}
        for job_id, move in self.jobs.items():
            chosen = tuple(sorted(places[name] for name in move.nodes if name in places))
            slots = (tuple(move.slots),) * len(chosen)
            found[job_id] = Assignment(
                job_id,
                chosen,
                slots,
                policy="",
                score=0.0,
                level="",
                slowdown=0.0,
                why=Facts.read(move.why),
            )
        return found

    def changed(self, job_id: str, now: float) -> None:
        """Let a job that its owner has changed wait as any other one.

        With more time, CPUs or memory, or on other nodes, it would pass those that wait for them.
        """
        if job_id in self.jobs:
            self._give_up(job_id, "its owner has changed it", now)

    def _give_up(self, job_id: str, why: str, now: float) -> None:
        """Let a requeued job wait as any other one."""
        del self.jobs[job_id]
        self.ledger.event(job_id, "error", {"step": _RETURN, "why": why}, now)
        log.info("job %s comes back from its move as any job: %s", job_id, why)

    def _note(self, job_id: str, move: UnderWay, at: float) -> None:
        self.jobs[job_id], self.began[job_id] = move, at
        self.times = [*(one for one in self.times if at - one[0] < RATE_S), (at, move.user)]

    def _follow(self, job_id: str, gated: GatedJob | None, now: float) -> None:
        """Note that a job runs again, has ended, was not requeued, or is put off by its owner."""
        move, began = self.jobs[job_id], self.began[job_id]
        if gated is not None and gated.job.restarts > move.restarts:
            self._past[job_id] = move, gated.job.restarts
        if gated is None or gated.job.state in ENDED or now - began > _GIVEN_UP_S:
            del self.jobs[job_id]
        elif gated.job.state == "PENDING" and (why := _put_off(gated.job, began, now)):
            self._give_up(job_id, why, now)
        elif gated.job.state != "RUNNING":
            return
        elif gated.job.restarts > move.restarts:
            del self.jobs[job_id]
            started = gated.job.start_s or now
            after_s = max(0.0, started - began)
            self._measure(job_id, after_s)
            nodes, restarts = list(gated.job.nodes), gated.job.restarts
            detail = {"after_s": after_s, "start_s": started, "nodes": nodes, "restarts": restarts}
            self.ledger.event(job_id, "moved", detail, now)
            log.info("job %s runs again, %.0f s after its move began", job_id, after_s)
        elif now - began > _NOT_REQUEUED_S:
            self._fail(job_id, "it was not requeued", now)

    def _recall(self, gated: GatedJob) -> None:
        """Read from the ledger the last move of a requeued job, and how long its moves took.

        After a requeue that was not ours the last move counts no more.
        """
        self._read.add(gated.id)
        found: list[tuple[UnderWay, int]] = []
        for event in self.ledger.events(gated.id):
            if event.kind == "move_begun" and (move := _move(event)) is not None:
                found.append((move, move.restarts + 1))
            elif event.kind == "moved":
                self._measure(gated.id, float(event.detail.get("after_s") or 0.0))
                if found:
                    found[-1] = found[-1][0], int(event.detail.get("restarts", found[-1][1]))
            elif event.kind == "error" and event.detail.get("step") == "move":
                del found[-1:]
        took_place = [entry for entry in found if entry[0].restarts < gated.job.restarts]
        if took_place and gated.job.restarts <= took_place[-1][1]:
            self._past[gated.id] = took_place[-1]

    def _forget(self, known: Mapping[str, GatedJob]) -> None:
        """Drop what is known of jobs that are gone, or were requeued by others."""
        self._read &= known.keys()
        for job_id, (_, restarts) in list(self._past.items()):
            ours = job_id in self.jobs or job_id not in known
            if job_id not in known or (not ours and known[job_id].job.restarts > restarts):
                del self._past[job_id]
        self.began = {i: at for i, at in self.began.items() if i in known or i in self.jobs}
        for job_id in list(self._took)[:-_MEASURED]:
            if job_id not in known:
                del self._took[job_id]

    def _drop(self, job_id: str) -> None:
        """Forget a move that failed: it does not count for the rate, or users could use that up."""
        move = self.jobs.pop(job_id, None)
        if move is not None and (begun := (self.began[job_id], move.user)) in self.times:
            self.times.remove(begun)

    def _fail(self, job_id: str, why: str, now: float) -> None:
        self._drop(job_id)
        self.ledger.event(job_id, "error", {"step": "move", "why": why}, now)
        log.warning("job %s is not moved: %s", job_id, why)

    def _measure(self, job_id: str, after_s: float) -> None:
        longest = max(after_s, self._took.pop(job_id, 0.0))
        if math.isfinite(longest):
            self._took[job_id] = longest


def _move(event: Event) -> UnderWay | None:
    """The move that an event began; None: it cannot be read."""
    try:
        return records.read(event.detail, UnderWay)
    except ValueError:  # of another release
        log.warning("the move of job %s cannot be read", event.job_id)
        return None


def _put_off(job: SlurmJob, began: float, now: float) -> str:
    """Why a requeued job has no turn and no GPUs are kept for it; empty: it is on its way back.

    While it were, no job of the site would shrink, and no other one move on its nodes.
    """
    if job.reason in _OWNERS or (job.eligible_s or 0.0) > now + _DELAY_S:
        return "its owner lets it wait, so nothing is kept for it"
    if job.reason not in PLANNABLE | {"BeginTime"} and now - began > _BLOCKED_S:
        return f"it waits for Slurm's reason {job.reason}, so nothing is kept for it"
    return ""


def _begins_late(job: SlurmJob) -> bool:
    """Whether a job's begin time may be Slurm's delay: that counts from the requeue, at which the
    job gets a new submission time."""
    return (job.eligible_s or 0.0) <= job.submit_s + _DELAY_S


def _delayed(job: SlurmJob, now: float) -> bool:
    """Whether nothing but Slurm's delay of requeued jobs holds a job."""
    return job.reason in PLANNABLE | {"BeginTime"} and (job.eligible_s or 0.0) > now
