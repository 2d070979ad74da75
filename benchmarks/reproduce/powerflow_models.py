"""Errors of performance models on published measurements, held out.

python benchmarks/reproduce/powerflow_models.py [--quick] [--write]    ten minutes; --quick: one
"""

import csv
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
from common import SYNTHETIC, arguments, finish, paragraph, percent, shared, table
from powerflow_limits import JUMP, WANTED, node_spread, reasons, roughness, sync_range

from slurm_gpu_aware.features.models.fitting import conditions_of, fit_model, held_out, merged
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import PerformanceSample, Quality
from slurm_gpu_aware.features.models.tables import efficient_point, points
from slurm_gpu_aware.model.size_table import SizeTable

Series = dict[str, list[PerformanceSample]]
"""Name -> samples, one per condition."""

SCALING, STEPS = "throughput/elasticflow.csv", "throughput/step_times.csv"
STAGES, KERNELS = "dvfs/dl_stage_frequency.csv", "dvfs/kernels.csv"
REFERENCE_TIME = {
    "bert": 0.038,
    "deepspeech2": 0.064,
    "gpt2": 0.048,
    "inception3": 0.026,
    "resnet50": 0.035,
    "resnet50_cifar10": 0.038,
    "vgg16": 0.045,
}
"""Errors of fits of the same equations by others, left out one by one; T(f) and P(f) below."""
REFERENCE_CLOCK = {
    "V100": (0.04, 0.05),
    "RTX8000": (0.013, 0.04),
    "A100": (0.006, 0.009),
    "A40": (0.012, 0.007),
}
PUBLISHED = (
    "The paper's own: throughput ResNet18 6.1%, VGG16 3.8%, Inception 2.6%, GPT2 2.1%, DeepSpeech2"
    " 4.5%; energy 6.9%, 6.0%, 4.5%, 6.8%, 3.5%."
)
UNRELIABLE_MHZ = {"V100": 705}
"""Clocks below are not what their labels say (data's own description)."""
BOOST_MHZ = 1410.0
FEW = (3, 4, 6)
_STEP_FOLDS = 10
_LEAST_S = 1e-6
_LIMITED = 0.1
"""Error of a set above which it is fitted without its synchronisation, too."""


@dataclass(frozen=True)
class Data:
    """Measurements by kind."""

    scaling: Series
    """Networks on 1 to 64 A100."""
    steps: Series
    """Model and cluster, on up to 64 GPUs, at many batch sizes."""
    computing: Series
    """The same without the recorded time of synchronisation."""
    clocks: Mapping[str, Series]
    """GPU model -> series over the clock."""


