"""A site's own history as a trace: ``sacct`` output, parsable2 text or JSON.

What counts as a job: an allocation with GPUs that started and ended. Jobs without GPUs, jobs that
never started and jobs that still run are counted under ``Trace.skipped``; rows that cannot be
understood under ``Trace.bad_rows``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.simulator.trace import BadRow, Trace, TraceJob, checked, last_records
from slurm_gpu_aware.slurm.comment import parse_comment
from slurm_gpu_aware.slurm.hostlist import expand_hostlist

__all__ = ["SACCT_FIELDS", "read_sacct", "sacct_command"]

SACCT_FIELDS = (
    "JobID",
    "User",
    "Partition",
    "Submit",
    "Start",
    "ElapsedRaw",
    "TimelimitRaw",
    "State",
    "AllocTRES",
    "ReqTRES",
    "NNodes",
    "NodeList",
    "Priority",
    "Comment",
)
"""What to ask sacct for. Comment stands last: it is the users' text and may contain the bar."""

_NEEDED = ("JobID", "Submit", "Start", "ElapsedRaw", "State")
_GPU = re.compile(r"gres/gpu(?P<type>:[^=,]+)?=(?P<count>\d+)")
_INDEXED = re.compile(r"gres/gpu:g(?P<index>\d{1,2})=(?P<count>\d+)")
_NODE_COUNT = re.compile(r"(?:^|,)node=(?P<count>\d+)")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "STOPPED")


class _SkipError(Exception):
    """The row is fine, but no finished GPU job."""


def sacct_command(days: int) -> list[str]:
    """Arguments that print the last ``days`` days of all users' allocations."""
    return [
        "sacct",
        "--allusers",
        "--allocations",
        "--parsable2",
        f"--starttime=now-{int(days)}days",
        "--endtime=now",
        f"--format={','.join(SACCT_FIELDS)}",
    ]


def read_sacct(
    source: Path | str,
    *,
    classes: tuple[str, ...] = ("A", "B", "C"),
    default_class: str = "B",
    text: str | None = None,
) -> Trace:
    """Read a saved file, or ``text`` if it is given (then ``source`` is only its name).

    Raises
    ------
    SourceError
        The file cannot be read, or is neither parsable2 output with the needed columns nor JSON.
    """
    if text is None:
        try:
            text = Path(source).read_text(encoding="utf-8", errors="replace")
        except OSError as exc:
            raise SourceError(f"{source}: cannot be read: {exc.strerror}") from None
    is_json = text.lstrip()[:1] == "{"
    rows = _json_rows(text, source) if is_json else _bar_rows(text, source)
    found: list[tuple[int, str, TraceJob | None]] = []
    bad: list[BadRow] = []
    skipped: Counter[str] = Counter()
    for line, row in rows:
        try:
            cells = _flatten(row) if is_json else row
            try:
                job = checked(_job(cells, classes, default_class))
            except _SkipError as reason:
                skipped[str(reason)] += 1
                job = None
            found.append((line, cells["JobID"], job))
        except KeyError as exc:
            bad.append(BadRow(line, f"no {exc.args[0]!r} in this record"))
        except (ValueError, TypeError, AttributeError, LookupError, SourceError) as exc:
            bad.append(BadRow(line, str(exc)))
    jobs, again = last_records(found)
    start = min((job.submit_s for job in jobs), default=0.0)
    shifted = [_shift(job, start) for job in jobs]
    bad = sorted([*bad, *again], key=lambda row: row.line)
    return Trace.of(Path(source).name, shifted, bad, skipped)


