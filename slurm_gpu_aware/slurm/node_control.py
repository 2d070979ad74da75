"""Drain, resume and look at nodes; the calls that moving a node to other GRES types needs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.errors import NoAnswerError, SourceError
from slurm_gpu_aware.slurm.cli_gateway import CliGateway, run_command
from slurm_gpu_aware.slurm.gateway import JobUpdate
from slurm_gpu_aware.slurm.gres import gpu_item
from slurm_gpu_aware.slurm.hostlist import check_node_names
from slurm_gpu_aware.slurm.parse_cluster import parse_nodes
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.render import feature_of
from slurm_gpu_aware.slurm.snapshot import ENDED

__all__ = ["NodeControl", "NodeView"]

log = logging.getLogger(__name__)

_REASON = re.compile(r"\sReason=(.*?)(?:\s+\[([^\]@]*)@[^\]]*\])?(?=\s+[A-Z]\w*=|\s*\Z)")
_STARTED = re.compile(r"\sSlurmdStartTime=(\S+)")
_UNREGISTERED = frozenset(("None", "Unknown"))
"""When a slurmd began that has not registered since slurmctld did."""
_LOST = re.compile(r"timed out|no answer|contact|connect|communication|zero bytes", re.IGNORECASE)
"""Nobody said no: slurmctld did not answer, or died."""
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

    RECONFIGURE_S = 120.0
    HOLD = "gpuaware_roll"
    """Reservation that keeps jobs from starting while Slurm is reconfigured."""
    LAUNCH_S = 20.0
    """How long jobs that are being started are waited for; shorter than the reservation."""
    SLURMDS_S = 10.0
    """How long slurmds that read their files again are waited for."""
    ANSWER_S = 30.0
    """How long slurmctld may stay silent when it reads its files again."""
    RELEASE_S = 30.0
    """How long the reservation is tried to be deleted."""
    POLL_S = 0.25

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s

    def nodes(self) -> dict[str, NodeView]:
        """All nodes but those that cannot be understood."""
        text = run_command(["scontrol", "-o", "-d", "-a", "show", "node"], self._timeout_s)[0]
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
                    registered=started is not None and started[1] not in _UNREGISTERED,
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
        return tuple(sorted(set(run_command(command, self._timeout_s)[0].split())))

    def drain(self, node: str, reason: str) -> None:
        """No new jobs on the node; those that run go on."""
        self._update(node, "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """The node takes jobs again."""
        self._update(node, "state=resume")

    def reconfigure(self) -> None:
        """All daemons read their files again, while no job is being started.

        A job that slurmctld allocates in the moment before it forks its successor is never
        launched: it stays RUNNING with reason Prolog. Nor is one that a slurmd is told to launch
        when it reads its files, a moment after slurmctld. So a reservation of all nodes keeps jobs
        from starting for some seconds; if we are killed meanwhile it ends by itself.

        Raises NoAnswerError if slurmctld does not answer afterwards, or did not and the slurmds
        were not told: all this has to be done once more when it is back.
        """
        held = self._hold_starts()
        try:
            self._await_launched()
            self._read_again(self._answering())
        except NoAnswerError:
            held = False  # nobody is there to delete it; it ends by itself
            raise
        finally:
            if held:
                self._let_start()

    def _read_again(self, before: Mapping[str, str]) -> None:
        refused: SourceError | None = None
        try:
            run_command(["scontrol", "reconfigure"], self.RECONFIGURE_S)
        except SourceError as exc:
            refused = exc  # or only the answer was lost: it takes long on a large cluster
        if self._await_slurmds(before) or refused is None:
            return
        if _LOST.search(str(refused)):
            raise NoAnswerError(str(refused))
        raise refused

    def _hold_starts(self) -> bool:
        create = ["scontrol", "create", "reservation", f"reservationname={self.HOLD}"]
        create += ["nodes=ALL", "starttime=now", "duration=1", "users=root"]
        create += ["flags=IGNORE_JOBS,OVERLAP"]
        for last in (False, True):
            try:
                run_command(create, self._timeout_s)
                return True
            except SourceError as exc:
                if last:
                    log.warning("jobs may start while Slurm is reconfigured: %s", exc)
                    return False
                self._let_start(within_s=0.0)  # one of a run that was killed
        return False

    def _let_start(self, within_s: float = RELEASE_S) -> None:
        """Delete the reservation; slurmctld may be away for a moment."""
        end = time.monotonic() + within_s
        while True:
            try:
                run_command(["scontrol", "delete", f"reservationname={self.HOLD}"], self._timeout_s)
                return
            except SourceError as exc:
                if "is invalid" in str(exc) or "not found" in str(exc).lower():
                    return
            if time.monotonic() >= end:
                log.warning("reservation %s is left; it ends within a minute", self.HOLD)
                return
            time.sleep(self.POLL_S)

    def _answering(self) -> dict[str, str]:
        try:
            return self._slurmd_starts()
        except SourceError as exc:
            log.warning("it will not be known when slurmd has read its files: %s", exc)
            return {}

    def _slurmd_starts(self) -> dict[str, str]:
        """When the slurmd of each node that answers began; it begins anew to read its files."""
        text = run_command(["scontrol", "-o", "show", "node"], self._timeout_s)[0]
        found = re.findall(
            r"^NodeName=(\S+) .*? State=(\S+) .*?SlurmdStartTime=(\S+)", text, flags=re.MULTILINE
        )
        away = re.compile(r"\*|DOWN|NOT_RESPONDING|POWER")
        return {
            node: start
            for node, state, start in found
            if start not in _UNREGISTERED and not away.search(state)
        }

    def _await_slurmds(self, before: Mapping[str, str]) -> bool:
        """Wait until these have registered again, ``SLURMDS_S`` at most; whether any has."""
        anew: list[str] = []
        waited = 0.0
        answered = time.monotonic()
        while before and waited < self.SLURMDS_S:
            try:
                after = self._slurmd_starts()
            except SourceError as exc:
                silent = time.monotonic() - answered
                if silent >= self.ANSWER_S:
                    raise NoAnswerError(
                        f"slurmctld has not answered for {silent:.0f} s, since 'scontrol"
                        " reconfigure'"
                    ) from exc
            else:
                anew = [n for n, start in before.items() if after.get(n, start) != start]
                if len(anew) == len(before):
                    break
                answered = time.monotonic()
                waited += self.POLL_S
            time.sleep(self.POLL_S)
        return bool(anew)

    def _await_launched(self) -> None:
        """Until no job has been starting for a second; at most ``LAUNCH_S``."""
        command = ["squeue", "-h", "-a", "-t", "CONFIGURING,RUNNING", "-o", "%t %r"]
        quiet = 0.0
        waited = 0.0
        while quiet < 1.0 and waited < self.LAUNCH_S:
            text = run_command(command, self._timeout_s)[0]
            starting = any(
                line.startswith("CF") or line.endswith("Prolog") for line in text.splitlines()
            )
            quiet = 0.0 if starting else quiet + self.POLL_S
            waited += self.POLL_S
            time.sleep(self.POLL_S)

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

    def _update(self, node: str, *fields: str) -> None:
        (name,) = check_node_names([node])
        command = ["scontrol", "update", f"nodename={name}", *fields]
        run_command(command, self._timeout_s)


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
