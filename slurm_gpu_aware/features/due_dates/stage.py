"""Stage of a round: due dates decide the order of jobs, their least sizes, and when they grow."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware import records
from slurm_gpu_aware.features.due_dates.declared import IMPOSSIBLE, TOGETHER, DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE, DUE_DATE, on_a_model
from slurm_gpu_aware.features.due_dates.plan import due_plan, work_rates
from slurm_gpu_aware.features.due_dates.queue import counts, in_order, most_gpus, with_due_dates
from slurm_gpu_aware.features.due_dates.together import (
    on_best_models,
    on_shared_models,
    shared_out,
)
from slurm_gpu_aware.features.moves.declared import HAD_GPUS
from slurm_gpu_aware.features.power.power_budget import BUDGET, PowerBudget
from slurm_gpu_aware.features.power.stage import MOST_GPUS
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import RunningJobs
from slurm_gpu_aware.model.cluster import POWER_W, Cluster
from slurm_gpu_aware.model.facets import Facet, changed
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES
from slurm_gpu_aware.placement.feasible import allowed_nodes, enough_free
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Note
from slurm_gpu_aware.planning.stages import Stage

WORTH_WAITING = 0.9
"""A job waits for its size if fewer GPUs now leave less than this share of the probability."""


def with_due_sizes(
    queue: Sequence[Request],
    accounts: Mapping[str, DueAccount],
    cluster: Cluster,
    now: float,
    budget: PowerBudget | None,
) -> Sequence[Request]:
    """The queue; a job gets none of its sizes below the one with which its due date is met.

    Of the free GPUs and the power it leaves others with due dates, and all jobs before it that
    these suffice for, their least sizes, and starts with what is left: where there are too few GPUs
    for all, a job that waits for more makes those behind it late. Only the last of the queue waits
    for GPUs of its size, if it cannot grow later and its due date is likelier then than with what
    is left now. No job that was moved gets fewer GPUs than it had.

    ``queue``: in the order in which its jobs start.
    ``budget``: power of the round; None: there is no limit.
    """
    known = {
        request.job_id: account
        for request in queue
        if (account := accounts.get(request.job_id)) is not None and counts(request, account)
    }
    least = {request.job_id: request.get(HAD_GPUS) for request in queue}
    if not known and not any(least.values()):
        return queue
    free, unreserved = (_Room(queue, cluster, budget) for _ in range(2))
    for request in queue:
        if request.job_id in known:
            unreserved.take(request, _least(request))
    for request in queue:
        gpus = _least(request)
        if (account := known.get(request.job_id)) is not None:
            unreserved.give_back(request, gpus)
            last, gpus = request is queue[-1], max(gpus, account.gpus)
            left = _left(request, gpus, unreserved)
            if left < gpus and not (last and _waits(request, gpus, left, free, now)):
                gpus = left
            least[request.job_id] = gpus
        if account is not None or free.has(request, gpus):
            free.take(request, gpus)
            unreserved.take(request, gpus)
    return [request.from_size(n) if (n := least[request.job_id]) else request for request in queue]


def with_shares(
    queue: Sequence[Request],
    shares: Mapping[str, int],
    cluster: Cluster,
    budget: PowerBudget | None,
) -> Sequence[Request]:
    """The queue; a job with a share gets none of its sizes below it, and waits for that.

    Under a limit it is the largest size up to its share for which the jobs before it leave power.
    """
    room, found = _Room(queue, cluster, budget), list[Request]()
    for request in queue:
        least, gpus = request.get(HAD_GPUS), _least(request)
        if (most := shares.get(request.job_id)) is not None:
            sizes = (n for n in request.sizes if gpus <= n <= most)
            least = gpus = max((n for n in sizes if room.has_power(request, n)), default=gpus)
        room.take(request, gpus)
        found.append(request.from_size(least) if least else request)
    return found


class _Room:
    """Free GPUs on the nodes of each job of a queue, and power that a limit leaves."""

    def __init__(
        self, queue: Iterable[Request], cluster: Cluster, budget: PowerBudget | None
    ) -> None:
        first = {_kind(request): request for request in queue}
        self._row = {kind: row for row, kind in enumerate(first)}
        self.cluster = cluster
        self._usable = [_usable(one, cluster) for one in first.values()]
        free = cluster.free.sum(axis=1)
        nodes = np.array([usable.any(axis=1) & (free > 0) for usable in self._usable])
        self._free = nodes @ free
        self._shared = (nodes.astype(np.float32) @ nodes.T) > 0
        """Which kinds of jobs may get some of the same nodes."""
        self._taken = np.zeros(len(nodes), dtype=np.int64)
        self._budget, power_w = budget, None if budget is None else budget.cluster.power_w
        self._left_w = math.inf if power_w is None else float(power_w[0])

    def usable(self, request: Request) -> BoolArray:
        """(N, W) GPUs that a job may get, now or later."""
        return self._usable[self._row[_kind(request)]]

    def has(self, request: Request, gpus: int) -> bool:
        """Whether so many GPUs, and the power for them, are left for a job."""
        left = self._free[self._row[_kind(request)]] - self.taken(request)
        return bool(gpus <= left) and self.has_power(request, gpus)

    def has_power(self, request: Request, gpus: int) -> bool:
        """Whether the limit leaves the power for so many GPUs of a job."""
        return self._power_w(request, gpus) <= self._left_w + POWER_W

    def taken(self, request: Request) -> int:
        """GPUs that were taken from a job."""
        return int(self._taken[self._row[_kind(request)]])

    def take(self, request: Request, gpus: int) -> None:
        """Take GPUs from all jobs that may get some of the same nodes, and their power."""
        self._change(request, gpus, self._power_w(request, gpus))

    def give_back(self, request: Request, gpus: int) -> None:
        """Undo `take`."""
        self._change(request, -gpus, -self._power_w(request, gpus))

    def _change(self, request: Request, gpus: int, power_w: float) -> None:
        self._taken[self._shared[self._row[_kind(request)]]] += gpus
        self._left_w -= power_w

    def _power_w(self, request: Request, gpus: int) -> float:
        return 0.0 if self._budget is None else self._budget.needing(request.resized(gpus)).power_w


def _kind(request: Request) -> object:
    """Jobs of a kind may get the same nodes."""
    nodes = request.nodes
    return nodes.gpu_model, None if nodes.eligible is None else nodes.eligible.tobytes()


def _left(request: Request, gpus: int, room: _Room) -> int:
    """The size that a job starts with if it wants ``gpus`` and there is this ``room``.

    The wanted one, else the fastest that its nodes have free, the least of equal ones; or its
    least size, which waits for its turn like the size of any job.
    """
    least = _least(request)
    sizes = [size for size in request.sizes if least <= size and room.has(request, size)]
    if gpus == least or not sizes:
        return least
    here = replace(room.cluster, free=room.cluster.free & room.usable(request))
    sizes = [size for size in sizes if enough_free(request.resized(size), here)]
    if gpus in sizes:
        return gpus
    rates = work_rates(request)
    return max(sizes, key=lambda size: rates.get(size, 0.0), default=least)


def _usable(request: Request, cluster: Cluster) -> BoolArray:
    allowed = allowed_nodes(request, cluster)
    return cluster.exists if allowed is None else cluster.exists & allowed[:, None]


def _waits(request: Request, gpus: int, left: int, room: _Room, now: float) -> bool:
    """Whether a job waits for ``gpus`` rather than start with those ``left``: it cannot grow."""
    due = request.get(DUE_DATE)
    if due is None or due.restart_s is not None:
        return False
    if not room.has_power(request, gpus):
        return False
    later_s = _come_at(request.resized(gpus), room, now)
    return _in_time(request, left, now) < WORTH_WAITING * _in_time(request, gpus, later_s)


def _in_time(request: Request, gpus: int, start_s: float) -> float:
    """Probability that the due date is met with a number of GPUs from a time on."""
    plan = due_plan(request.resized(gpus), start_s, running=True)
    return 0.0 if plan is None else plan.in_time


def _come_at(request: Request, room: _Room, now: float) -> float:
    """When running jobs are expected to have freed enough GPUs for a job; inf: never."""
    usable = room.usable(request)
    here = replace(room.cluster, free=room.cluster.free & usable)
    count = int(np.count_nonzero(here.free)) - room.taken(request)
    for job in RunningJobs.of(here.running).by_end:
        for gpu in job.each_gpu:
            count += bool(usable[gpu])
            here.free[gpu] = usable[gpu]
        if count >= request.gpus and enough_free(request, here):
            return max(job.until_s, now)
    return math.inf


def _least(request: Request) -> int:
    """The least GPUs that a job may start with."""
    if request.get(TABLE) is None or not request.sizes:
        return request.gpus
    return next((n for n in request.sizes if n >= request.get(HAD_GPUS)), request.sizes[0])


@dataclass(frozen=True)
class _Dated:
    """The queue that the stage found."""

    queue: Sequence[Request] = ()
    accounts: Mapping[str, DueAccount] = field(default_factory=dict)


_DATED = Facet("queue with due dates", _Dated())


class DueDates(Stage):
    """Jobs with due dates come in order of their pressure, and no smaller than it takes."""

    name = "due dates"
    reads = (DUE_DATE, HAD_GPUS, TABLE, TABLES)

    def before(self, one: Round) -> Round:
        """The queue in its order, and without sizes that are too small."""
        settings, cluster, now = one.settings, one.cluster, one.now
        found, accounts, several = on_best_models(one.queue, cluster, now)
        queue: Sequence[Request] = in_order(found, settings, accounts, now)
        together, shares = settings.due_order == TOGETHER, dict[str, tuple[str, int]]()
        if accounts and (together or any(request.get(TABLES) for request in queue)):
            asked = {request.job_id: request for request in one.queue}
            shares = shared_out(queue, asked, accounts, several, cluster, now, waits=together)
            queue, shared = on_shared_models(queue, several, shares)
            accounts |= shared
        dated = _Dated(queue, accounts)
        if together and shares:
            sizes = {job_id: gpus for job_id, (_, gpus) in shares.items()}
            queue = with_shares(queue, sizes, cluster, one.get(BUDGET))
        elif any(request.sizes for request in queue):
            queue = with_due_sizes(queue, accounts, cluster, now, one.get(BUDGET))
        return changed(one, queue=queue, ordered=True).put(_DATED, dated)

    def after(self, one: Round) -> Round:
        """The plan with the accounts of the due dates."""
        dated, there = one.get(_DATED), {request.job_id for request in one.queue}
        accounts = {job_id: a for job_id, a in dated.accounts.items() if job_id in there}
        if not accounts:
            return one
        plan, known, wake_s = with_due_dates(one.plan, dated.queue, accounts, one.now)
        lost = [(job, a) for job, a in known.items() if a.impossible]
        notes = (
            *plan.notes,
            *(Note(job, IMPOSSIBLE, records.plain(account)) for job, account in lost),
        )
        several = {r.job_id: r for r in dated.queue if r.get(TABLES) and r.nodes.gpu_model}
        starts = (
            on_a_model(a, several[a.job_id]) if a.job_id in several else a for a in plan.assignments
        )
        wake_s = min(wake_s, plan.wake_s)
        plan = replace(plan, assignments=tuple(starts), wake_s=wake_s, notes=notes)
        return replace(one, plan=plan.put(DUE, known))


class Bounds(Stage):
    """A job grows on spare GPUs only as far as its due date needs: more would cost energy."""

    name = "bounds of growth"
    reads = (DUE_DATE, HAD_GPUS, TABLE)

    def after(self, one: Round) -> Round:
        """The round with the most GPUs of the jobs that start, judged by the GPUs that they get."""
        placement = one.placement
        if placement is None or not placement.spare.free.any():
            return one  # no job grows
        return one.put(MOST_GPUS, most_gpus(one.get(_DATED).queue, placement.started, one.now))
