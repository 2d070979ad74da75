"""Jobs to size, and what each of them gets: GPUs and an SM clock."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.model.size_table import SizeTable


@dataclass(frozen=True, eq=False)
class SizingJob:
    """One job as a consumer of GPUs and power."""

    job_id: str
    sizes: tuple[int, ...]
    """GPU counts that it may get, ascending. A running job that keeps its GPUs: only theirs."""
    max_w: float
    """Power limits of its GPUs at the least size: what it counts with if its table says nothing."""
    table: SizeTable | None = None
    """None: no model is known; the job gets its least size and the clock that it asked for."""
    clocks_mhz: tuple[int, ...] | None = None
    """SM clocks that it may get; None: all of its table; empty: the default clock, without a lock.
    One: a fixed clock, in the table or not."""
    work: float = 1.0
    """Units of work that are left (iterations, if the table counts these). Equal for all jobs: a
    gain of a second counts alike in all."""
    order: float = 0.0
    """Jobs get their least size in ascending order; equal: the least energy of a unit of work
    first."""
    must_run: bool = False
    """It runs, or has to start: it gets its least size whatever the limit, and a clock below its
    most efficient one if the limit leaves no other choice."""

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"job {self.job_id}: sizes must be positive and ascending")
        if not (0 <= self.work < math.inf and self.max_w >= 0):
            raise ValueError(f"job {self.job_id}: work and max_w must be finite and not negative")

    @property
    def own_clock_mhz(self) -> int | None:
        """Its clock where no clock is chosen: the fixed one, or None, the default clock."""
        return self.clocks_mhz[0] if self.clocks_mhz and len(self.clocks_mhz) == 1 else None


@dataclass(frozen=True)
class Sized:
    """What a job gets."""

    gpus: int
    """0: the job waits."""
    clock_mhz: int | None = None
    """SM clock to lock; None: the default clock."""
    time_s: float = float("nan")
    """Time of a unit of work; NaN: not known, or the job waits."""
    power_w: float = 0.0
    waits_for: str = ""
    """``GPUs`` or ``power``, if it waits."""

    @property
    def energy_j(self) -> float:
        """Energy of a unit of work."""
        return self.time_s * self.power_w


@dataclass(frozen=True)
class Allocation:
    """What all jobs get."""

    jobs: Mapping[str, Sized]
    """Job ID -> what it gets, in the order of the jobs given."""
    power_w: float
    """Power of all jobs and of the GPUs without a job."""
    idle_gpus: int


def allocation(
    jobs: Sequence[SizingJob], sized: Sequence[Sized], gpus: int, idle_w: float
) -> Allocation:
    """Allocation of what each of the jobs gets, on a cluster of ``gpus`` GPUs."""
    idle = gpus - sum(one.gpus for one in sized)
    return Allocation(
        {job.job_id: one for job, one in zip(jobs, sized, strict=True)},
        math.fsum(one.power_w for one in sized) + idle * idle_w,
        idle,
    )


def sized_at(job: SizingJob, gpus: int, clock_mhz: int | None) -> Sized:
    """A job at one size and clock; its power is its ``max_w`` where the table does not say."""
    time_s, power_w = math.nan, math.nan
    if job.table is not None and (row := job.table.row(gpus)) is not None:
        cell = row, job.table.column(clock_mhz)
        time_s, power_w = float(job.table.time_s[cell]), float(job.table.power_w[cell])
    return Sized(
        gpus,
        clock_mhz,
        time_s if 0 < time_s < math.inf else math.nan,
        power_w if 0 < power_w < math.inf else job.max_w / job.sizes[0] * gpus,
    )


def power_limit_w(eta: float, gpus: int, max_w: float) -> float:
    """Power limit of a cluster, W: the share ``eta`` of what all its GPUs may draw (PowerFlow).

    ``max_w``: power limit of one GPU, W.
    """
    return eta * gpus * max_w
