"""Values of decisions and events as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.time_text import stamp

__all__ = ["MAX_ROWS", "flat", "rows", "short"]

MAX_ROWS = 12
_UNSET: tuple[object, ...] = (None, "", "None", [], {}, ())
"""``None`` is also Slurm's own word for no reason."""
_EPOCH_S = 1e9
"""Seconds under ``..._s`` beyond this (2001) are a time, no duration."""


def flat(detail: Mapping[str, Any]) -> str:
    """``key=value`` pairs on one line; what is not set is left out, times are shown as such."""
    return ", ".join(_pair(k, v) for k, v in detail.items() if v not in _UNSET)


def _pair(key: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value > _EPOCH_S and key.endswith("_s"):
        return f"{key.removesuffix('_s')}={stamp(float(value))}"
    return f"{key}={short(value)}"


def rows(records: Sequence[Mapping[str, Any]]) -> str:
    """A table of equal records; keys become columns, long lists are cut."""
    headers: list[str] = []
    for record in records:
        headers += [k for k in record if k not in headers]
    right = [h for h in headers if all(isinstance(r.get(h), int | float | None) for r in records)]
    cells = [[short(r.get(h)) for h in headers] for r in records[:MAX_ROWS]]
    text = table(headers, cells, right=right)
    more = len(records) - MAX_ROWS
    return text + (f"\n... and {more} more, with --json" if more > 0 else "")


def short(value: Any) -> str:
    """One value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(
            "[" + short(v) + "]" if isinstance(v, list | tuple) else short(v) for v in value
        )
    if isinstance(value, Mapping):
        return flat(value)
    return "" if value is None else str(value)
