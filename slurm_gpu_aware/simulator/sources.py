"""A trace from whatever file it comes in: told apart by what the file starts with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.alibaba import looks_like_alibaba, read_alibaba
from slurm_gpu_aware.simulator.mapa_jobs import looks_like_mapa, read_mapa
from slurm_gpu_aware.simulator.sacct import read_sacct
from slurm_gpu_aware.simulator.topo_jobs import read_profile, read_workload
from slurm_gpu_aware.simulator.trace import Trace, read_csv

__all__ = ["read_trace"]


def read_trace(
    path: Path | str,
    *,
    class_column: str = "class",
    default_class: str = "B",
    classes: Sequence[str] = ("A", "B", "C"),
    profile: Path | str | None = None,
) -> Trace:
    """Read jobs from a file.

    ================================  ==================================================
    starts with                       read as
    ================================  ==================================================
    ``{"jobs"`` or ``{"meta"``        output of ``sacct --json``
    another ``{``                     job file of Amaral et al.; needs ``profile``
    ``JobID|``                        output of ``sacct --parsable2``
    a row of five or six numbers      job file of MAPA
    columns num_gpu, gpu_milli, ...   Alibaba's 2023 trace
    anything else                     CSV, see :func:`trace.read_csv`
    ================================  ==================================================

    Raises
    ------
    SourceError
        The file cannot be read or is none of these.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as stream:
            start = stream.read(4096).lstrip()
    except OSError as exc:
        raise SourceError(f"{file}: cannot be read: {exc.strerror}") from None
    line = start.split("\n", 1)[0]
    if start.startswith("{"):
        if _is_sacct_json(file):
            return read_sacct(file, classes=tuple(classes), default_class=default_class)
        if profile is None:
            raise SourceError(
                f"{file}: a job file without run times needs --profile FILE.json, "
                "the measured times alone and side by side"
            )
        return read_workload(file, read_profile(profile))
    if "|" in line and "JobID" in line.split("|"):
        return read_sacct(file, classes=tuple(classes), default_class=default_class)
    if looks_like_mapa(line):
        return read_mapa(file, default_class=default_class)
    if looks_like_alibaba(line):
        return read_alibaba(file, default_class=default_class)
    return read_csv(file, class_column=class_column, default_class=default_class)


def _is_sacct_json(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig", errors="replace"))
    except ValueError as exc:
        raise SourceError(f"{file}: not JSON: {exc}") from None
    return isinstance(content, dict) and isinstance(content.get("jobs"), list)
