"""Job history of Slurm: rows of ``sacct`` from parsable2 text or JSON."""

import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted, slot_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.accounting import with_cure
from slurm_gpu_aware.slurm.commands import run_bounded, run_command
from slurm_gpu_aware.slurm.gres import gpu_count, is_mig, parse_tres
from slurm_gpu_aware.slurm.records import HOLDING
from slurm_gpu_aware.slurm.words import expand_hostlist, parse_duration
from slurm_gpu_aware.text_file import parse_json

SACCT_FIELDS = (
    *("JobID", "User", "Account", "Partition", "Submit", "Eligible", "Start", "ElapsedRaw"),
    *("TimelimitRaw", "State", "AllocTRES", "ReqTRES", "NNodes", "NodeList", "Priority"),
    *("JobName", "Comment"),
)
"""Columns to ask for. Users can write the bar in the last two: all that follows the first bar of
them counts as the comment."""

BAD_ROW = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, SourceError)
"""Exceptions of the properties of a damaged row."""

_SEPARATOR = re.compile(r"JobID(\|~[\w-]+\|)User")
"""In the first line of a live answer: what separates its columns."""
_TIMEOUT_S = 600.0
_MOST_BEFORE = 100  # Lines in which the header is looked for.
_NEEDED = (
    ("JobID", "JobIDRaw"),
    *(("Submit",), ("Start",), ("ElapsedRaw", "Elapsed"), ("State",), ("AllocTRES", "ReqTRES")),
)
"""Columns of which one of each suffices."""
_NAMES = frozenset({*SACCT_FIELDS, "JobIDRaw", "Elapsed", "Timelimit", "ExitCode"})


@dataclass(frozen=True)
class SacctRow:
    """An allocation, or one run of a requeued one. Times: Unix s.

    A property of a damaged row raises one of ``BAD_ROW``.
    """

    cells: Mapping[str, str]  # Column of the text form -> cell.

    def text(self, column: str) -> str:
        """A cell, such as ``User`` or ``Comment``; empty: not recorded."""
        return self.cells.get(column, "")

    @property
    def job_id(self) -> str:
        """``7``, ``7_3``, ``7_[3-9]``, ``7+1``, each with a step (``.batch``) or without."""
        return self.text("JobID") or self.cells["JobIDRaw"]

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a job."""
        # sacct shortens long lists of pending tasks: 12_[1-3,5...]
        return "." in self.job_id.rpartition("]")[2]

    @property
    def running(self) -> bool:
        """Whether the job still holds its nodes."""
        return self.state in HOLDING

    @property
    def ran(self) -> bool:
        """Whether the job started; for some releases a job that did not has a start, too."""
        if self.start_s is None or self.elapsed_s < 0:
            return False
        return self.elapsed_s > 0 or bool(self.text("AllocTRES"))

    @property
    def submit_s(self) -> float | None:
        """When the job began to wait for GPUs; None: not recorded.

        That is when it became eligible, as no placement shortens the time before (dependencies,
        ``--begin``, holds); its submission if that is not recorded.
        """
        submit, eligible = _time(self.cells["Submit"]), _time(self.text("Eligible"))
        if submit is None or eligible is None:
            return submit
        return eligible if submit <= eligible <= (self.start_s or eligible) else submit

    @property
    def start_s(self) -> float | None:
        """Start; None: the job never started."""
        return _time(self.cells["Start"])

    @property
    def end_s(self) -> float | None:
        """End of a run that has ended; None: it runs, or never started."""
        start = self.start_s
        return None if start is None or self.running or not self.ran else start + self.elapsed_s

    @property
    def state(self) -> str:
        """``COMPLETED``, ``TIMEOUT``, ``CANCELLED``, ..."""
        return self.cells["State"].split(" ")[0]  # "CANCELLED by 1000"

    @property
    def elapsed_s(self) -> int:
        """Run time; the record has whole seconds."""
        text = self.text("ElapsedRaw") or self.cells["Elapsed"]
        if text.removeprefix("-").isdecimal():
            return int(text)
        if ":" not in text:
            raise ValueError(f"ElapsedRaw is {quoted(text)}, expected seconds")
        return int(parse_duration(text))

    @property
    def time_limit_s(self) -> float:
        """Time limit; inf: none (UNLIMITED), or not recorded (`accounting.UNKNOWN`)."""
        text = self.text("TimelimitRaw") or self.text("Timelimit")
        minutes = 60.0 * int(text) if text.isdecimal() else math.inf
        limit = parse_duration(text) if ":" in text else minutes
        return limit if limit <= MAX_TIME_S else math.inf  # Slurm's number for infinite is finite

    @property
    def on_mig(self) -> bool:
        """Whether the job had MIG devices."""
        return _gpus(self.text("AllocTRES") or self.text("ReqTRES"))[2]

    @property
    def gpus(self) -> int:
        """GPUs allocated, or else requested."""
        return _gpus(self.text("AllocTRES"))[0] or _gpus(self.text("ReqTRES"))[0]

    @property
    def wanted_nodes(self) -> int | None:
        """Nodes that the job must have: as requested, if recorded, else as allocated.

        None for 1 node, which Slurm also counts for a job that leaves the number open.
        """
        text = self.text("NNodes")
        count = parse_tres(self.text("ReqTRES"))[0].get("node", int(text) if text.isdigit() else 1)
        return count if count > 1 else None

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Nodes on which the job ran."""
        text = self.text("NodeList")
        return () if text in ("None assigned", "(null)") else expand_hostlist(text)

    @property
    def slots(self) -> tuple[int, ...]:
        """GPU indices on each node if every GPU has a type of its own (``gK``), else empty."""
        counts, nodes = _gpus(self.text("AllocTRES"))[1], len(self.nodes)
        everywhere = all(count == nodes for count in counts.values())
        return tuple(sorted(counts)) if everywhere and len(counts) * nodes == self.gpus else ()

    @property
    def priority(self) -> float:
        """The last priority that Slurm recorded."""
        return float(self.text("Priority") or 0)