def section(data: Data | None) -> str:
    """The whole section. None: synthetic data."""
    found = synthetic() if data is None else data
    parts = [
        "## Performance models",
        SYNTHETIC.strip() if data is None else "",
        _intro(),
        _scaling(found.scaling),
        _clocks(found.clocks),
        _few(found.clocks),
        _optima(found.clocks),
        _steps(found.steps, found.computing),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _intro() -> str:
    return paragraph(
        "Mean absolute relative errors of predictions for conditions that the fit has not seen. No"
        " data vary GPUs, batch size and clock together, and none measure energy against GPUs.",
        PUBLISHED,
    )


def _scaling(series: Series) -> str:
    """T(n, batch size), each condition left out once."""
    rows = []
    for name, samples in series.items():
        _progress(name)
        error = _tested(samples, "a100", folds=len(samples)).time_error
        reference = REFERENCE_TIME.get(name)
        rows.append([name, len(samples), _share(error), _share(reference)])
    return (
        "Time against GPUs and batch size, networks on 1 to 64 A100, left out one by one:\n\n"
        + table(["network", "conditions", "error", "reference fit"], rows)
    )


def _clocks(clocks: Mapping[str, Series]) -> str:
    """T(f), P(f), E(f), ten folds."""
    rows = []
    for gpu, series in clocks.items():
        _progress(gpu)
        tested = [_tested(samples, gpu) for samples in series.values()]
        for name in ("time", "power", "energy"):
            errors = np.array([getattr(quality, f"{name}_error") for quality in tested])
            reference = dict(zip(("time", "power"), REFERENCE_CLOCK.get(gpu, ()), strict=False))
            cells = [_share(float(value)) for value in (errors.mean(), np.median(errors))]
            cells += [_share(float(errors.max())), _share(reference.get(name))]
            rows.append([f"{gpu}, {name}", len(series), *cells])
    headers = ["GPU, what", "series", "mean error", "median", "worst series", "reference fit"]
    return (
        "Against the clock, one GPU, in ten folds. V100 and RTX8000: 20 CUDA kernels; A100 and A40:"
        " training\nstages of two networks, forward and backward:\n\n"
        + table(headers, rows)
        + "\n\n"
        + paragraph(*_jumps(clocks))
    )


def _jumps(clocks: Mapping[str, Series]) -> Iterator[str]:
    """Sentences on series in which the time jumps between two clocks."""
    yield (
        f"In some series the time jumps: from one clock to the next it rises by over {JUMP:.0%}, or"
        f" falls over {JUMP:.0%} more than 1 / f does. Neither can come from the clock alone."
    )
    for gpu, series in clocks.items():
        smooth = [samples for samples in series.values() if not _jumps_at_a_clock(samples)]
        if smooth and len(smooth) < len(series):
            errors = [_tested(samples, gpu).time_error or 0.0 for samples in smooth]
            yield (
                f"{gpu}: {len(series) - len(smooth)} of {len(series)}; without them the mean error"
                f" of the time is {percent(float(np.mean(errors)))}, the worst"
                f" {percent(max(errors))}."
            )


def _jumps_at_a_clock(samples: Sequence[PerformanceSample]) -> bool:
    changes = [(b.time_s / a.time_s, a.clock_mhz / b.clock_mhz) for a, b in pairwise(samples)]
    return any(time > 1 + JUMP or time < (1 - JUMP) * clock for time, clock in changes)


def _few(clocks: Mapping[str, Series]) -> str:
    """Fits to few clocks, errors at all others."""
    rows = []
    for count in FEW:
        row: list[object] = [f"{count} clocks"]
        for gpu, series in clocks.items():
            errors = [_few_errors(samples, gpu, count) for samples in series.values()]
            row += [_share(float(value)) for value in np.mean(errors, axis=0)]
        rows.append(row)
    headers = ["fitted to", *(f"{gpu}, {what}" for gpu in clocks for what in ("time", "power"))]
    return "Fitted to a few clocks, evenly spread, and tested at all others:\n\n" + table(
        headers, rows
    )


def _few_errors(samples: Sequence[PerformanceSample], gpu: str, count: int) -> tuple[float, float]:
    chosen = {round(i * (len(samples) - 1) / (count - 1)) for i in range(count)}
    top = max(s.clock_mhz for s in samples)
    model = fit_model(
        [samples[i] for i in chosen], prior_of("", gpu), top, name="few", gpu_model=gpu
    )
    rest = [s for i, s in enumerate(samples) if i not in chosen]
    time_s, watts = model.predict(conditions_of(rest))
    measured = np.array([(s.time_s, s.power_w or np.nan) for s in rest]).T
    return (
        float(np.abs(time_s / measured[0] - 1).mean()),
        float(np.abs(watts / measured[1] - 1).mean()),
    )


def _optima(clocks: Mapping[str, Series]) -> str:
    """The model's most efficient clock against the measured one."""
    rows = []
    for gpu, series in clocks.items():
        results = [_optimum(samples, gpu) for samples in series.values()]
        saved, possible, slower = np.mean(results, axis=0)
        rows.append([gpu, percent(float(saved)), percent(float(possible)), percent(float(slower))])
    headers = ["GPU", "saved at the model's clock", "at the best measured clock", "slower by"]
    return (
        "Measured energy at the clock that a model of 6 clocks names as the most efficient one,"
        "\nagainst the highest clock:\n\n" + table(headers, rows)
    )


def _optimum(samples: Sequence[PerformanceSample], gpu: str) -> tuple[float, float, float]:
    """Energy saved at the chosen clock and at the best one, and the time that the choice costs."""
    chosen = {round(i * (len(samples) - 1) / 5) for i in range(6)}
    top = max(s.clock_mhz for s in samples)
    few = [samples[i] for i in chosen]
    model = fit_model(few, prior_of("", gpu), top, name="few", gpu_model=gpu)
    time_s, watts = model.predict(conditions_of(samples))
    clocks = np.array([round(s.clock_mhz) for s in samples])
    best = efficient_point(points(SizeTable(np.array([1]), clocks, time_s[None], watts[None])))
    assert best is not None
    energies = {round(s.clock_mhz): s.time_s * (s.power_w or np.nan) for s in samples}
    times = {round(s.clock_mhz): s.time_s for s in samples}
    default = energies[round(top)]
    return (
        1 - energies[best.clock_mhz] / default,
        1 - min(energies.values()) / default,
        times[best.clock_mhz] / times[round(top)] - 1,
    )


def _steps(series: Series, computing: Series) -> str:
    """T(n, batch size) of many sets, ten folds, and what limits the worst."""
    errors = {}
    for name, samples in series.items():
        _progress(name)
        errors[name] = _tested(samples, name, folds=_STEP_FOLDS).time_error or 0.0
    values = np.array(list(errors.values()))
    above = {n: errors[n] for n in sorted(errors, key=lambda n: -errors[n]) if errors[n] > WANTED}
    rough = {name: roughness(series[name]) for name in above}
    rows = []
    for name, error in above.items():
        cells = [_share(value) for value in (error, *rough[name], node_spread(series[name]))]
        rows.append([name, *cells, *_synchronisation(name, error, series, computing)])
    headers = ["set", "error", "between neighbours", "falls", "numbers of nodes"]
    headers += ["without synchronisation", "synchronisation varies"]
    return "\n\n".join(
        [
            paragraph(
                f"Time against GPUs and batch size, {len(series)} sets of model and cluster with up"
                " to several hundred conditions each, in ten folds:"
                f" median error {_share(float(np.median(values)))} (reference fit: 7.3%),"
                f" {_share(float(values.min()))} to {_share(float(values.max()))};"
                f" {int((values <= _LIMITED).sum())} sets are below {_LIMITED:.0%},"
                f" {len(series) - len(above)} below {WANTED:.0%}. What limits the others:"
            ),
            table(headers, rows),
            paragraph(
                "Between neighbours: error of the line through the next smaller and the next larger"
                " batch size on the same GPUs, for the time between them; falls: how often a larger"
                f" batch takes over {JUMP:.0%} less time than the next smaller one; numbers of"
                " nodes: mean distance of a time from those on the same number of GPUs with the"
                " same batch size on other numbers of nodes, one node apart; without"
                " synchronisation: error of a fit to the step time less the recorded time of"
                " synchronisation; synchronisation varies: the longest recorded one over the"
                " shortest on the same GPUs, median. The last two are for sets above"
                f" {_LIMITED:.0%}.",
                *reasons(series, rough, above),
            ),
        ]
    )


def _synchronisation(name: str, error: float, series: Series, computing: Series) -> list[str]:
    """Cells on the synchronisation of a set; empty ones where its error is not large."""
    if error <= _LIMITED:
        return ["", ""]
    _progress(f"{name} without synchronisation")
    without = _tested(computing[name], name, folds=_STEP_FOLDS).time_error
    return [_share(without), f"{sync_range(series[name], computing[name]):.1f} times"]


def _tested(samples: Sequence[PerformanceSample], gpu: str, folds: int = 10) -> Quality:
    top = max(s.clock_mhz for s in samples)
    return held_out(samples, prior_of("", gpu), top, folds=folds)


def load(folder: Path, *, quick: bool) -> Data:
    """Read the measurements; ``quick``: a part of them."""
    scaling, steps, computing = Series(), Series(), Series()
    for row in _rows(folder / SCALING):
        if row["gpu_type"] == "A100":
            scaling.setdefault(row["model"], []).append(_step(row))
    for row in _rows(folder / STEPS):
        if row["uniform"] == "1":
            name, step = f"{row['model']}/{row['cluster']}", _step(row)
            steps.setdefault(name, []).append(step)
            left_s = max(step.time_s - float(row["sync_time_s"]), _LEAST_S)
            computing.setdefault(name, []).append(step._replace(time_s=left_s))
    clocks: dict[str, Series] = {"V100": {}, "RTX8000": {}, "A100": {}, "A40": {}}
    for row in _rows(folder / KERNELS):
        gpu, mhz = row["gpu"], float(row["core_mhz"])
        if row["suite"] == "real" and mhz >= UNRELIABLE_MHZ.get(gpu, 0):
            name = f"{row['benchmark']} {row['kernel']} {row['input']}"
            sample = _clock(mhz, float(row["time_ms"]) / 1e3, float(row["avg_power_w"]))
            clocks[gpu].setdefault(name, []).append(sample)
    for row in _rows(folder / STAGES):
        if row["independent"] == "1":
            gpu, time_s = row["gpu"].split("-")[0], float(row["time_s"])
            sample = _clock(float(row["core_mhz"]), time_s, float(row["energy_j"]) / time_s)
            clocks[gpu].setdefault(f"{row['model']} {row['pass']}", []).append(sample)
    data = Data(
        _merged(scaling),
        _merged(steps),
        _merged(computing),
        {g: _merged(s) for g, s in clocks.items()},
    )
    return _part(data) if quick else data


def _part(data: Data) -> Data:
    """Every tenth set, at least one."""
    first = {f.name: getattr(data, f.name) for f in fields(data)}
    cut = {
        name: dict(list(first[name].items())[::10]) for name in ("scaling", "steps", "computing")
    }
    return Data(**cut, clocks={g: dict(list(s.items())[::10]) for g, s in data.clocks.items()})


def _merged(series: Series) -> Series:
    return {name: merged(samples) for name, samples in series.items()}


def _step(row: Mapping[str, str]) -> PerformanceSample:
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    batch, time_s = float(row["local_bsz"]), float(row["step_time_s"])
    return PerformanceSample(gpus, nodes, batch, BOOST_MHZ, time_s)


def _clock(mhz: float, time_s: float, watts: float) -> PerformanceSample:
    return PerformanceSample(1, 1, 1.0, mhz, time_s, watts)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as stream:
        yield from csv.DictReader(stream)


def synthetic() -> Data:
    """Made up series of the same kinds, without noise."""
    clocks = [_clock(f, 100 / f + 0.02, 60 + 0.15 * f + 1e-7 * f**3) for f in range(700, 1401, 100)]
    sizes = [(n, -(-n // 8), 64.0 / n) for n in (1, 2, 4, 8, 16)]
    scaling = [
        PerformanceSample(*size, BOOST_MHZ, 0.01 + size[2] * 0.002 + 0.01 * (size[0] > 1))
        for size in sizes
    ]
    bert = merged(scaling)
    return Data({"bert": bert}, {"bert/x": bert}, {"bert/x": bert}, {"A100": {"x": clocks}})


def _share(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else percent(value)


def _progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    given = arguments(__doc__)
    folder = shared(SCALING, STEPS, STAGES, KERNELS)
    text = section(None if folder is None else load(folder, quick=given.quick))
    finish("powerflow_models", text, write=given.write)
