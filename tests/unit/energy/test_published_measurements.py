"""Models of published measurements, held out, against reference fits of the same equations."""

import csv
from functools import cache

import numpy as np
import pytest
from needs import shared_data

from slurm_gpu_aware.features.energy.stage import best_setting
from slurm_gpu_aware.features.models.fitting import fit_model, held_out, merged
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import PerformanceSample
from slurm_gpu_aware.features.models.tables import size_table

pytestmark = pytest.mark.shared


@cache
def rows(name: str) -> list[dict[str, str]]:
    with shared_data(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def of_one_gpu(clock_mhz: str, time_s: float, power_w: float) -> PerformanceSample:
    return PerformanceSample(1, 1, 1.0, float(clock_mhz), time_s, power_w)


@pytest.mark.parametrize(
    ("network", "reference"),
    [
        ("bert", 0.038),
        ("deepspeech2", 0.064),
        ("gpt2", 0.048),
        ("inception3", 0.026),
        ("resnet50", 0.035),
        ("resnet50_cifar10", 0.038),
        ("vgg16", 0.045),
    ],
)
def test_times_on_1_to_64_gpus(network: str, reference: float):
    samples = [
        PerformanceSample(
            *(int(row["gpus"]), int(row["nodes"]), float(row["local_bsz"])),
            *(1410.0, float(row["step_time_s"])),
        )
        for row in rows("throughput/elasticflow.csv")
        if (row["gpu_type"], row["model"]) == ("A100", network)
    ]
    quality = held_out(merged(samples), prior_of("", "a100"), 1410.0)
    assert quality.time_error <= reference


@pytest.mark.parametrize(
    ("gpu", "series", "time", "power"),
    [
        ("A100-SXM4-80GB", "gpt3-175b", 0.006, 0.009),
        ("A100-SXM4-80GB", "bloom-176b", 0.006, 0.009),
        ("A40", "gpt3-175b", 0.012, 0.007),
    ],
)
def test_stages_of_training_over_the_clock(gpu: str, series: str, time: float, power: float):
    samples = [
        of_one_gpu(row["core_mhz"], time_s, float(row["energy_j"]) / time_s)
        for row in rows("dvfs/dl_stage_frequency.csv")
        for time_s in [float(row["time_s"])]
        if (row["gpu"], row["model"], row["pass"], row["independent"])
        == (gpu, series, "forward", "1")
    ]
    quality = held_out(samples, prior_of("", gpu), max(s.clock_mhz for s in samples))
    assert quality.time_error <= time
    assert quality.power_error <= power
    assert quality.energy_error <= 0.07


@pytest.mark.parametrize("gpu", ["V100", "RTX8000"])
@pytest.mark.parametrize("benchmark", ["matrixMul", "hotspot", "mergeSort"])
def test_kernels_over_the_clock(gpu: str, benchmark: str):
    samples = [
        of_one_gpu(row["core_mhz"], float(row["time_ms"]) / 1e3, float(row["avg_power_w"]))
        for row in rows("dvfs/kernels.csv")
        if (row["gpu"], row["suite"], row["benchmark"]) == (gpu, "real", benchmark)
        and float(row["core_mhz"]) >= 705  # labels below are not to be trusted on V100
    ]
    quality = held_out(samples, prior_of("", gpu), max(s.clock_mhz for s in samples))
    assert quality.time_error <= 0.06
    assert quality.power_error <= 0.07
    assert quality.energy_error <= 0.07


@pytest.mark.parametrize("program", ["babelstream", "breeze"])
def test_clock_and_power_limit_are_chosen_within_the_bound(program: str):
    """By a third of the settings of an A100; judged by all of them, linear between limits."""
    measured = {}
    for row in rows("clock_power/clock_power.csv"):
        if (row["program"], row["gpu"]) == (program, "A100-PCIE-80GB"):
            at = int(row["clock_mhz"]), int(row["power_limit_w"]) % 300  # 300 W is the card's own
            measured[at] = float(row["time_s"]), 3600.0 * float(row["energy_wh"])
    default_s, default_j = measured[1410, 0]
    drawn = np.random.default_rng(0).permutation(sorted(measured.keys() - {(1410, 0)}))[:10]
    samples = [
        PerformanceSample(1, 1, 1.0, mhz, time_s, joules / time_s, limit_w)
        for mhz, limit_w in [(1410, 0), *map(tuple, drawn.tolist())]
        for time_s, joules in [measured[mhz, limit_w]]
    ]
    model = fit_model(samples, prior_of("", "a100"), 1410.0, name=program, gpu_model="a100")
    assert (model.quality.limit_error or 0.0) < 0.02
    table = size_table(model, [1], sorted({mhz for mhz, _ in measured}), 1)
    saved = possible = 0.0
    for bound in (0.02, 0.05, 0.1):
        chosen = best_setting(table, 1, bound)
        mhz, limit_w = (chosen.clock_mhz, chosen.limit_w) if chosen else (1410, 0)
        of_clock = {w or 300: at for (f, w), at in sorted(measured.items()) if f == mhz}
        limits_w = sorted(of_clock)
        time_s, joules = (
            np.interp(limit_w or 300, limits_w, [of_clock[w][i] for w in limits_w]) for i in (0, 1)
        )
        assert time_s <= (1.01 + bound) * default_s
        saved += 1.0 - joules / default_j
        within = [j for t, j in measured.values() if t <= (1.0 + bound) * default_s]
        possible += 1.0 - min(within) / default_j
    assert saved >= 0.85 * possible
