"""Assignment: the nodes and GPUs of one job, and the reason for them.

Running jobs of a snapshot, with what a round asks of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Self

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Gpus, RunningJob
from slurm_gpu_aware.model.facts import NO_FACTS, Fact, Facts


@dataclass(frozen=True)
class Assignment:
    """Exact nodes and GPUs for one job."""

    job_id: str
    nodes: tuple[int, ...]  # Node indices, ascending.
    slots: tuple[tuple[int, ...], ...]
    """Slots (Slurm's GPU indices) per node, ascending, parallel to ``nodes``."""
    policy: str  # Registry name of the policy that chose.
    score: float
    """max V over the chosen GPUs for the job's class (binned PM score; lower is better)."""
    level: str  # Name of the locality level that the set needs.
    slowdown: float  # Predicted t_iter / t_orig = L x max V (PAL, eq. 1).
    exact: bool = True
    """False on plain nodes and with ``--exclusive``: Slurm chooses the GPUs on the nodes."""
    clock_mhz: int | None = None  # SM clock to lock; None: the default clock.
    power_limit_w: int | None = None  # Power limit of each GPU, W; None: the site's own.
    victims: tuple[str, ...] = ()
    """Running jobs that Slurm preempts for this job; unless ``exact``, Slurm chooses among them."""
    kept_off: tuple[int, ...] = ()
    """Node indices on which Slurm must not start a job whose GPUs it chooses, ascending."""
    why: Facts = NO_FACTS  # What the policy, the planner and features say of it.

    def explained(self, *facts: Fact) -> Self:
        """The assignment with more facts."""
        return replace(self, why=self.why.also(*facts))

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return sum(map(len, self.slots))

    @property
    def gpus(self) -> Gpus:
        """(node, slots) pairs."""
        return tuple(zip(self.nodes, self.slots, strict=True))


class RunningJobs(tuple[RunningJob, ...]):
    """``Cluster.running`` with parts that are found once.

    The simulator, in which few jobs change from round to round, knows them and sets them.
    """

    known_until: FloatArray | None = None  # :meth:`until`, if it is known.

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

    def until(self, shape: tuple[int, int]) -> FloatArray:
        """(N, W) latest end of the first job to free each GPU; NaN: no job holds it."""
        if self.known_until is None:
            self.known_until = np.full(shape, np.nan)
            held = [job.each_gpu for job in self]
            counts = np.fromiter(map(len, held), dtype=np.int64, count=len(held))
            flat = chain.from_iterable(chain.from_iterable(held))
            gpus = np.fromiter(flat, dtype=np.int64, count=2 * int(counts.sum())).reshape(-1, 2).T
            ends = np.array([job.end_s for job in self], dtype=np.float64).repeat(counts)
            np.fmin.at(self.known_until, (gpus[0], gpus[1]), ends)
        return self.known_until
