"""Jobs that Slurm places when their turn comes, and those that are left to it at once.

Left are orphans, jobs without a usable policy, and infeasible jobs, which Slurm could start.

Drained GPUs can leave two nodes without a common set of indices, or 4 + 2 GPUs for a job of 6. At
the gate such an infeasible job would wait until the nodes are repaired. A job for which an option
of its policy (``single_node``, ``min_bandwidth_gbps``) forbids every place stays parked, because
Slurm would break that rule; its reason names the option.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.gated_job import GatedJob, bound_orphan, unbound_orphan
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.backoff import TRIES, Backoff
from slurm_gpu_aware.selector.candidates import Candidate, Candidates
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import bound_slots
from slurm_gpu_aware.slurm.records import SlurmJob

log = logging.getLogger(__name__)

_OVERWRITTEN = "its AdminComment was overwritten"
_AT_ONCE = 100  # jobs of one call; the ledger is written after each, as Slurm may stop answering


@dataclass(frozen=True)
class Leaver:
    """Opens the gate of jobs that are left to Slurm, and records why.

    The ledger gets only the updates that Slurm accepts. A refused job stays parked and is tried
    again after a back-off.
    """

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    backoff: Backoff

    def leave(
        self, jobs: Sequence[tuple[GatedJob, str]], now: float, split: Set[int] = frozenset()
    ) -> tuple[set[str], dict[str, str]]:
        """Open the gate for jobs, each with the reason why it is left to Slurm.

        ``split``: see `update_ids`. Returns (updated jobs, job that stays parked -> why);
        raises SourceError.
        """
        stays: dict[str, str] = {}
        leaving: list[GatedJob] = []
        for job, _ in jobs:
            wait_s = self.backoff.wait_s(job.id, "Licenses")
            if wait_s is not None:
                stays[job.id] = f"cannot be left to Slurm; tried again in {wait_s:.0f} s"
            else:
                leaving.append(job)
        reasons = {job.id: reason for job, reason in jobs}
        for start in range(0, len(leaving), _AT_ONCE):
            stays |= self._leave(leaving[start : start + _AT_ONCE], reasons, now, split)
        return {job.id for job in leaving}, stays

    def _leave(
        self, jobs: Sequence[GatedJob], reasons: Mapping[str, str], now: float, split: Set[int]
    ) -> dict[str, str]:
        stays: dict[str, str] = {}
        user_of = {job.id: job.job.user for job in jobs}
        done = restore(self.client, self.gate, jobs, now, then=JobPhase.LEFT, split=split)
        for job_id, ids in done.left.items():
            reason = reasons[job_id]
            for name in dict.fromkeys([*ids, job_id] if job_id not in done.wrong else ids):
                self.tracker.ledger.event(name, "released", {"left_to_slurm": reason}, now)
            if job_id not in done.wrong:
                self.tracker.refusals.accepted()
                log.info("job %s is left to Slurm: %s", job_id, reason)
                self.tracker.withdraw(job_id, {"why": reason}, now)
        for job_id, why in done.wrong.items():
            if job_id in done.refused:
                self.tracker.refusals.refused(job_id, why, user_of.get(job_id, job_id))
            wait_s = self.backoff.punish(job_id)
            stays[job_id] = f"could not be left to Slurm: {why}"
            log.warning("job %s %s; tried again in %.0f s", job_id, stays[job_id], wait_s)
        return stays

    def leave_orphans(
        self, pending: Iterable[SlurmJob], now: float, split: Set[int], *, gate_held: bool
    ) -> None:
        """Leave orphans to Slurm; bound ones only while the gate is held.

        A job with the gate's licence and without a record would wait for ever, also one that the
        ledger does not know: its AdminComment was overwritten before the first round. A job without
        the licence is no orphan unless the ledger knows it: an operator may ask for GPUs by index.
        """
        orphans: list[tuple[GatedJob, str]] = []
        for job in pending:
            if not self._looks_ours(job) or self.backoff.wait_s(job.id, "Licenses") is not None:
                continue
            bound = None
            for last in self.tracker.ledger.decisions(job.id)[-1:]:
                bound = bound_orphan(job, self.gate, last)
            if bound is not None:
                if gate_held:
                    orphans.append((bound, _OVERWRITTEN))
            elif job.licence_count(self.gate.licence):
                orphans.append((unbound_orphan(job, self.gate), _OVERWRITTEN))
        self.leave(orphans, now, split)

    def _looks_ours(self, job: SlurmJob) -> bool:
        """Whether a job without a record has the gate's licence or a binding, or was placed."""
        return parse(job.admin_comment) is None and (
            job.licence_count(self.gate.licence) > 0
            or job.id in self.tracker.placed
            or bound_slots(job) is not None
        )


