"""How a job uses its nodes beside others, by its options and its partitions.

Slurm starts a job in whichever of its partitions it tries first that has room, and in another one
where a limit keeps it from that. So what one of them brings counts, wherever it is planned.
"""

from collections.abc import Mapping

from slurm_gpu_aware.model.request import Sharing
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmPartition


def gets_whole_nodes(job: SlurmJob, partitions: Mapping[str, SlurmPartition]) -> bool:
    """Whether it gets its nodes for itself."""
    named = (partitions[name] for name in job.partitions if name in partitions)
    return job.exclusive or any(one.exclusive for one in named)


def is_alone(job: SlurmJob, partitions: Mapping[str, SlurmPartition]) -> bool:
    """Whether it shares its nodes with jobs of its own user only."""
    named = (partitions[name] for name in job.partitions if name in partitions)
    return job.exclusive_user or any(one.exclusive_user for one in named)


def sharing_of(job: SlurmJob, partitions: Mapping[str, SlurmPartition]) -> Sharing:
    """How its CPUs are shared, in the first of its partitions where they are."""
    found = None
    for name in job.partitions:
        if name in partitions:
            own = partitions[name].sharing(asked=job.oversubscribe)
            if own.shares:
                return own
            found = found or own
    return found or Sharing()
