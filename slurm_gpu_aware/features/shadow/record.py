"""Record of a job that Slurm started: the GPUs that it got, and those that we would have given."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPUS,
    MAX_GPUS_PER_NODE,
    MAX_PENALTY,
    MAX_TIME_S,
    NODE_NAME,
)
from slurm_gpu_aware.records import Text, number, text, whole

NodeName = Annotated[str, text(NODE_NAME, "a name of letters, digits, '.', '_' and '-'")]
Slots = Annotated[
    tuple[Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1, "a GPU index")], ...],
    Meta(max_length=MAX_GPUS_PER_NODE),
]
Places = Annotated[tuple[tuple[NodeName, Slots], ...], Meta(max_length=MAX_GPUS)]
Ratio = Annotated[float, number(0.0, MAX_PENALTY)]


@dataclass(frozen=True)
class GpuSet:
    """A set of GPUs, and what it costs its job, at the moment before the job started."""

    gpus: Places
    """(node, Slurm's GPU indices), ascending."""
    level: Text
    """Name of the locality level that the set needs."""
    score: Ratio | None = None
    """Worst PM score (lower is better) for the job's class; None: a GPU has not been measured."""
    slowdown: Ratio | None = None
    """Predicted time divided by that on median GPUs of one node; None: as for ``score``."""
    gbps: Annotated[float, number(0.0, MAX_GBPS)] | None = None
    """EffBW of the slowest node; None: one GPU per node, no communication, or no links known."""
    direct: bool | None = None
    """All pairs that communicate inside nodes have a direct link; None: as for ``gbps``."""
    broken: tuple[NodeName, ...] = ()
    """Nodes of which all GPUs were free and only some are taken."""

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return sum(len(slots) for _, slots in self.gpus)


@dataclass(frozen=True)
class Sets:
    """Both sets of a job."""

    given: GpuSet | None = None
    """None: Slurm did not show it any more."""
    ours: GpuSet | None = None
    """None: not known, see `ShadowJob.reason`."""


@dataclass(frozen=True)
class ShadowJob:
    """One start of a job. Times are Unix seconds."""

    job_id: str
    user: str
    partition: str
    app_class: str
    started_at: float
    sets: Sets
    reason: str = ""
    """Why it is not compared; empty: it is."""
    power_w: float | None = None
    """Predicted power of its GPUs at the default clock; None: no performance model."""
    saves: float | None = None
    """Share of that energy which its clock and power limit would save within the bound of
    ``[energy]``, as predicted; None: no performance model, or no bound is set."""
    ended_at: float | None = None
    """None: it runs, as far as is known."""
    waited_s: float = 0.0
    """Time in which a job that needs whole nodes waited for a node that this one broke up."""
    waiting_job: str = ""
    """The last such job; empty: none."""

    @property
    def key(self) -> tuple[str, float]:
        """What names a start: a requeued job starts again."""
        return self.job_id, self.started_at

    @property
    def compared(self) -> bool:
        """Whether both sets are known."""
        return self.sets.given is not None and self.sets.ours is not None

    @property
    def needless(self) -> tuple[str, ...]:
        """Nodes that it broke up, though on our GPUs it had broken up fewer; empty: none."""
        given, ours = self.sets.given, self.sets.ours
        if given is None or ours is None or len(given.broken) <= len(ours.broken):
            return ()
        return tuple(name for name in given.broken if name not in ours.broken)


@dataclass(frozen=True)
class Watch:
    """A time in which the shadow ran, Unix seconds."""

    since_at: Annotated[float, number(0.0, MAX_TIME_S)]
    until_at: Annotated[float, number(0.0, MAX_TIME_S)]
