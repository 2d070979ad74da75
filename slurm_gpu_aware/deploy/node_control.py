"""Slurm's side of a rollout: nodes, the jobs on them, and requests by GPU type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from slurm_gpu_aware.deploy.reconfiguration import Reconfiguration
from slurm_gpu_aware.deploy.render import feature_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.index_types import gpu_item
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import ENDED, HOLDING, SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.updates import JobUpdate

__all__ = ["NodeControl"]

_ON_NODE = HOLDING | {"SIGNALING", "STAGE_OUT"}


class NodeControl:
    """Queries and changes of nodes in Slurm. Every call raises SourceError if Slurm refuses."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def nodes(self) -> dict[str, SlurmNode]:
        """All readable nodes."""
        return {node.name: node for node in self._client.nodes()}

    def partition(self, name: str) -> frozenset[str]:
        """Nodes of a partition. Raises SourceError for an unknown one."""
        known = {p.name: p.nodes for p in self._client.partitions()}
        if name not in known:
            raise SourceError(f"no partition {name!r}; there are: {', '.join(sorted(known))}")
        return known[name]

    def jobs_on(self, node: str) -> tuple[str, ...]:
        """Ids of the jobs that hold resources on a node, also during the epilog."""
        return tuple(sorted(j.id for j in self._jobs() if j.state in _ON_NODE and node in j.nodes))

    def drain(self, node: str, reason: str) -> None:
        """Drain a node: it takes no new jobs, and running ones continue."""
        self._client.drain_node(node, reason)

    def resume(self, node: str) -> None:
        """Resume a node."""
        self._client.resume_node(node)

    def reconfigure(
        self,
        ready: Callable[[], None],
        node: str | None,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """Make all daemons read their files again; see `Reconfiguration`."""
        Reconfiguration(self._client, say, stopping).run(ready, node)

    def jobs_with_feature(self, features: frozenset[str]) -> list[str]:
        """Ids of jobs that have not ended and whose constraint names one of the features."""
        return [
            job.id
            for job in self._jobs()
            if job.state not in ENDED and features & set(_words(job.features))
        ]

    def untype_pending(self, models: frozenset[str]) -> tuple[list[str], dict[str, str]]:
        """Change the requests of pending jobs from ``gpu:v100:N`` to N GPUs and feature gpu_v100.

        Returns (ids of the changed jobs, complaint by id of the others).
        """
        updates: list[JobUpdate] = []
        complaints: dict[str, str] = {}
        for job in self._jobs():
            model = _typed_model(job, models) if job.state == "PENDING" else None
            if model is None:
                continue
            fields = _untyped(job, model)
            if fields is None:
                complaints[job.id] = f"asks for type {model} in a form that cannot be changed"
                continue
            updates.append(JobUpdate(job.id, fields))
        refused: Mapping[str, str] = self._client.update_jobs(updates)
        changed = [u.job_id for u in updates if u.job_id not in refused]
        return changed, complaints | dict(refused)

    def _jobs(self) -> list[SlurmJob]:
        jobs = self._client.jobs()
        if self._client.unread:
            number = min(self._client.unread)
            raise SourceError(f"job {number} cannot be read, see the log; nothing was changed")
        return jobs


def _words(features: str | None) -> Sequence[str]:
    return re.findall(r"[A-Za-z0-9_.=-]+", features or "")


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
