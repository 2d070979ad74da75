"""Settings that were measured on cards: which of them models choose, and what these save."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from common import percent, table

from slurm_gpu_aware.features.energy.stage import best_setting
from slurm_gpu_aware.features.models.fitting import fit_model
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import NOT_LIMITED, PerformanceSample
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.size_table import SizeTable

CARDS = "clock_power/clock_power.csv"
STAGES, KERNELS = "dvfs/dl_stage_frequency.csv", "dvfs/kernels.csv"
UNRELIABLE_MHZ = {"V100": 705.0}
BOUNDS = (0.02, 0.05, 0.1)
ALLOWED_OVER = 0.01
UNLIMITED_W = 1e4
CARD, MAX_W, STEP_MHZ = "A100-PCIE-80GB", 300.0, 15
OF_CLASS = {"A": "pi-solver", "B": "breeze", "C": "babelstream", "D": "babelstream"}


@dataclass(frozen=True)
class Series:
    """A program on a card: one row per setting that was measured. Arrays of one length."""

    name: str
    gpu: str
    clock_mhz: FloatArray
    limit_w: FloatArray
    time_s: FloatArray
    energy_j: FloatArray

    @property
    def default(self) -> int:
        """The highest clock at the highest limit."""
        return int(np.lexsort((self.limit_w, self.clock_mhz))[-1])

    def at(self, clock_mhz: int, limit_w: int) -> tuple[float, float]:
        """Time and energy of a measured clock, linear between limits; limit 0: the highest one."""
        own = np.flatnonzero(self.clock_mhz == clock_mhz)
        own = own[np.argsort(self.limit_w[own])]
        limits_w = self.limit_w[own]
        values = (
            np.interp(limit_w or limits_w[-1], limits_w, v[own])
            for v in (self.time_s, self.energy_j)
        )
        return float(next(values)), float(next(values))

    def third(self, seed: int) -> list[int]:
        """A third of the settings, at least four, the default one among them."""
        count = max(4, len(self.clock_mhz) // 3)
        if len(self.clock_mhz) < 3 * count:  # few clocks: evenly spread
            at = np.linspace(0, len(self.clock_mhz) - 1, count).round().astype(int)
            return sorted(np.argsort(self.clock_mhz)[at].tolist())
        rest = [i for i in range(len(self.clock_mhz)) if i != self.default]
        drawn = np.random.default_rng(seed).permutation(rest)[: count - 1]
        return [self.default, *drawn.tolist()]


def measured(data: Path) -> dict[str, list[Series]]:
    """Source -> its series."""
    rows: dict[tuple[str, str, str], list[tuple[float, float, float, float]]] = defaultdict(list)
    for row in _rows(data / CARDS):
        mhz, limit_w, time_s = (float(row[k]) for k in ("clock_mhz", "power_limit_w", "time_s"))
        of_card = rows["clock and limit", row["program"], row["gpu"]]
        of_card.append((mhz, limit_w, time_s, 3600.0 * float(row["energy_wh"])))
    for row in _rows(data / STAGES):
        if row["independent"] == "1":
            name = f"{row['model']} {row['pass']}"
            mhz, time_s = float(row["core_mhz"]), float(row["time_s"])
            at = mhz, UNLIMITED_W, time_s, float(row["energy_j"])
            rows["clock, training stages", name, row["gpu"]].append(at)
    for row in _rows(data / KERNELS):
        mhz, time_s = float(row["core_mhz"]), float(row["time_ms"]) / 1e3
        if row["suite"] == "real" and mhz >= UNRELIABLE_MHZ.get(row["gpu"], 0.0):
            name = f"{row['benchmark']} {row['kernel']} {row['input']}"
            at = mhz, UNLIMITED_W, time_s, time_s * float(row["avg_power_w"])
            rows["clock, kernels", name, row["gpu"]].append(at)
    found: dict[str, list[Series]] = defaultdict(list)
    for (source, name, gpu), own in rows.items():
        found[source].append(Series(name, gpu, *np.array(own).T))
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as stream:
        yield from csv.DictReader(stream)


def known_table(
    series: Series, known: Sequence[int], clocks: Sequence[int] = (), app_class: str = ""
) -> SizeTable:
    """The table of a series, by a model that is fitted to some of its settings.

    ``clocks``: those of the table; none: the measured ones.
    """
    top, most_w = float(series.clock_mhz.max()), series.limit_w.max()
    samples = []
    for i in known:
        mhz, time_s, joules = (
            float(v[i]) for v in (series.clock_mhz, series.time_s, series.energy_j)
        )
        limit_w = NOT_LIMITED if series.limit_w[i] == most_w else float(series.limit_w[i])
        samples.append(PerformanceSample(1, 1, 1.0, mhz, time_s, joules / time_s, limit_w))
    prior = prior_of(app_class, series.gpu.split("-")[0].lower())
    model = fit_model(samples, prior, top, name=series.name, gpu_model=series.gpu)
    return size_table(model, [1], clocks or series.clock_mhz.astype(int).tolist(), 1)


@dataclass(frozen=True)
class Judged:
    """One choice, as measured. Shares of the default's."""

    saved: float
    possible: float
    slower: float


