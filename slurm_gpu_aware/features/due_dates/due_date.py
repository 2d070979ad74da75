"""Due date of a job, what is known of its work on each GPU model, and how likely it is met."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from slurm_gpu_aware import records
from slurm_gpu_aware.features.due_dates.declared import DueAccount, OnModel
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facets import Facet, Faceted, named
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES


@dataclass(frozen=True)
class DueDate:
    """When a job should end. It bounds nothing: a job that is late runs on."""

    due_s: float  # Time on a round's clock.
    runs: tuple[tuple[int, float], ...] = ()
    """(GPUs, run time on median GPUs without any slowdown) of earlier runs of the same user and job
    name. Units: s; inf: its time limit ended the run."""
    nodes: tuple[str, ...] = ()
    """Of each run the first node, which tells its GPU model; empty: not known."""
    limit_s: float = math.inf
    """Most time of its work on its least GPUs, if that is less than its time limit."""
    epochs: tuple[int, int, float] | None = None
    """(most epochs, GPUs, time of an epoch on so many median GPUs); None: not known."""
    done: float = 0.0
    """Work of the job before its last start, in the unit of `due_dates.plan.work_rates`."""
    weight: float = 1.0  # Of its pressure; see `pressing`.
    restart_s: float | None = None
    """What a restart with more GPUs costs; None: the job is not moved."""

    @property
    def known_gpus(self) -> tuple[int, ...]:
        """GPU counts of which a time is known, ascending."""
        counts = {gpus for gpus, _ in self.runs}
        return tuple(sorted(counts if self.epochs is None else {*counts, self.epochs[1]}))


DUE_DATE: Facet[DueDate | None] = Facet("due date", None, DueDate)
"""Of a request; None: the job has no due date."""


def on_model(request: Request, gpu_model: str, cluster: Cluster) -> Request:
    """The request on GPUs of one model of its `TABLES`, with what is known of its work there.

    Earlier runs take as many times as long as its tables say for their numbers of GPUs; those whose
    GPU model is not known are left out. Epochs are as long as said on the fastest of the models,
    and the time limit does for the slowest: neither makes the work less than it is.
    """
    table, due = request.get(TABLES)[gpu_model], request.get(DUE_DATE)
    there = {} if due is None else named(DUE_DATE, _due_there(due, request, gpu_model, cluster))
    nodes = replace(request.nodes, gpu_model=gpu_model)
    return replace(request, nodes=nodes, facets={**request.facets, **named(TABLE, table), **there})


def as_running_on(request: Request, job: RunningJob, cluster: Cluster) -> Request:
    """The request of a running job on GPUs of the model that it has; unchanged: it needs none."""
    models = {cluster.model[node] or "" for node, _ in job.gpus}
    gpu_model = models.pop() if len(models) == 1 else ""
    return on_model(request, gpu_model, cluster) if gpu_model in request.get(TABLES) else request


def on_a_model(assignment: Assignment, request: Request) -> Assignment:
    """The assignment of a request of `on_model`, with its GPU model in the account."""
    return assignment.explained(OnModel(str(request.nodes.gpu_model), len(request.get(TABLES))))


def _due_there(due: DueDate, request: Request, gpu_model: str, cluster: Cluster) -> DueDate:
    """The due date with the times on a GPU model."""
    times = {model: table.times for model, table in request.get(TABLES).items()}
    here = times[gpu_model]
    models = _model_of(cluster.nodes, cluster.model)
    runs = []
    for (gpus, seconds), node in zip(due.runs, due.nodes, strict=False):
        there = times.get(models.get(node) or "", {})
        if gpus in there and gpus in here:
            runs.append((gpus, seconds * here[gpus] / there[gpus]))
    epochs, least = due.epochs, request.least_gpus
    if epochs is not None:
        most, gpus, seconds = epochs
        known = [each[gpus] for each in times.values() if gpus in each]
        whole = len(known) == len(times)
        epochs = (most, gpus, seconds * here[gpus] / min(known)) if whole else None
    slowest = max(each.get(least, math.inf) for each in times.values())
    limit_s = request.time_limit_s * here.get(least, math.inf) / slowest
    limit_s = math.inf if math.isnan(limit_s) else limit_s
    return replace(due, runs=tuple(runs), epochs=epochs, limit_s=limit_s)


@lru_cache(maxsize=4)  # one for all jobs of a round
def _model_of(nodes: tuple[str, ...], models: tuple[str | None, ...]) -> Mapping[str, str | None]:
    return dict(zip(nodes, models, strict=True))


DUE: Facet[Mapping[str, DueAccount]] = Facet("due", {})
"""Of a plan: job of the queue with a due date -> its account."""


def due_values(plan: Faceted, job_id: str) -> dict[str, Any]:
    """What the ledger holds of the due date of a job that waits; empty: it has none."""
    account = plan.get(DUE).get(job_id)
    return {} if account is None else {account.key: records.plain(account)}
