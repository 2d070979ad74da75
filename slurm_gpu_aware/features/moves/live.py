"""Mover: running jobs that allow it are requeued to better GPUs (`moves.stage`)."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.live import DueDates
from slurm_gpu_aware.features.due_dates.queue import run_times, work_done
from slurm_gpu_aware.features.moves.admission import move_of, why_not_moved
from slurm_gpu_aware.features.moves.declared import LOOK_S, MovesConfig
from slurm_gpu_aware.features.moves.movable import MOVES, MOVING, Movable, Move, Moving
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay, UnderWay
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.live import Done, Live, Seen, Site, Told

log = logging.getLogger(__name__)

_UNREAD_S = 2.0  # the same while a new selector reads earlier runs, for jobs with due dates


class Mover(Live):
    """Tells a round what may move, and begins the moves that it plans."""

    name = "moves"
    tells = (MOVING,)

    def __init__(self, site: Site) -> None:
        self.site, self._config = site, site.config
        self.under_way, self._power = site.of(MovesUnderWay), site.of(SitePower)
        self._dates = site.of(DueDates)
        self._settings = site.config.of(MovesConfig)
        self._refused: dict[str, int] = {}
        """Job that Slurm does not requeue -> its restarts."""
        self._looked = -math.inf

    def wants_round(self, gated: Sequence[GatedJob], now: float) -> bool:
        """A running job may be moved."""
        if not self._is_due(now):
            return False
        if any(self._asks(job) for job in gated):
            return True
        self.site.wake_s = math.inf  # nothing is left that could grow
        return False

    def _is_due(self, now: float) -> bool:
        looked_s = self.site.timer() - self._looked
        return self._settings.enabled and (now >= self.site.wake_s or looked_s >= LOOK_S)

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """A job that could not start shrinks no other one; with why it is not moved itself."""
        if (why := why_not_moved(gated, self._config)) is not None:
            told.why["not_moved"] = why
        if self.site.backoff.failed(gated.id, self._settings.again_s):
            return replace(request, wait=replace(request.wait, refused=True))
        return request

    def requests(self, jobs: Mapping[str, Candidate], queue: Sequence[Request]) -> list[Request]:
        """The queue with what a restart costs jobs with due dates."""
        return [self._restarted(jobs[request.job_id].gated, request) for request in queue]

    def inputs(self, seen: Seen) -> Iterator[tuple[Facet[Any], Any]]:
        """What may move, if all that holds GPUs is known."""
        if seen.view.complete:
            yield MOVING, self.moving(seen.view.gated, seen.context)

    def moving(self, gated: Sequence[GatedJob], context: AdmissionContext) -> Moving | None:
        """What this round knows of moves; None: it looks for none."""
        if not self._is_due(context.now):
            return None
        self._looked, self.site.wake_s = self.site.timer(), math.inf
        known = {job.id for job in gated}
        self._refused = {i: n for i, n in self._refused.items() if i in known}
        jobs = {job.id: job for job in gated if self._asks(job)}
        if not jobs:
            return None
        movable = tuple(self._movable(jobs, context))
        if self._dates.unread and any(one.request.get(DUE_DATE) is not None for one in movable):
            self.site.wake_s = context.now + _UNREAD_S
        busy = self._busy(context.cluster.nodes)
        return Moving(self._settings, movable, tuple(self.under_way.times), busy)

    def after(self, done: Done) -> None:
        """Begin the moves of the plan. Raises SourceError."""
        if done.plan.moved and done.gate_held:
            jobs = {job.id: job for job in done.view.gated}
            for move in done.plan.get(MOVES):
                self._begin(jobs[move.job_id], move, done.context.cluster.nodes, done.context.now)

    def _asks(self, gated: GatedJob) -> bool:
        """Whether a job runs where the selector placed it, and may be moved."""
        tracked = self.site.tracker.placed.get(gated.id)
        return (
            gated.job.state == "RUNNING"
            and tracked is not None
            and tracked.decision is not None
            and tracked.phase is JobPhase.STARTED
            and gated.id not in self.under_way.jobs
            and self._refused.get(gated.id) != gated.job.restarts
            and move_of(gated, self._config) is not None
        )

    def _movable(
        self, jobs: Mapping[str, GatedJob], context: AdmissionContext
    ) -> Iterator[Movable]:
        for job in context.cluster.running:
            gated = jobs.get(job.job_id)
            if gated is None:
                continue
            try:
                request = to_request(gated, context)
            except CannotPlanError as exc:
                log.debug("job %s is not moved: %s", job.job_id, exc.reason)
                continue
            held = sum(len(slots) for _, slots in job.gpus)
            if request.sockets.bound or held not in (request.gpus, *request.sizes):
                continue
            restart_s = self._restart_s(gated, request)
            request = self._restarted(gated, self._dates.dated(gated, request))
            request = self._power.tables.tabled(request).resized(held)
            if (last := self.under_way.last(job.job_id)) is not None:
                # Its limit and its estimate count anew from the restart, its work does not.
                known_s = job.end_s if job.expected_end_s is None else job.expected_end_s
                job = replace(job, expected_end_s=max(context.now, min(known_s, last.ends_s)))
            yield Movable(
                request,
                job,
                restart_s,
                self.under_way.began.get(job.job_id),
            )

    def _restarted(self, gated: GatedJob, request: Request) -> Request:
        """With what a job with a due date did before its last move, and what a restart costs."""
        if (due := request.get(DUE_DATE)) is None:
            return request
        may = self._settings.enabled and move_of(gated, self._config) is not None
        restart_s = self._restart_s(gated, request) if may else None
        last = self.under_way.last(gated.id)
        done = 0.0 if last is None else last.work_done
        return request.put(DUE_DATE, replace(due, done=done, restart_s=restart_s))

    def _restart_s(self, gated: GatedJob, request: Request) -> float:
        """What a restart costs: as the job, its class or the site says, or more if measured."""
        said = move_of(gated, self._config)
        of_class = self._config.for_class(request.app_class).restart_s
        usual = self._settings.restart_s if of_class is None else of_class
        stated = float(said) if isinstance(said, int) else usual
        return max(stated, self.under_way.restart_s(gated.id))

    def _busy(self, names: Sequence[str]) -> frozenset[int]:
        """Nodes of moves under way."""
        nodes = {n for move in self.under_way.jobs.values() for n in (*move.nodes, *move.left)}
        return frozenset(i for i, name in enumerate(names) if name in nodes)

    def _begin(self, gated: GatedJob, move: Move, nodes: Sequence[str], now: float) -> None:
        target, limit_s = move.assignment, gated.job.longest_s
        before = self.under_way.last(gated.id)
        earlier = () if before is None else before.run_s
        times = run_times(move.of.request, move.of.job, move.slowdown, now, dict(earlier))
        demand = node_demand(move.request, len(target.nodes), len(target.slots[0]))
        begun = UnderWay(
            restarts=gated.job.restarts,
            nodes=[nodes[i] for i in target.nodes],
            slots=list(target.slots[0]),
            left=list(gated.job.nodes),
            cpus_per_node=demand[0],
            memory_mb_per_node=demand[1],
            limit_end_s=now + limit_s if math.isfinite(limit_s) else None,
            ends_s=now + move.remaining_s - move.saves_s,
            power_w=move.power_w,
            why=target.why.plain(),
            submit_s=gated.job.submit_s if before is None else before.submit_s,
            gpus=move.of.request.gpus,
            user=gated.job.user,
            work_done=work_done(move.of.request, move.of.job, move.slowdown, now),
            run_s=[*times.items()],
        )
        log.info("job %s is requeued: %s", gated.id, target.why.text)
        if self.under_way.begin(gated.id, begun, now) is not None:
            self._refused[gated.id] = gated.job.restarts


LIVES = (MovesUnderWay, Mover)
