"""Jobs that may get GPUs of several models: the same job on GPUs of one of them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES


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
    model, count = request.nodes.gpu_model, len(request.get(TABLES))
    text = f"on {model}: of {count} GPU models the one with which its due date costs least now"
    return assignment.explained(text, gpu_model=model)


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
