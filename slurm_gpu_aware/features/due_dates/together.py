"""All jobs with due dates of a round at once: STS's Algorithm 2 in the order of the queue.

Each job gets, in its turn, the number of GPUs and the GPU model at which its due date is expected
to cost least, or the cheapest of what the jobs before it leave free, or it waits, whichever costs
less (`sizing.sts`). The jobs without due dates take what they ask for in their turn. Running jobs
keep their GPUs: they grow by moves, before that.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slurm_gpu_aware.features.due_dates.account import DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.gpu_models import on_model
from slurm_gpu_aware.features.due_dates.plan import MARGIN, RESERVE, due_work
from slurm_gpu_aware.features.due_dates.queue import counts, due_account
from slurm_gpu_aware.features.due_dates.work import empirical
from slurm_gpu_aware.features.moves.settings import HAD_GPUS
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLES
from slurm_gpu_aware.placement.feasible import allowed_nodes, node_demand
from slurm_gpu_aware.placement.level_views import by_identity
from slurm_gpu_aware.sizing.free_gpus import DueNode
from slurm_gpu_aware.sizing.sts import DueJob, decide

PERIOD_S = 600.0
"""Longest time between decisions while a job waits (H; the paper gives no value)."""
LATE_COST = 10.0
"""Cost of being late with weight 1, as a multiple of the energy of the largest size in that time
(about as in the paper)."""


def on_best_models(
    queue: Iterable[Request], cluster: Cluster, now: float
) -> tuple[list[Request], dict[str, DueAccount]]:
    """(The queue, accounts of its due dates); a job that may get GPUs of several models is on that
    with which its due date is likeliest met, then soonest, unless it cannot be met."""
    found, accounts = [], {}
    for asked in queue:
        there = [on_model(asked, model, cluster) for model in asked.get(TABLES)] or [asked]
        known = [(one, due_account(one, now)) for one in there]
        request, account = max(known, key=lambda pair: _hope(pair[1]))
        if asked.get(TABLES) and not (account and account.in_time):
            request = asked
        if account is not None:
            accounts[request.job_id] = account
        found.append(request)
    return found, accounts


def _hope(account: DueAccount | None) -> tuple[float, float]:
    if account is None:
        return 0.0, 0.0
    return account.in_time or 0.0, -account.pressure_s


def shared_out(
    queue: Sequence[Request],
    asked: Mapping[str, Request],
    accounts: Mapping[str, DueAccount],
    cluster: Cluster,
    now: float,
    *,
    waits: bool,
) -> dict[str, tuple[str, int]]:
    """Job whose due date plays a part -> (GPU model, number of GPUs) that it should start with.

    Jobs of several nodes are not among them. Those before the first such job take their GPUs; what
    others take shows in the next round.

    Parameters
    ----------
    queue : in the order in which its jobs start, as of `on_best_models`.
    asked : the same jobs as they ask.
    waits : a job may wait for what costs less; False: it gets the cheapest of what is free.
    """
    widths = _widths(cluster, None)
    most = max(widths.values(), default=0)
    free, jobs, due = cluster.free.sum(axis=1), list[DueJob](), set[str]()
    for request in queue:
        account, one = accounts.get(request.job_id), asked[request.job_id]
        if one.fewest_nodes > 1 or one.nodes.whole or one.least_gpus > most:
            if not due:
                _take_wide(one, cluster, free)
            continue
        job = None
        if account is not None and counts(request, account):
            job = _due_job(one, cluster, now)
        if job is not None:
            due.add(job.job_id)
        jobs.append(job or _plain(one, cluster, widths))
    nodes = [DueNode(m or "", n) for m, n in zip(cluster.model, free.tolist(), strict=True)]
    decision = decide(jobs, nodes, now, PERIOD_S if waits else math.inf, ordered=True)
    given = {name: one.share for name, one in decision.jobs.items() if name in due}
    found = {name: (nodes[one.node].model, round(one.gpus)) for name, one in given.items()}
    wanted = {name: one for name, one in decision.wanted.items() if name in due}
    return {**found, **{name: (model, round(gpus)) for name, (model, gpus) in wanted.items()}}


def _due_job(asked: Request, cluster: Cluster, now: float) -> DueJob | None:
    """A job as the scheduler sees it, costs in J; None: no node has one of its sizes.

    Its plan keeps the reserve that `due_plan` keeps, and time for the restarts of its growth.
    """
    due, speeds, works = asked.get(DUE_DATE), dict[str, Speeds](), []
    if due is None:
        return None
    tables, allowed = asked.get(TABLES), _with_room(asked, cluster)
    widths = _widths(cluster, allowed)
    for model in tables or widths:
        one = on_model(asked, model, cluster) if tables else asked
        known = due_work(one.from_size(asked.get(HAD_GPUS)), now)
        part = None if known is None else up_to(known[1], widths.get(model, 0))
        if known is not None and part is not None:
            speeds[model] = part
            works.append(known[0])
    if not works:
        return None
    work = max(works, key=lambda one: one.most)
    late_cost = due.weight * LATE_COST * max(float(one.power[-1]) for one in speeds.values())
    reserve_s = MARGIN * (due.due_s - now)
    if due.restart_s is not None:
        steps = max(len(one.gpus) for one in speeds.values()) - 1
        reserve_s += (RESERVE + steps) * due.restart_s
    movable, due_s = due.restart_s is not None, due.due_s - reserve_s
    return DueJob(asked.job_id, due_s, late_cost, work, speeds, movable=movable, allowed=allowed)


def _widths(cluster: Cluster, allowed: BoolArray | None) -> dict[str, int]:
    """GPU model -> GPUs of the widest of these nodes with it."""
    names, kinds = _kinds(cluster.model)
    gpus = cluster.exists.sum(axis=1)
    widths = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(widths, kinds, gpus if allowed is None else np.where(allowed, gpus, 0))
    return {name: width for name, width in zip(names, widths.tolist(), strict=True) if width}


@by_identity
def _kinds(models: tuple[str | None, ...]) -> tuple[list[str], IntArray]:
    """(GPU models, (N,) place of each node's among them)."""
    names = {name: place for place, name in enumerate(dict.fromkeys(m or "" for m in models))}
    return [*names], np.array([names[model or ""] for model in models], dtype=np.int64)


def _with_room(request: Request, cluster: Cluster) -> BoolArray | None:
    """Nodes that a job may get but those whose free GPUs lack CPUs or memory; None: all.

    Where that leaves none, all that it may get.
    """
    allowed, gpus = allowed_nodes(request, cluster), request.least_gpus
    least = request if gpus == request.gpus else request.resized(gpus)
    cpus, memory_mb = node_demand(least, 1, gpus)
    room = (cluster.free_cpus >= cpus) & (cluster.free_memory_mb >= memory_mb)
    room |= ~cluster.free.any(axis=1)
    room = room if allowed is None else room & allowed
    return room if room.any() else allowed


def up_to(speeds: Speeds, width: int) -> Speeds | None:
    """The sizes that one node has; None: there is none."""
    count = int(np.searchsorted(speeds.gpus, width, side="right"))
    part = slice(0, count)
    return Speeds(speeds.gpus[part], speeds.speed[part], speeds.power[part]) if count else None


def _plain(asked: Request, cluster: Cluster, models: Iterable[str]) -> DueJob:
    """A job that takes its least GPUs in its turn, on any model."""
    one = Speeds(np.array([float(asked.least_gpus)]), np.ones(1), np.ones(1))
    work = empirical([1.0], 1.0)
    anywhere = dict.fromkeys(models, one)
    allowed = _with_room(asked, cluster)
    return DueJob(asked.job_id, math.inf, 0.0, work, anywhere, movable=False, allowed=allowed)


def _take_wide(asked: Request, cluster: Cluster, free: IntArray) -> None:
    """Take the GPUs of a job of several nodes from those with most; none if there are too few."""
    allowed, left = allowed_nodes(asked, cluster), asked.least_gpus
    there = free if allowed is None else np.where(allowed, free, 0)
    if there.sum() < left:
        return
    for node in np.argsort(-there, kind="stable").tolist():
        taken = min(left, int(there[node]))
        free[node] -= taken
        left -= taken
        if not left:
            return


def on_shared_models(
    queue: Iterable[Request],
    asked: Mapping[str, Request],
    shares: Mapping[str, tuple[str, int]],
    cluster: Cluster,
) -> tuple[list[Request], list[Request]]:
    """(The queue with jobs of several GPU models on those of their shares, those that change)."""
    changed = {
        job_id: on_model(asked[job_id], model, cluster)
        for job_id, (model, _) in shares.items()
        if model in asked[job_id].get(TABLES)
    }
    return [changed.get(one.job_id, one) for one in queue], [*changed.values()]
