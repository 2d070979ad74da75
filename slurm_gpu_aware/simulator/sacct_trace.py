"""A site's own history as a trace: ``sacct`` output, parsable2 text or JSON.

What counts as a job: an allocation with GPUs that started and ended. Jobs without GPUs, jobs that
never started, jobs that still run and the earlier runs of requeued jobs are counted under
``Trace.skipped``; rows that cannot be understood under ``Trace.bad_rows``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.simulator.history import stretch
from slurm_gpu_aware.simulator.trace import BadRow, Trace, TraceJob, checked
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.sacct import (
    SACCT_ENVIRONMENT,
    SACCT_FIELDS,
    sacct_command,
    sacct_rows,
)
from slurm_gpu_aware.text_file import read_text

__all__ = ["SACCT_ENVIRONMENT", "SACCT_FIELDS", "read_sacct", "sacct_command"]

_JOB_ID = re.compile(r"[0-9]{1,10}(_([0-9]{1,10}|\[.*\])|\+[0-9]{1,10})?(\..+)?")
"""Job, array task or pending tasks, component of a heterogeneous job; each with a step or not."""
_GPU = re.compile(r"gres/gpu(?P<type>:[^=,]+)?=(?P<count>\d+)")
_INDEXED = re.compile(r"gres/gpu:g(?P<index>\d{1,2})=(?P<count>\d+)")
_MIG = re.compile(r"\d+g\.\d+gb")
_NODE_COUNT = re.compile(r"(?:^|,)node=(?P<count>\d+)")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "STOPPED")


_REQUEUE_S = 86_400.0
"""A record of the same id and user that was submitted up to so long after the end of another is
the same job, queued again; later than that the cluster's numbers began anew. Units: s."""


class _SkipError(Exception):
    """The row is fine, but no finished GPU job."""


@dataclass(frozen=True, slots=True)
class _Record:
    """One row: a job, or one of its runs if it was requeued."""

    line: int
    job_id: str
    user: str
    submit_s: float
    end_s: float
    """End of the run; submission if it never started."""
    job: TraceJob | None
    """None: no finished GPU job."""
    running: TraceJob | None
    """A GPU job that had not ended."""


def read_sacct(
    source: Path | str,
    *,
    classes: tuple[str, ...] = ("A", "B", "C"),
    default_class: str = "B",
    text: str | None = None,
    now: float | None = None,
    days: float | None = None,
) -> Trace:
    """Read a saved file, or ``text`` if it is given (then ``source`` is only its name).

    ``now`` (Unix s) and ``days`` are the end and the length of the stretch that is wanted, see
    ``history.stretch``; None: up to the latest time recorded, and everything.

    Raises
    ------
    SourceError
        The file cannot be read, or is neither parsable2 output with the needed columns nor JSON.
    """
    if text is None:
        text = read_text(source, errors="replace")
    rows, read, unit = sacct_rows(text, source)
    found: list[_Record] = []
    bad: list[BadRow] = []
    skipped: Counter[str] = Counter()
    for line, row in rows:
        try:
            found.append(_record(line, read(row), classes, default_class, skipped))
        except KeyError as exc:
            bad.append(BadRow(line, f"no {exc.args[0]!r} in this record", unit))
        except (
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            ArithmeticError,
            SourceError,
        ) as exc:
            bad.append(BadRow(line, str(exc), unit))
    last, again, requeued = _last_runs(found, unit)
    if requeued:
        skipped["an earlier run of a requeued job"] += requeued
    seconds = None if days is None else days * 86_400.0
    jobs, held, left_out = stretch(
        [record.job for record in last if record.job is not None],
        [record.running for record in last if record.running is not None],
        now=now,
        seconds=seconds,
    )
    bad = sorted([*bad, *again], key=lambda row: row.line)
    trace = Trace.of(Path(source).name, jobs, bad, skipped + left_out)
    return replace(trace, background=tuple(held))


def _record(
    line: int,
    cells: Mapping[str, str],
    classes: tuple[str, ...],
    default_class: str,
    skipped: Counter[str],
) -> _Record:
    """The row as a record; counts in ``skipped`` why it is no job. Raises for a bad row."""
    name = cells["JobID"]
    if not _JOB_ID.fullmatch(name):
        raise ValueError(f"JobID is {quoted(name)}, expected the number of a job")
    job = running = None
    try:
        job = checked(_job(cells, classes, default_class))
        if _state(cells) in _RUNNING:
            job, running = None, job
            skipped["still running"] += 1
    except _SkipError as reason:
        skipped[str(reason)] += 1
    submit = _submission(cells) or -math.inf
    started = _time(cells["Start"])
    end = submit if started is None else started + int(cells["ElapsedRaw"] or 0)
    return _Record(line, name, cells.get("User", ""), submit, end, job, running)


def _last_runs(records: Sequence[_Record], unit: str) -> tuple[list[_Record], list[BadRow], int]:
    """The last run of each job as if submitted at the first, other jobs of its id, earlier runs.

    A last run that has not ended leaves nothing of the earlier ones.
    """
    last: dict[str, _Record] = {}
    other: list[_Record] = []
    requeued = 0
    # sacct's order within a job is not documented; equal times keep that of the file
    for record in sorted(records, key=lambda record: record.submit_s):
        before = last.get(record.job_id)
        last[record.job_id] = record
        if before is None:
            continue
        if before.user == record.user and record.submit_s - before.end_s <= _REQUEUE_S:
            last[record.job_id] = _resubmitted(record, before)
            requeued += before.job is not None
        elif before.job is not None:
            other.append(before)
    bad = [
        BadRow(
            record.line,
            f"job {record.job_id} occurs again in {unit} {last[record.job_id].line}; "
            "the last record counts",
            unit,
        )
        for record in other
    ]
    return sorted(last.values(), key=lambda record: record.line), bad, requeued


