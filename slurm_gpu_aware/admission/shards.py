"""GPUs of which jobs have shards: how many are free, and which job frees the GPU."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Gpu, RunningJob, Shards
from slurm_gpu_aware.slurm.records import SlurmNode


def shards_of_nodes(
    nodes: Sequence[SlurmNode],
    installed: BoolArray,
    exists: BoolArray,
    indexed: BoolArray,
    busy: Set[str],
    held: Iterable[tuple[Gpu, int]],
) -> Shards | None:
    """Shards of the GPUs of indexed nodes whose shards have types; None: there are none.

    ``busy``: nodes on which no job can start. ``held``: GPUs of released jobs, and their shards.
    """
    if not any(node.shards for node in nodes):
        return None
    total = np.zeros(exists.shape, dtype=np.int64)
    used = np.zeros_like(total)
    typed = (i for i in np.flatnonzero(indexed).tolist() if not nodes[i].untyped_shards)
    for i in typed:
        for slot, (in_use, number) in nodes[i].shards.items():
            if slot < exists.shape[1] and installed[i, slot]:
                total[i, slot], used[i, slot] = number, in_use
    for gpu, number in held:
        used[gpu] += number
    free = np.where(exists & (used > 0), np.maximum(total - used, 0), 0)
    for i, node in enumerate(nodes):
        whole = [slot for slot in node.gpus_used if slot < exists.shape[1]]
        free[i, whole] = 0  # Slurm has mixed them up
        if node.name in busy:
            free[i] = 0
    return Shards(total, free)


def last_holders(running: Sequence[RunningJob], shared: frozenset[Gpu]) -> list[RunningJob]:
    """The jobs, each with those of the ``shared`` GPUs that it holds longest; others stay."""
    last: dict[Gpu, RunningJob] = {}
    for job in running:
        for gpu in shared.intersection(job.each_gpu):
            if gpu not in last or job.end_s > last[gpu].end_s:
                last[gpu] = job
    found = []
    for job in running:
        if not shared.isdisjoint(job.each_gpu):
            kept = (
                (node, tuple(s for s in slots if last.get((node, s), job) is job))
                for node, slots in job.gpus
            )
            job = replace(job, gpus=tuple((node, slots) for node, slots in kept if slots))
        found.append(job)
    return found
