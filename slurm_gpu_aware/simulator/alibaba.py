"""Tasks of Alibaba's 2023 GPU-sharing trace as jobs (Weng et al., USENIX ATC 2023).

Columns used: job_id, submit_s, start_s, end_s, duration_s, num_gpu, gpu_milli (share of one GPU in
thousandths), phase. GPUs are given out whole here, so tasks that share one are counted and left
out, like those without a GPU, those that never started, and those that the end of the trace cuts
off: nobody knows how long they ran.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from slurm_gpu_aware.simulator.trace import BadRow, Trace, TraceJob, checked, last_records
from slurm_gpu_aware.text_file import csv_table, read_text

__all__ = ["looks_like_alibaba", "read_alibaba"]

_COLUMNS = frozenset({"job_id", "submit_s", "end_s", "duration_s", "num_gpu", "gpu_milli", "phase"})
_WHOLE = 1000


def looks_like_alibaba(first_line: str) -> bool:
    """Say whether a file that starts like this is such a trace."""
    return frozenset(first_line.strip().split(",")) >= _COLUMNS


def read_alibaba(source: Path | str, *, text: str | None = None, default_class: str = "B") -> Trace:
    """Read such a trace; what is no finished job on whole GPUs is counted in ``Trace.skipped``.

    ``text`` is read if it is given, ``source`` is then only its name. Raises SourceError if the
    file cannot be read.
    """
    _, found_rows = csv_table(read_text(source) if text is None else text, source)
    rows = list(found_rows)
    last_end = max((_seconds(row["end_s"]) for _, row in rows), default=math.inf)
    found: list[tuple[int, str, TraceJob | None]] = []
    bad: list[BadRow] = []
    skipped: Counter[str] = Counter()
    for line, row in rows:
        try:
            reason = _no_job(row, last_end)
            if reason is not None:
                skipped[reason] += 1
                continue
            found.append((line, row["job_id"], _job(row, default_class)))
        except ValueError as exc:
            bad.append(BadRow(line, str(exc)))
    jobs, again = last_records(found)
    return Trace.of(
        Path(source).stem, jobs, sorted([*bad, *again], key=lambda row: row.line), skipped
    )


def _seconds(text: str) -> float:
    """For comparison only: -inf for what is no number."""
    try:
        return float(text)
    except ValueError:
        return -math.inf


def _no_job(row: Mapping[str, str], last_end: float) -> str | None:
    """Why the task is no job that can be run again; None: it is one."""
    gpus = int(row["num_gpu"])
    if gpus == 0:
        return "no GPU"
    if not row["duration_s"]:
        return "never started"
    if gpus == 1 and int(row["gpu_milli"]) < _WHOLE:
        return "a share of one GPU"
    if row["phase"] == "Running" and float(row["end_s"]) >= last_end:
        return "still running at the end of the trace"
    return None


def _job(row: Mapping[str, str], default_class: str) -> TraceJob:
    return checked(
        TraceJob(
            job_id=row["job_id"],
            submit_s=float(row["submit_s"]),
            gpus=int(row["num_gpu"]),
            duration_s=float(row["duration_s"]),
            app_class=default_class,
        )
    )