def _resubmitted(record: _Record, before: _Record) -> _Record:
    """The record with the submission of an earlier run."""
    job = record.job
    if job is not None and math.isfinite(before.submit_s):
        job = replace(job, submit_s=min(before.submit_s, job.submit_s))
    return replace(record, submit_s=before.submit_s, job=job)


def _job(row: Mapping[str, str], classes: tuple[str, ...], default_class: str) -> TraceJob:
    # sacct shortens long lists of pending tasks: 12_[1-3,5...]
    if "." in row["JobID"].rpartition("]")[2]:
        raise _SkipError("job step")
    tres = row.get("AllocTRES", "")
    if _MIG.search(tres):
        raise _SkipError("MIG slices")
    gpus = _gpus(tres) or _gpus(row.get("ReqTRES", ""))
    if gpus == 0:
        raise _SkipError("no GPU")
    start = _time(row["Start"])
    elapsed = int(row["ElapsedRaw"] or 0)
    if start is None or elapsed <= 0:
        raise _SkipError("still running" if _state(row) in _RUNNING else "never started")
    submit = _submission(row)
    if submit is None:
        raise ValueError(f"job {row['JobID']}: no submission time")
    if start < submit:
        raise ValueError(
            f"job {row['JobID']} starts {submit - start:g} s before its submission; local times do "
            "so where clocks change: run sacct with SLURM_TIME_FORMAT=%s"
        )
    nodes = _nodes(row.get("NodeList", ""))
    return TraceJob(
        job_id=row["JobID"],
        submit_s=submit,
        gpus=gpus,
        duration_s=float(elapsed),
        nodes=_node_count(row),
        app_class=_class(row.get("Comment", ""), classes) or default_class,
        time_limit_s=_limit(row.get("TimelimitRaw", "")),
        priority=float(row.get("Priority") or 0),
        user=row.get("User") or None,
        recorded_start_s=start,
        recorded_run_s=float(elapsed),
        recorded_nodes=nodes,
        recorded_slots=_slots(tres, gpus, len(nodes)),
    )


def _state(row: Mapping[str, str]) -> str:
    return row["State"].split(" ")[0]  # "CANCELLED by 1000"


def _submission(row: Mapping[str, str]) -> float | None:
    """When the job began to wait for GPUs, Unix s; None: not recorded.

    That is when it was eligible: what it waited before (dependencies, ``--begin``, holds) no
    placement could have shortened. Its submission where that was not recorded.
    """
    submit, eligible = _time(row["Submit"]), _time(row.get("Eligible", ""))
    if submit is None or eligible is None:
        return submit
    start = _time(row["Start"])
    return eligible if submit <= eligible <= (start or eligible) else submit


def _gpus(tres: str) -> int:
    """GPUs in a TRES string; typed counts repeat what the untyped one says."""
    total = typed = 0
    for found in _GPU.finditer(tres):
        if found["type"]:
            typed += int(found["count"])
        else:
            total += int(found["count"])
    return max(total, typed)


def _node_count(row: Mapping[str, str]) -> int | None:
    """Nodes that the job must have: what it asked for, if that was recorded, else what it got.

    One node is no wish: Slurm also counts one for a job that left the number open.
    """
    asked = _NODE_COUNT.search(row.get("ReqTRES", ""))
    text = asked["count"] if asked else row.get("NNodes", "")
    return int(text) if text.isdigit() and int(text) > 1 else None


def _slots(tres: str, gpus: int, nodes: int) -> tuple[int, ...]:
    """GPU indices on each node where every GPU has a type of its own (``gK``), else nothing."""
    found = {int(m["index"]): int(m["count"]) for m in _INDEXED.finditer(tres)}
    everywhere = all(count == nodes for count in found.values())
    return tuple(sorted(found)) if everywhere and len(found) * nodes == gpus else ()


def _time(text: str) -> float | None:
    """Unix seconds from ``1790000000`` or ``2026-01-31T12:00:00``; None for Unknown."""
    if text in ("", "Unknown", "None", "0"):
        return None
    if text.isdigit():
        return float(text)
    return datetime.fromisoformat(text).timestamp()


def _limit(minutes: str) -> float:
    """Seconds from TimelimitRaw (minutes, UNLIMITED or Partition_Limit)."""
    limit = 60.0 * int(minutes) if minutes.isdigit() else math.inf
    return limit if limit <= MAX_TIME_S else math.inf  # Slurm's number for infinite is finite


def _class(comment: str, classes: tuple[str, ...]) -> str | None:
    """Class that a comment of ours names; None for any other text."""
    try:
        wishes = parse_comment(comment, classes, ())
    except RequestError:
        return None
    if wishes is None or wishes.app_class not in classes:
        return None
    return wishes.app_class


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("None assigned", "(null)") else expand_hostlist(text)
