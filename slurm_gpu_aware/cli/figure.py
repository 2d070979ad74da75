"""Figures of matplotlib, which is imported late, in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import SourceError, not_installed


@contextmanager
def drawn_into(path: Path, size: tuple[float, float], dpi: int, **details: Any) -> Iterator[Any]:
    """A figure of this size (inches) that is written to ``path``, whose suffix names the format.

    ``details``: of ``savefig``. Raises SourceError if matplotlib is missing or the file cannot be
    written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SourceError(not_installed("matplotlib", "plots")) from None
    figure = Figure(figsize=size, layout="constrained")
    yield figure
    try:
        figure.savefig(path, dpi=dpi, **details)
    except OSError as exc:
        raise SourceError(f"{path}: cannot be written: {exc.strerror}") from None
    except ValueError as exc:  # the format
        raise SourceError(f"{path}: the picture cannot be written: {exc}") from None
