"""Size tables from performance models.

Frontier of energy and time: which clocks are worth a choice, and which one to take.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.features.models.performance_model import PerformanceModel
from slurm_gpu_aware.features.models.throughput import Conditions
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.profile import LimitRange
from slurm_gpu_aware.model.size_table import LimitedSettings, SizeTable, least_energy

_LIMIT_STEPS = 50
"""Steps to the highest measured power limit; NVML takes any limit in the card's range."""
_ANY_LIMIT = LimitRange()


def size_table(
    model: PerformanceModel,
    gpus: Sequence[int],
    clocks_mhz: Sequence[int],
    gpus_per_node: int,
    batch_size: float | None = None,
    *,
    beside: Iterable[int] = (),
    limits_w: LimitRange = _ANY_LIMIT,
) -> SizeTable:
    """Time and power of a job for each of its sizes and clocks.

    A size is placed on as few nodes of ``gpus_per_node`` GPUs as hold it. The work of an iteration
    is the same for all sizes: ``batch_size`` samples of all GPUs together (None: as measured). If
    only one GPU count was measured, each GPU does what it did there.

    What does not follow from measurements is NaN: other GPU counts (`PerformanceModel.knows_gpus`)
    than the least one of the job, and clocks below the measured ones. The least size is always
    known up to the absolute time. ``beside``: other GPU counts that the table has if their times
    and that of the least size follow from measurements. ``limits_w``: the power limits that jobs
    may get; others are left out, wherever they were measured. Raises ValueError if ``gpus`` or
    ``clocks_mhz`` is empty.
    """
    counts = set(gpus)
    if counts and model.knows_gpus(min(counts)):
        counts.update(filter(model.knows_gpus, beside))
    sizes = np.array(sorted(counts), dtype=np.int64)
    clocks = np.array(sorted(set(clocks_mhz)), dtype=np.int64)
    measured = model.measured
    if batch_size is not None or measured.most_gpus > measured.least_gpus:
        each = (measured.global_batch if batch_size is None else batch_size) / sizes
    else:
        each = np.full(len(sizes), measured.batch_size)
    nodes = np.ceil(sizes / gpus_per_node)
    at = Conditions(
        sizes[:, None].astype(np.float64),
        nodes[:, None],
        each[:, None],
        clocks[None, :].astype(np.float64),
    )
    time_s, each_w, error = model.corrected(at)
    power_w = each_w * sizes[:, None]
    known = np.array([i == 0 or model.knows_gpus(int(n)) for i, n in enumerate(sizes)])
    known_clocks = np.array([model.knows_clock(float(f)) for f in clocks], dtype=np.bool_)
    known_clocks[-1:] = True
    hidden = ~(known[:, None] & known_clocks[None, :])
    return SizeTable(
        sizes,
        clocks,
        np.where(hidden, np.nan, time_s),
        np.where(hidden, np.nan, power_w),
        f"{model.name} on {model.gpu_model or 'any GPU'}: {model.confidence()}",
        error.max(axis=0),
        _limited(model, at, clocks, known, limits_w),
    )


def _limited(
    model: PerformanceModel,
    at: Conditions,
    clocks: IntArray,
    known: BoolArray,
    range_w: LimitRange,
) -> LimitedSettings | None:
    """All measured clocks of ``clocks`` under all measured power limits, and in steps between those
    that were measured with them; None: there are none.

    ``known``: (S,) whether a size is; of others everything is NaN. ``range_w``: of the limits.
    """
    own = [anchor for anchor in model.anchors if anchor.limit_w]
    locked = sorted({int(one.locked_mhz) for one in own} & set(clocks.tolist()))
    limits = {int(one.limit_w) for one in own}
    found = []
    for mhz in locked:
        beside = {int(one.limit_w) for one in own if one.locked_mhz == mhz}
        steps = range(min(beside), max(beside), max(1, max(limits) // _LIMIT_STEPS))
        within = (w for w in limits.union(steps) if range_w.least_w <= w < range_w.below_w)
        found += [(mhz, limit_w) for limit_w in sorted(within)]
    if not found:
        return None
    pairs = np.array(found, dtype=np.int64)
    mhz, limits_w = pairs.T.astype(np.float64)
    rows = [
        model.under_limits(Conditions(gpus, nodes, each, mhz), limits_w)
        for gpus, nodes, each in zip(at.gpus, at.nodes, at.batch_size, strict=True)
    ]
    time_s, each_w, error = (np.stack(part) for part in zip(*rows, strict=True))
    time_s, power_w = (np.where(known[:, None], v, np.nan) for v in (time_s, each_w * at.gpus))
    return LimitedSettings(pairs[:, 0], pairs[:, 1], time_s, power_w, error.max(axis=0))


class Point(NamedTuple):
    """Time, power and energy of an iteration at one setting."""

    clock_mhz: int
    time_s: float
    power_w: float
    energy_j: float
    limit_w: int = 0  # Power limit of each GPU; 0: the site's own.


def points(table: SizeTable, row: int = 0) -> list[Point]:
    """The known settings of one size: those with a power limit, then the clocks, ascending."""
    found = []
    for clock, limit_w, time, power, _ in zip(*table.settings(row), strict=True):
        if np.isfinite(time) and np.isfinite(power) and time > 0 and power > 0:
            joules = float(time * power)
            found.append(Point(int(clock), float(time), float(power), joules, int(limit_w)))
    return found


def frontier(known: list[Point]) -> list[Point]:
    """Points that no other one beats in time and in energy, fastest first."""
    kept: list[Point] = []
    for point in sorted(known, key=lambda p: (p.time_s, p.energy_j, p.clock_mhz, p.limit_w)):
        if not kept or point.energy_j < kept[-1].energy_j:
            kept.append(point)
    return kept


def efficient_point(known: list[Point]) -> Point | None:
    """The point with the least energy; None: nothing is known."""
    times, watts = (np.array([p[i] for p in known], dtype=np.float64) for i in (1, 2))
    best = least_energy(times, watts)
    return None if best is None else known[best]


def at_most_slower(known: list[Point], slowdown: float) -> Point | None:
    """The least energy among points at most ``slowdown`` (0.1: 10%) slower than the default one.

    None: nothing is known.
    """
    if not known:
        return None
    longest = known[-1].time_s * (1.0 + slowdown)
    return efficient_point([p for p in known if p.time_s <= longest])
