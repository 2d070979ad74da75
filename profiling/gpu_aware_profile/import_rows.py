"""Rows of a file for ``import``: times of GPUs, times per locality level; parsed and checked.

A row that cannot be used becomes a `BadRow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, check_time_ms, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.penalties import INSIDE_NODE, LEVELS, LevelTime, reference_of
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.measurements import Run, listed
from slurm_gpu_aware.store.report import check_name
from slurm_gpu_aware.text_file import BadRow, Row, Table

__all__ = ["TIMING_COLUMNS", "KnownGpus", "has_levels", "read_levels", "read_timings"]

TIMING_COLUMNS = ("gpu", "node", "class", "value_ms")
_LEVEL_COLUMNS = ("class", "level", "value_ms")
"""Required columns; ``model`` is optional, others are ignored."""


@dataclass(frozen=True)
class KnownGpus:
    """GPUs that the rows of a file may name."""

    by_uuid: Mapping[str, Gpu]
    seen: Mapping[str, set[int]]
    """Node -> GPUs that a probe has seen; empty: rows may name any GPU."""

    def slot(self, gpu: str, node: str) -> int:
        """Slurm's index of a GPU that a row names by index or UUID. Raises ValueError."""
        if gpu.isascii() and gpu.isdigit() and int(gpu) < MAX_GPUS_PER_NODE:
            self._check_seen(node, int(gpu))
            return int(gpu)
        if gpu not in self.by_uuid:
            raise ValueError(
                f"gpu {quoted(gpu)} is neither an index (0, 1, ...) nor the UUID of a GPU that was"
                " probed"
            )
        known_node, slot = self.by_uuid[gpu]
        if known_node != node:
            raise ValueError(f"gpu {gpu} was last seen on node {known_node}, not {node}")
        return slot

    def _check_seen(self, node: str, slot: int) -> None:
        if not self.seen or slot in self.seen.get(node, ()):
            return
        of_node = node in self.seen
        what = f"GPU {slot} of node {node}" if of_node else f"node {node}"
        known = listed(sorted(self.seen[node])) if of_node else listed(sorted(self.seen))
        raise ValueError(f"no sweep has seen {what}, only {known}; sweep first, or give --new-gpus")


def has_levels(table: Table, app_class: str | None) -> bool:
    """Whether a table has times per level, not of single GPUs. Raises SourceError.

    ``app_class``: class of every row of a file without a column ``class``.
    """
    levels = "level" in table.columns and "gpu" not in table.columns
    columns: Sequence[str] = _LEVEL_COLUMNS if levels else TIMING_COLUMNS
    hint = "" if levels else " (or class,level,value_ms: times per locality level)"
    if app_class is not None:
        if "class" in table.columns:
            raise SourceError(f"{table.name}: the file has a column class; leave --class out")
        columns = [column for column in columns if column != "class"]
    elif set(columns) - set(table.columns) == {"class"}:
        hint = "; give it with --class NAME"
    table.require(*columns, hint=hint)
    return levels


def read_timings(
    table: Table, app_class: str | None, classes: Sequence[str], known: KnownGpus, taken_at: float
) -> tuple[list[Run], list[BadRow]]:
    """Times of GPUs, and bad rows. ``classes``: those of the site."""

    def run(row: Row) -> Run:
        value_ms = check_time_ms(row.number("value_ms"))
        name = _class(app_class or row.text("class"), classes)
        node = check_name("node", row.text("node"))
        return Run(node, known.slot(row.text("gpu"), node), name, taken_at, value_ms)

    return table.parse(run)


def read_levels(
    table: Table, app_class: str | None, classes: Sequence[str]
) -> tuple[list[LevelTime], list[BadRow]]:
    """Times per level, and bad rows. ``classes``: those of the site.

    If the times of a class cannot be compared with each other, all of them are left out; the first
    one is reported.
    """

    def level_time(row: Row) -> tuple[int, LevelTime]:
        name, model = app_class or row.text("class"), row.cells.get("model", "")
        time = LevelTime(_class(name, classes), row.text("level"), row.number("value_ms"), model)
        if time.level not in LEVELS:
            raise ValueError(f"level {quoted(time.level)} is not one of {', '.join(LEVELS)}")
        if model:
            check_name("model", model)
        check_time_ms(time.value_ms)
        return row.line, time

    rows, bad = table.parse(level_time)
    good: list[LevelTime] = []
    for name in dict.fromkeys(time.app_class for _, time in rows):
        own = [(line, time) for line, time in rows if time.app_class == name]
        try:
            _check_comparable(name, [time for _, time in own])
            good += [time for _, time in own]
        except ValueError as exc:
            bad.append(BadRow(own[0][0], str(exc)))
    return good, sorted(bad)


def _class(name: str, classes: Sequence[str]) -> str:
    if name not in classes:
        raise ValueError(f"class {quoted(name)} is not one of {', '.join(classes)}")
    return name


def _check_comparable(app_class: str, times: Sequence[LevelTime]) -> None:
    """Raise ValueError unless all models have one reference level inside a node and another one."""
    of_model: dict[str, set[str]] = {}
    for time in times:
        of_model.setdefault(time.model, set()).add(time.level)
    inner = reference_of(time.level for time in times)
    for model, levels in of_model.items():
        there = ", ".join(name for name in LEVELS if name in levels)
        what = f"class {app_class}{f' on {model}' if model else ''} was timed at {there}"
        if reference_of(levels) is None:
            raise ValueError(
                f"{what} only; time it inside a node, too ({', '.join(INSIDE_NODE)}), on the same"
                " number of GPUs: it is the reference"
            )
        if reference_of(levels) != inner:
            raise ValueError(
                f"{what}, and at {inner} on another model only; the innermost level must be the"
                " same for all models of a class"
            )
        if len(levels) == 1:
            looser = ", ".join(LEVELS[LEVELS.index(there) + 1 :])
            raise ValueError(f"{what} only; time it at a looser level, too: {looser}")
