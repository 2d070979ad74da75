"""Rows in and out: the CSV that is imported and exported, the tables that ``show`` prints."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from slurm_gpu_aware.cli.output import age, table
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.profiles import Fault, NewestTiming, ScoreRow, TimingRow

__all__ = [
    "COLUMNS",
    "ClassSummary",
    "fault_table",
    "read_csv",
    "score_records",
    "score_table",
    "summarise",
    "summary_records",
    "summary_table",
    "write_scores_csv",
    "write_timings_csv",
]

COLUMNS = ("gpu", "node", "class", "value_ms")
"""What ``import`` needs; further columns are ignored."""
MAX_FIELD = 256
OUTLIER_WORDS = ("", "outlier", "own score")


@dataclass(frozen=True)
class ClassSummary:
    """Spread of one class on one GPU model."""

    app_class: str
    model: str | None
    gpus: int
    bins: int
    """Distinct scores after binning."""
    outliers: int
    best: float
    """Lowest PM score."""
    worst: float
    geomean_over_best: float
    """Geometric mean of value / best value, minus 1: the papers' "variability"."""
    oldest_at: float
    """Unix time of the oldest timing in use."""


def read_csv(
    stream: Iterable[str], *, app_class: str | None = None
) -> tuple[list[TimingRow], list[tuple[int, str]]]:
    """Read timings; return good rows and bad ones as (line number, what is wrong).

    Parameters
    ----------
    stream : lines of a CSV with a header that names ``COLUMNS``, in any order.
    app_class : class of every row of a file without a column ``class``.

    Raises SourceError if a column is missing or doubled, or the file is not CSV: then no row can
    be trusted.
    """
    reader = csv.reader(_without_mark(stream), strict=True)
    rows: list[TimingRow] = []
    bad: list[tuple[int, str]] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        place = _columns(header, app_class)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                rows.append(_row(cells, len(header), place, app_class, reader.line_num))
            except ValueError as exc:
                bad.append((reader.line_num, str(exc)))
    except csv.Error as exc:
        raise SourceError(f"line {reader.line_num}: not CSV: {exc}") from None
    except UnicodeDecodeError:
        raise SourceError(f"line {reader.line_num + 1}: not UTF-8 text") from None
    return rows, bad


