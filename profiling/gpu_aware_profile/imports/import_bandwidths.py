"""Measured bandwidths of a file for ``import``: rows parsed, and nodes far from the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from gpu_aware_profile.imports.formats.reader import BUS_ALONE
from gpu_aware_profile.imports.import_rows import taken_at_of
from gpu_aware_profile.imports.known_gpus import KnownGpus
from slurm_gpu_aware.bounds import MAX_GBPS, quoted
from slurm_gpu_aware.model.hardware_graph import OPERATIONS, Collective, PairBandwidth
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import newest_bandwidths, newest_collectives
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.report import check_name
from slurm_gpu_aware.text_file import BadRow, Row, Table
from slurm_gpu_aware.variability.outliers import BANDWIDTH_UNITS, Outlier, mixed_units, outliers

_BUS = re.compile(rf"{BUS_ALONE}[0-9a-f]{{2}}\Z")
_MIN_GBPS = 1e-6
_MOST_BYTES = 1 << 50


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
