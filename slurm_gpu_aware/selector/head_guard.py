"""Guard of the head: short reservations of the GPUs that are kept for the first job that waits.

A few kinds of jobs cannot wait at the gate (``passes_gate`` in gpu_aware_unsupported.lua), and the
filter does not see all that get whole nodes with their GPUs. Slurm starts none at its submission
while a job of higher priority waits, but soon after, as soon as GPUs are free. So while such a job
is pending or soon due, a reservation holds the head's number of GPUs on each node, also those that
running jobs still use, and as many cores. Before the next round has made it, Slurm may give such a
job what is free. Slurm 26.05 refuses to reserve GPUs that are in use: there the whole node is held
if the head gets all its GPUs, else only the free ones, from the next round on.

Jobs without GPUs start at their submission. While nothing but such jobs holds up the head
(`Waiting.held_up`), its GPUs and CPUs are held, so that no more of them come.

- Before a job is placed on a node, its reservation goes.
- Each ends with the gate's lease: a dead selector leaves none behind.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import HEAD, guards_head
from slurm_gpu_aware.gate.admin_comment import is_ours, marker_of
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.planning.plan import Guarded
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import gpus_and_shards
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation
from slurm_gpu_aware.slurm.updates import NewReservation

log = logging.getLogger(__name__)

_MOST = 64  # nodes with a reservation; 5 ms each
_BUSY = "Requested nodes are busy"
_SOON_S = 10.0  # two rounds (`selector.round_s`)
_AGAIN_S = 10.0  # pause of a node for which Slurm refused a reservation, as of one that ends there


class _Share(NamedTuple):
    gpus: int
    cpus: int


@dataclass
class HeadGuard:
    """The reservations that there are."""

    client: SlurmClient
    enabled: bool = True
    timer: Callable[[], float] = time.monotonic
    _held: dict[str, tuple[_Share | None, float]] = field(default_factory=dict)
    """Node -> (what is held, end); None: the whole node."""
    _refused: dict[str, float] = field(default_factory=dict)
    """Node -> when Slurm refused one, in seconds of the timer."""
    _busy: set[str] = field(default_factory=set)
    """Nodes of which Slurm reserves no GPUs that are in use."""

    def take_over(self, reservations: Iterable[SlurmReservation]) -> None:
        """Note those that Slurm has, also of an earlier selector."""
        there = [one for one in reservations if guards_head(one.name)]
        shares = {node: _share_of(one) for one in there for node in one.nodes}
        for node, (made, _) in self._held.items():
            if made and (share := shares.get(node)) and share.gpus == made.gpus:
                shares[node] = made  # Slurm shows the CPUs of whole cores
        self._held = {node: (shares[node], one.end_s) for one in there for node in one.nodes}

    def drop(self, nodes: Iterable[str]) -> None:
        """Remove the reservations of nodes, before jobs are placed there."""
        for node in [node for node in nodes if node in self._held]:
            try:
                self.client.delete_reservation(_name(node))
                del self._held[node]
            except SourceError as exc:
                log.warning("reservation %s is not removed: %s", _name(node), exc)

    def keep(self, kept: Mapping[str, Guarded], until_s: float) -> None:
        """Hold what a round keeps for the head, until a time.

        ``kept``: by node. ``until_s``: end of the gate's lease, Unix seconds.
        """
        self._busy &= kept.keys()
        wanted: dict[str, _Share | None] = {}
        for node, (gpus, free, every, cpus) in kept.items():
            refused = node in self._busy
            if cpus is None or (refused and every):
                wanted[node] = None
            elif held := free if refused else gpus:
                wanted[node] = _Share(held, max(held, cpus))
        self.drop([n for n, (is_, _) in self._held.items() if n not in wanted or wanted[n] != is_])
        now = self.timer()
        self._refused = {node: at for node, at in self._refused.items() if now - at < _AGAIN_S}
        accepted = [node for node in wanted if self.enabled and node not in self._refused]
        for node in accepted[:_MOST]:
            try:
                self._hold(node, wanted[node], until_s)
            except SourceError as exc:
                if _BUSY in str(exc) and node not in self._busy:
                    self._busy.add(node)
                    continue
                self._refused[node] = now
                log.info("GPUs of %s that the first job waits for are not guarded: %s", node, exc)

    def _hold(self, node: str, share: _Share | None, until_s: float) -> None:
        """Make a reservation, or put its end off. Raises SourceError."""
        if node in self._held:
            if self._held[node][1] < until_s and self.client.move_reservation(_name(node), until_s):
                self._held[node] = share, until_s
            return
        wanted = NewReservation(
            _name(node),
            until_s,
            nodes=node,
            # With CPUs: else Slurm takes more cores, and refuses a node without free ones.
            tres="" if share is None else f"gres/gpu={share.gpus},cpu={share.cpus}",
            flags=frozenset({"IGNORE_JOBS", "PURGE_COMP"}),
        )
        self.client.create_reservation(wanted)
        self._held[node] = share, until_s


def _share_of(reservation: SlurmReservation) -> _Share | None:
    """What it holds of its node; None: all, which Slurm shows without a number of GPUs."""
    return None if reservation.gpus is None else _Share(reservation.gpus, reservation.cpus or 0)


def passes_gate(job: SlurmJob, exclusive: Set[str] = frozenset()) -> bool:
    """Whether it is a pending job with an open gate that gets GPUs, also in unmanaged partitions.

    Slurm gives a job of whole nodes all GPUs there. ``exclusive``: partitions of such jobs.
    """
    if job.state != "PENDING":
        return False
    if is_ours(job.admin_comment):  # whatever Slurm shows of its GPUs
        marker = marker_of(job.admin_comment)
        return marker is not None and marker.phase is JobPhase.LEFT
    asked = job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket
    gpus = job.req_tres.get("gres/gpu", 0) > 0 or any(any(gpus_and_shards(one)) for one in asked)
    return gpus or job.exclusive or not exclusive.isdisjoint(job.partitions)


def passing(jobs: Iterable[SlurmJob], context: AdmissionContext) -> bool:
    """Whether a pending job may take GPUs of a planned node past the gate.

    One that is held, or waits for other jobs, does not count until it may start, and one that waits
    for its time from `_SOON_S` before: Slurm starts it at once then.
    """
    names = frozenset(context.cluster.nodes)
    there = {name for name, one in context.partitions.items() if not names.isdisjoint(one.nodes)}
    whole = {name for name in there if context.partitions[name].exclusive}
    return any(
        not there.isdisjoint(job.partitions) and passes_gate(job, whole)
        for job in jobs
        if job.state == "PENDING" and job.priority and not job.dependency
        if (job.eligible_s or 0.0) <= context.now + _SOON_S
    )


def _name(node: str) -> str:
    return f"{HEAD}_{node}"
