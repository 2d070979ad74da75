"""Metrics of power under a limit."""

import json
import math
from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.metric import Fact, Metric, Sample, one
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
