"""Outliers: GPUs with times far from the median of their model.

GPUs of one model differ by some ten percent; up to 3.5 times was measured. If a file has one node
in seconds instead of milliseconds, every job of the class goes to that node. An import therefore
refuses new outliers until a person accepts them.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from slurm_gpu_aware.model.profile import Gpu, GpuTiming, gpu_names

FAR = 2.0
"""A time outside 1 / FAR .. FAR times the median is an outlier."""

Units = Mapping[float, str]
"""Ratio of two values -> units that may be mixed up."""
TIME_UNITS: Units = {
    60.0: "seconds and minutes",
    1e3: "milliseconds and seconds",
    6e4: "milliseconds and minutes",
    1e6: "milliseconds and nanoseconds",
}
RATE_UNITS: Units = {1e3: "prefixes such as G and T", 1e6: "prefixes such as M and T"}
"""For times that were made of rates."""
BANDWIDTH_UNITS: Units = {8.0: "bits and bytes", 1e3: "MB/s and GB/s"}


class Outlier(NamedTuple):
    """One GPU for one class."""

    app_class: str
    model: str
    """Empty if unknown."""
    node: str
    slot: int
    ratio: float
    """Time over that of the median GPU of the model on other nodes."""


def outliers(timings: Iterable[GpuTiming], unseen: Set[Gpu] = frozenset()) -> list[Outlier]:
    """All outliers, sorted by class, model and node.

    A GPU is compared with the median GPU of its model on *other* nodes: so a node in another unit
    is found even if it has half of the GPUs. If the model is on one node only, it is compared with
    the other GPUs of the node. Of an even number of GPUs the one of the two in the middle counts
    that is nearer.

    ``timings``: one per GPU and class. ``unseen``: GPUs that do not count for the median, unless
    there are no others.
    """
    groups: dict[tuple[str, str, str], list[GpuTiming]] = {}
    for row in timings:
        groups.setdefault((row.app_class, row.model, row.board), []).append(row)
    found: list[Outlier] = []
    for (name, model, _), rows in groups.items():
        counted = [row for row in rows if row[:2] not in unseen] or rows
        found += [
            Outlier(name, model, row.node, row.slot, ratio)
            for row, ratio in zip(rows, _ratios(rows, counted), strict=True)
            if not 1 / FAR <= ratio <= FAR
        ]
    return sorted(found)


def _ratios(rows: Sequence[GpuTiming], counted: Sequence[GpuTiming]) -> list[float]:
    """Time of each row over the median of those of ``counted`` that are on other nodes."""
    ranked = sorted(counted, key=lambda row: row.value_ms)
    ordered = [row.value_ms for row in ranked]
    ranks: dict[str, list[int]] = {}
    for rank, row in enumerate(ranked):
        ranks.setdefault(row.node, []).append(rank)
    ratios = []
    for row in rows:
        own = ranks.get(row.node, [])
        if len(own) == len(ordered):  # no other node
            own = [rank for rank in own if ranked[rank].slot == row.slot]
        middle = _middle(ordered, own)
        ratios.append(
            min((row.value_ms / time for time in middle), key=lambda r: max(r, 1 / r), default=1.0)
        )
    return ratios


def _middle(ordered: Sequence[float], left_out: Sequence[int]) -> tuple[float, ...]:
    """The two values in the middle of a sorted list without the (ascending) ``left_out`` ranks.

    They are the same of an odd number; empty: nothing is left. Costs O(len(left_out)).
    """
    rest = len(ordered) - len(left_out)
    if not rest:
        return ()
    low, high = (rest - 1) // 2, rest // 2
    for rank in left_out:
        low += rank <= low
        high += rank <= high
    return ordered[low], ordered[high]


def new_outliers(before: Iterable[Outlier], after: Iterable[Outlier]) -> list[Outlier]:
    """Outliers of ``after`` that ``before`` does not contain with about the same ratio."""
    known = {(o.app_class, o.node, o.slot): o.ratio for o in before}
    return [
        o
        for o in after
        if not 1 / FAR <= o.ratio / known.get((o.app_class, o.node, o.slot), 1.0) <= FAR
    ]


def outlier_sentences(found: Sequence[Outlier], units: Units = TIME_UNITS) -> list[str]:
    """One sentence without a full stop per class, model and side: the GPUs and their ratios.

    ``units``: those that may be mixed up.
    """
    groups: dict[tuple[str, str, bool], list[Outlier]] = {}
    for one in found:
        groups.setdefault((one.app_class, one.model, one.ratio > 1.0), []).append(one)
    return [_sentence(own, units) for own in groups.values()]


def mixed_units(ratio: float, units: Units = TIME_UNITS) -> str:
    """`` (are seconds and minutes mixed up?)`` if the ratio suggests it, else empty."""
    factor = max(ratio, 1.0 / ratio)
    near = next((u for f, u in units.items() if f / 2 <= factor <= f * 2), None)
    return f" (are {near} mixed up?)" if near else ""


def _sentence(own: Sequence[Outlier], units: Units) -> str:
    names = gpu_names((o.node, o.slot) for o in own)
    low, high = f"{min(o.ratio for o in own):.3g}", f"{max(o.ratio for o in own):.3g}"
    times = low if low == high else f"{low} to {high}"
    model = f" {own[0].model}" if own[0].model else ""
    verb, its = ("takes", "its") if len(own) == 1 else ("take", "their")
    far = max((o.ratio for o in own), key=lambda ratio: max(ratio, 1.0 / ratio))
    return (
        f"class {own[0].app_class}: {names} {verb} {times} times as long as the median GPU of"
        f" {its} model{model}{mixed_units(far, units)}"
    )
