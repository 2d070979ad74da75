"""Tasks of Alibaba's 2023 GPU-sharing trace as jobs (Weng et al., USENIX ATC 2023).

Columns used: job_id, submit_s, start_s, end_s, duration_s, num_gpu, gpu_milli (share of one GPU in
thousandths), phase. GPUs are given out whole here, so tasks that share one are counted and left
out, like those without a GPU, those that never started, and those that the end of the trace cuts
off: nobody knows how long they ran.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from slurm_gpu_aware.simulator.trace import Trace, TraceJob, checked, last_records
from slurm_gpu_aware.text_file import Row, read_table

__all__ = ["looks_like_alibaba", "read_alibaba"]

_COLUMNS = ("job_id", "submit_s", "end_s", "duration_s", "num_gpu", "gpu_milli", "phase")
_WHOLE = 1000


def looks_like_alibaba(first_line: str) -> bool:
    """Say whether a file that starts like this is such a trace."""
    return set(first_line.strip().split(",")).issuperset(_COLUMNS)


def read_alibaba(source: Path | str, *, text: str | None = None, default_class: str = "B") -> Trace:
    """Read such a trace; what is no finished job on whole GPUs is counted in ``Trace.skipped``.

    ``text`` is read if it is given, ``source`` is then only its name. Raises SourceError if the
    file cannot be read.
    """
    table = read_table(source, text)
    table.require(*_COLUMNS)
    last_end = max((_seconds(row.cells["end_s"]) for row in table.rows), default=math.inf)
    skipped: Counter[str] = Counter()

    def job(row: Row) -> tuple[int, str, TraceJob] | None:
        reason = _no_job(row, last_end)
        if reason is None:
            return row.line, row.text("job_id"), _job(row, default_class)
        skipped[reason] += 1
        return None

    found, bad = table.parse(job)
    jobs, again = last_records(record for record in found if record is not None)
    return Trace.of(Path(source).stem, jobs, sorted([*bad, *again]), skipped)


def _seconds(text: str) -> float:
    """For comparison only: -inf for what is no number."""
    try:
        return float(text)
    except ValueError:
        return -math.inf


def _no_job(row: Row, last_end: float) -> str | None:
    """Why the task is no job that can be run again; None: it is one."""
    gpus = row.count("num_gpu")
    if gpus == 0:
        return "no GPU"
    if not row.cells["duration_s"]:
        return "never started"
    if gpus == 1 and row.count("gpu_milli") < _WHOLE:
        return "a share of one GPU"
    if row.cells["phase"] == "Running" and row.number("end_s") >= last_end:
        return "still running at the end of the trace"
    return None


def _job(row: Row, default_class: str) -> TraceJob:
    return checked(
        TraceJob(
            job_id=row.text("job_id"),
            submit_s=row.number("submit_s"),
            gpus=row.count("num_gpu"),
            duration_s=row.number("duration_s"),
            app_class=default_class,
        )
    )
