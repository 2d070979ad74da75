"""Performance samples: measured times and powers of applications and classes."""

from __future__ import annotations

from typing import NamedTuple

APPLICATION, CLASS = "application", "class"
"""What a performance model is of."""
NOT_LOCKED = 0.0
"""Clock of a sample that was taken without a locked clock."""
UNKNOWN_BATCH = 0.0
"""Batch size of a sample of a job of which only its nodes were asked."""


class PerformanceSample(NamedTuple):
    """Time and power of one iteration under known conditions."""

    gpus: int
    nodes: int
    batch_size: float
    """Samples that each GPU processes in one iteration; 1.0 where the work has no batch.
    ``UNKNOWN_BATCH``: as in the application's other samples."""
    clock_mhz: float
    """SM clock; ``NOT_LOCKED``: the default clock."""
    time_s: float
    """Time of one iteration; NaN: not measured, only the power was."""
    power_w: float | None = None
    """Mean power of all GPUs together during the iteration; None: not measured."""


class NamedSample(NamedTuple):
    """A sample of an application or class on a GPU model."""

    name: str
    gpu_model: str
    """Empty: not known."""
    taken_at: float
    """Unix time."""
    sample: PerformanceSample
    app_class: str = ""
    """Class of the application; empty: not known."""


def own_name(user: str, application: str) -> str:
    """Name of an application that a user has measured: other users' jobs do not look it up.

    ``/`` stands in no name that a comment or an import may give, so that the user is unambiguous.
    """
    return f"{user}/{application}"


def owner_of(name: str) -> str:
    """The user of a name of `own_name`; empty: it is one of the site."""
    return name.rpartition("/")[0]
