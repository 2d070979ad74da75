"""Rows of a file for ``import``: times and powers of applications, for performance models."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gpu_aware_profile.imports.import_rows import Kind, taken_at_of
from slurm_gpu_aware.bounds import MAX_GPUS, MAX_MHZ, MAX_NODES, check_time_ms, quoted
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.filter_rules import FEATURE, MAX_NAME, MODEL
from slurm_gpu_aware.text_file import BadRow, Row, Table

_APPLICATION = re.compile(rf"{MODEL}\Z")
_GPU_MODEL = re.compile(rf"{FEATURE}\Z")
_MIN_BATCH, _MAX_BATCH = 1e-6, 1e9
_MIN_W, _MAX_W = 1.0, 1e8


def read_samples(
    table: Table, classes: Sequence[str], taken_at: float | None, now: float
) -> tuple[list[NamedSample], list[BadRow]]:
    """Samples of applications, and bad rows.

    ``classes``: those of the site. ``taken_at``: as in `import_rows.read_timings`. Raises
    SourceError if a column is missing.
    """
    table.require(*Kind.SAMPLES.value)

    def sample(row: Row) -> NamedSample:
        gpus = _count(row, "gpus", MAX_GPUS)
        nodes = _count(row, "nodes", MAX_NODES) if row.cells.get("nodes") else 1
        if nodes > gpus:
            raise ValueError(f"nodes is {nodes}: more than the {gpus} GPUs")
        app_class = row.cells.get("class", "")
        if app_class and app_class not in classes:
            raise ValueError(f"class {quoted(app_class)} is not one of {', '.join(classes)}")
        power_w = _number(row, "power_w", _MIN_W, _MAX_W, None)
        time_s = math.nan  # power alone is worth having, too
        if row.cells.get("time_s") or power_w is None:
            time_s = row.number("time_s")
            check_time_ms(1e3 * time_s)
        return NamedSample(
            _name(row, "application", _APPLICATION),
            _name(row, "gpu_model", _GPU_MODEL),
            taken_at_of(row, taken_at, now),
            PerformanceSample(
                gpus,
                nodes,
                _number(row, "batch_size", _MIN_BATCH, _MAX_BATCH, 1.0) or 1.0,
                _number(row, "clock_mhz", 1.0, MAX_MHZ, NOT_LOCKED) or NOT_LOCKED,
                time_s,
                power_w,
            ),
            app_class,
        )

    return table.parse(sample)


def _name(row: Row, column: str, pattern: re.Pattern[str]) -> str:
    text = row.text(column)
    if len(text) > MAX_NAME or not pattern.match(text):
        raise ValueError(f"{column} {quoted(text)} is not a valid name")
    return text


def _count(row: Row, column: str, most: int) -> int:
    value = row.count(column)
    if not 1 <= value <= most:
        raise ValueError(f"{column} is {value}: expected 1 to {most}")
    return value


def _number(
    row: Row, column: str, least: float, most: float, missing: float | None
) -> float | None:
    """A number of these bounds; ``missing``: the column or the cell is empty."""
    if not row.cells.get(column):
        return missing
    value = row.number(column)
    if not least <= value <= most:
        raise ValueError(f"{column} is {value:g}: expected {least:g} to {most:g}")
    return value
