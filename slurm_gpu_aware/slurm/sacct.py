"""What sacct prints, parsable2 text or JSON, row by row in the columns of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import parse_json

__all__ = ["SACCT_ENVIRONMENT", "SACCT_FIELDS", "Reader", "Rows", "sacct_command", "sacct_rows"]

SACCT_FIELDS = (
    "JobID",
    "User",
    "Partition",
    "Submit",
    "Eligible",
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

SACCT_ENVIRONMENT: Mapping[str, str] = {"SLURM_TIME_FORMAT": "%s"}
"""For sacct: Unix seconds. Local times lose or repeat an hour where clocks change."""

_NEEDED = ("JobID", "Submit", "Start", "ElapsedRaw", "State")
_TRES = ("AllocTRES", "ReqTRES")
_FREE_TEXT = "Comment"

Rows = list[tuple[int, Any]]
"""(number, row as it stands there)"""
Reader = Callable[[Any], Mapping[str, str]]
"""Row -> its columns; raises what makes it a bad row."""


def sacct_command(days: int) -> list[str]:
    """Arguments that print the last ``days`` days of all users' allocations.

    To be run with ``SACCT_ENVIRONMENT``. Duplicates are the earlier runs of requeued jobs: only
    the first of them has the time of submission, each requeue resets it.
    """
    return [
        "sacct",
        "--allusers",
        "--allocations",
        "--duplicates",
        "--parsable2",
        f"--starttime=now-{int(days)}days",
        "--endtime=now",
        f"--format={','.join(SACCT_FIELDS)}",
    ]


def sacct_rows(text: str, source: Path | str) -> tuple[Rows, Reader, str]:
    """Rows, how to read one, and what their numbers count, as in ``BadRow``.

    Raises
    ------
    SourceError
        The text is neither parsable2 output with the needed columns nor JSON of sacct.
    """
    if text.lstrip()[:1] == "{":
        return _json_rows(text, source), _flatten, "record"
    return *_bar_rows(text, source), "line"


def _bar_rows(text: str, source: Path | str) -> tuple[Rows, Reader]:
    # not splitlines: a comment may hold any of the characters that it takes for an end of line
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    header = lines[0].split("|")
    missing = [c for c in _NEEDED if c not in header]
    if not missing and not set(_TRES) & set(header):
        missing = [_TRES[0]]
    if missing:
        times = " ".join(f"{key}={value}" for key, value in SACCT_ENVIRONMENT.items())
        raise SourceError(
            f"{source}: no column {missing[0]!r}; "
            f"make it with: {times} {' '.join(sacct_command(90))}"
        )
    return [(n, line) for n, line in enumerate(lines[1:], 2) if line], partial(_cells, header)


def _cells(header: Sequence[str], line: str) -> dict[str, str]:
    """A line by column. Raises ValueError if it has fewer or more cells than there are columns."""
    # only a comment may contain the bar, so bars beyond the last column belong to it
    cells = line.split("|", len(header) - 1 if header[-1] == _FREE_TEXT else -1)
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} of {len(header)} columns: damaged, or rest of a comment")
    return dict(zip(header, cells, strict=True))


def _json_rows(text: str, source: Path | str) -> Rows:
    """Jobs of ``sacct --json``, numbered by their position in the list."""
    try:
        jobs = parse_json(text, source)["jobs"]
    except (KeyError, TypeError, IndexError):
        raise SourceError(f"{source}: not the output of sacct --json") from None
    if not isinstance(jobs, list):
        raise SourceError(f"{source}: not the output of sacct --json: 'jobs' is no list")
    return list(enumerate(jobs, start=1))


def _flatten(job: Mapping[str, Any]) -> dict[str, str]:
    """A job of the JSON form in the columns of the text form."""
    times = job["time"]
    array = job.get("array") or {}
    task = _json_number(array.get("task_id"))
    name = str(job["job_id"])
    if array.get("job_id") and task is not None:
        name = f"{array['job_id']}_{task}"
    state = job["state"]["current"]
    limit = _json_number(times.get("limit"))
    tres = job.get("tres") or {}
    comment = job.get("comment") or {}
    return {
        "JobID": name,
        "User": str(job.get("user") or ""),
        "Partition": str(job.get("partition") or ""),
        "Submit": str(times["submission"]),
        "Eligible": str(times.get("eligible") or ""),
        "Start": str(times.get("start") or "Unknown"),
        "ElapsedRaw": str(times.get("elapsed") or 0),
        "TimelimitRaw": "UNLIMITED" if limit is None else str(limit),
        "State": state[0] if isinstance(state, list) else str(state),
        "AllocTRES": _json_tres(tres.get("allocated")),
        "ReqTRES": _json_tres(tres.get("requested")),
        "NNodes": str(job.get("allocation_nodes") or ""),
        "NodeList": str(job.get("nodes") or ""),
        "Priority": str(_json_number(job.get("priority")) or 0),
        "Comment": str(comment.get("job") or "") if isinstance(comment, dict) else str(comment),
    }


def _json_number(value: Any) -> int | None:
    """Slurm's ``{"set":..., "infinite":..., "number":...}`` or a plain number."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return None if value is None else int(value)


def _json_tres(entries: Any) -> str:
    parts = []
    for entry in entries or ():
        name = f"{entry['type']}/{entry['name']}" if entry.get("name") else entry["type"]
        parts.append(f"{name}={int(entry['count'])}")
    return ",".join(parts)