def judged(series: Series, seed: int) -> list[Judged]:
    """One choice per bound, from a third of the settings."""
    default, times, energies = series.default, series.time_s, series.energy_j
    table = known_table(series, series.third(seed))
    found = []
    for bound in BOUNDS:
        choice = best_setting(table, 1, bound)
        time_s, joules = times[default], energies[default]
        if choice is not None:
            time_s, joules = series.at(choice.clock_mhz, choice.limit_w)
        best = energies[times <= times[default] * (1.0 + bound)].min()
        saved, possible = (1.0 - one / energies[default] for one in (joules, best))
        found.append(Judged(saved, possible, time_s / times[default] - 1.0))
    return found


def choices(data: Path, *, quick: bool) -> str:
    """Table of the choices."""
    rows = []
    for source, all_series in measured(data).items():
        draws = 3 if source == "clock and limit" and not quick else 1
        some = all_series[:: 4 if quick else 1]
        results = [judged(series, seed) for series in some for seed in range(draws)]
        for bound, own in zip(BOUNDS, zip(*results, strict=True), strict=True):
            saved = float(np.mean([j.saved for j in own]))
            possible = float(np.mean([j.possible for j in own]))
            over = [j.slower - bound for j in own]
            cells = [percent(share) for share in (bound, saved, possible, saved / possible)]
            late = sum(points > ALLOWED_OVER for points in over)
            rows.append([source, len(own), *cells, f"{100 * max(over):+.1f}", late])
    heads = ["varied", "choices", "bound", "saved", "possible", "share", "worst, points over"]
    return table([*heads, "more than 1 point over"], rows)


@lru_cache(maxsize=1)
def curves(data: Path) -> tuple[dict[str, SizeTable], dict[str, SizeTable]]:
    """Class -> its table as the GPUs have it, and as the planner knows it: of one GPU."""
    true, known = {}, {}
    of = {s.name: s for s in measured(data)["clock and limit"] if s.gpu == CARD}
    for app_class, name in OF_CLASS.items():
        series = of[name]
        own = series.limit_w == MAX_W
        order = np.argsort(series.clock_mhz[own])
        columns = series.clock_mhz, series.time_s, series.energy_j
        mhz, time_s, joules = (column[own][order] for column in columns)
        clocks = np.arange(mhz[0], mhz[-1] + 1, STEP_MHZ).astype(np.int64)
        times, powers = (np.interp(clocks, mhz, values) for values in (time_s, joules / time_s))
        table = known_table(series, range(len(series.clock_mhz)), clocks.tolist(), app_class)
        assert table.limited is not None
        both = list(zip(table.limited.clocks_mhz, table.limited.limits_w, strict=True))
        time_s, joules = np.array([series.at(*setting) for setting in both]).T
        limited = replace(table.limited, time_s=time_s[None], power_w=(joules / time_s)[None])
        true[app_class] = SizeTable(
            np.array([1]), clocks, times[None], powers[None], limited=limited
        )
        known[app_class] = table
    return true, known
