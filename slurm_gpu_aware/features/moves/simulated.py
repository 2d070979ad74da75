"""Moves in a simulation: what a round knows of them, and those that began."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from slurm_gpu_aware.features.due_dates.simulated import RunDueDates
from slurm_gpu_aware.features.moves.declared import LOOK_S, RATE_S, MovesConfig
from slurm_gpu_aware.features.moves.movable import MOVES, MOVING, RETURNING, Movable, Moving
from slurm_gpu_aware.model.facets import Facet, Section
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.simulator.settings import Mode
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature
from slurm_gpu_aware.simulator.trace import TraceJob


@dataclass(frozen=True)
class RunMoves(Section):
    """Which jobs of a run allow moves."""

    share: float = 1.0
    """Share of those among the jobs that do not say, drawn by their ids."""


class SimulatedMoves(SimulatedFeature):
    """What the rounds of a run know of moves."""

    def prepare(self) -> None:
        """No move has begun."""
        dated = any(job.deadline_s is not None for job in self.trace.jobs)
        self.dated = dated and self.settings.of(RunDueDates).count
        """Some jobs have due dates."""
        self.moves = self.settings.of(MovesConfig)
        self._moving: Moving | None = None
        self._recent: deque[tuple[float, str]] = deque()
        """(time, user) of the moves that began in the last hour."""
        self._looked = -math.inf

    def begins(self, waiting: Collection[object]) -> bool:
        """Whether moves are possible, and the round is the first one of its time."""
        self._moving = self._found(waiting) if self.settings.mode in MODES else None
        return self._moving is not None

    def _found(self, waiting: Collection[object]) -> Moving | None:
        now = self.state.clock.now
        if now == self._looked:
            return None
        self._looked = now
        while self._recent and now - self._recent[0][0] >= RATE_S:
            self._recent.popleft()
        full = len(self._recent) >= self.moves.per_hour
        some = self.state.free or (waiting and self._may_shrink())
        if not self.dated and (full or not some):
            return None
        movable = tuple(self._movable())
        return Moving(self.moves, movable, tuple(self._recent)) if movable else None

    def sees_running(self, asked: Asked) -> bool:
        """In rounds that look for moves."""
        return asked.first and self._moving is not None

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The jobs that are on a move, and those that may move."""
        returning = {a.job.job_id: a.target for a in asked.queue if a.target is not None}
        return {RETURNING: returning, MOVING: self._moving if asked.first else None}

    def planned(self, plan: Plan) -> float:
        """Note the moves that begin."""
        now = self.state.clock.now
        self._recent.extend((now, move.of.request.user) for move in plan.get(MOVES))
        # of the moves that use the same node only one begins
        return now + LOOK_S if plan.moved and self.dated else math.inf

    def _may_shrink(self) -> bool:
        """Whether a job runs on more GPUs than it needs."""
        wanted = self.moves.sticky and self.moves.shrink
        return wanted and any(
            one.job.elastic and one.size > one.request.sizes[0]
            for one in self.state.running.values()
            if one.request.sizes
        )

    def _movable(self) -> Iterator[Movable]:
        for active in self.state.running.values():
            if not _allows_moves(active.job, self.settings.of(RunMoves).share):
                continue
            job, request = self.state.holder(active), active.request
            for feature in self.state.features:
                request = feature.as_waiting(active, request)
            if request.sizes:
                request = request.resized(active.size)
                if not active.job.elastic:
                    request = replace(request, sizes=())
            yield Movable(request, job, self.settings.restart_s(active.job), active.moved_s)


def _allows_moves(job: TraceJob, share: float) -> bool:
    """Whether a job allows moves; one that does not say, if it is of the share, in every run."""
    if job.elastic is not None:
        return job.elastic
    return crc32(job.job_id.encode()) < share * (1 << 32)


SIMULATED = SimulatedMoves
MODES = {"moves": Mode("running jobs move to better GPUs, as the selector moves them")}
