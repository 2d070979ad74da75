"""Moves in a round: jobs that are back from one, and running jobs that begin to move.

A job that writes checkpoints may be stopped and go on elsewhere. On free GPUs with a lower
predicted slowdown its remaining time shrinks, less the cost of a restart. Moves are planned before
the starts of a round: where jobs always wait, no GPU would be left after the starts. In return the
waiting jobs get what a move leaves, and a move is allowed only if

- all jobs at the front of the queue that fit now still fit,
- the first that does not fit can start no later than before (EASY's promise),
- it saves more GPU time than the jobs at the front lose by it, and
- no job of another user with a higher priority gets worse GPUs by it, or starts by backfill no
  more: what a move saves rests on what users say of their jobs.

A moldable job with a size table may grow by a move, while every waiting job fits, and shrink by one
so that waiting jobs start (`front`). None changes its number twice in `MoveSettings.again_s`.
Rates bound how many moves may begin now, in the whole site and of each user.

Under a power limit a job moves only if the power that it needs there at least (`power_budget`) is
left while all other jobs keep what they need at least.

A job with a due date grows when its plan says so (`due_dates`), whatever that saves, and whatever
the jobs behind it in Slurm's order lose; the jobs before it lose nothing, nor do those with due
dates.

With ``sticky`` False the movable jobs are placed anew in every round, as PAL's non-sticky mode
does, and each job that finds faster GPUs moves, whatever its restart and the waiting jobs lose.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.queue import (
    accounted,
    counts,
    due_accounts,
    due_growth,
    in_order,
    next_growth,
)
from slurm_gpu_aware.features.due_dates.stage import with_due_sizes
from slurm_gpu_aware.features.moves.declared import HAD_GPUS, RATE_S, MoveSettings
from slurm_gpu_aware.features.moves.front import Front, best_shrink, front_of
from slurm_gpu_aware.features.moves.movable import (
    MOVES,
    MOVING,
    RETURNING,
    Movable,
    Move,
    Moving,
    Restarts,
    gpus_of,
    may_move,
)
from slurm_gpu_aware.features.moves.moved import after_move, begun, place_moved
from slurm_gpu_aware.features.power.power_budget import budget_of, with_least_sizes
from slurm_gpu_aware.model.cluster import Cluster, Gpu
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.later import expected_ends
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.postponing import with_slurms_choice
from slurm_gpu_aware.planning.prefix import by_class
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.planning.timeline import take

_TRIED = 16  # jobs of a round for which GPUs are searched, those that may gain most
_SIZES = 4  # numbers of GPUs that a late job tries in a round, each with a front of the queue
_ROTATES_S = 30.0  # late jobs beyond the first are tried in turn, others after this time


class MoveRates:
    """Moves that may begin in a round.

    If running jobs of several users may move, a user begins a move only while the hour has more
    moves left than the user has begun in it. So no user, and no number of users that is smaller
    than `MoveSettings.per_hour`, uses up the hour: one gets half of it (rounded up), of n that want
    all of it each gets about one part in n + 1.
    """

    def __init__(self, moving: Moving, now: float) -> None:
        moves = moving.settings
        self._begun = Counter(user for at, user in moving.recent if now - at < RATE_S)
        self._of_hour = moves.per_hour - self._begun.total()
        self._of_round = min(moves.per_round, self._of_hour)
        self._shared = len({one.request.user for one in moving.movable}) > 1

    @property
    def full(self) -> bool:
        """Whether no move may begin any more."""
        return self._of_round <= 0

    def allow(self, one: Movable) -> bool:
        """Whether a move of this job may begin."""
        return not self.full and (not self._shared or self._begun[one.request.user] < self._of_hour)

    def begin(self, one: Movable) -> None:
        """Count a move of this job."""
        self._begun[one.request.user] += 1
        self._of_hour -= 1
        self._of_round -= 1


def plan_moves(here: Round, moving: Moving) -> tuple[Move, ...]:
    """Plan the moves of a round before its starts, largest gain first.

    At most one move at a time takes GPUs from a node or gives it some. ``moving``: its jobs are
    those of `due_dates.accounted`; their ``job`` is one of ``cluster.running``.
    """
    queue, cluster, settings, now = here.queue, here.cluster, here.settings, here.now
    known, moves = moving.movable, moving.settings
    rates = MoveRates(moving, now)
    shrinks = moves.sticky and moves.shrink and not moving.busy and bool(queue)
    if rates.full or not (shrinks or cluster.free.any()):
        return ()
    ends = expected_ends([one.job for one in known], now).tolist()
    remaining = {one.request.job_id: end - now for one, end in zip(known, ends, strict=True)}
    allowed = [one for one in known if rates.allow(one)]
    late = _in_turn(due_growth(allowed, settings, now), now)
    able = [one for one in allowed if may_move(one, remaining[one.request.job_id], moves, now)]
    if not able and not late:
        return ()
    accounts = due_accounts(queue, now)
    queue = in_order(queue, settings, accounts, now)
    budget = budget_of(here)
    if any(request.sizes for request in queue):  # as the round places them
        queue = with_least_sizes(with_due_sizes(queue, accounts, cluster, now, budget))
    if budget is not None:
        cluster, queue = budget.cluster, [budget.needing(request) for request in queue]
        able, late = _drawing(able, cluster), _drawing(late, cluster)
    if any(request.left is not None for request in queue):
        cluster = with_slurms_choice(cluster)
    dispatcher = Dispatcher(settings, here.options, now, cluster.running)
    restarts = Restarts(cluster, remaining, dispatcher, budget)
    planner = _Moves(queue, restarts, moves)
    found = planner.improving(able) if moves.sticky else planner.anew(able, settings.classes)
    if shrinks and (smaller := best_shrink(able, planner.ordered, restarts, moves.margin_s)):
        found.append(smaller)
    found.sort(key=lambda move: -move.gain_s)
    return tuple(planner.allowed(chain(planner.due(late), found), rates, set(moving.busy)))


def _drawing(movable: Iterable[Movable], cluster: Cluster) -> list[Movable]:
    """Jobs with the power that they draw in a budget's cluster."""
    drawn_w = {job.job_id: job.power_w for job in cluster.running}
    return [replace(one, job=replace(one.job, power_w=drawn_w[one.job.job_id])) for one in movable]


