"""Power of the site after a round, as ``gpu-aware status`` and ``gpu-aware power show`` tell it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.slurm.words import hostlist

MOST_SHOWN = 200
"""Jobs and nodes that a reading names: it is written into the store again and again."""


@dataclass(frozen=True)
class PowerReading:
    """Power of the site after a round. Units: W."""

    limit: str
    """The limit and where it comes from, in words."""
    limit_w: float
    planned_w: float
    unmet: bool
    measured_w: float | None
    """None: no node reports it."""
    measured_gpus: int
    gpus: int
    keeps_clock: Mapping[str, str]
    """Job -> why its clock is not changed; at most `MOST_SHOWN`."""
    keeping: int
    """Jobs whose clock is not changed."""
    agents: Mapping[str, str]
    """Node -> why its clock agent obeys no orders; at most `MOST_SHOWN`."""
    idle_nodes: str
    """Nodes that are awake and have no job, as a host list: candidates for power saving."""
    no_model: Mapping[str, str]
    """Job -> why the performance model that it names is not used; at most `MOST_SHOWN`."""
    without_model: int
    """Running jobs whose model is not used."""

    @property
    def all_measured_w(self) -> float | None:
        """The measured power of all GPUs; None: some are not reported."""
        return self.measured_w if self.measured_gpus >= self.gpus else None


def first_of(found: Mapping[str, str]) -> dict[str, str]:
    """The entries that a reading names."""
    return dict(islice(sorted(found.items()), MOST_SHOWN))


def idle_nodes(plan: Plan, cluster: Cluster) -> str:
    """Host list of the nodes that are awake and have no job after the plan."""
    held = cluster.exists & ~cluster.not_held
    for assignment in plan.assignments:
        held[list(assignment.nodes)] = True
    idle = ~held.any(axis=1) & cluster.exists.any(axis=1)
    if cluster.asleep is not None:
        idle &= ~cluster.asleep
    return hostlist(cluster.nodes[row] for row in np.flatnonzero(idle))


def reading_text(reading: PowerReading | None) -> str:
    """The reading as JSON, for ``gpu-aware status``; ``null`` without a limit."""
    return json.dumps(None if reading is None else asdict(reading))
