"""Moves: running jobs that are requeued because better GPUs have become free.

A job that writes checkpoints may be stopped and go on elsewhere. On free GPUs with a lower
predicted slowdown its remaining time shrinks in the ratio of the slowdowns (t_iter / t_orig, PAL,
eq. 1), less the cost of a restart. Moves are planned after the starts of a round and take nothing
from a waiting job: the head of the queue keeps its reservation, as in backfill.

With ``sticky`` False the movable jobs are planned anew in every round, as PAL's non-sticky mode
does, and each job that finds faster GPUs moves, whatever its restart costs; only the rates hold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.move_settings import RATE_S, MoveSettings
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown, set_words
from slurm_gpu_aware.planning.backfill import BackfillRoom, Shadow, reserve
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import by_class, in_slurm_order
from slurm_gpu_aware.planning.timeline import Timeline, as_running, take
from slurm_gpu_aware.time_text import duration

__all__ = ["Movable", "Move", "may_move", "plan_moves"]

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

    def remaining_s(self, now: float) -> float:
        """Expected time to its end on its present GPUs; inf: not known."""
        end_s = self.job.end_s if self.job.expected_end_s is None else self.job.expected_end_s
        return end_s - now


@dataclass(frozen=True)
class Move:
    """A running job and the GPUs to which it goes."""

    request: Request
    assignment: Assignment
    """The new GPUs; ``why`` has the account of the move."""
    slowdown: float
    """Predicted slowdown on the present GPUs."""
    remaining_s: float
    """Expected time to its end without the move."""
    saves_s: float
    """Time that the move is expected to save, the restart counted."""

    @property
    def job_id(self) -> str:
        """Slurm's job ID."""
        return self.assignment.job_id


