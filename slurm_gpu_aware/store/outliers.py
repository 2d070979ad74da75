"""GPUs whose times are far from the median of their model: slow boards, or a wrong unit.

GPUs of one model differ by some ten percent, a few by more: 3.5 times was measured. A file in which
one node is in seconds instead of milliseconds looks worse, and as a score it would draw every job
of the class there. So an import refuses what is new of this kind until a person vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.inventory import gpu_names
from slurm_gpu_aware.store.timings import NewestTiming, newest_timings, unseen_gpus

__all__ = ["FAR", "Outlier", "mixed_units", "new_outliers", "outlier_sentences", "outliers"]

FAR = 2.0
"""Outside 1 / FAR .. FAR times the median a time is an outlier."""

_UNITS = {
    60.0: "seconds and minutes",
    1e3: "milliseconds and seconds",
    6e4: "milliseconds and minutes",
    1e6: "milliseconds and nanoseconds",
}
"""Factor -> units that were mixed up if times differ by about it."""


class Outlier(NamedTuple):
    """One GPU for one class."""

    app_class: str
    model: str
    """Empty if unknown."""
    node: str
    slot: int
    ratio: float
    """Its time over that of the median GPU of its model."""


def outliers(store: Store) -> list[Outlier]:
    """All GPUs whose newest time is an outlier, by class, model and node. Raises StoreError."""
    rows = newest_timings(store)
    unseen = unseen_gpus(store, ((row.node, row.slot) for row in rows))
    of_class: dict[str, list[NewestTiming]] = {}
    for row in rows:
        of_class.setdefault(row.app_class, []).append(row)
    found: list[Outlier] = []
    for name, own in of_class.items():
        from slurm_gpu_aware.variability.scores import pm_scores

        seen = [(row.node, row.slot) not in unseen for row in own]
        ratios = pm_scores([row.value_ms for row in own], [row.model for row in own], seen)
        found += [
            Outlier(name, row.model, row.node, row.slot, ratio)
            for row, ratio in zip(own, ratios.tolist(), strict=True)
            if not 1 / FAR <= ratio <= FAR
        ]
    return sorted(found)


def new_outliers(before: Iterable[Outlier], after: Iterable[Outlier]) -> list[Outlier]:
    """Those of ``after`` that nobody has vouched for: not about as far off ``before``."""
    known = {(o.app_class, o.node, o.slot): o.ratio for o in before}
    return [
        o
        for o in after
        if not 1 / FAR <= o.ratio / known.get((o.app_class, o.node, o.slot), 1.0) <= FAR
    ]


def outlier_sentences(found: Sequence[Outlier]) -> list[str]:
    """What is far off and by how much: a sentence per class, model and side, no full stop."""
    groups: dict[tuple[str, str, bool], list[Outlier]] = {}
    for one in found:
        groups.setdefault((one.app_class, one.model, one.ratio > 1.0), []).append(one)
    return [_sentence(own) for own in groups.values()]


def mixed_units(ratio: float) -> str:
    """`` (are seconds and minutes mixed up?)`` if a factor looks like it, else nothing."""
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
