"""Traces: jobs for the simulator, and their CSV form. Bad rows carry their line number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_NODES, MAX_TIME_S, MIN_RUN_S, quoted
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.text_file import BadRow, Row, read_table
from slurm_gpu_aware.topology.patterns import parse_pattern

__all__ = ["BadRow", "Trace", "TraceJob", "checked", "read_csv"]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. Times in seconds from the trace's start."""

    job_id: str
    submit_s: float
    gpus: int
    duration_s: float
    """Work: run time on GPUs of score 1.0 inside one node. For a recorded job the recorded run
    time, until ``recorded.with_work``."""
    app_class: str = "B"
    model: str | None = None
    """Application (``resnet50``)."""
    nodes: int | None = None
    """Fixed node count; None: any even split."""
    time_limit_s: float = math.inf
    deadline_s: float | None = None
    """Relative to the trace's start, like ``submit_s``."""
    bandwidth_sensitive: bool = False
    communication_share: float | None = None
    """Share of its time that is communication at the best bandwidth; None: that of the run."""
    pattern: str = "ring"
    priority: float = 0.0
    user: str | None = None
    recorded_start_s: float | None = None
    """Recorded start; None: not a recorded job."""
    recorded_run_s: float | None = None
    """Recorded run time."""
    recorded_nodes: tuple[str, ...] = ()
    """Nodes on which it ran."""
    recorded_slots: tuple[int, ...] = ()
    """GPU indices that it held on each node; empty: not recorded."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Passed to the policy with the request (``minimal_utility``, ``profile``, ...)."""


@dataclass(frozen=True)
class Trace:
    """Jobs sorted by submission, and rows that are not jobs."""

    name: str
    jobs: tuple[TraceJob, ...]
    bad_rows: tuple[BadRow, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of well-formed rows that are not jobs (``no GPU``, ``still running``)."""
    background: tuple[TraceJob, ...] = ()
    """Recorded jobs that are not replayed but hold GPUs, see ``history.select_window``."""

    @classmethod
    def of(
        cls,
        name: str,
        jobs: Iterable[TraceJob],
        bad_rows: Sequence[BadRow] = (),
        skipped: Mapping[str, int] | None = None,
    ) -> Trace:
        """Sort jobs by submission; equal times keep their order.

        Raises SourceError if two jobs have the same id.
        """
        ordered = sorted(jobs, key=lambda job: job.submit_s)
        if len({job.job_id for job in ordered}) < len(ordered):
            raise SourceError(f"{name}: two jobs have the same id")
        return cls(name, tuple(ordered), tuple(bad_rows), dict(skipped or {}))


_MAX_PRIORITY = 1e15
"""Far above Slurm's 32 bits, and below the limit of exact integers in a double."""
_RANGES = (
    ("gpus", 1, MAX_GPUS),
    ("duration_s", MIN_RUN_S, MAX_TIME_S),
    ("submit_s", 0, MAX_TIME_S),
    ("nodes", 1, MAX_NODES),
    ("time_limit_s", MIN_RUN_S, MAX_TIME_S),
    ("deadline_s", -MAX_TIME_S, MAX_TIME_S),
    ("priority", -_MAX_PRIORITY, _MAX_PRIORITY),
)


def checked(job: TraceJob) -> TraceJob:
    """The job, if its values are valid.

    Raises
    ------
    ValueError
        A number is out of range or the pattern is unknown; names the column and the value.
    """
    for name, least, most in _RANGES:
        value = getattr(job, name)
        unset = value is None or (name == "time_limit_s" and value == math.inf)
        if not unset and not least <= value <= most:
            shown = quoted(value) if isinstance(value, int) else f"{value:g}"
            bounds = f"{least:g} to {most:g} s" if name.endswith("_s") else f"{least} to {most}"
            raise ValueError(f"{name} is {shown}, expected {bounds}")
    try:
        parse_pattern(job.pattern)
    except RequestError as exc:
        raise ValueError(f"pattern is {quoted(job.pattern)}: {exc}") from None
    return job


def _flag(row: Row, column: str) -> bool:
    flags = {"1": True, "true": True, "high": True, "0": False, "false": False, "low": False}
    if row.cells[column].lower() not in flags:
        raise ValueError(f"{column} is {quoted(row.cells[column])}: expected high or low")
    return flags[row.cells[column].lower()]


_REQUIRED: Mapping[str, Callable[[Row, str], object]] = {
    "job_id": Row.text,
    "submit_s": Row.number,
    "gpus": Row.count,
    "duration_s": Row.number,
}
_OPTIONAL: Mapping[str, tuple[str, Callable[[Row, str], object]]] = {
    "class": ("app_class", Row.text),
    "model": ("model", Row.text),
    "nodes": ("nodes", Row.count),
    "time_limit_s": ("time_limit_s", Row.number),
    "deadline_s": ("deadline_s", Row.number),
    "bw": ("bandwidth_sensitive", _flag),
    "pattern": ("pattern", Row.text),
    "priority": ("priority", Row.number),
    "user": ("user", Row.text),
}


def read_csv(
    source: Path | str,
    *,
    text: str | None = None,
    class_column: str = "class",
    default_class: str = "B",
) -> Trace:
    """Read a trace from a file, or from ``text`` if given (then ``source`` is only its name).

    Columns: job_id, submit_s, gpus, duration_s; optional: class (or ``class_column``), model,
    nodes, time_limit_s, deadline_s, bw (high, low), pattern, priority, user. Other columns are
    ignored. An empty optional cell means the default.

    Raises
    ------
    SourceError
        The file cannot be read, is not CSV, or lacks a required column.
    """
    table = read_table(source, text)
    hint = ""
    if {*_REQUIRED} - {*table.columns} == {"duration_s"}:
        hint = (
            "; jobs without run times cannot be simulated. Sia's own traces have none: use those"
            " prepared for PAL"
        )
    table.require(*_REQUIRED, hint=hint)
    if class_column != "class":
        table.require(class_column)
    optional = {
        column: target
        for name, target in _OPTIONAL.items()
        if (column := class_column if name == "class" else name) in table.columns
    }

    def job(row: Row) -> tuple[int, TraceJob]:
        values: dict[str, object] = {"app_class": default_class}
        values |= {column: read(row, column) for column, read in _REQUIRED.items()}
        for column, (target, read) in optional.items():
            if row.cells[column]:
                values[target] = read(row, column)
        return row.line, checked(TraceJob(**values))  # type: ignore[arg-type]

    parsed, bad = table.parse(job)
    last = {job.job_id: line for line, job in parsed}
    bad += [
        BadRow(line, f"job {job.job_id} occurs again in line {again}; the last record counts")
        for line, job in parsed
        if (again := last[job.job_id]) != line
    ]
    jobs = (job for line, job in parsed if last[job.job_id] == line)
    return Trace.of(Path(source).stem, jobs, sorted(bad))
