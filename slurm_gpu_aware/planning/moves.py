"""Moves: running jobs that are requeued because better GPUs have become free.

A job that writes checkpoints may be stopped and go on elsewhere. On free GPUs with a lower
predicted slowdown its remaining time shrinks in the ratio of the slowdowns (t_iter / t_orig, PAL,
eq. 1), less the cost of a restart. Moves are planned before the starts of a round: where jobs
always wait, no GPU would be left after the starts. In return the waiting jobs get what a move
leaves, and a move is allowed only if

- all jobs at the front of the queue that fit now still fit,
- the first that does not fit can start no later than before (EASY's promise), and
- it saves more GPU time than the jobs at the front lose by it.

A moldable job with a size table may grow by a move: its remaining time then shrinks in the ratio of
the times of the two sizes, too. It grows only while every waiting job fits, and never shrinks: what
it gives back would end other jobs sooner, but not itself.

A job with a due date grows when its plan says so (`due_dates`), whatever that saves, and whatever
the jobs behind it in Slurm's order lose; the jobs before it lose nothing.

With ``sticky`` False the movable jobs are placed anew in every round, as PAL's non-sticky mode
does, and each job that finds faster GPUs moves, whatever its restart and the waiting jobs lose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob, each_gpu
from slurm_gpu_aware.model.move_settings import RATE_S, MoveSettings
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown, set_words
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.due_dates import due_growth, in_order
from slurm_gpu_aware.planning.front import Front, front_of
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.prefix import by_class
from slurm_gpu_aware.planning.timeline import (
    Timeline,
    as_running,
    keep_least,
    left_behind,
    take,
)
from slurm_gpu_aware.planning.waiting import expected_ends
from slurm_gpu_aware.time_text import duration

__all__ = ["Movable", "Move", "begun", "may_move", "plan_moves"]

_TRIED = 16  # jobs of a round for which GPUs are searched, those that may gain most


@dataclass(frozen=True, eq=False)
class Movable:
    """A running job that allows moves."""

    request: Request
    """Its request, as if it waited."""
    job: RunningJob
    """Its GPUs, start and end."""
    restart_s: float = 60.0
    """Time that a restart costs: checkpoint, requeue, start, restore."""
    moved_s: float | None = None
    """Time of its last move; None: never."""


@dataclass(frozen=True)
class Move:
    """A running job and the GPUs to which it goes."""

    of: Movable
    assignment: Assignment
    """The new GPUs; ``why`` has the account of the move."""
    slowdown: float
    """Predicted slowdown on the present GPUs."""
    remaining_s: float
    """Expected time to its end without the move."""
    saves_s: float
    """Time that the move is expected to save, the restart counted."""
    due: bool = False
    """The job grows to meet its due date."""

    @property
    def job_id(self) -> str:
        """Slurm's job ID."""
        return self.assignment.job_id

    @property
    def request(self) -> Request:
        """Its request with the number of its new GPUs."""
        request = self.of.request
        return request.resized(_count(self.assignment)) if request.sizes else request

    @property
    def grows(self) -> bool:
        """Whether it gets more GPUs than it has."""
        return self.request.gpus > self.of.request.gpus


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


def plan_moves(
    movable: Iterable[Movable],
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    moves: MoveSettings,
    now: float,
    *,
    recent: Sequence[float] = (),
    busy: Collection[int] = frozenset(),
    policy_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Move, ...]:
    """Plan the moves of one round, largest gain first.

    At most one move at a time takes GPUs from a node or gives it some.

    Parameters
    ----------
    movable : running jobs that allow moves; their ``job`` is one of ``cluster.running``.
    queue, cluster : queue and snapshot of the round, before its starts.
    recent : times at which moves of the site began.
    busy : nodes of moves that have not finished.
    """
    left = min(moves.per_round, moves.per_hour - sum(now - at < RATE_S for at in recent))
    if left <= 0 or not cluster.free.any():
        return ()
    known = list(movable)
    ends = expected_ends([one.job for one in known], now).tolist()
    remaining = {one.request.job_id: end - now for one, end in zip(known, ends, strict=True)}
    ordered = in_order(queue, settings, now)
    planner = _Moves(ordered, cluster, settings, moves, now, policy_options)
    planner.remaining = remaining
    due = planner.due(known)
    able = [
        one
        for one in known
        if one.request.job_id not in due
        and may_move(one, remaining[one.request.job_id], moves, now)
    ]
    if not able and not due:
        return ()
    found = planner.improving(able) if moves.sticky else planner.anew(able, settings.classes)
    found.sort(key=lambda move: -move.saves_s)
    return tuple(planner.allowed([*due.values(), *found], left, set(busy)))


