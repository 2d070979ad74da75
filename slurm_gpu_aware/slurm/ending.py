"""Jobs that have ended and whose epilog still runs: what they hold is as good as free.

Slurm starts the next job the moment it hears of the epilog's end, if that job is ready by then:
pinned, its gate open. One that gets ready later waits for slurmctld's next look, up to a second.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from slurm_gpu_aware.slurm.gres_line import slot_of
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode

__all__ = ["without_ended"]


def without_ended(
    nodes: Sequence[SlurmNode], jobs: Sequence[SlurmJob], keep: Set[str] = frozenset()
) -> tuple[list[SlurmNode], list[SlurmJob]]:
    """Nodes and jobs as they will be when the epilogs that run now are done.

    ``keep``: nodes that stay as they are. On a plain node Slurm does not tell which GPUs a job
    held: they stay taken until the epilog is done.
    """
    found = {node.name: node for node in nodes}
    left = []
    for job in jobs:
        if job.state != "COMPLETING" or not keep.isdisjoint(job.nodes):
            left.append(job)
            continue
        slots = frozenset(s for s in map(slot_of, job.gpu_types) if s is not None)
        for name in job.nodes:
            if name in found and name not in keep:
                node = found[name]
                found[name] = replace(node, gpus_used=node.gpus_used - slots)
        for share in job.shares:
            if share.node in job.nodes and share.node in found:
                node = found[share.node]
                found[share.node] = replace(
                    node,
                    cpus_used=max(0, node.cpus_used - share.cpus),
                    memory_used_mb=max(0, node.memory_used_mb - share.memory_mb),
                )
    return list(found.values()), left
