"""Moments: jobs that Slurm has started since the last look, and the site just before each start.

Slurm tells starts in whole seconds. Of one second the job of the higher priority comes first, as
Slurm's scheduler takes them. A GPU counts as free only if it surely was: a job that has ended since
the last look holds its GPUs until `EPILOG_S` after its end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.selector.site_reader import SiteState
from slurm_gpu_aware.slurm.records import HOLDING, NodeShare, SlurmJob

EPILOG_S = 1.0
Key = tuple[str, float]
"""Job and its start, Unix s."""


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
