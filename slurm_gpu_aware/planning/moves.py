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

Under a power limit a job moves only if the power that it needs there at least (`power_budget`) is
left while all other jobs keep what they need at least.

A job with a due date grows when its plan says so (`due_dates`), whatever that saves, and whatever
the jobs behind it in Slurm's order lose; the jobs before it lose nothing, nor do those with due
dates.

With ``sticky`` False the movable jobs are placed anew in every round, as PAL's non-sticky mode
does, and each job that finds faster GPUs moves, whatever its restart and the waiting jobs lose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, each_gpu
from slurm_gpu_aware.model.move_settings import RATE_S, MoveSettings
from slurm_gpu_aware.model.power import PowerState
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown, set_words
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.due_dates import due_accounts, due_growth, in_order, with_due_sizes
from slurm_gpu_aware.planning.front import Front, front_of
from slurm_gpu_aware.planning.movable import Movable, Move, may_move
from slurm_gpu_aware.planning.moved import after_move
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.power_budget import PowerBudget, with_least_sizes
from slurm_gpu_aware.planning.prefix import by_class
from slurm_gpu_aware.planning.timeline import Timeline, take
from slurm_gpu_aware.planning.waiting import expected_ends
from slurm_gpu_aware.time_text import duration

__all__ = ["plan_moves"]

_TRIED = 16  # jobs of a round for which GPUs are searched, those that may gain most


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
    power: PowerState | None = None,
) -> tuple[Move, ...]:
    """Plan the moves of one round, largest gain first.

    At most one move at a time takes GPUs from a node or gives it some.

    Parameters
    ----------
    movable : running jobs that allow moves, of `due_dates.accounted`; their ``job`` is one of
        ``cluster.running``.
    queue, cluster : queue and snapshot of the round, before its starts.
    recent : times at which moves of the site began.
    busy : nodes of moves that have not finished.
    power : as of `plan_round`.
    """
    left = min(moves.per_round, moves.per_hour - sum(now - at < RATE_S for at in recent))
    if left <= 0 or not cluster.free.any():
        return ()
    accounts = due_accounts(queue, now)
    if any(request.sizes for request in queue):
        free = int(np.count_nonzero(cluster.free))
        queue = with_least_sizes(with_due_sizes(queue, accounts, free))  # as the round places them
    known, budget = list(movable), PowerBudget.of(cluster, settings, power)
    if budget is not None:
        cluster, queue = budget.cluster, [budget.needing(request) for request in queue]
        drawn_w = {job.job_id: job.power_w for job in cluster.running}
        known = [
            replace(one, job=replace(one.job, power_w=drawn_w[one.job.job_id])) for one in known
        ]
    ends = expected_ends([one.job for one in known], now).tolist()
    remaining = {one.request.job_id: end - now for one, end in zip(known, ends, strict=True)}
    dispatcher = Dispatcher(settings, policy_options, now, cluster.running)
    planner = _Moves(in_order(queue, settings, accounts, now), cluster, moves, dispatcher, budget)
    planner.remaining = remaining
    late = due_growth(known, now)
    able = [one for one in known if may_move(one, remaining[one.request.job_id], moves, now)]
    if not able and not late:
        return ()
    found = planner.improving(able) if moves.sticky else planner.anew(able, settings.classes)
    found.sort(key=lambda move: -move.saves_s)
    return tuple(planner.allowed(chain(planner.due(late), found), left, set(busy)))