def _bar_rows(text: str, source: Path | str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = text.splitlines()
    header = lines[0].split("|") if lines else []
    missing = [c for c in _NEEDED if c not in header]
    if missing:
        raise SourceError(
            f"{source}: no column {missing[0]!r}; make it with: {' '.join(sacct_command(90))}"
        )
    for number, line in enumerate(lines[1:], start=2):
        if line:
            # only the last column is free text, so bars beyond it belong to it
            cells = line.split("|", len(header) - 1)
            if len(cells) < len(header):
                cells += [""] * (len(header) - len(cells))
            yield number, dict(zip(header, cells, strict=True))


def _json_rows(text: str, source: Path | str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Jobs of ``sacct --json``; line = position in the list."""
    try:
        jobs = json.loads(text)["jobs"]
    except (ValueError, KeyError, TypeError) as exc:
        raise SourceError(f"{source}: not the output of sacct --json") from exc
    if not isinstance(jobs, list):
        raise SourceError(f"{source}: not the output of sacct --json: 'jobs' is no list")
    yield from enumerate(jobs, start=1)


def _flatten(job: Mapping[str, Any]) -> dict[str, str]:
    """A job of the JSON form in the columns of the text form."""
    times = job["time"]
    array = job.get("array") or {}
    task = _json_number(array.get("task_id"))
    name = str(job["job_id"])
    if array.get("job_id") and task is not None:
        name = f"{array['job_id']}_{task:g}"
    state = job["state"]["current"]
    limit = _json_number(times.get("limit"))
    tres = job.get("tres") or {}
    comment = job.get("comment") or {}
    return {
        "JobID": name,
        "User": str(job.get("user") or ""),
        "Partition": str(job.get("partition") or ""),
        "Submit": str(times["submission"]),
        "Start": str(times.get("start") or "Unknown"),
        "ElapsedRaw": str(times.get("elapsed") or 0),
        "TimelimitRaw": "UNLIMITED" if limit is None else f"{limit:g}",
        "State": state[0] if isinstance(state, list) else str(state),
        "AllocTRES": _json_tres(tres.get("allocated")),
        "ReqTRES": _json_tres(tres.get("requested")),
        "NNodes": str(job.get("allocation_nodes") or ""),
        "NodeList": str(job.get("nodes") or ""),
        "Priority": f"{_json_number(job.get('priority')) or 0:g}",
        "Comment": str(comment.get("job") or "") if isinstance(comment, dict) else str(comment),
    }


def _json_number(value: Any) -> float | None:
    """Slurm's ``{"set":..., "infinite":..., "number":...}`` or a plain number."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return None if value is None else float(value)


def _json_tres(entries: Any) -> str:
    parts = []
    for entry in entries or ():
        name = f"{entry['type']}/{entry['name']}" if entry.get("name") else entry["type"]
        parts.append(f"{name}={int(entry['count'])}")
    return ",".join(parts)


def _job(row: Mapping[str, str], classes: tuple[str, ...], default_class: str) -> TraceJob:
    state = row["State"].split(" ")[0]  # "CANCELLED by 1000"
    if "." in row["JobID"]:
        raise _SkipError("job step")
    gpus = _gpus(row.get("AllocTRES", "")) or _gpus(row.get("ReqTRES", ""))
    if gpus == 0:
        raise _SkipError("no GPU")
    if state in _RUNNING:
        raise _SkipError("still running")
    start = _time(row["Start"])
    elapsed = int(row["ElapsedRaw"] or 0)
    if start is None or elapsed <= 0:
        raise _SkipError("never started")
    submit = _time(row["Submit"])
    if submit is None:
        raise ValueError(f"job {row['JobID']}: no submission time")
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
        recorded_slots=_slots(row.get("AllocTRES", ""), gpus, len(nodes)),
    )


def _shift(job: TraceJob, start: float) -> TraceJob:
    values = {name: getattr(job, name) for name in TraceJob.__slots__}
    values["submit_s"] = job.submit_s - start
    if job.recorded_start_s is not None:
        values["recorded_start_s"] = job.recorded_start_s - start
    return TraceJob(**values)


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
    return 60.0 * int(minutes) if minutes.isdigit() else math.inf


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
