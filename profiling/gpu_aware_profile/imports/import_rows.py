"""Rows of a file for ``import``, parsed and checked; nodes whose bandwidths are outliers.

Times of GPUs, times per locality level, times and powers of applications for performance models,
and bandwidths. A row that cannot be used becomes a `BadRow`.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median

from gpu_aware_profile.imports.formats.reader import BUS_ALONE
from gpu_aware_profile.imports.known_gpus import KnownGpus
from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPU_W,
    MAX_GPUS,
    MAX_MHZ,
    MAX_NODES,
    MIN_GBPS,
    check_time_ms,
    quoted,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.declared import NAME
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LIMITED,
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
from slurm_gpu_aware.variability.drift import BANDWIDTH_UNITS, Outlier, mixed_units, outliers

TIMING_COLUMNS = ("gpu", "node", "class", "value_ms")
"""Required columns of times per GPU. In all tables ``taken_at``, of levels ``model`` is optional;
other columns are ignored."""
_CLOCKS_DIFFER_S = 86_400.0
"""A measurement is not this much later than now: it would count as the newest for good."""
_APPLICATION = re.compile(rf"{NAME.pattern}\Z")
_GPU_MODEL = re.compile(rf"{FEATURE}\Z")
_BUS = re.compile(rf"{BUS_ALONE}[0-9a-f]{{2}}\Z")
_BATCH = (1e-6, 1e9)
_WATT = (1.0, 1e8)
_GBPS = (MIN_GBPS, MAX_GBPS)
_BYTES = (1, 1 << 50)


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


@dataclass(frozen=True)
class Given:
    """What counts beside the rows of a file. The methods raise ValueError."""

    classes: Sequence[str]  # Those of the site.
    now: float  # Unix time.
    taken_at: float | None = None
    """Unix time of all measurements; None: that of the row, else ``now``."""
    app_class: str | None = None  # Class of the rows of a file without a column ``class``.

    def at(self, row: Row) -> float:
        """Unix time of a row."""
        if self.taken_at is not None:
            return self.taken_at
        if not row.cells.get("taken_at"):
            return self.now
        at = row.number("taken_at")
        if not 0.0 <= at <= self.now + _CLOCKS_DIFFER_S:
            raise ValueError(f"taken_at is {at:.15g}: not a past time in Unix seconds")
        return at

    def class_of(self, row: Row) -> str:
        """Class of a row."""
        name = self.app_class or row.text("class")
        if name not in self.classes:
            raise ValueError(f"class {quoted(name)} is not one of {', '.join(self.classes)}")
        return name


def read_timings(table: Table, given: Given, known: KnownGpus) -> tuple[list[Run], list[BadRow]]:
    """Times of GPUs, and bad rows."""

    def run(row: Row) -> Run:
        value_ms = check_time_ms(row.number("value_ms"))
        name, node = given.class_of(row), _node(row)
        return Run(node, known.slot(row.text("gpu"), node), name, given.at(row), value_ms)

    return table.parse(run)


def read_levels(table: Table, given: Given) -> tuple[list[LevelTime], list[BadRow]]:
    """Times per level, and bad rows.

    If the times of a class cannot be compared with each other, all of them are left out; the first
    one is reported.
    """

    def level_time(row: Row) -> tuple[int, LevelTime]:
        name, model = given.class_of(row), row.cells.get("model", "")
        time = LevelTime(name, row.text("level"), row.number("value_ms"), model)
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


def read_samples(table: Table, given: Given) -> tuple[list[NamedSample], list[BadRow]]:
    """Samples of applications, and bad rows. Raises SourceError if a column is missing."""
    table.require(*Kind.SAMPLES.value)

    def sample(row: Row) -> NamedSample:
        gpus = row.count("gpus", 1, MAX_GPUS)
        nodes = row.count("nodes", 1, MAX_NODES) if row.cells.get("nodes") else 1
        if nodes > gpus:
            raise ValueError(f"nodes is {nodes}: more than the {gpus} GPUs")
        power_w = _optional(row, "power_w", *_WATT)
        time_s = math.nan  # power alone is worth having, too
        if row.cells.get("time_s") or power_w is None:
            time_s = row.number("time_s")
            check_time_ms(1e3 * time_s)
        return NamedSample(
            _name(row, "application", _APPLICATION),
            _name(row, "gpu_model", _GPU_MODEL),
            given.at(row),
            PerformanceSample(
                gpus,
                nodes,
                _optional(row, "batch_size", *_BATCH) or 1.0,
                _optional(row, "clock_mhz", 1.0, MAX_MHZ) or NOT_LOCKED,
                time_s,
                power_w,
                row.count("limit_w", 1, int(MAX_GPU_W))
                if row.cells.get("limit_w")
                else NOT_LIMITED,
            ),
            given.class_of(row) if row.cells.get("class") else "",
        )

    return table.parse(sample)


def _node(row: Row) -> str:
    return check_name("node", row.text("node"))


def _name(row: Row, column: str, pattern: re.Pattern[str]) -> str:
    text = row.text(column)
    if len(text) > MAX_NAME or not pattern.match(text):
        raise ValueError(f"{column} {quoted(text)} is not a valid name")
    return text


def _optional(row: Row, column: str, least: float, most: float) -> float | None:
    """A number within bounds; None: the column or the cell is empty."""
    return row.number(column, least, most) if row.cells.get(column) else None


def read_pairs(
    table: Table, given: Given, known: KnownGpus
) -> tuple[list[PairBandwidth], list[BadRow]]:
    """Bandwidths of pairs of GPUs, and bad rows."""

    def pair(row: Row) -> PairBandwidth:
        node = _node(row)
        a, b = (known.probed(row.text(column), node) for column in ("a", "b"))
        if a == b:
            raise ValueError(f"a and b are the same GPU, {node}:{a}")
        ab, ba, both = (_optional(row, f"{what}_gbps", *_GBPS) for what in ("ab", "ba", "both"))
        if ab is ba is both is None:
            raise ValueError("no bandwidth")
        if a > b:
            a, b, ab, ba = b, a, ba, ab
        return PairBandwidth(node, a, b, given.at(row), ab, ba, both)

    return table.parse(pair)


def read_collectives(
    table: Table, given: Given, known: KnownGpus
) -> tuple[list[Collective], list[BadRow]]:
    """Bandwidths of collectives, and bad rows."""

    def collective(row: Row) -> Collective:
        node, operation = _node(row), row.text("operation")
        named = row.text("gpus").split()
        if all(_BUS.match(gpu) for gpu in named):
            gpus = tuple(sorted(known.on_buses(named, node)))
        else:
            gpus = tuple(sorted(known.probed(gpu, node) for gpu in named))
        if len(gpus) < 2 or len(set(gpus)) < len(gpus):
            raise ValueError(f"{quoted(row.cells['gpus'])} is not two or more different GPUs")
        if operation not in OPERATIONS:
            raise ValueError(f"operation {quoted(operation)} is not one of {', '.join(OPERATIONS)}")
        size = row.count("size_bytes", *_BYTES) if row.cells.get("size_bytes") else None
        gbps = row.number("gbps", *_GBPS)
        return Collective(node, gpus, operation, given.at(row), gbps, size)

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
