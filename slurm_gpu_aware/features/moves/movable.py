"""Running jobs that allow moves, their moves, and the times at which they may move.

Restarts: what it brings a running job to stop and go on elsewhere, or with other GPUs.

Its remaining time changes in the ratio of the slowdowns (t_iter / t_orig, PAL, eq. 1) and, if its
size table knows both numbers of GPUs, of their times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.features.due_dates.declared import DueAccount
from slurm_gpu_aware.features.moves.declared import Moved, MoveSettings
from slurm_gpu_aware.features.power.power_budget import PowerBudget
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, each_gpu
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.placement.account import predicted_slowdown, set_words
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Movable:
    """A running job that allows moves."""

    request: Request  # Its request, as if it waited.
    job: RunningJob  # Its GPUs, start and end.
    restart_s: float = 60.0  # Time that a restart costs: checkpoint, requeue, start, restore.
    moved_s: float | None = None  # Time of its last move; None: never.
    account: DueAccount | None = None  # Of its due date, on its present GPUs; None: it has none.


@dataclass(frozen=True)
class Move:
    """A running job and the GPUs to which it goes."""

    of: Movable
    request: Request
    """Its request with the number of its new GPUs, and the power that it needs there at least."""
    assignment: Assignment  # The new GPUs; ``why`` has the account of the move.
    slowdown: float  # Predicted slowdown on the present GPUs.
    remaining_s: float  # Expected time to its end without the move.
    saves_s: float  # Time that the move is expected to save, the restart counted.
    others_s: float = 0.0  # Sum of the times by which ``starts`` are expected to end sooner.
    starts: tuple[str, ...] = ()
    """Waiting jobs that start on GPUs that the job gives back by shrinking."""
    due: bool = False  # The job grows to meet its due date.
    power_w: float = 0.0
    """Power above that of idle GPUs that is kept for it until it runs again: the larger one of its
    present power and of that of its restart. 0 if there is no power limit."""

    @property
    def job_id(self) -> str:
        """Slurm's job ID."""
        return self.assignment.job_id

    @property
    def gain_s(self) -> float:
        """Time that the move is expected to save all jobs together."""
        return self.saves_s + self.others_s

    @property
    def grows(self) -> bool:
        """Whether it gets more GPUs than it has."""
        return self.request.gpus > self.of.request.gpus


@dataclass(frozen=True)
class Moving:
    """What a round that looks for moves knows of them."""

    settings: MoveSettings
    movable: Sequence[Movable] = ()  # All running jobs that allow moves.
    recent: Sequence[tuple[float, str]] = ()  # (time, user) of moves of the site that began.
    busy: frozenset[int] = frozenset()  # Nodes of moves that have not finished.


RETURNING: Facet[Mapping[str, Assignment]] = Facet("returning", {}, dict[str, Assignment])
"""Of a round: job of the queue that is on a move -> the GPUs that were chosen for it."""
MOVING: Facet[Moving | None] = Facet("moving", None, Moving)
"""Of a round; None: it looks for no moves."""
MOVES: Facet[tuple[Move, ...]] = Facet("moves", ())
"""Of a plan: running jobs that begin to move, before the starts."""


def may_move(candidate: Movable, remaining_s: float, moves: MoveSettings, now: float) -> bool:
    """Say whether the times of a job allow that it moves now.

    ``remaining_s``: expected time to its end on its present GPUs; inf: not known.
    """
    since_s = math.inf if candidate.moved_s is None else now - candidate.moved_s
    return (
        now - candidate.job.start_s >= moves.first_s
        and moves.last_s <= remaining_s < math.inf
        and since_s >= moves.again_s
        and bool(candidate.job.gpus)
    )


