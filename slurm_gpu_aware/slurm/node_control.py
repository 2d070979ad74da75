"""Drain, resume and look at nodes; the calls that moving a node to other GRES types needs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.cli_gateway import CliGateway, run_command
from slurm_gpu_aware.slurm.gateway import JobUpdate
from slurm_gpu_aware.slurm.gres import gpu_item
from slurm_gpu_aware.slurm.hostlist import check_node_names
from slurm_gpu_aware.slurm.parse_cluster import parse_nodes
from slurm_gpu_aware.slurm.reconfiguration import UNREGISTERED, Reconfiguration
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.render import feature_of
from slurm_gpu_aware.slurm.snapshot import ENDED

__all__ = ["NodeControl", "NodeView"]

log = logging.getLogger(__name__)

_REASON = re.compile(r"\sReason=(.*?)(?:\s+\[([^\]@]*)@[^\]]*\])?(?=\s+[A-Z]\w*=|\s*\Z)")
_STARTED = re.compile(r"\sSlurmdStartTime=(\S+)")
_ON_NODE = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,SIGNALING,STAGE_OUT,STOPPED,RESIZING"


@dataclass(frozen=True)
class NodeView:
    """A node as Slurm shows it now."""

    name: str
    states: frozenset[str]
    gpus: tuple[tuple[str | None, int], ...]
    """(type, count) in Slurm's order."""
    reason: str
    """Why it is drained or down; empty: none."""
    registered: bool
    """slurmd has registered since slurmctld read its configuration."""
    features: frozenset[str] = frozenset()


class NodeControl:
    """What is asked of Slurm about nodes. Every call raises SourceError if Slurm refuses."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s

    def nodes(self) -> dict[str, NodeView]:
        """All nodes but those that cannot be understood."""
        text = self._ask(["scontrol", "-o", "-d", "-a", "show", "node"])
        found = {}
        unreadable: dict[str, str] = {}
        for line in text.splitlines():
            for node in parse_nodes(line, unreadable):
                reason, started = _REASON.search(line), _STARTED.search(line)
                found[node.name] = NodeView(
                    name=node.name,
                    states=node.states,
                    gpus=node.gpus,
                    reason=reason[1] if reason else "",
                    registered=started is not None and started[1] not in UNREGISTERED,
                    features=node.features,
                )
        for name, why in unreadable.items():
            log.warning("node %s is left out: %s", name, why)
        return found

    def partition(self, name: str) -> frozenset[str]:
        """Nodes of a partition. Raises SourceError that names those that there are."""
        known = {p.name: p.nodes for p in CliGateway(self._timeout_s).partitions()}
        if name not in known:
            raise SourceError(f"no partition {name!r}; there are: {', '.join(sorted(known))}")
        return known[name]

    def jobs_on(self, node: str) -> tuple[str, ...]:
        """Ids of the jobs that hold anything on a node, epilog included."""
        (name,) = check_node_names([node])
        command = ["squeue", "-h", "-a", "-r", "-w", name, "-t", _ON_NODE, "-o", "%i"]
        return tuple(sorted(set(self._ask(command).split())))

    def drain(self, node: str, reason: str) -> None:
        """No new jobs on the node; those that run go on."""
        self._update(node, "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """The node takes jobs again."""
        self._update(node, "state=resume")

    def reconfigure(
        self,
        ready: Callable[[], None],
        node: str | None,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """All daemons read their files again; see `Reconfiguration`."""
        Reconfiguration(self._ask, say, stopping).run(ready, node)

    def jobs_with_feature(self, features: frozenset[str]) -> list[str]:
        """Ids of jobs that have not ended and whose constraint names one of the features."""
        return [
            job.id
            for job in CliGateway(self._timeout_s).jobs()
            if job.state not in ENDED and features & set(_words(job.features))
        ]

    def untype_pending(self, models: frozenset[str]) -> tuple[list[str], dict[str, str]]:
        """Pending jobs that ask for ``gpu:v100:N`` ask for N GPUs and feature gpu_v100 instead.

        Returns (ids of the jobs that were changed, complaint by id of those that were not).
        """
        gateway = CliGateway(self._timeout_s)
        updates: list[JobUpdate] = []
        complaints: dict[str, str] = {}
        for job in gateway.jobs():
            model = _typed_model(job, models) if job.state == "PENDING" else None
            if model is None:
                continue
            fields = _untyped(job, model)
            if fields is None:
                complaints[job.id] = f"asks for type {model} in a form that cannot be changed"
                continue
            try:
                updates.append(JobUpdate(job.id, fields))
            except ValueError as exc:
                complaints[job.id] = str(exc)
        refused: Mapping[str, str] = gateway.update_jobs(updates)
        changed = [u.job_id for u in updates if u.job_id not in refused]
        return changed, complaints | dict(refused)

    def _ask(self, command: Sequence[str], timeout_s: float | None = None) -> str:
        return run_command(command, self._timeout_s if timeout_s is None else timeout_s)[0]

    def _update(self, node: str, *fields: str) -> None:
        (name,) = check_node_names([node])
        self._ask(["scontrol", "update", f"nodename={name}", *fields])


def _words(features: str | None) -> Sequence[str]:
    return re.findall(r"[A-Za-z0-9_.=-]+", features or "")


def _typed_model(job: SlurmJob, models: frozenset[str]) -> str | None:
    for text in (job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket):
        item = gpu_item(text)
        if item is not None and item.kind is not None and item.kind.lower() in models:
            return item.kind
    return None


def _untyped(job: SlurmJob, model: str) -> tuple[tuple[str, str], ...] | None:
    """Fields of the update; None: this form or constraint is not touched."""
    item = gpu_item(job.tres_per_node)
    features = job.features or ""
    if item is None or item.kind != model or re.search(r"[|\[\](*!]", features):
        return None
    wanted = feature_of(model)
    constraint = features if wanted in _words(features) else f"{features}&{wanted}".lstrip("&")
    tres = ",".join([f"gres/gpu:{item.count}", *item.others])
    return (("Features", constraint), ("TresPerNode", tres))
