"""Outliers: GPUs with times far from the median of their model.

GPUs of one model differ by some ten percent; up to 3.5 times was measured. If a file has one node
in seconds instead of milliseconds, every job of the class goes to that node. An import therefore
refuses new outliers until a person accepts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from slurm_gpu_aware.model.profile import Gpu, GpuTiming, gpu_names
from slurm_gpu_aware.variability.scores import pm_scores

__all__ = ["FAR", "Outlier", "mixed_units", "new_outliers", "outlier_sentences", "outliers"]

FAR = 2.0
"""A time outside 1 / FAR .. FAR times the median is an outlier."""

_UNITS = {
    60.0: "seconds and minutes",
    1e3: "milliseconds and seconds",
    6e4: "milliseconds and minutes",
    1e6: "milliseconds and nanoseconds",
}
"""Ratio of times -> units that may be mixed up."""


class Outlier(NamedTuple):
    """One GPU for one class."""

    app_class: str
    model: str
    """Empty if unknown."""
    node: str
    slot: int
    ratio: float
    """Time over that of the median GPU of the model."""


def outliers(timings: Iterable[GpuTiming], unseen: Set[Gpu] = frozenset()) -> list[Outlier]:
    """All outliers, sorted by class, model and node.

    ``timings``: one per GPU and class. ``unseen``: GPUs that do not count for the median.
    """
    of_class: dict[str, list[GpuTiming]] = {}
    for row in timings:
        of_class.setdefault(row.app_class, []).append(row)
    found: list[Outlier] = []
    for name, own in of_class.items():
        seen = [row[:2] not in unseen for row in own]
        ratios = pm_scores([row.value_ms for row in own], [row.model for row in own], seen)
        found += [
            Outlier(name, row.model, row.node, row.slot, ratio)
            for row, ratio in zip(own, ratios.tolist(), strict=True)
            if not 1 / FAR <= ratio <= FAR
        ]
    return sorted(found)


def new_outliers(before: Iterable[Outlier], after: Iterable[Outlier]) -> list[Outlier]:
    """Outliers of ``after`` that ``before`` does not contain with about the same ratio."""
    known = {(o.app_class, o.node, o.slot): o.ratio for o in before}
    return [
        o
        for o in after
        if not 1 / FAR <= o.ratio / known.get((o.app_class, o.node, o.slot), 1.0) <= FAR
    ]


def outlier_sentences(found: Sequence[Outlier]) -> list[str]:
    """One sentence without a full stop per class, model and side: the GPUs and their ratios."""
    groups: dict[tuple[str, str, bool], list[Outlier]] = {}
    for one in found:
        groups.setdefault((one.app_class, one.model, one.ratio > 1.0), []).append(one)
    return [_sentence(own) for own in groups.values()]


def mixed_units(ratio: float) -> str:
    """`` (are seconds and minutes mixed up?)`` if the ratio suggests it, else empty."""
    factor = max(ratio, 1.0 / ratio)
    near = next((u for f, u in _UNITS.items() if f / 2 <= factor <= f * 2), None)
    return f" (are {near} mixed up?)" if near else ""


def _sentence(own: Sequence[Outlier]) -> str:
    names = gpu_names((o.node, o.slot) for o in own)
    low, high = f"{min(o.ratio for o in own):.3g}", f"{max(o.ratio for o in own):.3g}"
    times = low if low == high else f"{low} to {high}"
    model = f" {own[0].model}" if own[0].model else ""
    verb, its = ("takes", "its") if len(own) == 1 else ("take", "their")
    far = max((o.ratio for o in own), key=lambda ratio: max(ratio, 1.0 / ratio))
    return (
        f"class {own[0].app_class}: {names} {verb} {times} times as long as the median GPU of"
        f" {its} model{model}{mixed_units(far)}"
    )
