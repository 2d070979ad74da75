"""Traces: jobs for the simulator, from CSV or synthetic. Bad rows carry their line number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_NODES, MAX_TIME_S, MIN_RUN_S, quoted
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.features.hints import HINTS, TRACED
from slurm_gpu_aware.model.job_hints import NO_HINTS, HintValue, JobHints
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.text_file import BadRow, Row, read_table
from slurm_gpu_aware.topology.patterns import parse_pattern

_NO_TIMES = (
    "; jobs without run times cannot be simulated. Sia's own traces have none: use those prepared "
    "for PAL"
)
_MOST_NAMED, _NEAR = 10, 0.75
"""So many ignored columns are named; a known name is near from this ratio of difflib on."""
_MAX_PRIORITY = 1e15
"""Far above Slurm's 32 bits, and below the limit of exact integers in a double."""
_RANGES = (
    ("gpus", 1, MAX_GPUS),
    ("duration_s", MIN_RUN_S, MAX_TIME_S),
    ("submit_s", 0, MAX_TIME_S),
    ("nodes", 1, MAX_NODES),
    ("time_limit_s", MIN_RUN_S, MAX_TIME_S),
    ("deadline_s", -MAX_TIME_S, MAX_TIME_S),
    ("weight", 1e-9, 1e9),
    ("priority", -_MAX_PRIORITY, _MAX_PRIORITY),
)
SIZES: Mapping[int, float] = {1: 0.70, 2: 0.09, 4: 0.12, 8: 0.06, 16: 0.03}
"""GPU count -> share of the jobs: mostly one GPU, powers of two, as in the Philly trace."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. Times in seconds from the trace's start."""

    job_id: str
    submit_s: float
    gpus: int
    duration_s: float
    """Work: run time on GPUs of score 1.0 inside one node. For a recorded job the recorded run
    time, until ``history.with_work``."""
    app_class: str = "B"
    model: str | None = None  # Application (``resnet50``).
    nodes: int | None = None  # Fixed node count; None: any even split.
    time_limit_s: float = math.inf
    deadline_s: float | None = None  # Relative to the trace's start, like ``submit_s``.
    weight: float = 1.0  # Of its due date; live its QOS has it.
    bandwidth_sensitive: bool = False
    communication_share: float | None = None
    """Share of its time that is communication at the best bandwidth; None: its application's."""
    pattern: str = "ring"
    priority: float = 0.0
    user: str | None = None
    name: str | None = None  # Job name; None: not recorded, the model stands for it.
    account: str | None = None
    recorded_start_s: float | None = None  # Recorded start; None: not a recorded job.
    recorded_run_s: float | None = None
    recorded_nodes: tuple[str, ...] = ()
    recorded_slots: tuple[int, ...] = ()
    """GPU indices that it held on each node; empty: not recorded."""
    sizes: tuple[int, ...] = ()
    """GPU counts that the job may get, ascending, ``gpus`` among them; empty: only it."""
    elastic: bool | None = None
    """It may be restarted while it runs, elsewhere or with another size; None: it does not say."""
    restart_s: float | None = None
    """Time that a restart costs it; None: it does not say (`SimSettings.restart_s`)."""
    table: SizeTable | None = None
    """Time and power by size and clock, as they are; None: not known. ``duration_s`` is the work at
    ``gpus`` and the default clock, as without a table."""
    hints: JobHints = NO_HINTS  # Those for stages (`HINTED`).
    options: Mapping[str, object] = field(default_factory=dict)
    """Passed to the policy with the request (``minimal_utility``, ``profile``, ...)."""

    @property
    def timed_out(self) -> bool:
        """Whether its recorded run reached its time limit."""
        return self.recorded_run_s is not None and self.recorded_run_s >= self.time_limit_s


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
    missing: tuple[str, ...] = ()
    """Sentences on what the record of the jobs lacks, and what that costs."""

    @classmethod
    def of(
        cls,
        name: str,
        jobs: Iterable[TraceJob],
        bad_rows: Sequence[BadRow] = (),
        skipped: Mapping[str, int] | None = None,
    ) -> Trace:
        """Sort jobs, with distinct ids, by submission; equal times keep their order."""
        ordered = sorted(jobs, key=lambda job: job.submit_s)
        return cls(name, tuple(ordered), tuple(bad_rows), dict(skipped or {}))


def checked(job: TraceJob) -> TraceJob:
    """The job. Raises ValueError if a number is out of range or the pattern is unknown."""
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
    text = row.cells[column].lower()
    if text not in ("1", "true", "high", "0", "false", "low"):
        raise ValueError(f"{column} is {quoted(row.cells[column])}: expected high or low")
    return text in ("1", "true", "high")


def _range(row: Row, column: str) -> tuple[int, int]:
    """Least and most GPUs of ``2-8``."""
    match = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", row.cells[column])
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= MAX_GPUS:
        raise ValueError(f"{column} is {quoted(row.cells[column])}: expected MIN-MAX, such as 1-8")
    return int(match[1]), int(match[2])


def _hints(row: Row) -> JobHints:
    """What the row says by keys of the comment."""
    values: dict[str, HintValue] = {}
    for hint in _KEYS:
        if text := row.cells.get(hint.key):
            if (value := hint.read(text)) is None:
                raise ValueError(f"{hint.key} is {quoted(text)}: expected {hint.valid({})}")
            values[hint.key] = value
    return JobHints(values)


def by_keys(hints: JobHints, *, plain: bool = True) -> dict[str, Any]:
    """Fields of a job with these hints; ``plain``: as of `TRACED`."""
    fields: dict[str, Any] = {"hints": hints.carried(HINTS)}
    for hint, of_trace in TRACED:
        fields |= of_trace(hints.get(hint), plain=plain)
    return fields


