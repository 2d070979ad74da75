"""Picture of the site's power over time: planned and measured, against the limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import RequestError, SourceError, not_installed

__all__ = ["draw_power"]

_KW = 1000.0


def draw_power(path: Path, samples: Sequence[tuple[float, float, float, float | None]]) -> None:
    """Draw rows of `store.ledger.Ledger.power` into a file; its suffix names the format.

    Raises RequestError without samples or matplotlib, SourceError if the file cannot be written.
    """
    if not samples:
        raise RequestError("no round under a power limit is recorded in these days")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError(not_installed("matplotlib", "plots")) from None
    times: Any = [datetime.fromtimestamp(at) for at, *_ in samples]  # matplotlib takes them
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    limits, planned = [row[1] / _KW for row in samples], [row[2] / _KW for row in samples]
    axes.step(times, limits, "k--", where="post", label="limit")
    axes.step(times, planned, color="#0072b2", where="post", label="planned")
    known = [(at, row[3] / _KW) for at, row in zip(times, samples, strict=True) if row[3]]
    if known:
        axes.plot(*zip(*known, strict=True), ".", color="#d55e00", label="measured")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("power of all GPUs, kW")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.autofmt_xdate()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as exc:
        raise SourceError(f"{path}: the picture cannot be written: {exc}") from None
