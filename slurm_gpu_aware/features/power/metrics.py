"""Power of the site after a round, as commands tell it, and metrics of power under a limit."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from slurm_gpu_aware.metric import Fact, Metric, Sample, one
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import POWER, Store, value_of


def _reading(store: Store) -> Mapping[str, Any]:
    """The selector's last reading; empty: there is no limit."""
    found = json.loads(value_of(store, POWER) or "null")
    return found if isinstance(found, Mapping) else {}


def _number(reading: Mapping[str, Any], name: str) -> list[Sample]:
    value = reading.get(name)
    known = isinstance(value, int | float) and math.isfinite(value)
    return one(value if known else None)


READING = Fact("power", ("store",), _reading)

METRICS = tuple(
    Metric(f"gpu_aware_power_{name}", text, "gauge", READING, samples)
    for name, text, samples in (
        (
            "limit_watts",
            "Power limit of all GPUs together; absent without a limit.",
            lambda reading: _number(reading, "limit_w"),
        ),
        (
            "planned_watts",
            "Power of all GPUs after the last round, as planned.",
            lambda reading: _number(reading, "planned_w"),
        ),
        (
            "measured_watts",
            "Power of the GPUs that report it.",
            lambda reading: _number(reading, "measured_w"),
        ),
        (
            "measured_gpus",
            "GPUs that report their power.",
            lambda reading: _number(reading, "measured_gpus"),
        ),
        (
            "kept_clock_jobs",
            "Jobs whose clock is not changed although a limit is in force.",
            lambda reading: _number(reading, "keeping"),
        ),
        (
            "limit_unmet",
            "1 if the plan exceeds the limit because running jobs take more, else 0.",
            lambda reading: one(float(bool(reading["unmet"])) if "unmet" in reading else None),
        ),
    )
)


MOST_SHOWN = 200
"""Jobs and nodes that a reading names: it is written into the store again and again."""


@dataclass(frozen=True)
class PowerReading:
    """Power of the site after a round. Units: W."""

    limit: str  # The limit and where it comes from, in words.
    limit_w: float
    planned_w: float
    unmet: bool
    measured_w: float | None  # None: no node reports it.
    measured_gpus: int
    gpus: int
    keeps_clock: Mapping[str, str]  # Job -> why its clock is not changed; at most `MOST_SHOWN`.
    keeping: int  # Jobs whose clock is not changed.
    agents: Mapping[str, str]  # Node -> why its clock agent obeys no orders; at most `MOST_SHOWN`.
    idle_nodes: str
    """Nodes that are awake and have no job, as a host list: candidates for power saving."""
    no_model: Mapping[str, str]
    """Job -> why the performance model that it names is not used; at most `MOST_SHOWN`."""
    without_model: int  # Running jobs whose model is not used.

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
