"""Due dates in a round: least sizes of waiting jobs, growth of running ones, and their account."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import groupby

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.running_jobs import RunningJobs
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.placement.feasible import allowed_nodes, enough_free
from slurm_gpu_aware.planning.due_account import DueAccount
from slurm_gpu_aware.planning.movable import Movable
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.sizing.due_plan import due_plan, work_rates

WORTH_WAITING = 0.9
"""A job waits for its size if fewer GPUs now leave less than this share of the probability."""


def due_account(
    request: Request, now: float, *, slowdown: float = 1.0, running: bool = False
) -> DueAccount | None:
    """The account of a job; None: it has no due date. Parameters: as of `due_plan`."""
    if request.due is None:
        return None
    plan = due_plan(request, now, slowdown=slowdown, running=running)
    if plan is None:
        return DueAccount(request.due.due_s, None)
    gpus, growth = plan.gpus, [(now + time, gpus) for time, gpus in plan.growth]
    if running and gpus > request.gpus:
        growth.insert(0, (now, gpus))
        gpus = request.gpus
    return DueAccount(
        request.due.due_s,
        plan.in_time,
        plan.runs,
        gpus,
        tuple(growth),
        now + plan.longest_s,
        request.due.weight,
        now + plan.least_s - request.due.due_s if plan.in_time else -math.inf,
        by_epochs=plan.by_epochs,
    )


def due_accounts(queue: Iterable[Request], now: float) -> dict[str, DueAccount]:
    """The accounts of the jobs of a queue that have due dates; with all sizes of the jobs."""
    found = ((request.job_id, due_account(request, now)) for request in queue)
    return {job_id: account for job_id, account in found if account is not None}


def in_order(
    queue: Sequence[Request],
    settings: PlanSettings,
    accounts: Mapping[str, DueAccount],
    now: float,
) -> list[Request]:
    """The queue in Slurm's order; by the settings, neighbours with due dates exchange places.

    Those of a partition tier with no other job between them come in the order of their weights and
    pressures. No job passes another kind of job, one whose due date plays no part, or one that has
    waited for as long as it is expected to run.
    """
    ordered = in_slurm_order(queue)
    if not settings.due_by_pressure:
        return ordered
    turns = {
        request.job_id: account.turn
        for request in ordered
        if (account := accounts.get(request.job_id)) is not None and _counts(request, account)
    }

    def neighbours(request: Request) -> object:
        return request.tier if request.job_id in turns else request.job_id

    groups = groupby(ordered, neighbours)
    return [request for _, group in groups for request in _by_turn(group, turns, now)]


def _by_turn(
    group: Iterable[Request], turns: Mapping[str, tuple[float, float]], now: float
) -> Iterator[Request]:
    """Jobs by their turns; none passes one before it that has waited for long."""
    before: list[tuple[tuple[float, float], int, Request]] = []
    for place, request in enumerate(group):
        heappush(before, (turns.get(request.job_id, (0.0, 0.0)), place, request))
        waits_long = now - request.submit_s >= request.expected_s
        while waits_long:
            *_, first = heappop(before)
            yield first
            waits_long = first is not request
    while before:
        yield heappop(before)[-1]


def with_due_sizes(
    queue: Sequence[Request], accounts: Mapping[str, DueAccount], cluster: Cluster, now: float
) -> Sequence[Request]:
    """The queue; a job gets none of its sizes below the one with which its due date is met.

    Of the free GPUs it leaves others with due dates, and all jobs before it that these suffice for,
    their least sizes, and starts with what is left: where there are too few GPUs for all, a job
    that waits for more makes those behind it late. Only the last of the queue waits for its size,
    if it cannot grow later and its due date is likelier then than with what is left now. No job
    that was moved gets fewer GPUs than it had. ``queue``: in the order in which its jobs start.
    """
    counts = {
        request.job_id: account
        for request in queue
        if (account := accounts.get(request.job_id)) is not None and _counts(request, account)
    }
    least = {request.job_id: request.had_gpus for request in queue}
    free, unreserved = _Room(queue, cluster), _Room(queue, cluster)
    for request in queue:
        if request.job_id in counts:
            unreserved.take(request, _least(request))
    for request in queue if counts else ():
        gpus = _least(request)
        if (account := counts.get(request.job_id)) is not None:
            unreserved.take(request, -gpus)
            left = _left(request, max(gpus, account.gpus), unreserved.of(request), cluster)
            last, gpus = request is queue[-1], max(gpus, account.gpus)
            if left < gpus and not (last and _waits(request, gpus, left, free, cluster, now)):
                gpus = left
            least[request.job_id] = gpus
        if account is not None or gpus <= free.of(request):
            free.take(request, gpus)
            unreserved.take(request, gpus)
    return [request.from_size(n) if (n := least[request.job_id]) else request for request in queue]


class _Room:
    """Free GPUs on the nodes of each job of a queue."""

    def __init__(self, queue: Iterable[Request], cluster: Cluster) -> None:
        free, self._nodes = cluster.free.sum(axis=1), dict[object, BoolArray]()
        for request in queue:
            if _kind(request) not in self._nodes:
                allowed = allowed_nodes(request, cluster)
                self._nodes[_kind(request)] = free > 0 if allowed is None else allowed & (free > 0)
        self._free = {kind: int(free[nodes].sum()) for kind, nodes in self._nodes.items()}
        self._taken = dict.fromkeys(self._nodes, 0)
        self._others: dict[object, list[object]] = {}

    def of(self, request: Request) -> int:
        """GPUs that are left for a job."""
        return self._free[_kind(request)] - self.taken(request)

    def taken(self, request: Request) -> int:
        """GPUs that were taken from a job."""
        return self._taken[_kind(request)]

    def take(self, request: Request, gpus: int) -> None:
        """Take GPUs from all jobs that may get some of the same nodes."""
        kind = _kind(request)
        if kind not in self._others:
            own = self._nodes[kind]
            self._others[kind] = [k for k, nodes in self._nodes.items() if (own & nodes).any()]
        for other in self._others[kind]:
            self._taken[other] += gpus


def _kind(request: Request) -> object:
    """Jobs of a kind may get the same nodes."""
    return request.gpu_model, id(request.eligible)


def _left(request: Request, gpus: int, room: int, cluster: Cluster) -> int:
    """The size that a job starts with if it wants ``gpus`` and there is ``room`` for so many.

    The wanted one, else the fastest that its nodes have free, the least of equal ones; or its
    least size, which waits for its turn like the size of any job.
    """
    least, free = _least(request), cluster.free & _usable(request, cluster)
    sizes = [n for n in request.sizes if least <= n <= room and _fit(request, n, cluster, free)]
    if gpus in (least, *sizes):
        return gpus
    rates = work_rates(request)
    return max(sizes, key=lambda size: rates.get(size, 0.0), default=least)


def _usable(request: Request, cluster: Cluster) -> BoolArray:
    """(N, W) GPUs that a job may get, now or later."""
    allowed = allowed_nodes(request, cluster)
    return cluster.exists if allowed is None else cluster.exists & allowed[:, None]


def _fit(request: Request, gpus: int, cluster: Cluster, free: BoolArray) -> bool:
    """Whether a split of so many GPUs over nodes finds them among ``free``, (N, W)."""
    return enough_free(request.resized(gpus), replace(cluster, free=free))


def _waits(
    request: Request, gpus: int, left: int, room: _Room, cluster: Cluster, now: float
) -> bool:
    """Whether a job waits for ``gpus`` rather than start with those ``left``: it cannot grow."""
    if request.due is None or request.due.restart_s is not None:
        return False
    later_s = _come_at(request, gpus, room.taken(request), cluster, now)
    return _in_time(request, left, now) < WORTH_WAITING * _in_time(request, gpus, later_s)


def _in_time(request: Request, gpus: int, start_s: float) -> float:
    """Probability that the due date is met with a number of GPUs from a time on."""
    account = due_account(request.resized(gpus), start_s, running=True)
    return 0.0 if account is None else account.in_time or 0.0


def _come_at(request: Request, gpus: int, taken: int, cluster: Cluster, now: float) -> float:
    """When running jobs are expected to have freed so many GPUs for a job; inf: never.

    ``taken``: GPUs that jobs before it get in this round.
    """
    usable = _usable(request, cluster)
    free = cluster.free & usable
    count = int(np.count_nonzero(free)) - taken
    for job in RunningJobs.of(cluster.running).by_end:
        for gpu in job.each_gpu:
            count += bool(usable[gpu])
            free[gpu] = usable[gpu]
        if count >= gpus and _fit(request, gpus, cluster, free):
            return max(job.until_s, now)
    return math.inf


def _least(request: Request) -> int:
    """The least GPUs that a job may start with."""
    if request.table is None or not request.sizes:
        return request.gpus
    return max(request.sizes[0], request.had_gpus)


def _counts(request: Request, account: DueAccount) -> bool:
    """Whether the due date plays a part: it can be met, and the job has several sizes."""
    return bool(account.in_time and request.sizes and request.table is not None)


def with_due_dates(
    plan: Plan, queue: Iterable[Request], accounts: Mapping[str, DueAccount], now: float
) -> Plan:
    """The plan with the accounts of jobs with due dates, and the time of the first growth.

    ``queue``: with all sizes of the jobs; ``accounts``: of its jobs, as if all waited.
    """
    if not accounts:
        return plan
    started = {one.job_id: one for one in plan.assignments if one.job_id in accounts}
    requests = (request for request in queue if request.job_id in started)
    now_known = ((r.job_id, _of_started(r, started[r.job_id], now)) for r in requests)
    accounts = {**accounts, **{i: one for i, one in now_known if one is not None}}
    explained = (
        replace(a, why={**a.why, "due": accounts[a.job_id].values()}) if a.job_id in started else a
        for a in plan.assignments
    )
    times = (at for job_id in started for at, _ in accounts[job_id].growth if at > now)
    wake_s = min(times, default=math.inf)
    return replace(plan, assignments=tuple(explained), due=accounts, wake_s=wake_s)


def _of_started(request: Request, one: Assignment, now: float) -> DueAccount | None:
    gpus = sum(map(len, one.slots))
    if gpus != request.gpus and gpus in request.sizes:
        request = request.resized(gpus)
    return due_account(request, now, slowdown=one.slowdown, running=True)


def accounted(running: Iterable[Movable], cluster: Cluster, now: float) -> list[Movable]:
    """Running jobs with the accounts of their due dates on their GPUs."""
    return [replace(one, account=_of_running(one, cluster, now)) for one in running]


def due_growth(running: Iterable[Movable], now: float) -> list[Movable]:
    """Of jobs of `accounted` those that should have more GPUs now, in their turn."""
    late = [
        (one.account.turn, one)
        for one in running
        if one.account is not None and one.account.growth and one.account.growth[0][0] <= now
    ]
    return [one for _, one in sorted(late, key=lambda entry: entry[0])]


def next_growth(running: Iterable[Movable], now: float) -> float:
    """When the first of some jobs of `accounted` should grow, later than now; inf: none."""
    steps = (at for one in running if one.account is not None for at, _ in one.account.growth)
    return min((at for at in steps if at > now), default=math.inf)


def _of_running(one: Movable, cluster: Cluster, now: float) -> DueAccount | None:
    request, job = one.request, one.job
    if request.due is None or not job.gpus:
        return None
    nodes, slots = zip(*sorted(job.gpus), strict=True)
    slowdown = predicted_slowdown(cluster, request.app_class, nodes, slots)[2]
    due = replace(request.due, done=work_done(request, job, slowdown, now))
    return due_account(replace(request, due=due), now, slowdown=slowdown, running=True)


def work_done(request: Request, job: RunningJob, slowdown: float, now: float) -> float:
    """Work that a running job has done, in the unit of `work_rates`."""
    done = 0.0 if request.due is None else request.due.done
    return done + max(now - job.start_s, 0.0) / slowdown * work_rates(request).get(request.gpus, 0)


def run_times(
    request: Request, job: RunningJob, slowdown: float, now: float, earlier: Mapping[int, float]
) -> dict[int, float]:
    """GPU count -> time that all work of a running job until now takes on so many median GPUs.

    Of the counts that its size table knows, else only of its own. ``earlier``: the same of its work
    before its last start; empty: there is none.
    """
    since_s, rates = max(now - job.start_s, 0.0) / slowdown, work_rates(request)
    own = rates.get(request.gpus)
    times = {request.gpus: since_s}
    if own is not None:
        times = {gpus: since_s * own / rate for gpus, rate in rates.items()}
    return {n: s + earlier.get(n, 0.0) for n, s in times.items() if n in earlier or not earlier}
