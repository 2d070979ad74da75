"""Moments: jobs that Slurm has started since the last look, and the site just before each start.

Slurm tells starts in whole seconds. Of one second the job of the higher priority comes first, as
Slurm's scheduler takes them. A GPU counts as free only if it surely was: a job that has ended since
the last look holds its GPUs until `EPILOG_S` after its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.selector.site_reader import SiteState
from slurm_gpu_aware.slurm.records import HOLDING, NodeShare, SlurmJob, SlurmNode

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
    ended: Mapping[Key, tuple[SlurmJob, float]] = field(default_factory=dict)
    """Jobs that held resources at the last look and do not any more: as they were then, and when
    they ended, Unix s."""

    def before(self, job: SlurmJob) -> SiteState:
        """The site just before one of ``started`` starts, with its own GPUs free."""
        at = job.start_s or self.seen.now
        later = self.started[self.started.index(job) :]
        back = [was for was, end_s in self.ended.values() if end_s + EPILOG_S >= at]
        nodes = dict(self.seen.nodes)
        for one in later:
            _change(nodes, one.shares, -1)
        for one in back:
            _change(nodes, one.shares, 1)
        for share in job.shares:  # surely free then, whoever ended in the same second
            if (node := nodes.get(share.node)) is not None:
                nodes[share.node] = replace(node, gpus_used=node.gpus_used - set(share.gpus))
        gone = {one.raw_id for one in later}
        jobs = [one for one in self.seen.jobs if one.raw_id not in gone]
        return replace(self.seen, jobs=[*jobs, *back], nodes=nodes, now=at, busy=frozenset())


def _change(nodes: dict[str, SlurmNode], shares: Iterable[NodeShare], sign: int) -> None:
    """Give (1) or take (-1) the resources of a job, in place of their nodes' records."""
    for share in shares:
        node = nodes.get(share.node)
        if node is None:
            continue
        held = node.gpus_used | set(share.gpus) if sign > 0 else node.gpus_used - set(share.gpus)
        nodes[share.node] = replace(
            node,
            gpus_used=held,
            cpus_used=min(node.cpus, max(0, node.cpus_used + sign * share.cpus)),
            memory_used_mb=max(0, node.memory_used_mb + sign * share.memory_mb),
        )