def begun(cluster: Cluster, moves: Iterable[Move], now: float) -> Cluster:
    """The snapshot of a round in which moves begin, for its starts.

    The new GPUs are taken, and the old ones become free within the time of the restart.
    """
    for move in moves:
        after, job = _moved(cluster, move, now), move.of.job
        left = left_behind(cluster, after, f"({job.job_id} leaves)", now + move.of.restart_s)
        here = cluster.copy()
        keep_least(here, here, after, slice(None))
        cluster = replace(here, running=(*after.running, left))
    return cluster


class _Moves:
    """The moves of one round on its snapshot."""

    def __init__(
        self,
        ordered: Sequence[Request],
        cluster: Cluster,
        settings: PlanSettings,
        moves: MoveSettings,
        now: float,
        policy_options: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        self.moves, self.now = moves, now
        self.ordered, self.cluster = ordered, cluster
        self.dispatcher = Dispatcher(settings, policy_options, now, cluster.running)
        self.remaining: Mapping[str, float] = {}
        """Job -> expected time to its end on its present GPUs."""
        self._slowdowns: dict[str, float] = {}
        self._fastest: dict[str, float] = {}

    def due(self, known: Sequence[Movable]) -> dict[str, Move]:
        """The growth of jobs that must grow now to meet their due dates, the earliest first."""
        jobs = {one.request.job_id: one for one in known}
        found: dict[str, Move] = {}
        for job_id, account in due_growth(
            [(j.request, j.job) for j in known], self.cluster, self.now
        ):
            one, most = jobs[job_id], account.growth[0][1]
            if not math.isfinite(self.remaining[job_id]):
                continue
            without = self._without([one])
            for size in (n for n in reversed(one.request.sizes) if one.request.gpus < n <= most):
                target = self._target(one, without, size)
                move = target and self._move(one, target, one.restart_s)
                if move:
                    why = {**move.assignment.why, "due": account.values()}
                    found[job_id] = replace(
                        move, assignment=replace(move.assignment, why=why), due=True
                    )
                    break
        return found

    def allowed(self, found: Iterable[Move], most: int, taken: set[int]) -> Iterator[Move]:
        """The first moves that take nothing from the waiting jobs; ``taken``: nodes to avoid."""
        cluster, front, gone = self.cluster, None, set[Gpu]()
        for move in found:
            nodes = {*move.assignment.nodes, *(node for node, _ in move.of.job.gpus)}
            if not most or not taken.isdisjoint(nodes):
                continue
            ordered = self.ordered
            if move.due:
                ordered = [r for r in ordered if r.priority > move.request.priority]
            before = front or front_of(ordered, cluster, self.dispatcher, self.now)
            after = _moved(cluster, move, self.now)
            lost = gone | _gpus(move.assignment)
            then = front_of(ordered, after, self.dispatcher, self.now, lost)
            front = None if move.due else before
            if self._takes_from(before, then, move):
                continue
            cluster, front, gone, most = after, front and then, lost, most - 1
            taken |= nodes
            yield move

    def _takes_from(self, before: Front, then: Front, move: Move) -> bool:
        """Say whether a move takes a start, a reservation or GPU time from the waiting jobs."""
        if move.due:
            return before.preempts or not then.keeps(before)
        if before.preempts or not then.keeps(before) or (move.grows and before.head is not None):
            return True
        saves_gpu_s = move.saves_s * move.of.request.gpus
        return self.moves.sticky and then.loses_gpu_s(before) > saves_gpu_s

    def improving(self, able: Sequence[Movable]) -> list[Move]:
        """Moves that save more than their cost and the margin."""
        best = [(self._saves_at_most(one), one) for one in able]
        hopeful = [entry for entry in best if entry[0] > self.moves.margin_s]
        hopeful.sort(key=lambda entry: -entry[0])
        found = []
        for _, one in hopeful[:_TRIED]:
            without = self._without([one])
            targets = (self._target(one, without, size) for size in _sizes(one.request))
            moves = [self._move(one, t, one.restart_s) for t in targets if t is not None]
            best_one = max(filter(None, moves), key=lambda move: move.saves_s, default=None)
            if best_one is not None and best_one.saves_s > self.moves.margin_s:
                found.append(best_one)
        return found

    def anew(self, able: Sequence[Movable], classes: Sequence[str]) -> list[Move]:
        """Moves of the non-sticky mode: all jobs are placed anew, most sensitive class first.

        A job moves now if its new GPUs are faster, and free but for its own.
        """
        jobs = {one.request.job_id: one for one in able}
        trial = self._without(able)
        found = []
        for request in by_class((one.request for one in able), classes):
            one = jobs[request.job_id]
            target = self._target(one, trial)
            if target is None:
                continue
            take(trial, one.request, target)
            own = set(one.job.each_gpu)
            if all(gpu in own or self.cluster.free[gpu] for gpu in _gpus(target)):
                move = self._move(one, target, 0.0)
                if move is not None and move.saves_s > 0:
                    found.append(move)
        return found

    def _without(self, jobs: Sequence[Movable]) -> Cluster:
        """The cluster as if these jobs had ended."""
        return Timeline([one.job for one in jobs], self.now).at(self.cluster, math.inf)

    def _saves_at_most(self, one: Movable) -> float:
        """Bound of the time that a move can save: on the fastest free GPU, at locality 1."""
        app_class = one.request.app_class
        scores = self.cluster.score(app_class)
        if app_class not in self._fastest:
            fastest = np.min(scores, where=self.cluster.free, initial=math.inf)
            self._fastest[app_class] = float(fastest)
        own = min(float(scores[node, list(slots)].min()) for node, slots in one.job.gpus)
        there = min(own, self._fastest[app_class]) / self._present(one)
        ratio = min(_time_ratio(one.request, size) for size in _sizes(one.request))
        return self.remaining[one.request.job_id] * (1 - there * ratio) - one.restart_s

    def _present(self, one: Movable) -> float:
        """Predicted slowdown on the GPUs that the job holds."""
        job_id = one.request.job_id
        if job_id not in self._slowdowns:
            nodes, slots = zip(*sorted(one.job.gpus), strict=True)
            found = predicted_slowdown(self.cluster, one.request.app_class, nodes, slots)
            self._slowdowns[job_id] = found[2]
        return self._slowdowns[job_id]

    def _target(self, one: Movable, cluster: Cluster, gpus: int | None = None) -> Assignment | None:
        """The GPUs that the job's policy chooses now; None: none, or Slurm would choose them.

        ``gpus``: one of its sizes; None: as many as it has.
        """
        left_s = self.remaining[one.request.job_id] / self._present(one)
        request = one.request if gpus is None else one.request.resized(gpus)
        left_s *= _time_ratio(one.request, request.gpus)
        request = replace(request, estimate_s=left_s)
        target = self.dispatcher.could_place(request, cluster)
        return target if target is not None and (target.exact or request.whole_node) else None

    def _move(self, one: Movable, target: Assignment, restart_s: float) -> Move | None:
        """The move to a target; None: the job is there."""
        nodes, slots = zip(*sorted(one.job.gpus), strict=True)
        if _gpus(target) == set(one.job.each_gpu):
            return None
        present, remaining_s = self._present(one), self.remaining[one.request.job_id]
        gpus = _count(target)
        ratio = _time_ratio(one.request, gpus) if one.request.sizes else 1.0
        saves_s = remaining_s * (1 - ratio * target.slowdown / present) - restart_s
        names = self.cluster.nodes
        here = set_words(names, nodes, slots)
        there = set_words(names, target.nodes, target.slots)
        faster = "" if ratio == 1.0 else f", {1 / ratio:.2f} times as fast by their number"
        summary = (
            f"moved from {here} (slowdown {present:.2f}) to {there}"
            f" ({target.slowdown:.2f}{faster}), which saves {duration(saves_s)} of the"
            f" {duration(remaining_s)} that it still needed"
        )
        if one.restart_s and restart_s:
            summary += f", with {duration(restart_s)} for the restart"
        moved = {
            "from": here,
            "slowdown_before": present,
            "saves_s": round(saves_s, 1),
            "remaining_s": round(remaining_s, 1),
            "restart_s": restart_s,
        }
        if ratio != 1.0:
            moved |= {"gpus": gpus, "gpus_before": one.request.gpus, "time_ratio": round(ratio, 4)}
        why = {**target.why, "summary": summary, "moved": moved}
        return Move(one, replace(target, why=why), present, remaining_s, saves_s)


def _moved(cluster: Cluster, move: Move, now: float) -> Cluster:
    """The cluster with the job on its new GPUs, and the old ones free."""
    one, target = move.of, move.assignment
    after = Timeline([one.job], now).at(cluster, math.inf)
    held = take(after, move.request, target)
    job = as_running(move.request, target, now, held)
    others = (other for other in cluster.running if other is not one.job)
    return replace(after, running=(*others, job))


def _sizes(request: Request) -> tuple[int, ...]:
    """GPU counts that a job may get by a move: its own, and larger ones that its table knows."""
    larger = (n for n in request.sizes if n > request.gpus and _time_ratio(request, n) < 1.0)
    return (request.gpus, *larger)


def _time_ratio(request: Request, gpus: int) -> float:
    """Time of the work with ``gpus`` GPUs / that with its own, at the default clock.

    1 if a time is not known.
    """
    table = request.table
    if table is None or gpus == request.gpus:
        return 1.0
    rows = table.row(request.gpus), table.row(gpus)
    if rows[0] is None or rows[1] is None:
        return 1.0
    ratio = float(table.time_s[rows[1], -1] / table.time_s[rows[0], -1])
    return ratio if 0 < ratio < math.inf else 1.0


def _count(assignment: Assignment) -> int:
    return sum(map(len, assignment.slots))


def _gpus(assignment: Assignment) -> set[tuple[int, int]]:
    """Every GPU."""
    return set(each_gpu(assignment.gpus))
