"""Rows of a file for ``import``, parsed and checked; nodes whose bandwidths are outliers.

Times of GPUs, times per locality level, times and powers of applications for performance models,
and bandwidths. A row that cannot be used becomes a `BadRow`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from statistics import fmean, median

from gpu_aware_profile.imports.formats.reader import BUS_ALONE
from gpu_aware_profile.imports.known_gpus import KnownGpus
from slurm_gpu_aware.bounds import MAX_GBPS, MAX_GPUS, MAX_MHZ, MAX_NODES, check_time_ms, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.hints import NAME
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.filter_rules import FEATURE, MAX_NAME
from slurm_gpu_aware.model.hardware_graph import OPERATIONS, Collective, PairBandwidth
from slurm_gpu_aware.model.penalties import INSIDE_NODE, LEVELS, LevelTime, reference_of
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import Run, newest_bandwidths, newest_collectives
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.report import check_name
from slurm_gpu_aware.text_file import BadRow, Row, Table
from slurm_gpu_aware.variability.outliers import BANDWIDTH_UNITS, Outlier, mixed_units, outliers

TIMING_COLUMNS = ("gpu", "node", "class", "value_ms")
"""Required columns of times per GPU. In all tables ``taken_at``, of levels ``model`` is optional;
other columns are ignored."""
_CLOCKS_DIFFER_S = 86_400.0
"""A measurement is not this much later than now: it would count as the newest for good."""
_APPLICATION = re.compile(rf"{NAME.pattern}\Z")
_GPU_MODEL = re.compile(rf"{FEATURE}\Z")
_MIN_BATCH, _MAX_BATCH = 1e-6, 1e9
_MIN_W, _MAX_W = 1.0, 1e8
_BUS = re.compile(rf"{BUS_ALONE}[0-9a-f]{{2}}\Z")
_MIN_GBPS = 1e-6
_MOST_BYTES = 1 << 50


class Kind(Enum):
    """What the rows of a table are; its value: the columns that it must have."""

    TIMES = TIMING_COLUMNS
    LEVEL_TIMES = ("class", "level", "value_ms")
    PAIRS = ("node", "a", "b", "ab_gbps", "ba_gbps", "both_gbps")
    COLLECTIVES = ("node", "gpus", "operation", "gbps")
    SAMPLES = ("application", "gpu_model", "gpus", "time_s")


def kind_of(table: Table, app_class: str | None) -> Kind:
    """What a table has, by its columns. Raises SourceError if one is missing.

    ``app_class``: class of every row of a file without a column ``class``.
    """
    kind, hint = Kind.TIMES, " (or class,level,value_ms: times per locality level)"
    marks = {
        Kind.LEVEL_TIMES: "level",
        Kind.PAIRS: "ab_gbps",
        Kind.COLLECTIVES: "operation",
        Kind.SAMPLES: "application",
    }
    for other, column in marks.items():
        if column in table.columns and "gpu" not in table.columns:
            kind, hint = other, ""
    columns: Sequence[str] = kind.value
    if app_class is not None:
        if "class" in table.columns or "class" not in columns:
            own = "class" in table.columns
            what = "the file has a column class" if own else "only times are of a class"
            raise SourceError(f"{table.name}: {what}; leave --class out")
        columns = [column for column in columns if column != "class"]
    elif set(columns) - set(table.columns) == {"class"}:
        hint = "; give it with --class NAME"
    table.require(*columns, hint=hint)
    return kind


def read_timings(
    table: Table,
    app_class: str | None,
    classes: Sequence[str],
    known: KnownGpus,
    taken_at: float | None,
    now: float,
) -> tuple[list[Run], list[BadRow]]:
    """Times of GPUs, and bad rows.

    ``classes``: those of the site. ``taken_at``: time of all measurements (Unix s); None: that of
    the row, else ``now``.
    """

    def run(row: Row) -> Run:
        value_ms = check_time_ms(row.number("value_ms"))
        name = _class(app_class or row.text("class"), classes)
        node = check_name("node", row.text("node"))
        slot, at = known.slot(row.text("gpu"), node), taken_at_of(row, taken_at, now)
        return Run(node, slot, name, at, value_ms)

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


def taken_at_of(row: Row, taken_at: float | None, now: float) -> float:
    """Unix time of a row, see `read_timings`. Raises ValueError."""
    if taken_at is not None:
        return taken_at
    if not row.cells.get("taken_at"):
        return now
    at = row.number("taken_at")
    if not 0.0 <= at <= now + _CLOCKS_DIFFER_S:
        raise ValueError(f"taken_at is {at:.15g}: not a past time in Unix seconds")
    return at


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


def read_samples(
    table: Table, classes: Sequence[str], taken_at: float | None, now: float
) -> tuple[list[NamedSample], list[BadRow]]:
    """Samples of applications, and bad rows.

    ``classes``: those of the site. ``taken_at``: as in `import_rows.read_timings`. Raises
    SourceError if a column is missing.
    """
    table.require(*Kind.SAMPLES.value)

    def sample(row: Row) -> NamedSample:
        gpus = _count(row, "gpus", MAX_GPUS)
        nodes = _count(row, "nodes", MAX_NODES) if row.cells.get("nodes") else 1
        if nodes > gpus:
            raise ValueError(f"nodes is {nodes}: more than the {gpus} GPUs")
        app_class = row.cells.get("class", "")
        if app_class and app_class not in classes:
            raise ValueError(f"class {quoted(app_class)} is not one of {', '.join(classes)}")
        power_w = _number(row, "power_w", _MIN_W, _MAX_W, None)
        time_s = math.nan  # power alone is worth having, too
        if row.cells.get("time_s") or power_w is None:
            time_s = row.number("time_s")
            check_time_ms(1e3 * time_s)
        return NamedSample(
            _name(row, "application", _APPLICATION),
            _name(row, "gpu_model", _GPU_MODEL),
            taken_at_of(row, taken_at, now),
            PerformanceSample(
                gpus,
                nodes,
                _number(row, "batch_size", _MIN_BATCH, _MAX_BATCH, 1.0) or 1.0,
                _number(row, "clock_mhz", 1.0, MAX_MHZ, NOT_LOCKED) or NOT_LOCKED,
                time_s,
                power_w,
            ),
            app_class,
        )

    return table.parse(sample)


def _name(row: Row, column: str, pattern: re.Pattern[str]) -> str:
    text = row.text(column)
    if len(text) > MAX_NAME or not pattern.match(text):
        raise ValueError(f"{column} {quoted(text)} is not a valid name")
    return text


def _count(row: Row, column: str, most: int) -> int:
    value = row.count(column)
    if not 1 <= value <= most:
        raise ValueError(f"{column} is {value}: expected 1 to {most}")
    return value


def _number(
    row: Row, column: str, least: float, most: float, missing: float | None
) -> float | None:
    """A number of these bounds; ``missing``: the column or the cell is empty."""
    if not row.cells.get(column):
        return missing
    value = row.number(column)
    if not least <= value <= most:
        raise ValueError(f"{column} is {value:g}: expected {least:g} to {most:g}")
    return value


def read_pairs(
    table: Table, known: KnownGpus, taken_at: float | None, now: float
) -> tuple[list[PairBandwidth], list[BadRow]]:
    """Bandwidths of pairs of GPUs, and bad rows. ``taken_at``: as in `import_rows.read_timings`."""

    def pair(row: Row) -> PairBandwidth:
        node = check_name("node", row.text("node"))
        a, b = (known.probed(row.text(column), node) for column in ("a", "b"))
        if a == b:
            raise ValueError(f"a and b are the same GPU, {node}:{a}")
        ab, ba, both = (_maybe(row, f"{what}_gbps") for what in ("ab", "ba", "both"))
        if ab is ba is both is None:
            raise ValueError("no bandwidth")
        if a > b:
            a, b, ab, ba = b, a, ba, ab
        at = taken_at_of(row, taken_at, now)
        return PairBandwidth(node, a, b, at, ab, ba, both)

    return table.parse(pair)


def read_collectives(
    table: Table, known: KnownGpus, taken_at: float | None, now: float
) -> tuple[list[Collective], list[BadRow]]:
    """Bandwidths of collectives, and bad rows. ``taken_at``: as above."""

    def collective(row: Row) -> Collective:
        node, operation = check_name("node", row.text("node")), row.text("operation")
        named = row.text("gpus").split()
        if all(_BUS.match(gpu) for gpu in named):
            gpus = tuple(sorted(known.on_buses(named, node)))
        else:
            gpus = tuple(sorted(known.probed(gpu, node) for gpu in named))
        if len(gpus) < 2 or len(set(gpus)) < len(gpus):
            raise ValueError(f"{quoted(row.cells['gpus'])} is not two or more different GPUs")
        if operation not in OPERATIONS:
            raise ValueError(f"operation {quoted(operation)} is not one of {', '.join(OPERATIONS)}")
        size = row.count("size_bytes") if row.cells.get("size_bytes") else None
        if size is not None and not 0 < size <= _MOST_BYTES:
            raise ValueError(f"size_bytes is {size}: not the size of a message")
        at = taken_at_of(row, taken_at, now)
        return Collective(node, gpus, operation, at, _gbps(row, "gbps"), size)

    return table.parse(collective)


def fastest_pairs(pairs: Iterable[PairBandwidth]) -> list[PairBandwidth]:
    """One measurement per pair and moment: of several runs the best of each value."""
    found: dict[tuple[object, ...], PairBandwidth] = {}
    for pair in pairs:
        key, best = pair[:4], found.get(pair[:4], pair)
        values = (
            max((v for v in both if v is not None), default=None)
            for both in zip(pair[4:], best[4:], strict=True)
        )
        found[key] = PairBandwidth(*key, *values)
    return list(found.values())


def largest_collectives(collectives: Iterable[Collective]) -> list[Collective]:
    """One measurement per GPUs, operation and moment: the largest message, of these the fastest."""
    return list(
        {
            one[:4]: one for one in sorted(collectives, key=lambda c: (c.size_bytes or 0, c.gbps))
        }.values()
    )


def far_pairs(store: Store) -> list[Outlier]:
    """Nodes with pairs far slower or faster than those of the same link and model elsewhere."""
    profile = load_profile(store)
    kinds = {
        (node, link.a, link.b): link.link_class
        for node in profile.links
        for link in profile.links[node]
    }
    found = []
    for pair in newest_bandwidths(store):
        one_way = [gbps for gbps in (pair.ab_gbps, pair.ba_gbps) if gbps is not None]
        model = profile.gpus[pair.node, pair.a].model or ""
        kind = kinds.get((pair.node, pair.a, pair.b), "unknown")
        if one_way:
            found.append((f"{kind} links", model, pair.node, fmean(one_way)))
    return _far(found)


def far_collectives(store: Store) -> list[Outlier]:
    """Nodes on which a collective is far slower or faster than on the same GPUs elsewhere."""
    gpus = load_profile(store).gpus
    return _far(
        (
            f"{operation} over GPUs {' '.join(map(str, one.gpus))}",
            gpus[one.node, one.gpus[0]].model or "",
            one.node,
            one.gbps,
        )
        for operation in OPERATIONS
        for one in newest_collectives(store, operation)
    )


def bandwidth_sentences(found: Sequence[Outlier]) -> list[str]:
    """One sentence without a full stop per outlier."""
    return [
        f"{one.app_class} of {one.node} have {one.ratio:.3g} times the bandwidth of the median node"
        f"{f' with {one.model}' if one.model else ''}{mixed_units(one.ratio, BANDWIDTH_UNITS)}"
        for one in found
    ]


def _far(values: Iterable[tuple[str, str, str, float]]) -> list[Outlier]:
    """Outliers among the nodes. ``values``: (what, model, node, GB/s)."""
    of_node: dict[tuple[str, str, str], list[float]] = {}
    for what, model, node, gbps in values:
        of_node.setdefault((what, model, node), []).append(gbps)
    return outliers(
        GpuTiming(node, 0, what, median(gbps), 0.0, model)
        for (what, model, node), gbps in of_node.items()
    )


def _maybe(row: Row, column: str) -> float | None:
    return _gbps(row, column) if row.cells.get(column) else None


def _gbps(row: Row, column: str) -> float:
    value = row.number(column)
    if not _MIN_GBPS <= value <= MAX_GBPS:
        raise ValueError(f"{column} is {value:g}: not a bandwidth in GB/s")
    return value
