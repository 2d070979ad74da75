"""Mover: running jobs that allow it are requeued to better GPUs (`planning.moves`)."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.translate import move_of, to_request
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.live import DueDates
from slurm_gpu_aware.features.due_dates.queue import run_times, work_done
from slurm_gpu_aware.features.moves.movable import MOVES, Movable, Move, Moving
from slurm_gpu_aware.features.moves.settings import LOOK_S, RATE_S, MovesConfig
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay, UnderWay
from slurm_gpu_aware.features.power.job_tables import JobTables
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import node_demand
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient

log = logging.getLogger(__name__)

_UNREAD_S = 2.0  # the same while a new selector reads earlier runs, for jobs with due dates


class Mover:
    """Tells a round what may move, and begins the moves that it plans."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        tracker: JobTracker,
        timer: Callable[[], float],
    ) -> None:
        self._config, self._tracker, self._timer = config, tracker, timer
        self.under_way = MovesUnderWay(client, tracker.ledger)
        self._settings = config.of(MovesConfig)
        self._refused: dict[str, int] = {}
        """Job that Slurm does not requeue -> its restarts."""
        self._looked = -math.inf
        self.wake_s = math.inf
        """When a round should run (`Plan.wake_s`), Unix seconds; inf: no such time is known."""

    def load(self, now: float) -> None:
        """Read the moves of a previous selector from the ledger."""
        self.under_way.load(now - max(RATE_S, self._settings.again_s))

    def looks(self, gated: Iterable[GatedJob], now: float) -> bool:
        """Whether a round is due for moves, even if no job waits."""
        if self.under_way.jobs:
            return True
        if not self._is_due(now):
            return False
        if any(self._asks(job) for job in gated):
            return True
        self.wake_s = math.inf  # nothing is left that could grow
        return False

    def _is_due(self, now: float) -> bool:
        wakes = now >= self.wake_s
        if not self._config.of(MovesConfig).enabled:
            if wakes:
                self.wake_s = math.inf  # the plan of this round says when it wants the next one
            return False
        return wakes or self._timer() - self._looked >= LOOK_S

    def moving(
        self,
        gated: Sequence[GatedJob],
        context: AdmissionContext,
        tables: JobTables,
        dates: DueDates,
    ) -> Moving | None:
        """What this round knows of moves; None: it looks for none."""
        if not self._is_due(context.now):
            return None
        self._looked, self.wake_s = self._timer(), math.inf
        known = {job.id for job in gated}
        self._refused = {i: n for i, n in self._refused.items() if i in known}
        jobs = {job.id: job for job in gated if self._asks(job)}
        if not jobs:
            return None
        movable = tuple(self._movable(jobs, context, tables, dates))
        if dates.unread and any(one.request.get(DUE_DATE) is not None for one in movable):
            self.wake_s = context.now + _UNREAD_S
        busy = self._busy(context.cluster.nodes)
        return Moving(self._settings, movable, tuple(self.under_way.times), busy)

    def begin(
        self, plan: Plan, gated: Sequence[GatedJob], nodes: Sequence[str], now: float
    ) -> None:
        """Begin the moves of a plan; ``nodes``: those of the cluster. Raises SourceError."""
        jobs = {job.id: job for job in gated}
        for move in plan.get(MOVES):
            self._begin(jobs[move.job_id], move, nodes, now)

    def _asks(self, gated: GatedJob) -> bool:
        """Whether a job runs where the selector placed it, and may be moved."""
        tracked = self._tracker.placed.get(gated.id)
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
        self,
        jobs: Mapping[str, GatedJob],
        context: AdmissionContext,
        tables: JobTables,
        dates: DueDates,
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
            request = tables.tabled(dates.dated(gated, request, restart_s)).resized(held)
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

    def restart_s(self, gated: GatedJob, request: Request) -> float | None:
        """What a restart of a job costs; None: it is not moved."""
        if not self._config.of(MovesConfig).enabled or move_of(gated, self._config) is None:
            return None
        return self._restart_s(gated, request)

    def _restart_s(self, gated: GatedJob, request: Request) -> float:
        """What a restart costs: as the job, its class or the site says, or more if measured."""
        said = move_of(gated, self._config)
        of_class = self._config.for_class(request.app_class).restart_s
        usual = self._config.of(MovesConfig).restart_s if of_class is None else of_class
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