def without_policy(
    plan: Plan, candidates: Mapping[str, Candidate], parked: Iterable[GatedJob]
) -> list[tuple[GatedJob, str]]:
    """Parked records whose policy cannot be used, each with the reason, unless a task starts."""
    numbers = {job_id: one.gated.job.raw_id for job_id, one in candidates.items()}
    failed = {numbers[one.job_id]: one.reason for one in plan.waiting if one.failed}
    starts = {numbers[one.job_id] for one in plan.assignments}
    return [(job, failed[n]) for job in parked if (n := job.job.raw_id) in failed.keys() - starts]


def infeasible(
    waiting: Iterable[Waiting],
    candidates: Mapping[str, Candidate],
    parked: Iterable[GatedJob],
    context: AdmissionContext,
) -> list[tuple[GatedJob, str]]:
    """Parked records that are infeasible for us and that Slurm may start, each with the reason.

    They fit by counts; or counts are all that a round knows of them, and even all nodes are too
    few: then the counts are wrong, or Slurm tells what the job lacks.
    """
    cluster = context.cluster
    records = {job.job.raw_id: job for job in parked}
    leave: dict[int, tuple[GatedJob, str]] = {}
    fit: dict[object, bool] = {}
    for entry in waiting:
        candidate = candidates.get(entry.job_id)
        if not entry.infeasible or entry.by_policy or candidate is None:
            continue
        number = candidate.gated.job.raw_id
        if number in leave:  # another task of its array
            continue
        shape = shape_of(candidate.request)
        if shape not in fit and candidate.request.left is not None:
            later = candidate.request.unreserved
            fit[shape] = LeftPolicy().place(later, context.repaired) is None
        elif shape not in fit:
            fit[shape] = fits_by_counts(candidate.request, cluster)
        if fit[shape]:
            leave[number] = (records[number], entry.reason)
    return list(leave.values())


def fits_by_counts(request: Request, cluster: Cluster) -> bool:
    """Whether the usable nodes have enough GPUs and CPUs, whatever indices and running jobs."""
    if (groups := request.nodes.groups) is not None:
        # A job that Slurm would not start either stays parked.
        rules = replace(request.nodes, groups=None)
        inside = groups.of >= 0 if rules.eligible is None else rules.eligible
        for group in np.unique(groups.of[groups.of >= 0]):
            part = replace(request, nodes=replace(rules, eligible=inside & (groups.of == group)))
            if fits_by_counts(part, cluster):
                return True
        return False
    counts = cluster.exists.sum(axis=1)
    if request.nodes.eligible is not None:
        counts = np.where(request.nodes.eligible, counts, 0)
    required = list(request.nodes.required)
    for nodes in request.node_counts(cluster.shape[1]):
        able = counts >= request.gpus // nodes
        if cluster.cpus is not None:
            able &= cluster.cpus >= request.cpus_on_node(nodes)
        if int(able.sum()) >= nodes and all(able[required]):
            return True
    # Without a fixed count per node the GPUs may be spread unevenly.
    if request.gpus_per_node is not None or request.nodes.whole or not all(counts[required]):
        return False
    most = min(request.max_nodes or request.gpus, request.gpus)
    others = np.sort(np.delete(counts, required))[::-1][: max(0, most - len(required))]
    enough = int(counts[required].sum() + others.sum()) >= request.gpus
    nodes_there = len(required) + int(np.count_nonzero(others))
    return enough and max(1, request.min_nodes) <= min(nodes_there, request.gpus)


@dataclass
class Turns:
    """Records that planning cannot place, and jobs whose gate opens until they start."""

    backoff: Backoff
    wake: Callable[[], object] = lambda: None  # Starts another round.
    unplaceable: dict[int, str] = field(default_factory=dict)
    """Number of a record -> why rounds plan it by counts only."""
    lasting: set[str] = field(default_factory=set)
    """Jobs with a gate that stays open until they start."""

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

    def open_until_start(
        self, plan: Plan, candidates: Candidates, released: Sequence[GatedJob]
    ) -> Plan:
        """The plan in which jobs that did not start several times may start on any of their nodes.

        Slurm alone knows what a job lacks that fits by counts. So its gate stays open until it
        starts, no GPUs are kept for it, and no job before it waits: it is parked again when one
        does.
        """
        waits = {one.job_id for one in plan.waiting if not one.infeasible}
        starts = {one.job_id for one in plan.assignments}
        good = {
            job_id
            for job_id in takewhile(lambda i: i not in waits, candidates.to_plan)  # in queue order
            if job_id in starts
            and candidates.to_plan[job_id].request.left is not None
            and self.backoff.failures(job_id) >= TRIES
        }
        self.lasting = good | self.lasting.intersection(job.id for job in released)
        anywhere = (
            replace(one, kept_off=()) if one.job_id in good else one for one in plan.assignments
        )
        return replace(plan, assignments=tuple(anywhere))

    def forget(self, numbers: Collection[int]) -> None:
        """Drop records that are gone."""
        self.unplaceable = {n: why for n, why in self.unplaceable.items() if n in numbers}