@lru_cache(maxsize=16384)
def _gpus(text: str) -> tuple[int, dict[int, int], bool]:
    """(GPUs of a TRES list, index K -> GPUs of type ``gK``, whether some are MIG devices)."""
    start, (tres, complete) = "gres/gpu:", parse_tres(text)
    if not complete and re.search("gres/gpu[:=]", text) and not gpu_count(tres):
        raise ValueError(f"{quoted(text)} has a number of GPUs that cannot be read")
    types = {name.removeprefix(start): tres[name] for name in tres if name.startswith(start)}
    slots = {slot: count for kind, count in types.items() if (slot := slot_of(kind)) is not None}
    return gpu_count(tres), slots, any(map(is_mig, types))


def _time(text: str) -> float | None:
    """Unix seconds from ``1790000000`` or ``2026-01-31T12:00:00``; None for Unknown."""
    if text in ("", "Unknown", "None", "0"):
        return None
    return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()


def sacct_command(days: float, until_days: float = 0) -> list[str]:
    """Command that prints all users' allocations from ``days`` to ``until_days`` days ago.

    ``--duplicates`` adds the earlier runs of requeued jobs: only the first run has the time of
    submission, which each requeue resets.
    """
    options = ["--allusers", "--allocations", "--duplicates", "--parsable2"]
    window = [f"--starttime={_ago(days)}", f"--endtime={_ago(until_days)}"]
    return ["sacct", *options, *window, f"--format={','.join(SACCT_FIELDS)}"]


def _live_command(days: float, until_days: float = 0) -> list[str]:
    """`sacct_command` with a separator that no user can know.

    sacct prints ends of lines in names and comments as they are, so that with a known separator a
    name could hold a whole row, of a run of another user.
    """
    return [*sacct_command(days, until_days), f"--delimiter=|~{secrets.token_urlsafe(6)}|"]


def _ago(days: float) -> str:
    if days == int(days):
        return f"now-{int(days)}days" if days else "now"
    return f"now-{int(1440 * days)}minutes"


def bounded_history(
    days: float, until_days: float, timeout_s: float, most_bytes: int
) -> Iterator[SacctRow]:
    """Readable rows of a part of the live history, up to a size. Raises SourceError."""
    try:
        text = run_bounded(_live_command(days, until_days), timeout_s, most_bytes)
    except SourceError as exc:
        raise SourceError(with_cure(str(exc))) from None
    return (row for _, row in sacct_rows(text, "sacct")[1] if isinstance(row, SacctRow))


def live_history(days: int) -> str:
    """Output of sacct for the last ``days`` days. Raises SourceError if it does not answer."""
    if shutil.which("sacct") is None:
        raise SourceError(
            "sacct is not installed here: run this where Slurm's commands are, or give a saved file"
        )
    try:
        output, _ = run_command(_live_command(days), _TIMEOUT_S)
    except SourceError as exc:
        raise SourceError(with_cure(str(exc))) from None
    return output.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_sacct(text: str) -> bool:
    """Whether a text that begins so is the output of ``sacct``, in whatever form."""
    line, *others = text.lstrip().split("\n")
    known = _NAMES.intersection(re.findall("[A-Za-z]+", line))
    bars = "|" in line and (bool(known) or line[0].isdecimal())  # or without its header
    whole = line.startswith(("{", "Slurm accounting storage"))
    return whole or bars or len(known) >= 3 or any(map(_is_header, others))


def _is_header(line: str) -> bool:
    """Whether a line names columns between bars; other lines of a shell may stand before it."""
    return "|" in line and len(_NAMES.intersection(re.findall("[A-Za-z]+", line))) >= 3


