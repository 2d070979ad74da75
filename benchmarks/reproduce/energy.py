"""Clocks that save energy: choices on measured cards, and jobs that run at them.

python benchmarks/reproduce/energy.py [--quick] [--write]    five minutes; --quick: one
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, paragraph, percent, run, shared, table
from when_it_pays import BASE, NODES, SETTINGS, WIDTH, site_of, trace_of

from slurm_gpu_aware.features.energy.settings import EnergyConfig
from slurm_gpu_aware.features.energy.stage import best_setting
from slurm_gpu_aware.features.models.fitting import fit_model
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import NOT_LIMITED, PerformanceSample
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import PowerSettings, SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace

CARDS = "clock_power/clock_power.csv"
STAGES, KERNELS = "dvfs/dl_stage_frequency.csv", "dvfs/kernels.csv"
UNRELIABLE_MHZ = {"V100": 705.0}
BOUNDS = (0.02, 0.05, 0.1)
ALLOWED_OVER = 0.01
UNLIMITED_W = 1e4
CARD, MAX_W, IDLE_W, STEP_MHZ = "A100-PCIE-80GB", 300.0, 50.0, 15
OF_CLASS = {"A": "pi-solver", "B": "breeze", "C": "babelstream", "D": "babelstream"}
SEEDS = 8
"""Each of the eight traces of Sia-Philly once."""
SIMULATED = (0.02, 0.03, 0.05, 0.1)


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

    def index(self, clock_mhz: int, limit_w: int) -> int:
        """Index of a setting; limit 0: the highest one."""
        limit_w = limit_w or self.limit_w.max()
        return int(np.flatnonzero((self.clock_mhz == clock_mhz) & (self.limit_w == limit_w))[0])

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


def known_table(series: Series, known: Sequence[int]) -> SizeTable:
    """The table of a series, by a model that is fitted to some of its settings."""
    top, most_w = float(series.clock_mhz.max()), series.limit_w.max()
    samples = []
    for i in known:
        mhz, time_s, joules = (
            float(v[i]) for v in (series.clock_mhz, series.time_s, series.energy_j)
        )
        limit_w = NOT_LIMITED if series.limit_w[i] == most_w else float(series.limit_w[i])
        samples.append(PerformanceSample(1, 1, 1.0, mhz, time_s, joules / time_s, limit_w))
    prior = prior_of("", series.gpu.split("-")[0].lower())
    model = fit_model(samples, prior, top, name=series.name, gpu_model=series.gpu)
    return size_table(model, [1], series.clock_mhz.astype(int).tolist(), 1)


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
        at = default if choice is None else series.index(choice.clock_mhz, choice.limit_w)
        best = energies[times <= times[default] * (1.0 + bound)].min()
        saved, possible = (1.0 - joules / energies[default] for joules in (energies[at], best))
        found.append(Judged(saved, possible, times[at] / times[default] - 1.0))
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
        at = [np.interp(clocks, mhz, values)[None] for values in (time_s, joules / time_s)]
        true[app_class] = SizeTable(np.array([1]), clocks, *at)
        samples = [
            PerformanceSample(1, 1, 1.0, f, t, e / t)
            for f, t, e in zip(mhz.tolist(), time_s.tolist(), joules.tolist(), strict=True)
        ]
        prior = prior_of(app_class, "a100")
        model = fit_model(samples, prior, float(mhz[-1]), name=name, gpu_model="a100")
        known[app_class] = size_table(model, [1], clocks.tolist(), 1)
    return true, known


def _sized(one: SizeTable, gpus: int) -> SizeTable:
    """The table of a job of several GPUs, each as one alone."""
    return replace(one, gpus=np.array([gpus]), power_w=one.power_w * gpus)


def with_curves(
    trace: Trace, true: Mapping[str, SizeTable], known: Mapping[str, SizeTable]
) -> tuple[Trace, dict[str, SizeTable]]:
    """The trace with the table of each job, and what the planner knows by application."""
    tables, planner, jobs = {}, {}, []
    for job in trace.jobs:
        name = f"{job.app_class}-{job.gpus}"
        if name not in tables:
            tables[name] = _sized(true[job.app_class], job.gpus)
            planner[name] = _sized(known[job.app_class], job.gpus)
        jobs.append(replace(job, model=name, table=tables[name]))
    return replace(trace, jobs=tuple(jobs)), planner


def simulated(data: Path, seeds: Sequence[int], processes: int | None) -> str:
    """Table of energy and time of runs with and without."""
    true, known = curves(data)
    cases = {"Synergy-like": BASE, "Sia-Philly": replace(BASE, sia=True)}
    variants = [("packed", None), ("eft", None), *(("eft", bound) for bound in SIMULATED)]
    runs, rows = [], []
    for case in cases.values():
        for policy, bound in variants:
            for seed in seeds:
                site = site_of(case, seed)
                trace, planner = with_curves(trace_of(case, seed), true, known)
                settings = _settings(policy, bound, planner)
                runs.append(Run(trace, site.cluster, site.truth, settings))
    results = iter(run("clocks that save energy", runs, processes))
    for name in cases:
        of = {variant: [next(results) for _ in seeds] for variant in variants}
        base, packed = of["eft", None], of["packed", None]
        for (policy, bound), own in of.items():
            clocks = "default" if bound is None else f"{bound:.0%}"
            rows.append([name, policy, clocks, *_compared(own, base), *_compared(own, packed)[2:]])
    heads = ["jobs", "policy", "clocks, bound", "energy of jobs", "all energy", "average JCT"]
    return table([*heads, "JCT against packed"], rows)


def _settings(policy: str, bound: float | None, planner: Mapping[str, SizeTable]) -> SimSettings:
    power = PowerSettings(IDLE_W, MAX_W, known=planner)
    sections: dict[type, Any] = {}
    if bound is not None:
        sections[EnergyConfig] = EnergyConfig(slowdown=bound)
    return replace(parse_policy(policy, SETTINGS), power=power, sections=sections)


def _compared(own: Sequence[Result], base: Sequence[Result]) -> list[str]:
    """Change of the energy of jobs, of all energy and of the average JCT, mean over the seeds."""
    readings = (_of_jobs, _of_all, lambda result: float(result.jct_s().mean()))
    cells = []
    for read in readings:
        change = np.mean([read(a) / read(b) - 1.0 for a, b in zip(own, base, strict=True)])
        cells.append(f"{100 * change:+.1f}%")
    return cells


def _of_jobs(result: Result) -> float:
    assert result.energy is not None
    return float(result.energy.job_j.sum())


def _of_all(result: Result) -> float:
    assert result.energy is not None
    at_s = result.energy.at_s
    return result.energy.total_j(float(at_s[0]), float(at_s[-1]))


def section(data: Path, seeds: Sequence[int], processes: int | None, *, quick: bool) -> str:
    """The section of the page."""
    return "\n\n".join(
        [
            "## Clocks that save energy",
            paragraph(
                "A model is fitted to a third of the settings that were measured (of ten clocks or"
                " fewer: four), and chooses the setting with the least energy within a bound on"
                " time, for the upper end of its held-out error. Share: of what the best measured"
                " setting within the bound saves. Clock and limit: three programs on A100 PCIe and"
                " RTX PRO 6000, SM clock and power limit together, three draws; a power limit"
                " counts as the clock at which the model's power meets it. Training stages: A100"
                " and A40; kernels: 20 on V100 and RTX8000, from four clocks each."
            ),
            choices(data, quick=quick),
            paragraph(
                f"Jobs that run at these clocks: {NODES * WIDTH} GPUs, as in When it pays, with the"
                f" curves of {CARD}: class A as pi-solver, B as breeze, C and D as babelstream,"
                f" linear between the five measured clocks; idle GPUs draw {IDLE_W:g} W. The"
                " planner knows models that are fitted to the five clocks. Mean change over"
                f" {len(seeds)} seeds against eft at default clocks; last, against packed."
            ),
            simulated(data, seeds, processes),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    data = shared(CARDS, STAGES, KERNELS)
    if data is None:  # there is no shape to make up: the point is what real cards save
        raise SystemExit(1)
    seeds = range(2 if options.quick else SEEDS)
    text = section(data, seeds, options.processes, quick=options.quick)
    finish("energy", text, write=options.write)


if __name__ == "__main__":
    main()
