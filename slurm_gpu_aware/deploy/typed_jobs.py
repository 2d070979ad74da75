"""Jobs that ask for a GPU type or for a node feature that a rollout changes."""

from __future__ import annotations

import re

from slurm_gpu_aware.deploy.render import feature_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.index_types import gpu_item
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob
from slurm_gpu_aware.slurm.updates import JobUpdate

__all__ = ["all_jobs", "jobs_with_feature", "untype_pending"]


def all_jobs(client: SlurmClient) -> list[SlurmJob]:
    """All jobs. Raises SourceError also if one cannot be read."""
    jobs = client.jobs()
    if client.unread:
        number = min(client.unread)
        raise SourceError(f"job {number} cannot be read, see the log; nothing was changed")
    return jobs


def jobs_with_feature(client: SlurmClient, features: frozenset[str]) -> list[str]:
    """Ids of jobs that have not ended and whose constraint names one of the features."""
    jobs = (job for job in all_jobs(client) if job.state not in ENDED)
    return [job.id for job in jobs if features & _words(job.features)]


def untype_pending(client: SlurmClient, models: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """Change the requests of pending jobs from ``gpu:v100:N`` to N GPUs and feature gpu_v100.

    Returns (ids of the changed jobs, complaint by id of the others).
    """
    updates: list[JobUpdate] = []
    complaints: dict[str, str] = {}
    for job in all_jobs(client):
        model = _typed_model(job, models) if job.state == "PENDING" else None
        if model is None:
            continue
        fields = _untyped(job, model)
        if fields is None:
            complaints[job.id] = f"asks for type {model} in a form that cannot be changed"
        else:
            updates.append(JobUpdate(job.id, fields))
    refused = client.update_jobs(updates)
    return [u.job_id for u in updates if u.job_id not in refused], complaints | refused


def _words(features: str | None) -> set[str]:
    return set(re.findall(r"[A-Za-z0-9_.=-]+", features or ""))


def _typed_model(job: SlurmJob, models: frozenset[str]) -> str | None:
    for text in (job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket):
        item = gpu_item(text)
        if item is not None and item.kind is not None and item.kind.lower() in models:
            return item.kind
    return None


def _untyped(job: SlurmJob, model: str) -> tuple[tuple[str, str], ...] | None:
    """Fields of the update; None: this form or constraint is unsupported."""
    item = gpu_item(job.tres_per_node)
    features = job.features or ""
    if item is None or item.kind != model or re.search(r"[|\[\](*!]", features):
        return None
    wanted = feature_of(model)
    constraint = features if wanted in _words(features) else f"{features}&{wanted}".lstrip("&")
    tres = ",".join([f"gres/gpu:{item.count}", *item.others])
    return (("Features", constraint), ("TresPerNode", tres))