def _in_turn(late: Sequence[Movable], now: float) -> Sequence[Movable]:
    """The late jobs that are tried in a round: the first of them, and some of the others in turn.

    So jobs that can never grow, however many and however late, keep no other from being tried.
    """
    if len(late) <= _TRIED:
        return late
    half = _TRIED // 2
    first, others = late[:half], late[half:]
    start = int(now / _ROTATES_S) * half % len(others)
    return [*first, *[*others[start:], *others[:start]][:half]]


class _Moves:
    """The moves of one round on its snapshot."""

    def __init__(self, ordered: Sequence[Request], restarts: Restarts, moves: MoveSettings) -> None:
        self.ordered, self.restarts, self.moves = ordered, restarts, moves
        self.cluster, self.dispatcher = restarts.cluster, restarts.dispatcher
        self.now = restarts.now

    def due(self, late: Iterable[Movable]) -> Iterator[Move]:
        """The growth of late jobs: for each the largest sizes up to that of its plan that fit."""
        for one in late:
            account = one.account
            if account is None or not math.isfinite(self.restarts.remaining[one.request.job_id]):
                continue
            without, most = self.restarts.without([one]), account.growth[0][1]
            sizes = (n for n in reversed(one.request.sizes) if one.request.gpus < n <= most)
            fit = filter(None, (self.restarts.resized(one, without, size) for size in sizes))
            for move in islice(fit, _SIZES):
                yield replace(move, assignment=move.assignment.explained(account), due=True)

    def allowed(self, found: Iterable[Move], rates: MoveRates, taken: set[int]) -> Iterator[Move]:
        """The first moves that take nothing from the waiting jobs, of each job one.

        ``taken``: nodes to avoid.
        """
        cluster, front, gone = self.cluster, None, set[Gpu]()
        front_for = ""
        for move in found:
            nodes = {*move.assignment.nodes, *(node for node, _ in move.of.job.gpus)}
            if not taken.isdisjoint(nodes) or not rates.allow(move.of):
                continue
            ordered = self.ordered
            if move.due:
                before_it = move.request.priority
                ordered = [
                    r for r in ordered if r.priority > before_it or r.get(DUE_DATE) is not None
                ]
            key = move.job_id if move.due else ""
            if front is None or front_for != key:
                front, front_for = self._front(ordered, cluster), key
            after = after_move(cluster, move, self.now)
            if move.request.gpus != move.of.request.gpus and not after.leaves(0.0):
                continue  # an earlier move takes the power
            lost = gone | gpus_of(move.assignment)
            then = self._front(ordered, after, lost)
            if self._takes_from(front, then, move):
                continue
            cluster, front, gone = after, then, lost
            taken |= nodes
            rates.begin(move.of)
            yield move
            if rates.full or move.starts:  # what a job gives back is not free yet
                return

    def _front(
        self, ordered: Sequence[Request], cluster: Cluster, gone: Collection[Gpu] = ()
    ) -> Front:
        return front_of(ordered, cluster, self.dispatcher, self.now, gone, behind=True)

    def _takes_from(self, before: Front, then: Front, move: Move) -> bool:
        """Say whether a move takes a start, a reservation or GPU time from the waiting jobs."""
        if before.preempts or not then.keeps(before):
            return True
        passes = any(move.request.is_behind(request) for request in then.later(before))
        if passes and (move.due or self.moves.sticky):
            return True
        if move.due:
            return False
        if move.grows and before.head is not None:
            return True
        if not {*move.starts} <= then.starts.keys() - before.starts.keys():
            return True
        saves_gpu_s = max(move.saves_s, 0.0) * move.of.request.gpus
        return self.moves.sticky and then.loses_gpu_s(before) > saves_gpu_s

    def improving(self, able: Sequence[Movable]) -> list[Move]:
        """Moves that save more than their cost and the margin."""
        best = [(self.restarts.saves_at_most(one), one) for one in able]
        hopeful = [entry for entry in best if entry[0] > self.moves.margin_s]
        hopeful.sort(key=lambda entry: -entry[0])
        found = []
        for _, one in hopeful[:_TRIED]:
            without = self.restarts.without([one])
            moves = (
                self.restarts.resized(one, without, size)
                for size in self.restarts.sizes(one.request)
                if size == one.request.gpus or not self._by_plan(one)
            )
            best_one = max(filter(None, moves), key=lambda move: move.saves_s, default=None)
            if best_one is not None and best_one.saves_s > self.moves.margin_s:
                found.append(best_one)
        return found

    @staticmethod
    def _by_plan(one: Movable) -> bool:
        """Whether a job grows by the plan of its due date alone: more GPUs would cost energy."""
        return one.account is not None and counts(one.request, one.account)

    def anew(self, able: Sequence[Movable], classes: Sequence[str]) -> list[Move]:
        """Moves of the non-sticky mode: all jobs are placed anew, most sensitive class first.

        A job moves now if its new GPUs are faster, and free but for its own.
        """
        jobs = {one.request.job_id: one for one in able}
        trial = self.restarts.without(able)
        found = []
        for request in by_class((one.request for one in able), classes):
            one = jobs[request.job_id]
            request = self.restarts.request(one, one.request.gpus)
            target = self.restarts.target(one, request, trial)
            if target is None:
                continue
            take(trial, request, target)
            own = set(one.job.each_gpu)
            if all(gpu in own or self.cluster.free[gpu] for gpu in gpus_of(target)):
                move = self.restarts.move(one, request, target, 0.0)
                if move is not None and move.saves_s > 0:
                    found.append(move)
        return found


class Returns(Stage):
    """Jobs on a move get the GPUs that were kept for them, before all others."""

    name = "moves under way"
    inputs = (RETURNING,)

    def before(self, one: Round) -> Round:
        """The queue without them, and the cluster with them."""
        return place_moved(one) if one.get(RETURNING) else one


class Moves(Stage):
    """Running jobs that move to better GPUs, and what they leave to the starts."""

    name = "moves"
    reads = (DUE_DATE, HAD_GPUS, TABLE, TABLES)
    inputs = (MOVING,)
    optional = True

    def before(self, one: Round) -> Round:
        """The cluster as the moves leave it, and a plan with them."""
        if (moving := one.get(MOVING)) is None:
            return one
        movable = accounted(moving.movable, one.cluster, one.now)
        moves = plan_moves(one, replace(moving, movable=movable))
        moved = tuple(move.assignment for move in moves)
        wake_s = min(next_growth(movable, one.now), one.plan.wake_s)
        plan = replace(one.plan, moved=moved, wake_s=wake_s).put(MOVES, moves)
        return begun(replace(one, plan=plan), moves)
