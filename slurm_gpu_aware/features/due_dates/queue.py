"""Due dates in a round: order of waiting jobs, growth of running ones, and their account."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from slurm_gpu_aware.features.due_dates.declared import TOGETHER, DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, as_running_on
from slurm_gpu_aware.features.due_dates.plan import due_plan, work_rates
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.queue_order.stage import AT_BOUND
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.planning.placed import Started
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import exchanged, in_slurm_order


def due_account(
    request: Request, now: float, *, slowdown: float = 1.0, running: bool = False
) -> DueAccount | None:
    """The account of a job; None: it has no due date. Parameters: as of `due_plan`."""
    due = request.get(DUE_DATE)
    if due is None:
        return None
    plan = due_plan(request, now, slowdown=slowdown, running=running)
    passed = due.due_s <= now
    if plan is None:
        return DueAccount(due.due_s, 0.0 if passed else None, passed=passed)
    gpus, growth = plan.gpus, [(now + time, gpus) for time, gpus in plan.growth]
    if running and gpus > request.gpus:
        growth.insert(0, (now, gpus))
        gpus = request.gpus
    return DueAccount(
        due.due_s,
        plan.in_time,
        plan.runs,
        gpus,
        tuple(growth),
        now + plan.longest_s if math.isfinite(plan.longest_s) else None,
        due.weight,
        now + plan.least_s - due.due_s if plan.in_time else -math.inf,
        by_epochs=plan.by_epochs,
        passed=passed,
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

    Those of one user, and those of one Slurm priority, with no other job between them come in the
    order of their pressures: users invent due dates, so these take no job past one of another user
    and a higher priority. With ``together`` all of a partition tier do. No job passes another kind
    of job, one whose due date plays no part, or one that has waited for as long as it is expected
    to run, or to the bound of the site's order.
    """
    ordered = in_slurm_order(queue)
    if settings.due_order == "slurm":
        return ordered
    turns = {
        request.job_id: account.turn
        for request in ordered
        if (account := accounts.get(request.job_id)) is not None and counts(request, account)
    }
    stay = {r.job_id for r in ordered if r.get(AT_BOUND) or now - r.waits_since_s >= r.expected_s}
    return _exchanged(ordered, turns, stay, settings)


def _exchanged(
    ordered: Sequence[Request],
    turns: Mapping[str, float],
    stay: Collection[str],
    settings: PlanSettings,
) -> list[Request]:
    """Jobs in Slurm's order; those with turns exchange places, as `in_order` says.

    No job passes one of ``stay``.
    """
    own = [r for r in ordered if r.job_id in turns]
    if settings.due_order == TOGETHER:
        return _within(ordered, {r.job_id: (r.tier,) for r in own}, turns, stay)
    found = _within(ordered, {r.job_id: (r.tier, r.user or r.job_id) for r in own}, turns, stay)
    return _within(found, {r.job_id: (r.priority,) for r in own}, turns, stay)


def _within(
    ordered: Sequence[Request],
    kinds: Mapping[str, object],
    turns: Mapping[str, float],
    stay: Collection[str],
) -> list[Request]:
    """The jobs; neighbours of one kind stand by their turns, and none passes one of ``stay``."""
    found: list[Request] = []
    for _, group in groupby(ordered, lambda request: kinds.get(request.job_id, request.job_id)):
        jobs = list(group)
        keys = [(turns.get(request.job_id, 0.0),) for request in jobs]
        found += exchanged(jobs, keys, [request.job_id in stay for request in jobs])
    return found


def counts(request: Request, account: DueAccount) -> bool:
    """Whether the due date plays a part: it can be met, and the job has several sizes."""
    return bool(account.in_time and request.sizes and request.get(TABLE) is not None)


def most_gpus(queue: Iterable[Request], started: Iterable[Started], now: float) -> dict[str, int]:
    """Job that starts and whose due date plays a part -> GPUs that it needs where it lies.

    ``queue``: with all sizes of the jobs.
    """
    placed, most = {one.request.job_id: one for one in started}, {}
    for request in queue:
        if (one := placed.get(request.job_id)) is None:
            continue
        account = due_account(request, now, slowdown=one.assignment.slowdown)
        if account is not None and counts(request, account):
            most[request.job_id] = max(account.gpus, one.request.gpus)
    return most


def with_due_dates(
    plan: Plan, queue: Iterable[Request], accounts: Mapping[str, DueAccount], now: float
) -> tuple[Plan, Mapping[str, DueAccount], float]:
    """(Plan with the due dates in its accounts, account of each job, time of the first growth).

    ``queue``: with all sizes of the jobs; ``accounts``: of its jobs, as if all waited.
    """
    started = {one.job_id: one for one in plan.assignments if one.job_id in accounts}
    requests = (request for request in queue if request.job_id in started)
    now_known = ((r.job_id, _of_started(r, started[r.job_id], now)) for r in requests)
    accounts = {**accounts, **{i: one for i, one in now_known if one is not None}}
    explained = (
        a.explained(accounts[a.job_id]) if a.job_id in started else a for a in plan.assignments
    )
    times = (at for job_id in started for at, _ in accounts[job_id].growth if at > now)
    return replace(plan, assignments=tuple(explained)), accounts, min(times, default=math.inf)


def _of_started(request: Request, one: Assignment, now: float) -> DueAccount | None:
    gpus = sum(map(len, one.slots))
    if gpus != request.gpus and gpus in request.sizes:
        request = request.resized(gpus)
    return due_account(request, now, slowdown=one.slowdown, running=True)


def accounted(running: Iterable[Movable], cluster: Cluster, now: float) -> list[Movable]:
    """Running jobs with the accounts of their due dates on their GPUs, whose model they keep."""
    there = (replace(one, request=as_running_on(one.request, one.job, cluster)) for one in running)
    return [replace(one, account=_of_running(one, cluster, now)) for one in there]


def due_growth(running: Iterable[Movable], settings: PlanSettings, now: float) -> list[Movable]:
    """Of jobs of `accounted` those that should have more GPUs now, in their turn.

    That is Slurm's order, with the exchanges of `in_order` between all that are late.
    """
    late: dict[str, tuple[Movable, float]] = {}
    for one in running:
        account = one.account
        if account is not None and account.growth and account.growth[0][0] <= now:
            late[one.request.job_id] = one, account.turn
    ordered = in_slurm_order(one.request for one, _ in late.values())
    turns = {job_id: turn for job_id, (_, turn) in late.items()}
    return [late[request.job_id][0] for request in _exchanged(ordered, turns, (), settings)]


def next_growth(running: Iterable[Movable], now: float) -> float:
    """When the first of some jobs of `accounted` should grow, later than now; inf: none."""
    steps = (at for one in running if one.account is not None for at, _ in one.account.growth)
    return min((at for at in steps if at > now), default=math.inf)


def _of_running(one: Movable, cluster: Cluster, now: float) -> DueAccount | None:
    request, job, due = one.request, one.job, one.request.get(DUE_DATE)
    if due is None or not job.gpus:
        return None
    nodes, slots = zip(*sorted(job.gpus), strict=True)
    slowdown = predicted_slowdown(cluster, request.app_class, nodes, slots)[2]
    due = replace(due, done=work_done(request, job, slowdown, now))
    return due_account(request.put(DUE_DATE, due), now, slowdown=slowdown, running=True)


def work_done(request: Request, job: RunningJob, slowdown: float, now: float) -> float:
    """Work that a running job has done, in the unit of `work_rates`."""
    due = request.get(DUE_DATE)
    done = 0.0 if due is None else due.done
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
