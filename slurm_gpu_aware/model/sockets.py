"""Sockets of the nodes: the GPUs of each one and the free cores beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray

__all__ = ["Sockets"]


@dataclass(frozen=True, eq=False)
class Sockets:
    """The S sockets of N nodes with W slots; a socket that a node lacks has no CPUs."""

    gpu: IntArray
    """(N, W) socket of each GPU; -1: not known, or several."""
    cpus: IntArray
    """(N, S) CPUs of the schedulable cores, held or not."""
    free_cpus: IntArray
    """(N, S) CPUs of the cores that no job holds."""
    per_core: IntArray
    """(N,) CPUs per core."""
    quiet: BoolArray
    """(N,) Slurm has started all jobs that were placed here, so Slurm may choose GPUs."""

    def copy(self) -> Sockets:
        """The same sockets with their own ``free_cpus`` and ``quiet``."""
        return replace(self, free_cpus=self.free_cpus.copy(), quiet=self.quiet.copy())

    def idle(self) -> Sockets:
        """The same sockets without any job."""
        return replace(self, free_cpus=self.cpus, quiet=np.ones_like(self.quiet))

    def share(
        self, node: int, slots: Sequence[int], cpus: int, *, all_free: bool = False
    ) -> tuple[int, ...]:
        """CPUs that Slurm takes on each socket for GPUs of a node.

        Slurm takes whole cores, those beside the GPUs first. ``all_free``: it takes every free
        core beside the GPUs and no other.
        """
        free = np.maximum(self.free_cpus[node], 0)
        near = np.zeros(len(free), dtype=np.bool_)
        near[[s for s in self.gpu[node, list(slots)].tolist() if s >= 0]] = True
        if all_free:
            return tuple(np.where(near, free, 0).tolist())
        core = max(1, int(self.per_core[node]))
        left = -(-cpus // core) * core
        taken = np.zeros_like(free)
        for socket in np.lexsort((-free, ~near)):
            taken[socket] = min(left, int(free[socket]))
            left -= int(taken[socket])
        return tuple(taken.tolist())