class _Moves:
    """The moves of one round on its snapshot."""

    def __init__(
        self,
        ordered: Sequence[Request],
        cluster: Cluster,
        moves: MoveSettings,
        dispatcher: Dispatcher,
        budget: PowerBudget | None,
    ) -> None:
        self.moves, self.now = moves, dispatcher.now
        self.ordered, self.cluster = ordered, cluster
        self.dispatcher, self.budget = dispatcher, budget
        self.remaining: Mapping[str, float] = {}
        """Job -> expected time to its end on its present GPUs."""
        self._slowdowns: dict[str, float] = {}
        self._fastest: dict[str, float] = {}

    def due(self, late: Iterable[Movable]) -> Iterator[Move]:
        """The growth of late jobs: for each all sizes up to that of its plan, the largest first."""
        for one in late:
            account = one.account
            if account is None or not math.isfinite(self.remaining[one.request.job_id]):
                continue
            without, most = self._without([one]), account.growth[0][1]
            for size in (n for n in reversed(one.request.sizes) if one.request.gpus < n <= most):
                if move := self._resized(one, without, size):
                    why = {**move.assignment.why, "due": account.values()}
                    target = replace(move.assignment, why=why)
                    yield replace(move, assignment=target, due=True)

    def allowed(self, found: Iterable[Move], most: int, taken: set[int]) -> Iterator[Move]:
        """The first moves that take nothing from the waiting jobs, of each job one.

        ``taken``: nodes to avoid.
        """
        cluster, front, gone = self.cluster, None, set[Gpu]()
        for move in found:
            nodes = {*move.assignment.nodes, *(node for node, _ in move.of.job.gpus)}
            if not taken.isdisjoint(nodes):
                continue
            ordered = self.ordered
            if move.due:
                before_it = move.request.priority
                ordered = [r for r in ordered if r.priority > before_it or r.due is not None]
            before = front or front_of(ordered, cluster, self.dispatcher, self.now)
            after = after_move(cluster, move, self.now)
            lost = gone | _gpus(move.assignment)
            then = front_of(ordered, after, self.dispatcher, self.now, lost)
            front = None if move.due else before
            if self._takes_from(before, then, move):
                continue
            cluster, front, gone, most = after, front and then, lost, most - 1
            taken |= nodes
            yield move
            if not most:
                return

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
            moves = (self._resized(one, without, size) for size in self._sizes(one.request))
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
            request = self._request(one, one.request.gpus)
            target = self._target(one, request, trial)
            if target is None:
                continue
            take(trial, request, target)
            own = set(one.job.each_gpu)
            if all(gpu in own or self.cluster.free[gpu] for gpu in _gpus(target)):
                move = self._move(one, request, target, 0.0)
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
        ratio = min(self._time_ratio(one.request, size) for size in self._sizes(one.request))
        return self.remaining[one.request.job_id] * (1 - there * ratio) - one.restart_s

    def _present(self, one: Movable) -> float:
        """Predicted slowdown on the GPUs that the job holds."""
        job_id = one.request.job_id
        if job_id not in self._slowdowns:
            nodes, slots = zip(*sorted(one.job.gpus), strict=True)
            found = predicted_slowdown(self.cluster, one.request.app_class, nodes, slots)
            self._slowdowns[job_id] = found[2]
        return self._slowdowns[job_id]

    def _request(self, one: Movable, gpus: int) -> Request:
        """The request of a job with one of its sizes, and with its power there."""
        request = one.request if gpus == one.request.gpus else one.request.resized(gpus)
        return request if self.budget is None else self.budget.needing(request)

    def _resized(self, one: Movable, without: Cluster, gpus: int) -> Move | None:
        """The move to the best GPUs of a size; ``without``: the cluster without the job."""
        request = self._request(one, gpus)
        if gpus != one.request.gpus and not without.leaves(request.power_w):
            return None
        target = self._target(one, request, without)
        return None if target is None else self._move(one, request, target, one.restart_s)

    def _target(self, one: Movable, request: Request, cluster: Cluster) -> Assignment | None:
        """The GPUs that the job's policy chooses now; None: none, or Slurm would choose them."""
        left_s = self.remaining[one.request.job_id] / self._present(one)
        left_s *= self._time_ratio(one.request, request.gpus)
        request = replace(request, estimate_s=left_s)
        target = self.dispatcher.could_place(request, cluster)
        return target if target is not None and (target.exact or request.whole_node) else None

    def _move(
        self, one: Movable, request: Request, target: Assignment, restart_s: float
    ) -> Move | None:
        """The move to a target; None: the job is there."""
        nodes, slots = zip(*sorted(one.job.gpus), strict=True)
        if _gpus(target) == set(one.job.each_gpu):
            return None
        present, remaining_s = self._present(one), self.remaining[one.request.job_id]
        gpus = request.gpus
        ratio = self._time_ratio(one.request, gpus)
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
        if gpus != one.request.gpus:
            moved |= {"gpus": gpus, "gpus_before": one.request.gpus, "time_ratio": round(ratio, 4)}
        why = {**target.why, "summary": summary, "moved": moved}
        target = replace(target, why=why, clock_mhz=self._clock_mhz(request))
        power_w = max(request.power_w, self._drawn_w(one))
        return Move(one, request, target, present, remaining_s, saves_s, power_w=power_w)

    def _sizes(self, request: Request) -> tuple[int, ...]:
        """GPU counts that a job may get: its own, and larger ones that its table knows."""
        larger = (n for n in request.sizes if n > request.gpus)
        return (request.gpus, *(n for n in larger if self._time_ratio(request, n) < 1.0))

    def _time_ratio(self, request: Request, gpus: int) -> float:
        """Time of the work with ``gpus`` GPUs / that with its own; 1: it is not known.

        At the clocks with which the power of both is counted.
        """
        table = request.table
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


def _gpus(assignment: Assignment) -> set[tuple[int, int]]:
    """Every GPU."""
    return set(each_gpu(assignment.gpus))