def sacct_rows(
    text: str, source: Path | str
) -> tuple[str, Iterator[tuple[int, SacctRow | Exception]]]:
    """(unit of the numbers: ``line``, or ``record`` of JSON; the numbered rows).

    A row that cannot be read is an exception, one of ``BAD_ROW``. Raises SourceError if the text is
    neither parsable2 output with the needed columns nor JSON of sacct.
    """
    if text.lstrip()[:1] == "{":
        return "record", _read(enumerate(_records(text, source), start=1), _flatten)
    # not splitlines: a comment can hold other characters that it takes for an end of line
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    before = next((n for n, line in enumerate(lines[:_MOST_BEFORE]) if _is_header(line)), 0)
    header, *lines = lines[before:]
    if header.endswith("|"):  # sacct --parsable
        header, *lines = [line.removesuffix("|") for line in (header, *lines)]
    found = _SEPARATOR.match(header)
    separator = "|" if found is None else found[1]
    columns = header.split(separator)
    missing = [names[0] for names in _NEEDED if not {*names} & {*columns}]
    if missing:
        why = f"no column {', '.join(map(repr, missing))}"
        if separator not in header:
            why = "not the output of sacct with columns between bars"
            if "is disabled" in header:
                raise SourceError(with_cure(f"{source}: {quoted(header)}"))
        # Unix seconds, because local times lose or repeat an hour when clocks change
        raise SourceError(
            f"{source}: {why}; make it with: SLURM_TIME_FORMAT=%s {' '.join(sacct_command(90))}"
        )
    numbered = ((number, line) for number, line in enumerate(lines, before + 2) if line)
    return "line", _read(numbered, partial(_cells, columns, separator))


def _read(
    rows: Iterator[tuple[int, Any]], cells_of: Callable[[Any], Mapping[str, str]]
) -> Iterator[tuple[int, SacctRow | Exception]]:
    for number, row in rows:
        try:
            yield number, SacctRow(cells_of(row))
        except BAD_ROW as exc:
            yield number, exc


def _cells(header: Sequence[str], separator: str, line: str) -> dict[str, str]:
    """Column -> cell of a line. Raises ValueError if their numbers differ."""
    # only a comment can contain the bar, so further bars belong to it
    cells = line.split(separator, len(header) - 1 if header[-1] == "Comment" else -1)
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} of {len(header)} columns: damaged, or rest of a comment")
    return dict(zip(header, cells, strict=True))


def _records(text: str, source: Path | str) -> list[Any]:
    """Jobs of ``sacct --json``. Raises SourceError for another JSON."""
    content = parse_json(text, source)
    jobs = content.get("jobs") if isinstance(content, dict) else None
    if not isinstance(jobs, list):
        raise SourceError(f"{source}: not the output of sacct --json: no list 'jobs'")
    if jobs and isinstance(jobs[0], dict) and "job_state" in jobs[0]:
        raise SourceError(
            f"{source}: squeue or scontrol wrote it, which forget ended jobs; use sacct --json"
        )
    if not jobs and content.get("errors"):
        raise SourceError(with_cure(f"{source}: sacct says {quoted(str(content['errors']))}"))
    return jobs


def _flatten(job: Mapping[str, Any]) -> dict[str, str]:
    """Column of the text form -> cell, of a job of the JSON form."""
    times = job["time"]
    array, tres, comment = (job.get(key) or {} for key in ("array", "tres", "comment"))
    task, state = _json_number(array.get("task_id")), job["state"]["current"]
    in_array = array.get("job_id") and task is not None
    limit, priority = times.get("limit"), _json_number(job.get("priority"))
    endless = isinstance(limit, dict) and limit.get("infinite")
    return {
        "JobID": f"{array['job_id']}_{task}" if in_array else str(job["job_id"]),
        "User": str(job.get("user") or ""),
        "Account": str(job.get("account") or ""),
        "Partition": str(job.get("partition") or ""),
        "Submit": str(times["submission"]),
        "Eligible": str(times.get("eligible") or ""),
        "Start": str(times.get("start") or "Unknown"),
        "ElapsedRaw": str(times["elapsed"]),
        "TimelimitRaw": "UNLIMITED" if endless else _text(_json_number(limit)),
        "State": state[0] if isinstance(state, list) else str(state),
        "AllocTRES": _json_tres(tres.get("allocated")),
        "ReqTRES": _json_tres(tres.get("requested")),
        "NNodes": str(job.get("allocation_nodes") or ""),
        "NodeList": str(job.get("nodes") or ""),
        "Priority": _text(priority),
        "JobName": str(job.get("name") or ""),
        "Comment": str(comment.get("job") or "") if isinstance(comment, dict) else str(comment),
    }


def _json_number(value: Any) -> int | None:
    """Number of ``{"set":..., "infinite":..., "number":...}``, or a plain number."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return None if value is None else int(value)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _json_tres(entries: Any) -> str:
    parts = []
    for entry in entries or ():
        name = f"{entry['type']}/{entry['name']}" if entry.get("name") else entry["type"]
        parts.append(f"{name}={_text(_json_number(entry.get('count')))}")
    return ",".join(parts)