def _doubling(gpus: int, least: int, most: int) -> tuple[int, ...]:
    """GPU counts in ``least`` .. ``most``: ``gpus``, and powers of two, as live."""
    if not least <= gpus <= most:
        raise ValueError(f"sizes is {least}-{most}: expected a range with the job's {gpus} GPUs")
    powers = (1 << k for k in range(most.bit_length()))
    return tuple(sorted({gpus, *(n for n in powers if least <= n <= most)}))


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
    "weight": ("weight", Row.number),
    "bw": ("bandwidth_sensitive", _flag),
    "pattern": ("pattern", Row.text),
    "priority": ("priority", Row.number),
    "sizes": ("sizes", _range),
    "user": ("user", Row.text),
    "name": ("name", Row.text),
    "vc": ("account", Row.text),  # virtual cluster, in traces of Philly
    "account": ("account", Row.text),
}
_KEYS = (*(hint for hint, _ in TRACED), *(hint for hint in HINTS if hint.carried))
"""Keys of the comment that a stage or a trace reads; a column of the same name gives them."""


def read_csv(
    source: Path | str,
    *,
    text: str | None = None,
    class_column: str = "class",
    default_class: str = "B",
) -> Trace:
    """Read a trace from a file, or from ``text`` if given (then ``source`` is only its name).

    Columns: job_id, submit_s, gpus, duration_s; optional: class (or ``class_column``), model,
    nodes, time_limit_s, deadline_s, weight, bw (high, low), pattern, priority, sizes (MIN-MAX),
    move (ok, no, 90s), user, name, account (or vc), and keys of the comment that a stage reads
    (slower, epochs). Other columns are ignored, and named in ``missing``. An empty optional cell
    means the default. Raises SourceError if the file cannot be read, is not CSV, or lacks a
    required column.
    """
    table = read_table(source, text)
    no_times = {*_REQUIRED} - {*table.columns} == {"duration_s"}
    named = () if class_column == "class" else (class_column,)
    table.require(*_REQUIRED, *named, hint=_NO_TIMES if no_times else "")
    columns = {class_column if name == "class" else name: _OPTIONAL[name] for name in _OPTIONAL}
    optional = {name: columns[name] for name in columns if name in table.columns}

    def job(row: Row) -> tuple[int, TraceJob]:
        values: dict[str, object] = {"app_class": default_class}
        values |= {column: read(row, column) for column, read in _REQUIRED.items()}
        for column, (target, read) in optional.items():
            if row.cells[column]:
                values[target] = read(row, column)
        values |= by_keys(_hints(row))
        if "sizes" in values:
            values["sizes"] = _doubling(Row.count(row, "gpus"), *_range(row, "sizes"))
        return row.line, checked(TraceJob(**values))  # type: ignore[arg-type]

    parsed, bad = table.parse(job)
    last = {job.job_id: line for line, job in parsed}
    bad += [
        BadRow(line, f"job {job.job_id} occurs again in line {again}; the last record counts")
        for line, job in parsed
        if (again := last[job.job_id]) != line
    ]
    jobs = (job for line, job in parsed if last[job.job_id] == line)
    trace = Trace.of(Path(table.name).stem, jobs, sorted(bad))
    known = {*_REQUIRED, *columns, *(hint.key for hint in _KEYS)}
    return replace(trace, missing=tuple(_ignored(table.columns, known)))


def _ignored(columns: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """A sentence on the columns that are not known, with known ones of nearly the same name."""
    found = [column for column in columns if column not in known]
    names = []
    for name in found[:_MOST_NAMED]:
        near = get_close_matches(name.lower(), sorted(known), 1, _NEAR)
        names.append(quoted(name) + "".join(f" ({one}?)" for one in near))
    if more := len(found) - len(names):
        names.append(f"{more} more")
    if found:
        yield f"ignored {'column' if len(found) == 1 else 'columns'}: {', '.join(names)}"


def poisson_trace(
    jobs: int,
    per_hour: float,
    *,
    seed: int = 0,
    sizes: Mapping[int, float] = SIZES,
    classes: Sequence[str] = ("A", "B", "C"),
) -> Trace:
    """A trace with Poisson arrivals. Raises SourceError if it is too long.

    Durations follow Synergy's recipe (Mohan et al., OSDI'22, section 5.1): 60 x 10^u seconds, u
    uniform in 1.5..3 for 80% of the jobs and in 3..4 for the rest. Classes are equally likely, and
    half of the jobs are bandwidth sensitive.
    """
    rng = np.random.default_rng(seed)
    if not 3600.0 / per_hour * jobs <= MAX_TIME_S / 10:  # a margin, because gaps are random
        raise SourceError(f"{jobs} jobs at {per_hour:g} per hour would take more than 30 years")
    submit = np.cumsum(rng.exponential(3600.0 / per_hour, size=jobs))
    shares = np.array(list(sizes.values()))
    gpus = rng.choice(list(sizes), size=jobs, p=shares / shares.sum())
    short = rng.random(jobs) < 0.8
    exponent = np.where(short, rng.uniform(1.5, 3.0, jobs), rng.uniform(3.0, 4.0, jobs))
    kinds = rng.integers(len(classes), size=jobs)
    sensitive = rng.random(jobs) < 0.5
    made = [
        TraceJob(
            job_id=str(i),
            submit_s=float(submit[i]),
            gpus=int(gpus[i]),
            duration_s=float(60.0 * 10.0 ** exponent[i]),
            app_class=classes[int(kinds[i])],
            bandwidth_sensitive=bool(sensitive[i]),
        )
        for i in range(jobs)
    ]
    return Trace.of(f"synthetic: {jobs} jobs, {per_hour:g} per hour, seed {seed}", made)
