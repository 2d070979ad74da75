"""MAPA's job files: GPUs, pattern, arrival, service time, bandwidth sensitive, task. No header.

Format: the job files that the public code of Ranganath et al., SC'21, reads.
"""

from __future__ import annotations

from pathlib import Path

from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.simulator.trace import BadRow, Trace, TraceJob, checked
from slurm_gpu_aware.text_file import read_text

__all__ = ["looks_like_mapa", "read_mapa"]

_PATTERNS = {"clique": "all-to-all"}
_COLUMNS = 5


def looks_like_mapa(first_line: str) -> bool:
    """Say whether a file that starts like this is a MAPA job file."""
    cells = [cell.strip() for cell in first_line.split(",")]
    return len(cells) >= _COLUMNS and cells[0].isdigit() and cells[4] in ("0", "1")


def read_mapa(source: Path | str, *, text: str | None = None, default_class: str = "B") -> Trace:
    """Read a MAPA job file; jobs are numbered from 0 by their line.

    ``text`` is read if it is given, ``source`` is then only its name. Raises SourceError if the
    file cannot be read.
    """
    lines = (read_text(source) if text is None else text).splitlines()
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            jobs.append(_job(number, line, default_class))
        except ValueError as exc:
            bad.append(BadRow(number, str(exc)))
    return Trace.of(Path(source).stem, jobs, bad)


def _job(number: int, line: str, default_class: str) -> TraceJob:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < _COLUMNS:
        raise ValueError(f"{len(cells)} columns, expected gpus,pattern,arrival,time,sensitive,task")
    gpus, arrival, service = int(cells[0]), float(cells[2]), float(cells[3])
    if cells[4] not in ("0", "1"):
        raise ValueError(f"sensitive is {cells[4]!r}, expected 0 or 1")
    pattern = _PATTERNS.get(cells[1], cells[1])
    if pattern == "star" and gpus <= MAX_GPUS:
        pattern = ",".join(f"0-{i}" for i in range(1, gpus)) or "none"
    job = TraceJob(
        job_id=str(number - 1),
        submit_s=arrival,
        gpus=gpus,
        duration_s=service,
        app_class=default_class,
        model=cells[5] if len(cells) > _COLUMNS else None,
        bandwidth_sensitive=cells[4] == "1",
        pattern=pattern,
    )
    return checked(job)
