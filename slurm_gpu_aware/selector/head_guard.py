"""Guard of the head: short reservations of the GPUs that are kept for the first job that waits.

A few kinds of jobs cannot wait at the gate (``passes_gate`` in gpu_aware_unsupported.lua), and the
filter does not see all that get whole nodes with their GPUs. Slurm starts none at its submission
while a job of higher priority waits, but soon after, as soon as GPUs are free. So while such a job
is pending or soon due, a reservation holds the head's number of GPUs on each node, also those that
running jobs still use, and as many cores. Before the next round has made it, Slurm may give such a
job what is free; those that the filter sees begin some seconds later while a job waits
(`HeadGuard.keep`). Slurm 26.05 refuses to reserve GPUs that are in use: there the whole node is
held if the head gets all its GPUs, else only the free ones, from the next round on.

Jobs without GPUs start at their submission. While nothing but such jobs holds up the head
(`Waiting.held_up`), its GPUs and CPUs are held, so that no more of them come.

A job that waits at no gate and has a higher priority than the head starts before it: nodes that it
needs are not held against it (`outside`).

- When a job has been released to a node, its reservation goes. Slurm then tries jobs in their
  order; before, it would start there what the reservation has kept off.
- Another share of a node is held before the former one goes: Slurm starts jobs within milliseconds.
- Each ends with the gate's lease: a dead selector leaves none behind.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.left import Outside
from slurm_gpu_aware.admission.snapshot import NODES_TAKEN, is_usable, standing_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import HEAD, guards_head
from slurm_gpu_aware.gate.admin_comment import is_ours, marker_of, parse
from slurm_gpu_aware.gate.licence_gate import defer_until
from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy
from slurm_gpu_aware.planning.plan import Guarded
from slurm_gpu_aware.planning.timeline import Timeline
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import gpus_and_shards
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation, components_of
from slurm_gpu_aware.slurm.updates import TRES_FIELDS, NewReservation

log = logging.getLogger(__name__)

_NAMES = f"{HEAD}_", f"{HEAD}__"  # of a node's reservation, and of one that takes its place
_MOST = 64  # nodes with a reservation; 5 ms each
_BUSY = "Requested nodes are busy"
_SOON_S = 10.0  # two rounds (`selector.round_s`)
_MOST_OUTSIDE = 100
_FOR_ROOM = "None", "Priority", "Resources", "ReqNodeNotAvail", NODES_TAKEN
"""Starts of the reasons of jobs that wait for nodes, or that Slurm has not tried. It names nodes
that are down (``ReqNodeNotAvail,_UnavailableNodes:n9``) where others are reserved, too."""
_AGAIN_S = 10.0  # pause of a node for which Slurm refused a reservation, as of one that ends there


class _Share(NamedTuple):
    gpus: int
    cpus: int


class _Held(NamedTuple):
    share: _Share | None  # None: the whole node.
    end_s: float
    name: str


@dataclass
class HeadGuard:
    """The reservations that there are."""

    client: SlurmClient
    enabled: bool = True
    timer: Callable[[], float] = time.monotonic
    waiting_file: Path | None = None
    _told: bool | None = True
    """Whether that file says that a job waits; None: it cannot be written."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _doubled: set[str] = field(default_factory=set)
    """Names of those beside one that is known, as a selector left them that ended meanwhile."""
    _refused: dict[str, float] = field(default_factory=dict)
    """Node -> when Slurm refused one, in seconds of the timer."""
    _busy: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Node -> (how many of its `_shares` Slurm refused as they are in use, when the last one)."""

    def take_over(self, reservations: Iterable[SlurmReservation]) -> None:
        """Note those that Slurm has, also of an earlier selector."""
        before, self._held = self._held, {}
        for one in reservations:
            for node in one.nodes if guards_head(one.name) else ():
                share, known = _share_of(one), before.get(node)
                if known is not None and known.name == one.name:
                    share = known.share  # Slurm shows the CPUs of whole cores, and GPUs only if any
                held = _Held(share, one.end_s, one.name)
                if (other := self._held.get(node)) is not None:
                    if node in before and other.name == before[node].name:
                        held, other = other, held
                    self._doubled.add(other.name)
                self._held[node] = held

    def drop(self, nodes: Iterable[str]) -> None:
        """Remove the reservations of nodes to which jobs have been released."""
        for node in [node for node in nodes if node in self._held]:
            if self._delete(self._held[node].name):
                del self._held[node]

    def _delete(self, name: str) -> bool:
        try:
            self.client.delete_reservation(name)
        except SourceError as exc:
            log.warning("reservation %s is not removed: %s", name, exc)
            return False
        return True

    def keep(self, kept: Mapping[str, Guarded], until_s: float, *, waits: bool = False) -> None:
        """Hold what a round keeps for the head, until a time.

        ``kept``: by node. ``until_s``: end of the gate's lease, Unix seconds. ``waits``: whether a
        job waits, so that the filter defers those that Slurm starts at their submission.
        """
        self._tell(until_s if waits else 0.0)
        now = self.timer()
        busy = {node: one for node, one in self._busy.items() if node in kept}
        self._busy = {i: (n, at) for i, (n, at) in busy.items() if n < 2 or now - at < _AGAIN_S}
        tried = {node: self._busy.get(node, (0, now))[0] for node in kept}
        shares = {node: _shares(guarded, tried[node]) for node, guarded in kept.items()}
        wanted = {node: left for node, left in shares.items() if left}
        self.drop([node for node in self._held if node not in wanted])
        self._doubled = {name for name in self._doubled if not self._delete(name)}
        self._refused = {node: at for node, at in self._refused.items() if now - at < _AGAIN_S}
        accepted = [node for node in wanted if self.enabled and node not in self._refused]
        for node in accepted[:_MOST]:
            if not (why := self._hold_one(node, wanted[node], until_s)):
                continue
            self._refused[node] = now
            if node in self._held and _exceeds(self._held[node].share, wanted[node][0]):
                self.drop([node])
            log.info("GPUs of %s that the first job waits for are not guarded: %s", node, why)

    def _hold_one(self, node: str, shares: Sequence[_Share | None], until_s: float) -> str:
        """Hold the first of some shares that Slurm reserves; return why it refuses them, or ""."""
        for share in shares:
            try:
                self._hold(node, share, until_s)
                return ""
            except SourceError as exc:
                if _BUSY not in str(exc) or share is None or not share.gpus:
                    return str(exc)
                self._busy[node] = self._busy.get(node, (0, 0.0))[0] + 1, self.timer()
        return ""  # no GPU is free there

    def _tell(self, until_s: float) -> None:
        if self.waiting_file is None or not (self.enabled and (until_s or self._told)):
            return
        try:
            defer_until(self.waiting_file, until_s)
            self._told = until_s > 0.0
        except OSError as exc:
            if self._told is not None:
                log.warning("Slurm starts jobs of whole nodes before GPUs are guarded: %s", exc)
            self._told = None

    def _hold(self, node: str, share: _Share | None, until_s: float) -> None:
        """Make a reservation, or put its end off. Raises SourceError."""
        held = self._held.get(node)
        if held is not None and held.share == share:
            if held.end_s < until_s and self.client.move_reservation(held.name, until_s):
                self._held[node] = held._replace(end_s=until_s)
            return
        name, flags = _NAMES[0] + node, {"IGNORE_JOBS", "PURGE_COMP"}
        if held is not None:
            name = _NAMES[held.name == name] + node
            flags.add("OVERLAP")
        wanted = NewReservation(
            name,
            until_s,
            nodes=node,
            # With CPUs: else Slurm takes more cores, and refuses a node without free ones.
            tres="" if share is None else _tres(share),
            flags=frozenset(flags),
        )
        self.client.create_reservation(wanted)
        self._held[node] = _Held(share, until_s, name)
        if held is not None and not self._delete(held.name):
            self._doubled.add(held.name)


def _shares(guarded: Guarded, tried: int) -> Sequence[_Share | None]:
    """What to hold of a node, the first that Slurm reserves. Slurm 26.05 refuses GPUs and cores
    that are in use, as it did ``tried`` shares: then only the free GPUs, or the whole node."""
    gpus, free, every, cpus = guarded
    if cpus is None:
        return [None]
    if not gpus:
        return [_Share(0, cpus)] if cpus else []
    shares: list[_Share | None] = [_Share(gpus, max(gpus, cpus))]
    if every or cpus > free:
        shares.append(None)
    elif free:
        shares += [_Share(free, max(free, cpus)), None]
    return shares[tried:]


def _tres(share: _Share) -> str:
    return f"gres/gpu={share.gpus},cpu={share.cpus}" if share.gpus else f"cpu={share.cpus}"


def _exceeds(held: _Share | None, wanted: _Share | None) -> bool:
    """Whether it keeps more of a node than the head needs; None: the whole node."""
    if held is None or wanted is None:
        return wanted is not None
    return held.gpus > wanted.gpus or held.cpus > wanted.cpus


def _share_of(reservation: SlurmReservation) -> _Share | None:
    """What it holds of its node; None: all, which Slurm shows without a number of GPUs."""
    return None if reservation.gpus is None else _Share(reservation.gpus, reservation.cpus or 0)


def passes_gate(
    job: SlurmJob, exclusive: Set[str] = frozenset(), components: Sequence[SlurmJob] = ()
) -> bool:
    """Whether it is a pending job with an open gate that gets GPUs, also in unmanaged partitions.

    Slurm gives a job of whole nodes all GPUs there. ``exclusive``: partitions of such jobs.
    ``components``: the other ones of a heterogeneous job.
    """
    if job.state != "PENDING":
        return False
    whole = [
        one
        for one in (job, *components)
        if one.exclusive or not exclusive.isdisjoint(one.partitions)
    ]
    if is_ours(job.admin_comment):
        if _is_in(JobPhase.RELEASED, job) and components:  # planned with them, but these anywhere
            return not all(_asks_gpus(one) for one in whole)
        if not _is_in(JobPhase.LEFT, job):
            return False
        record = parse(job.admin_comment)
        if record is None or record.partial:
            return True
        # Slurm hides the GPUs of a job in an update that it refuses
        texts = {name: getattr(record, name) for name in TRES_FIELDS.values()}
        components = *components, replace(job, req_tres={}, **texts)
    return bool(whole) or any(_asks_gpus(one) for one in (job, *components))


def _asks_gpus(job: SlurmJob) -> bool:
    asked = job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket
    return job.req_tres.get("gres/gpu", 0) > 0 or any(any(gpus_and_shards(one)) for one in asked)


def passers(
    jobs: Iterable[SlurmJob], context: AdmissionContext, *, later: bool = False
) -> list[SlurmJob]:
    """Pending jobs that may take GPUs of a planned node past the gate.

    That is now or within `_SOON_S`, also when its user ends others. One of a managed partition
    that needs a part of a node counts although it is held or waits for another job: its user lets
    it go in the moment in which a node is not guarded. ``later``: at any time, as users change what
    such a job waits for, or its nodes: each counts although it is held, or waits for a time,
    another job or room, or asks for other nodes.
    """
    there = _with_gpus(context)
    whole = {name for name in there if context.partitions[name].exclusive}
    jobs = [*jobs]
    ours = {job.raw_id for job in jobs if is_ours(job.admin_comment)}
    components = components_of(jobs)
    found = [
        job
        for job in jobs
        if job.state == "PENDING"
        if job.follows not in ours  # later components start with the first
        if not there.isdisjoint(job.partitions)
        if passes_gate(job, whole, components.get(job.raw_id, ()))
    ]
    if later:
        return found
    soon_s = context.now + _SOON_S
    managed = {*(context.config.site.partitions or there)}
    due = (
        one
        for one in found
        if (one.priority and not one.dependency)
        or not (_whole(one) or managed.isdisjoint(one.partitions))
        if (one.eligible_s or 0.0) <= soon_s
    )
    found = _with_nodes(due, context)
    others, running, room = Outside(context), context.cluster.running, dict[str, Cluster]()
    answers, passing = dict[object, bool](), list[SlurmJob]()
    for job in found:
        if (like := _asked(job)) not in answers:
            if len(answers) == _MOST_OUTSIDE:
                passing.append(job)
                continue
            if (user := job.user) not in room:  # without what the user may end now, or ends soon
                gone = [one for one in running if one.user == user or one.end_s <= soon_s]
                room[user] = Timeline(gone, context.now).at(context.cluster, math.inf)
            answers[like] = _may_take(job, others, room[user])
        if answers[like]:
            passing.append(job)
    return passing


_OWN = {
    *("id", "raw_id", "name", "reason", "priority", "submit_s", "eligible_s", "start_s"),
    *("accrue_s", "tried_at_s", "comment", "submitted_with", "array_id", "array_tasks"),
    "req_tres",  # it cannot be hashed
}
_ASKED = attrgetter(*(one.name for one in fields(SlurmJob) if one.name not in _OWN))


def _asked(job: SlurmJob) -> object:
    """What a job asks for, and who: of thousands of equal ones one is looked at."""
    return _ASKED(job), tuple(sorted(job.req_tres.items()))


def _with_nodes(jobs: Iterable[SlurmJob], context: AdmissionContext) -> list[SlurmJob]:
    """Those whose nodes and GPU types are there: no number of others may hide one that is."""
    nodes, there = context.nodes, frozenset(context.cluster.nodes)
    usable = {name for name, node in nodes.items() if is_usable(node)}
    types = {kind for name in there for kind, _ in nodes[name].gpus}
    return [
        job
        for job in jobs
        if len(job.req_nodes) < job.min_nodes or not there.isdisjoint(job.req_nodes)
        if usable.issuperset(job.req_nodes) and types.issuperset(gpu_types(job))
    ]


def _may_take(job: SlurmJob, others: Outside, cluster: Cluster) -> bool:
    """Whether Slurm might start it on a node of the round that is as free as in ``cluster``."""
    nodes = others.context.nodes
    if not can_start(job, [nodes[name] for name in cluster.nodes]):
        return False
    if others.others(job):
        return True
    return LeftPolicy().place(others.request(job), cluster) is not None


def against(passing: Iterable[SlurmJob], context: AdmissionContext) -> float:
    """Above which priority Slurm gives a job's nodes to none of some others beside it."""
    parts = context.partitions
    found = [standing_of(job, parts) if _whole(job) else math.inf for job in passing]
    return max(found, default=math.inf)


