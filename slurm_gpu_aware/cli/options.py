"""Types of numeric options: bounded on both sides, not NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

import click

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_NODES, MAX_PENALTY, MAX_TIME_S

__all__ = ["GPUS", "NODES", "PENALTY", "SECONDS", "SOME_SECONDS", "Number"]


class Number(click.FloatRange):
    """``click.FloatRange`` without NaN, which passes all comparisons, and without infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


GPUS = click.IntRange(1, MAX_GPUS)
NODES = click.IntRange(1, MAX_NODES)
PENALTY = Number(1, int(MAX_PENALTY))
SECONDS = Number(0, int(MAX_TIME_S))
SOME_SECONDS = Number(0, int(MAX_TIME_S), min_open=True)
