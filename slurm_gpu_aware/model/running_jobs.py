"""Running jobs of a snapshot, with what a round asks of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Self

from slurm_gpu_aware.model.cluster import RunningJob

__all__ = ["RunningJobs"]


class RunningJobs(tuple[RunningJob, ...]):
    """``Cluster.running`` with parts that are found once.

    The simulator, in which few jobs change from round to round, knows them and sets them.
    """

    @classmethod
    def of(cls, running: Sequence[RunningJob]) -> Self:
        """The same jobs; what is known of them is kept."""
        return running if isinstance(running, cls) else cls(running)

    @cached_property
    def by_end(self) -> Sequence[RunningJob]:
        """The jobs by `RunningJob.until_s`, equal ones in the order of the snapshot."""
        return sorted(self, key=attrgetter("until_s"))

    @cached_property
    def beside_gpus(self) -> Sequence[RunningJob]:
        """The jobs that hold CPUs or memory, as far as is known."""
        return [job for job in self if job.beside_gpus]