class Restarts:
    """Restarts of the running jobs of one snapshot.

    ``remaining``: job -> expected time to its end on its present GPUs.
    """

    def __init__(
        self,
        cluster: Cluster,
        remaining: Mapping[str, float],
        dispatcher: Dispatcher,
        budget: PowerBudget | None,
    ) -> None:
        self.cluster, self.remaining, self.now = cluster, remaining, dispatcher.now
        self.dispatcher, self.budget = dispatcher, budget
        self._slowdowns: dict[str, float] = {}
        self._fastest: dict[str, float] = {}

    def without(self, jobs: Sequence[Movable]) -> Cluster:
        """The cluster as if these jobs had ended."""
        return Timeline([one.job for one in jobs], self.now).at(self.cluster, math.inf)

    def saves_at_most(self, one: Movable) -> float:
        """Bound of the time that a move can save: on the fastest free GPU, at locality 1."""
        app_class = one.request.app_class
        scores = self.cluster.score(app_class)
        if app_class not in self._fastest:
            fastest = np.min(scores, where=self.cluster.free, initial=math.inf)
            self._fastest[app_class] = float(fastest)
        own = min(float(scores[node, list(slots)].min()) for node, slots in one.job.gpus)
        there = min(own, self._fastest[app_class]) / self.present(one)
        ratio = min(self.time_ratio(one.request, size) for size in self.sizes(one.request))
        return self.remaining[one.request.job_id] * (1 - there * ratio) - one.restart_s

    def present(self, one: Movable) -> float:
        """Predicted slowdown on the GPUs that the job holds."""
        job_id = one.request.job_id
        if job_id not in self._slowdowns:
            nodes, slots = zip(*sorted(one.job.gpus), strict=True)
            found = predicted_slowdown(self.cluster, one.request.app_class, nodes, slots)
            self._slowdowns[job_id] = found[2]
        return self._slowdowns[job_id]

    def request(self, one: Movable, gpus: int) -> Request:
        """The request of a job with one of its sizes, and with its power there."""
        request = one.request if gpus == one.request.gpus else one.request.resized(gpus)
        return request if self.budget is None else self.budget.needing(request)

    def resized(self, one: Movable, without: Cluster, gpus: int) -> Move | None:
        """The move to the best GPUs of a size; ``without``: the cluster without the job."""
        request = self.request(one, gpus)
        if gpus != one.request.gpus and not without.leaves(request.power_w):
            return None
        target = self.target(one, request, without)
        return None if target is None else self.move(one, request, target, one.restart_s)

    def target(self, one: Movable, request: Request, cluster: Cluster) -> Assignment | None:
        """The GPUs that the job's policy chooses now; None: none, or Slurm would choose them."""
        left_s = self.remaining[one.request.job_id] / self.present(one)
        left_s *= self.time_ratio(one.request, request.gpus)
        request = replace(request, estimate_s=left_s)
        target = self.dispatcher.could_place(request, cluster)
        return target if target is not None and (target.exact or request.nodes.whole) else None

    def move(
        self, one: Movable, request: Request, target: Assignment, restart_s: float
    ) -> Move | None:
        """The move to a target; None: the job is there."""
        nodes, slots = zip(*sorted(one.job.gpus), strict=True)
        if gpus_of(target) == set(one.job.each_gpu):
            return None
        present, remaining_s = self.present(one), self.remaining[one.request.job_id]
        gpus = request.gpus
        ratio = self.time_ratio(one.request, gpus)
        saves_s = remaining_s * (1 - ratio * target.slowdown / present) - restart_s
        here = set_words(self.cluster, nodes, slots)
        there = set_words(self.cluster, target.nodes, target.slots)
        other = gpus != one.request.gpus
        moved = Moved(
            source=here,
            slowdown_before=present,
            saves_s=round(saves_s, 1),
            remaining_s=round(remaining_s, 1),
            restart_s=restart_s if one.restart_s else 0.0,
            to=there,
            slowdown=target.slowdown,
            gpus=gpus if other else None,
            gpus_before=one.request.gpus if other else None,
            time_ratio=round(ratio, 4),
        )
        target = replace(target, why=Facts((moved,)), clock_mhz=self._clock_mhz(request))
        power_w = max(request.power_w, self._drawn_w(one))
        return Move(one, request, target, present, remaining_s, saves_s, power_w=power_w)

    def sizes(self, request: Request) -> tuple[int, ...]:
        """GPU counts that a job may get: its own, and larger ones that its table knows."""
        larger = (n for n in request.sizes if n > request.gpus)
        return (request.gpus, *(n for n in larger if self.time_ratio(request, n) < 1.0))

    def time_ratio(self, request: Request, gpus: int) -> float:
        """Time of the work with ``gpus`` GPUs / that with its own; 1: it is not known.

        At the clocks with which the power of both is counted.
        """
        table = request.get(TABLE)
        if table is None or gpus == request.gpus:
            return 1.0
        clocks = self._clock_mhz(request), self._clock_mhz(request.resized(gpus))
        if self.budget is not None:
            clocks = self.budget.present_clock_mhz(request), clocks[1]
        rows = table.row(request.gpus), table.row(gpus)
        if rows[0] is None or rows[1] is None:
            return 1.0
        before, after = (
            float(table.time_s[row, table.column(clock)])
            for row, clock in zip(rows, clocks, strict=True)
        )
        ratio = after / before if before > 0 else math.nan
        return ratio if 0 < ratio < math.inf else 1.0

    def _clock_mhz(self, request: Request) -> int | None:
        """SM clock with which a job restarts, MHz; None: the default clock."""
        clock_of = self.dispatcher.settings if self.budget is None else self.budget
        return clock_of.clock_mhz(request)

    def _drawn_w(self, one: Movable) -> float:
        """Power that a running job draws above that of its idle GPUs, at its present clock."""
        return 0.0 if self.budget is None else self.budget.present_w(one.job)


def gpus_of(assignment: Assignment) -> set[tuple[int, int]]:
    """Every GPU."""
    return set(each_gpu(assignment.gpus))
