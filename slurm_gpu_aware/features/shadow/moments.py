"""Moments: jobs that Slurm has started since the last look, and their requests.

Slurm tells starts in whole seconds. Of one second the job of the higher priority comes first, as
Slurm's scheduler takes them. A GPU counts as free only if it surely was: a job that has ended since
the last look holds its GPUs until `EPILOG_S` after its end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.fitting import needs_sockets
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.features.shadow.losses import WholeNodeJob
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import form_of
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.site_reader import SiteState
from slurm_gpu_aware.slurm.records import HOLDING, NodeShare, SlurmJob

EPILOG_S = 1.0
Key = tuple[str, float]  # Job and its start, Unix s.


def key_of(job: SlurmJob) -> Key:
    """What names a start of a job."""
    return job.id, job.start_s or 0.0


def holds_gpus(job: SlurmJob) -> bool:
    """Whether Slurm shows whole GPUs of a job."""
    return job.state in HOLDING and any(share.gpus for share in job.shares)


def in_order(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Jobs in the order in which Slurm started them."""
    return sorted(jobs, key=lambda j: (j.start_s or 0.0, -j.priority, j.submit_s, j.raw_id))


@dataclass(frozen=True)
class Moment:
    """What has changed since the last look."""

    seen: SiteState
    started: Sequence[SlurmJob] = ()
    """Jobs that hold resources now and did not at the last look, in the order of their starts."""
    ended: Sequence[tuple[SlurmJob, float]] = ()
    """Jobs that held resources at the last look and do not any more: as they were then, and when
    they ended, Unix s."""

    def before(self, job: SlurmJob, now: Cluster) -> Cluster:
        """The cluster just before one of ``started`` starts, with all that it got free.

        ``now``: the cluster of ``seen``.
        """
        at = job.start_s or self.seen.now
        later = self.started[self.started.index(job) :]
        gone = {one.id for one in later}
        running = tuple(one for one in now.running if one.job_id not in gone)
        found = replace(now.copy(), running=running)
        places = {name: i for i, name in enumerate(now.nodes)}
        for one in later:
            _change(found, places, one.shares, 1)
        for was, end_s in self.ended:
            if end_s + EPILOG_S >= at:
                _change(found, places, was.shares, -1)
        for share in job.shares:  # surely free then, whoever ended in the same second
            if (node := places.get(share.node)) is not None:
                found.give_back(node, [slot for slot in share.gpus if slot < now.shape[1]])
                found.free_cpus[node] = max(found.free_cpus[node], share.cpus)
                found.free_memory_mb[node] = max(found.free_memory_mb[node], share.memory_mb)
        return found


def _change(
    cluster: Cluster, places: Mapping[str, int], shares: Iterable[NodeShare], sign: int
) -> None:
    """Free (1) or take (-1) the resources of a job, in place."""
    width = cluster.shape[1]
    for share in shares:
        node = places.get(share.node)
        if node is None:
            continue
        slots = [slot for slot in share.gpus if slot < width]
        if sign > 0:
            cluster.give_back(node, slots)
        else:
            cluster.free[node, slots] = False
        for free, total, amount in (
            (cluster.free_cpus, cluster.cpus, share.cpus),
            (cluster.free_memory_mb, cluster.memory_mb, share.memory_mb),
        ):
            left = max(0, int(free[node]) + sign * amount)
            free[node] = left if total is None else min(left, int(total[node]))


_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")


def as_gated(job: SlurmJob) -> GatedJob:
    """The job as if it had come through the filter, by its present options."""
    original = parse(job.admin_comment) or original_of(job)
    return GatedJob(job, original, None, JobPhase.WAITING)


def original_of(job: SlurmJob) -> OriginalRequest:
    """The request of a job in Slurm's words.

    Slurm shows one task and one CPU per task where the user gave none, so these count as not given.
    Its GPU type becomes the request's model.
    """
    texts = {name: getattr(job, name) for name in _FIELDS}
    form = form_of(OriginalRequest(**texts))
    nodes = (job.min_nodes, job.max_nodes)
    counted = job.tasks > 1 or (form is not None and form.kind == "task")
    return OriginalRequest(
        **texts,
        cpus_per_tres=job.cpus_per_tres,
        mem_per_tres=job.mem_per_tres,
        nodes=None if nodes == (1, None) else nodes,
        features=job.features,
        req_nodes=",".join(job.req_nodes) or None,
        exc_nodes=",".join(job.exc_nodes) or None,
        num_tasks=job.tasks if counted else None,
        cpus_per_task=job.cpus_per_task if (job.cpus_per_task or 1) > 1 else None,
        ntasks_per_node=job.ntasks_per_node,
        memory=job.memory_mb_per_node is not None or job.memory_mb_per_cpu is not None,
        model=None if form is None else form.item.kind,
        exclusive=job.exclusive,
    )


def as_asked(started: SlurmJob, waiting: SlurmJob | None) -> SlurmJob:
    """The record by which a job that runs is planned.

    ``waiting``: its record (or that of its array) before it started; None: it was not seen. Where
    its options fix the GPUs of each node, it has the number of nodes that Slurm gave it.
    """
    given = len(started.nodes) or 1
    if waiting is None:
        return replace(started, min_nodes=given, max_nodes=given)
    asked = replace(
        waiting,
        id=started.id,
        raw_id=started.raw_id,
        array_tasks=None,
        partitions=started.partitions,
        reservation=started.reservation,
    )
    form = form_of(original_of(asked))
    if form is not None and form.on_node is not None:
        asked = replace(asked, min_nodes=given, max_nodes=given)
    return asked


def request_of(gated: GatedJob, context: AdmissionContext) -> Request:
    """The request, of one size. Raises CannotPlanError."""
    return replace(to_request(gated, context), sizes=())


def on_only(request: Request, nodes: BoolArray) -> Request:
    """The request on those of its eligible nodes that are in an (N,) mask."""
    known = request.nodes.eligible
    eligible = nodes if known is None else known & nodes
    return replace(request, nodes=replace(request.nodes, eligible=eligible, allowed=None))


def asks_for_gpus(job: SlurmJob) -> bool:
    """Whether a job asks for whole GPUs."""
    return any("gpu" in (getattr(job, name) or "") for name in _FIELDS)


def records_by_id(jobs: Mapping[str, SlurmJob], job: SlurmJob) -> SlurmJob | None:
    """The record that a job had while it waited: its own, or that of its array."""
    found = jobs.get(job.id)
    return found if found is not None or job.array_id is None else jobs.get(str(job.array_id))


def whole_nodes(gated: GatedJob, context: AdmissionContext) -> WholeNodeJob | None:
    """A waiting job that needs whole nodes; None: it does not, or its request is not understood."""
    if needs_sockets(gated, context.slurm):
        return None
    try:
        request = request_of(gated, context)
    except CannotPlanError:
        return None
    names, counts = context.cluster.nodes, context.cluster.exists.sum(axis=1)
    known = request.nodes.eligible
    able = counts > 0 if known is None else known & (counts > 0)
    if not able.any():
        return None
    each, nodes = request.gpus_per_node, request.fewest_nodes
    if not request.nodes.whole:
        if each is None or each != int(counts[able].max()):
            return None
        nodes = request.gpus // each
    return WholeNodeJob(gated.id, nodes, {names[i] for i in np.flatnonzero(able)})
