"""The simulated side of a feature, and when a run asks it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.simulator.columns import Column

if TYPE_CHECKING:
    from slurm_gpu_aware.simulator.active import ActiveJob
    from slurm_gpu_aware.simulator.cluster_state import ClusterState
    from slurm_gpu_aware.simulator.rounds import Rounds
    from slurm_gpu_aware.simulator.trace import Trace, TraceJob


class Asked(NamedTuple):
    """One question to the planner; a round of a preemptive order may ask several."""

    queue: list[ActiveJob]  # The jobs to place.
    keep: set[int] | None
    """Positions of the running jobs that keep their GPUs in it; None: all."""
    first: bool  # The first one of its round.


class SimulatedFeature:
    """What only the simulation knows of a feature, in one run.

    A feature has a subclass as ``SIMULATED`` in its ``simulated.py``; `Simulator` makes an object
    of it for each run. A hook that it does not have changes nothing.
    """

    passes = False
    """Jobs may start although others that stand before them wait, without backfill, too."""
    adjusts = False
    """Rounds change the clocks of running jobs, so they follow each event while jobs run."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Numbers of its own in the summary of a run."""
    rounds: type[Rounds] | None = None
    """What the run has in place of the planner's rounds; None: these."""

    def __init__(self, state: ClusterState, trace: Trace) -> None:
        """``state``: the cluster of the run, with its clock and settings."""
        self.state, self.settings, self.trace = state, state.settings, trace
        self.prepare()

    def prepare(self) -> None:
        """The run is about to begin."""

    def asked(self, job: TraceJob, request: Request) -> Request:
        """The request of a job that arrives, with what the feature knows of the job."""
        return request

    def renew(self, queue: Sequence[ActiveJob]) -> None:
        """Renew what is known in the requests of jobs that the planner is to place."""

    def as_waiting(self, active: ActiveJob, request: Request) -> Request:
        """The request of a running job as if it waited, with what is known of the job."""
        return request

    def shown(self, active: ActiveJob, job: RunningJob) -> RunningJob:
        """A running job as the planner sees it."""
        return job

    def begins(self, waiting: Collection[object]) -> bool:
        """A round begins; whether it is wanted although the jobs that wait need none."""
        return False

    def sees_running(self, asked: Asked) -> bool:
        """Whether the planner needs the running jobs; it is shown them only where it does."""
        return False

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """What the stages of a round are told beside the settings: input -> value."""
        return {}

    def planned(self, plan: Plan) -> float:
        """A round has its plan; when to look again if nothing happens before. inf: then."""
        return math.inf

    def starts(self, active: ActiveJob, assignment: Assignment) -> Assignment:
        """The assignment of a job that starts, or goes on."""
        return assignment

    def ends(self, active: ActiveJob) -> None:
        """A job ends; it still holds its GPUs."""

    def background_ends(self, job: TraceJob) -> None:
        """A background job ends."""