def write_timings_csv(stream: IO[str], timings: Sequence[NewestTiming]) -> None:
    """Write timings so that ``import`` reads them again without loss."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for t in timings:
        writer.writerow((t.slot, t.node, t.app_class, repr(t.value_ms)))


def write_scores_csv(stream: IO[str], rows: Sequence[ScoreRow]) -> None:
    """Write what ``show`` shows; ``import`` can read it, too (its timings)."""
    writer = csv.writer(stream, lineterminator="\n")
    records = score_records(rows)
    names = list(records[0]) if records else list(COLUMNS)
    writer.writerow(names)
    writer.writerows([record[name] for name in names] for record in records)


def score_records(rows: Sequence[ScoreRow]) -> list[dict[str, Any]]:
    """One flat record per GPU and class, for JSON and CSV."""
    return [
        {
            "gpu": r.slot,
            "node": r.node,
            "class": r.app_class,
            "value_ms": r.value_ms,
            "pm_score": r.raw,
            "score": r.binned,
            "bin": r.bin,
            "outlier": r.outlier,
            "model": r.model,
            "uuid": r.uuid,
            "taken_at": r.taken_at,
        }
        for r in rows
    ]


def summarise(rows: Sequence[ScoreRow]) -> list[ClassSummary]:
    """Spread per class and model, in that order."""
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault((row.app_class, row.model or ""), []).append(row)
    return [_summary(name, model, groups[name, model]) for name, model in sorted(groups)]


def summary_table(summaries: Sequence[ClassSummary], now: float) -> str:
    """Table of :func:`summarise`."""
    return table(
        ("class", "model", "GPUs", "bins", "outliers", "best", "worst", "spread", "age"),
        [
            (
                s.app_class,
                s.model,
                s.gpus,
                s.bins,
                s.outliers,
                f"{s.best:.3f}",
                f"{s.worst:.3f}",
                f"{s.geomean_over_best:.1%}",
                age(now - s.oldest_at),
            )
            for s in summaries
        ],
        right=("GPUs", "bins", "outliers", "best", "worst", "spread"),
    )


def score_table(rows: Sequence[ScoreRow], now: float) -> str:
    """Table of scores in the order given."""
    return table(
        ("class", "node", "GPU", "model", "ms", "PM score", "score", "note", "age"),
        [
            (
                r.app_class,
                r.node,
                r.slot,
                r.model,
                f"{r.value_ms:.5g}" if r.value_ms < 1e5 else f"{r.value_ms:.0f}",
                f"{r.raw:.4f}",
                f"{r.binned:.4f}",
                OUTLIER_WORDS[r.outlier],
                age(now - r.taken_at),
            )
            for r in rows
        ],
        right=("GPU", "ms", "PM score", "score"),
    )


def fault_table(faults: Mapping[str, Sequence[Fault]]) -> str:
    """Table of what the newest probes could not read."""
    return table(
        ("node", "GPU", "call", "error"),
        [(node, f.slot, f.call, f.error) for node, found in faults.items() for f in found],
        right=("GPU",),
    )


def summary_records(summaries: Sequence[ClassSummary]) -> list[dict[str, Any]]:
    """For JSON; ``class`` as everywhere else."""
    return [
        {("class" if key == "app_class" else key): value for key, value in asdict(s).items()}
        for s in summaries
    ]


def _summary(app_class: str, model: str, rows: Sequence[ScoreRow]) -> ClassSummary:
    raw = [r.raw for r in rows]
    best = min(raw)
    return ClassSummary(
        app_class=app_class,
        model=model or None,
        gpus=len(rows),
        bins=len({r.binned for r in rows}),
        outliers=sum(r.outlier > 0 for r in rows),
        best=best,
        worst=max(raw),
        geomean_over_best=math.exp(math.fsum(math.log(v / best) for v in raw) / len(raw)) - 1.0,
        oldest_at=min(r.taken_at for r in rows),
    )


def _without_mark(stream: Iterable[str]) -> Iterable[str]:
    """Drop the byte order mark that spreadsheets write; refuse NULs, which csv would keep."""
    for i, line in enumerate(stream):
        if "\0" in line:
            raise csv.Error("NUL byte")
        yield line.removeprefix("\ufeff") if i == 0 else line


def _columns(header: Sequence[str], app_class: str | None) -> dict[str, int]:
    wanted = [c for c in COLUMNS if c != "class" or app_class is None]
    missing = [c for c in wanted if c not in header]
    if missing:
        hint = "; give it with --class NAME" if missing == ["class"] else ""
        raise SourceError(
            f"line 1: column {', '.join(missing)} is missing; expected {','.join(COLUMNS)}{hint}"
        )
    doubled = [c for c in COLUMNS if header.count(c) > 1]
    if doubled:
        raise SourceError(f"line 1: column {doubled[0]} occurs twice")
    if app_class is not None and "class" in header:
        raise SourceError("line 1: the file has a column class; leave --class out")
    return {c: header.index(c) for c in wanted}


def _row(
    cells: Sequence[str], columns: int, place: Mapping[str, int], app_class: str | None, line: int
) -> TimingRow:
    if len(cells) != columns:
        raise ValueError(f"{len(cells)} fields, expected {columns}")
    values = {name: cells[i].strip() for name, i in place.items()}
    for name, value in values.items():
        if not value:
            raise ValueError(f"{name} is empty")
        if len(value) > MAX_FIELD:
            raise ValueError(f"{name} is longer than {MAX_FIELD} characters")
    text = values["value_ms"]
    try:
        value_ms = float(text)
    except ValueError:
        raise ValueError(f"value_ms is not a number: {text!r}") from None
    name = values["class"] if app_class is None else app_class
    return TimingRow(values["gpu"], values["node"], name, value_ms, line)