def may_move(candidate: Movable, moves: MoveSettings, now: float) -> bool:
    """Say whether the times of a job allow that it moves now."""
    remaining_s = candidate.remaining_s(now)
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
    plan: Plan,
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
    queue, cluster, plan : queue and snapshot of the round, and its outcome by `plan_round`.
    recent : times at which moves of the site began.
    busy : nodes of moves that have not finished.
    """
    left = min(moves.per_round, moves.per_hour - sum(now - at < RATE_S for at in recent))
    able = [one for one in movable if may_move(one, moves, now)]
    if left <= 0 or not able or any(a.victims for a in plan.assignments):
        return ()
    planner = _Moves(queue, cluster, plan, settings, moves, now, policy_options)
    found = planner.improving(able) if moves.sticky else planner.anew(able, settings.classes)
    chosen: list[Move] = []
    taken = set(busy)
    for move, nodes in sorted(found, key=lambda entry: -entry[0].saves_s):
        if len(chosen) < left and taken.isdisjoint(nodes):
            chosen.append(move)
            taken |= nodes
    return tuple(chosen)


class _Moves:
    """The cluster after the starts of a round, and what its head of the queue needs."""

    def __init__(
        self,
        queue: Sequence[Request],
        cluster: Cluster,
        plan: Plan,
        settings: PlanSettings,
        moves: MoveSettings,
        now: float,
        policy_options: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        self.moves, self.now = moves, now
        self.after = cluster.copy()
        running = list(cluster.running)
        requests = {request.job_id: request for request in queue}
        for assignment in plan.assignments:
            request = requests[assignment.job_id]
            held = take(self.after, request, assignment)
            running.append(as_running(request, assignment, now, held))
        self.dispatcher = Dispatcher(settings, policy_options, now, running)
        self.shadow = self._shadow(queue, plan, running)
        self._slowdowns: dict[str, float] = {}
        self._fastest: dict[str, float] = {}

    def _shadow(
        self, queue: Sequence[Request], plan: Plan, running: Sequence[RunningJob]
    ) -> Shadow | None:
        """The reservation of the first waiting job that the cluster could hold."""
        waits = {entry.job_id: entry.postponement for entry in plan.waiting if not entry.infeasible}
        head = next((r for r in in_slurm_order(queue) if r.job_id in waits), None)
        if head is None:
            return None
        timeline = Timeline(running, self.now)
        return reserve(head, self.after, timeline, self.dispatcher, waits[head.job_id])

    def improving(self, able: Sequence[Movable]) -> list[tuple[Move, frozenset[int]]]:
        """Moves that save more than their cost and the margin, and their nodes."""
        best = [(self._saves_at_most(one), one) for one in able]
        hopeful = [entry for entry in best if entry[0] > self.moves.margin_s]
        hopeful.sort(key=lambda entry: -entry[0])
        found = []
        for _, one in hopeful[:_TRIED]:
            target = self._target(one, self._without([one]))
            move = None if target is None else self._move(one, target, one.restart_s)
            if move is not None and move[0].saves_s > self.moves.margin_s:
                found.append(move)
        return found

    def anew(
        self, able: Sequence[Movable], classes: Sequence[str]
    ) -> list[tuple[Move, frozenset[int]]]:
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
            if all(gpu in own or self.after.free[gpu] for gpu in _gpus(target)):
                move = self._move(one, target, 0.0)
                if move is not None and move[0].saves_s > 0:
                    found.append(move)
        return found

    def _without(self, jobs: Sequence[Movable]) -> Cluster:
        """The cluster as if these jobs had ended."""
        return Timeline([one.job for one in jobs], self.now).at(self.after, math.inf)

    def _saves_at_most(self, one: Movable) -> float:
        """Bound of the time that a move can save: on the fastest free GPU, at locality 1."""
        app_class = one.request.app_class
        scores = self.after.score(app_class)
        if app_class not in self._fastest:
            fastest = np.min(scores, where=self.after.free, initial=math.inf)
            self._fastest[app_class] = float(fastest)
        own = min(float(scores[node, list(slots)].min()) for node, slots in one.job.gpus)
        there = min(own, self._fastest[app_class])
        return one.remaining_s(self.now) * (1 - there / self._present(one)) - one.restart_s

    def _present(self, one: Movable) -> float:
        """Predicted slowdown on the GPUs that the job holds."""
        job_id = one.request.job_id
        if job_id not in self._slowdowns:
            nodes, slots = zip(*sorted(one.job.gpus), strict=True)
            found = predicted_slowdown(self.after, one.request.app_class, nodes, slots)
            self._slowdowns[job_id] = found[2]
        return self._slowdowns[job_id]

    def _target(self, one: Movable, cluster: Cluster) -> Assignment | None:
        """The GPUs that the job's policy chooses now; None: none, or Slurm would choose them."""
        left_s = one.remaining_s(self.now) / self._present(one)
        request = replace(one.request, estimate_s=left_s)
        view = BackfillRoom(cluster, self.shadow).view(request, self.now)
        target = self.dispatcher.could_place(request, view)
        return target if target is not None and (target.exact or request.whole_node) else None

    def _move(
        self, one: Movable, target: Assignment, restart_s: float
    ) -> tuple[Move, frozenset[int]] | None:
        """The move to a target and all its nodes; None: the job is there."""
        nodes, slots = zip(*sorted(one.job.gpus), strict=True)
        if _gpus(target) == set(one.job.each_gpu):
            return None
        present, remaining_s = self._present(one), one.remaining_s(self.now)
        saves_s = remaining_s * (1 - target.slowdown / present) - restart_s
        names = self.after.nodes
        here = set_words(names, nodes, slots)
        there = set_words(names, target.nodes, target.slots)
        summary = (
            f"moved from {here} (slowdown {present:.2f}) to {there} ({target.slowdown:.2f}),"
            f" which saves {duration(saves_s)} of the {duration(remaining_s)} that it still needed"
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
        why = {**target.why, "summary": summary, "moved": moved}
        move = Move(one.request, replace(target, why=why), present, remaining_s, saves_s)
        return move, frozenset([*nodes, *target.nodes])


def _gpus(assignment: Assignment) -> set[tuple[int, int]]:
    """(node, slot) of every GPU."""
    chosen = zip(assignment.nodes, assignment.slots, strict=True)
    return {(node, slot) for node, slots in chosen for slot in slots}
