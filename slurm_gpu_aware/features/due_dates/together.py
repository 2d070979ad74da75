"""All jobs with due dates of a round at once: STS's Algorithm 2 in the order of the queue.

Each job gets, in its turn, the number of GPUs and the GPU model at which its due date is expected
to cost least, or the cheapest of what the jobs before it leave free, or it waits, whichever costs
less (`due_dates.sts`). The jobs without due dates take what they ask for in their turn. Running
jobs keep their GPUs: they grow by moves, before that.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slurm_gpu_aware.features.due_dates.declared import DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, on_model
from slurm_gpu_aware.features.due_dates.free_gpus import DueNode
from slurm_gpu_aware.features.due_dates.plan import MARGIN, RESERVE, due_work
from slurm_gpu_aware.features.due_dates.queue import counts, due_account
from slurm_gpu_aware.features.due_dates.sts import DueJob, decide
from slurm_gpu_aware.features.due_dates.work import empirical
from slurm_gpu_aware.features.moves.declared import HAD_GPUS
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand, room_beside
from slurm_gpu_aware.model.size_table import TABLES
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.level_views import by_identity

PERIOD_S = 600.0  # Longest time between decisions while a job waits (H; the paper gives no value).
LATE_COST = 10.0
"""Cost of being late with weight 1, as a multiple of the energy of the largest size in that time
(about as in the paper)."""


There = Mapping[str, tuple[Request, DueAccount | None]]
"""GPU model of a job that may get several -> the job on it, and its account there."""


def on_best_models(
    queue: Iterable[Request], cluster: Cluster, now: float
) -> tuple[list[Request], dict[str, DueAccount], dict[str, There]]:
    """(The queue, accounts of its due dates, what else they may get).

    A job that may get GPUs of several models is on that with which its due date is likeliest met,
    then soonest, unless it cannot be met.
    """
    found, accounts, several = [], dict[str, DueAccount](), dict[str, There]()
    for asked in queue:
        if models := asked.get(TABLES):
            each = ((model, on_model(asked, model, cluster)) for model in models)
            there = {model: (one, due_account(one, now)) for model, one in each}
            (request, account), several[asked.job_id] = max(there.values(), key=_hope), there
            if not (account and account.in_time):
                request = asked
        else:
            request, account = asked, due_account(asked, now)
        if account is not None:
            accounts[asked.job_id] = account
        found.append(request)
    return found, accounts, several


class _Places:
    """Nodes that the jobs of a queue may get; jobs alike share the answers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._gpus, self._full = cluster.exists.sum(axis=1), ~cluster.free.any(axis=1)
        self._found: dict[object, tuple[BoolArray | None, Mapping[str, int]]] = {}

    def of(self, request: Request) -> tuple[BoolArray | None, Mapping[str, int]]:
        """(Nodes that a job may get but those whose free GPUs lack CPUs or memory, their widths).

        Where that leaves no node, all that it may get; None: all.
        """
        gpus, nodes = request.least_gpus, request.nodes
        least = request if gpus == request.gpus else request.resized(gpus)
        demand = node_demand(least, 1, gpus)
        whole = nodes.whole, request.memory.whole
        key = demand, whole, nodes.gpu_model, id(nodes.eligible)  # the caller holds the request
        if key not in self._found:
            room = self._with_room(least, *demand)
            self._found[key] = room, self.widths(room)
        return self._found[key]

    def _with_room(self, request: Request, cpus: int, memory_mb: int) -> BoolArray | None:
        allowed = allowed_nodes(request, self.cluster)
        room = room_beside(request, self.cluster, cpus, memory_mb)[1] | self._full
        room = room if allowed is None else room & allowed
        return room if room.any() else allowed

    def widths(self, allowed: BoolArray | None) -> dict[str, int]:
        """GPU model -> GPUs of the widest of these nodes with it; None: of all."""
        names, kinds = _kinds(self.cluster.model)
        widths = np.zeros(len(names), dtype=np.int64)
        gpus = self._gpus if allowed is None else np.where(allowed, self._gpus, 0)
        np.maximum.at(widths, kinds, gpus)
        return {name: width for name, width in zip(names, widths.tolist(), strict=True) if width}


def _hope(there: tuple[Request, DueAccount | None]) -> tuple[float, float]:
    account = there[1]
    if account is None:
        return 0.0, 0.0
    return account.in_time or 0.0, -account.pressure_s


