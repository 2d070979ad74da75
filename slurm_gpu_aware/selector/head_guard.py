"""Guard of the head: short reservations of the GPUs that are kept for the first job that waits.

A few kinds of jobs cannot wait at the gate (``passes_gate`` in gpu_aware_unsupported.lua). Slurm
starts none of them at its submission while a job of higher priority waits, but soon after, as soon
as GPUs are free. So while such a job is pending, a reservation holds the head's number of GPUs on
each node, also those that running jobs still use, and as many cores. Slurm 26.05 refuses to
reserve GPUs that are in use: there only the free ones are held, from the next round on.

- Before a job is placed on a node, its reservation goes.
- Each ends with the gate's lease: a dead selector leaves none behind.

Turns of jobs that a round cannot place: Slurm does when their turn comes.

Refusals: changes that would let parked jobs start, and that Slurm refuses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import HEAD, guards_head
from slurm_gpu_aware.gate.admin_comment import is_ours, marker_of
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import gpus_and_shards
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation
from slurm_gpu_aware.slurm.updates import NewReservation

log = logging.getLogger(__name__)

_MOST = 64  # nodes with a reservation; 5 ms each
_BUSY = "Requested nodes are busy"
_AGAIN_S = 10.0  # pause of a node for which Slurm refused a reservation, as of one that ends there


@dataclass
class HeadGuard:
    """The reservations that there are: node -> (GPUs, end)."""

    client: SlurmClient
    enabled: bool = True
    timer: Callable[[], float] = time.monotonic
    _held: dict[str, tuple[int, float]] = field(default_factory=dict)
    _refused: dict[str, float] = field(default_factory=dict)
    """Node -> when Slurm refused one, in seconds of the timer."""
    _busy: set[str] = field(default_factory=set)
    """Nodes of which Slurm reserves no GPUs that are in use."""

    def take_over(self, reservations: Iterable[SlurmReservation]) -> None:
        """Note those that Slurm has, also of an earlier selector."""
        there = [one for one in reservations if guards_head(one.name)]
        self._held = {node: (one.gpus or 0, one.end_s) for one in there for node in one.nodes}

    def drop(self, nodes: Iterable[str]) -> None:
        """Remove the reservations of nodes, before jobs are placed there."""
        for node in [node for node in nodes if node in self._held]:
            try:
                self.client.delete_reservation(_name(node))
                del self._held[node]
            except SourceError as exc:
                log.warning("reservation %s is not removed: %s", _name(node), exc)

    def keep(self, kept: Mapping[str, tuple[int, int]], until_s: float) -> None:
        """Hold the GPUs that a round keeps for the head, until a time.

        ``kept``: node -> (their number, number of the free ones). ``until_s``: end of the gate's
        lease, Unix seconds.
        """
        self._busy &= kept.keys()
        wanted = {node: number[node in self._busy] for node, number in kept.items()}
        wanted = {node: gpus for node, gpus in wanted.items() if gpus}
        self.drop([node for node, (gpus, _) in self._held.items() if wanted.get(node) != gpus])
        now = self.timer()
        self._refused = {node: at for node, at in self._refused.items() if now - at < _AGAIN_S}
        free = [node for node in wanted if self.enabled and node not in self._refused]
        for node in free[:_MOST]:
            try:
                self._hold(node, wanted[node], until_s)
            except SourceError as exc:
                if _BUSY in str(exc) and node not in self._busy:
                    self._busy.add(node)
                    continue
                self._refused[node] = now
                log.info("GPUs of %s that the first job waits for are not guarded: %s", node, exc)

    def _hold(self, node: str, gpus: int, until_s: float) -> None:
        """Make a reservation, or put its end off. Raises SourceError."""
        if node in self._held:
            if self._held[node][1] < until_s and self.client.move_reservation(_name(node), until_s):
                self._held[node] = gpus, until_s
            return
        wanted = NewReservation(
            _name(node),
            until_s,
            nodes=node,
            # With CPUs: else Slurm takes more cores, and refuses a node without free ones.
            tres=f"gres/gpu={gpus},cpu={gpus}",
            flags=frozenset({"IGNORE_JOBS", "PURGE_COMP"}),
        )
        self.client.create_reservation(wanted)
        self._held[node] = gpus, until_s


def passes_gate(job: SlurmJob) -> bool:
    """Whether it is a pending GPU job with an open gate, also of an unmanaged partition."""
    marker = marker_of(job.admin_comment)
    opened = marker is not None and marker.phase is JobPhase.LEFT
    if job.state != "PENDING" or (is_ours(job.admin_comment) and not opened):
        return False
    asked = job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket
    return job.req_tres.get("gres/gpu", 0) > 0 or any(any(gpus_and_shards(one)) for one in asked)


def _name(node: str) -> str:
    return f"{HEAD}_{node}"


_TRIES = 3  # starts of a job that is left to Slurm, before its gate opens for good in its turn


@dataclass
class Turns:
    """Records that planning cannot place, and jobs whose gate opens for good."""

    backoff: Backoff
    wake: Callable[[], object] = lambda: None
    """Starts another round."""
    unplaceable: dict[int, str] = field(default_factory=dict)
    """Number of a record -> why rounds plan it by counts only."""

    def leave(self, jobs: Sequence[tuple[GatedJob, str]], candidates: Candidates) -> None:
        """Plan these records by counts from the next round on; leave those that are, at once."""
        for job, reason in jobs:
            if candidates.planned_by_counts(job):
                candidates.leave.append((job, reason))
            else:
                log.info("job %s is left to Slurm in its turn: %s", job.id, reason)
                self.unplaceable[job.job.raw_id] = reason
                self.wake()

    def without_waiting_before(
        self, jobs: Sequence[tuple[GatedJob, str]], plan: Plan, candidates: Candidates
    ) -> list[tuple[GatedJob, str]]:
        """The records without those whose gate would open while a job before them waits.

        What its user asks can start nowhere by counts; with another request it would pass that job.
        """
        waits = {one.job_id for one in plan.waiting if not (one.infeasible or one.failed)}
        behind: set[int] = set()
        after = False
        for job_id, one in candidates.to_plan.items():  # in queue order
            after = after or job_id in waits
            if after:
                behind.add(one.gated.job.raw_id)
        return [
            (job, why)
            for job, why in jobs
            if job.job.raw_id not in behind or not candidates.planned_by_counts(job)
        ]

    def opened_for_good(
        self, plan: Plan, candidates: Candidates
    ) -> tuple[Plan, list[tuple[GatedJob, str]]]:
        """The plan without jobs whose gate opens for good, and these, each with the reason.

        Slurm alone knows what a job lacks that fits by counts and did not start several times. It
        passes none, as no job before it waits.
        """
        good = [
            one.job_id
            for one in plan.assignments
            if candidates.to_plan[one.job_id].request.left is not None
            and self.backoff.failures(one.job_id) >= _TRIES
            and "behind" not in one.why
        ]
        rest = tuple(one for one in plan.assignments if one.job_id not in good)
        jobs = [candidates.to_plan[job_id] for job_id in good]
        left = [(one.gated, one.request.left.reason) for one in jobs if one.request.left]
        return replace(plan, assignments=rest), left

    def forget(self, numbers: Collection[int]) -> None:
        """Drop records that are gone."""
        self.unplaceable = {n: why for n, why in self.unplaceable.items() if n in numbers}


MOST = 5
"""Refusals in a row after which the gate opens."""


@dataclass
class Refusals:
    """The refusals since a parked job last got through."""

    ended: Callable[[], Set[str]] = frozenset
    """Slurm's sentences for jobs that have ended: they are no refusals."""
    count: int = 0
    why: str = ""
    """Of the last one: job and Slurm's sentence."""
    who: set[str] = field(default_factory=set)
    """The users of these jobs."""
    through: bool = True
    """A job got through since the gate was last opened, or it never was."""

    @property
    def too_many(self) -> bool:
        """Whether the gate must open."""
        return self.count >= MOST

    def refused(self, job_id: str, why: str, user: str) -> None:
        """Count a refusal."""
        if why not in self.ended():
            self.count += 1
            self.who.add(user)
            self.why = f"job {job_id}: {why}"

    def accepted(self) -> None:
        """Forget the refusals: a job got through."""
        self.forget()
        self.through = True

    def forget(self) -> None:
        """Begin a new row."""
        self.count = 0
        self.who.clear()

    def try_again(self) -> None:
        """Note that the gate closes: until a job gets through, the first refusal opens it again."""
        self.count = 0 if self.through else MOST - 1