def highest(passing: Iterable[SlurmJob], context: AdmissionContext) -> float:
    """Highest priority of those that need a part of a node only and are not held; -inf: none is."""
    parts = [job for job in passing if job.priority and not _whole(job)]
    found = (standing_of(job, context.partitions) for job in parts)
    return max(found, default=-math.inf)


def _with_gpus(context: AdmissionContext) -> frozenset[str]:
    """Partitions that have nodes of a round."""
    names = frozenset(context.cluster.nodes)
    parts = context.partitions.items()
    return frozenset(name for name, one in parts if not names.isdisjoint(one.nodes))


def _whole(job: SlurmJob) -> bool:
    """Whether it gets GPUs with whole nodes only."""
    return not _asks_gpus(job) or (job.exclusive and not job.exclusive_by)


def _is_in(phase: JobPhase, job: SlurmJob) -> bool:
    marker = marker_of(job.admin_comment)
    return marker is not None and marker.phase is phase


def _is_left_bare(job: SlurmJob) -> bool:
    """Whether it is a component without GPUs of a job that is left to Slurm."""
    return job.het and not _asks_gpus(job) and _is_in(JobPhase.LEFT, job)


def outside(jobs: Iterable[SlurmJob], context: AdmissionContext) -> Iterator[Request]:
    """Pending jobs that wait at no gate, but for room on nodes of a round only.

    The first `_MOST_OUTSIDE` by priority, as Slurm itself tries so many (bf_max_job_test).
    """
    there = _with_gpus(context)
    found = [
        job
        for job in jobs
        if job.state == "PENDING" and job.priority and job.reason.startswith(_FOR_ROOM)
        if not (job.dependency or (is_ours(job.admin_comment) and not _is_left_bare(job)))
        if (job.eligible_s or 0.0) <= context.now and not there.isdisjoint(job.partitions)
    ]
    found.sort(key=lambda job: -standing_of(job, context.partitions))
    yield from map(Outside(context).request, found[:_MOST_OUTSIDE])