def shared_out(
    queue: Sequence[Request],
    asked: Mapping[str, Request],
    accounts: Mapping[str, DueAccount],
    several: Mapping[str, There],
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
    queue, several : as of `on_best_models`, in the order in which its jobs start.
    asked : the same jobs as they ask.
    waits : a job may wait for what costs less; False: it gets the cheapest of what is free.
    """
    places = _Places(cluster)
    most, everywhere = max(places.widths(None).values(), default=0), [*places.widths(None)]
    free, jobs, due = cluster.free.sum(axis=1), list[DueJob](), set[str]()
    for request in queue:
        account, one = accounts.get(request.job_id), asked[request.job_id]
        if one.fewest_nodes > 1 or one.nodes.whole or one.least_gpus > most:
            if not due:
                _take_wide(one, cluster, free)
            continue
        job = None
        if account is not None and counts(request, account):
            there = {m: on for m, (on, _) in several.get(one.job_id, {}).items()}
            job = _due_job(one, there, places, len(account.growth), now)
        if job is not None:
            due.add(job.job_id)
        jobs.append(job or _plain(one, places, everywhere))
    nodes = [DueNode(m or "", n) for m, n in zip(cluster.model, free.tolist(), strict=True)]
    decision = decide(jobs, nodes, now, PERIOD_S if waits else math.inf, ordered=True)
    given = {name: one.share for name, one in decision.jobs.items() if name in due}
    found = {name: (nodes[one.node].model, round(one.gpus)) for name, one in given.items()}
    wanted = {name: one for name, one in decision.wanted.items() if name in due}
    return {**found, **{name: (model, round(gpus)) for name, (model, gpus) in wanted.items()}}


def _due_job(
    asked: Request, there: Mapping[str, Request], places: _Places, restarts: int, now: float
) -> DueJob | None:
    """A job as the scheduler sees it, costs in J; None: no node has one of its sizes.

    Its plan keeps the reserve that `due_plan` keeps, and time for the restarts of its growth alone.
    ``there``: GPU model -> the job on it, if it may get several.
    """
    due, speeds, works = asked.get(DUE_DATE), dict[str, Speeds](), []
    if due is None:
        return None
    allowed, widths = places.of(asked)
    for model in there or widths:
        one = there.get(model, asked)
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
        reserve_s += (RESERVE + restarts) * due.restart_s
    movable, due_s = due.restart_s is not None, due.due_s - reserve_s
    return DueJob(asked.job_id, due_s, late_cost, work, speeds, movable=movable, allowed=allowed)


@by_identity
def _kinds(models: tuple[str | None, ...]) -> tuple[list[str], IntArray]:
    """(GPU models, (N,) place of each node's among them)."""
    names = {name: place for place, name in enumerate(dict.fromkeys(m or "" for m in models))}
    return [*names], np.array([names[model or ""] for model in models], dtype=np.int64)


def up_to(speeds: Speeds, width: int) -> Speeds | None:
    """The sizes that one node has; None: there is none."""
    count = int(speeds.gpus.searchsorted(width, side="right"))
    if count == len(speeds.gpus):
        return speeds
    part = slice(0, count)
    return Speeds(speeds.gpus[part], speeds.speed[part], speeds.power[part]) if count else None


def _plain(asked: Request, places: _Places, models: Iterable[str]) -> DueJob:
    """A job that takes its least GPUs in its turn, on any model."""
    one = Speeds(np.array([float(asked.least_gpus)]), np.ones(1), np.ones(1))
    work = empirical([1.0], 1.0)
    anywhere = dict.fromkeys(models, one)
    allowed, _ = places.of(asked)
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
    queue: Iterable[Request], several: Mapping[str, There], shares: Mapping[str, tuple[str, int]]
) -> tuple[list[Request], dict[str, DueAccount]]:
    """(The queue with jobs of several GPU models on those of their shares, their accounts)."""
    changed = {
        job_id: several[job_id][model]
        for job_id, (model, _) in shares.items()
        if model in several.get(job_id, ())
    }
    accounts = {job_id: account for job_id, (_, account) in changed.items() if account is not None}
    return [changed.get(one.job_id, (one, None))[0] for one in queue], accounts
