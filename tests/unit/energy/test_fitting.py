"""Fits of performance models: recovery, few samples, bad samples."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from energy_samples import (
    CLOCKS,
    REFERENCE_MHZ,
    grid,
    power,
    samples_of,
    throughput,
    true_model,
)

from slurm_gpu_aware.features.models import fitting
from slurm_gpu_aware.features.models.fitting import (
    conditions_of,
    fit_model,
    held_out,
    is_usable,
    merged,
)
from slurm_gpu_aware.features.models.least_squares import (
    Prior,
    fit_coefficients,
    prior_from,
    prior_of,
)
from slurm_gpu_aware.features.models.performance_model import (
    PerformanceSample,
    kept_clocks,
    model_from_values,
)


def fitted_model(samples, prior=None, name="bert", reference=REFERENCE_MHZ):
    return fit_model(samples, prior or prior_of("", "a100"), reference, name=name, gpu_model="a100")


def worst(model, truth, conditions):
    """Largest relative error of time and of power."""
    at = conditions_of(samples_of(truth, conditions))
    found, wanted = model.predict(at), truth.predict(at)
    return [float(np.abs(a / b - 1).max()) for a, b in zip(found, wanted, strict=True)]


def test_predictions_of_a_known_model_are_recovered():
    truth = true_model()
    model = fitted_model(samples_of(truth, grid()))
    unseen = grid(clocks=(800.0, 1050.0, 1300.0), batches=(16.0, 48.0))
    time, watts = worst(model, truth, unseen)
    assert time < 0.02
    assert watts < 0.02
    assert max(model.quality.time_error, model.quality.power_error) < 0.01


def test_power_limits_are_fitted_at_the_clocks_that_they_leave():
    """Of a GPU that draws 195 W at 1000 MHz and 300 W at 1400."""
    truth = true_model()
    settings = [(f, w) for f in (700.0, 1000.0, 1200.0, 1400.0) for w in (0.0, 250.0, 200.0)]
    bare = [PerformanceSample(1, 1, 32.0, f, 1.0, None, w) for f, w in settings]
    at, limits_w = conditions_of(bare), np.array([w for _, w in settings])
    kept = kept_clocks(truth.throughput, truth.power, at, limits_w)
    run = samples_of(truth, [(1, 1, 32.0, float(f)) for f in kept], noise=0.003)
    samples = [
        one._replace(clock_mhz=f, limit_w=w) for one, (f, w) in zip(run, settings, strict=True)
    ]
    model = fitted_model(samples)
    assert model.quality.limit_error < 0.015
    assert "time under power limits within" in model.confidence()
    assert model_from_values(json.loads(json.dumps(model.values()))) == model
    left_out = kept_clocks(model.throughput, model.power, at, limits_w)
    assert left_out == pytest.approx(kept, rel=0.02)
    assert sum(bool(one.limit_w) for one in model.anchors) == 8
    without = fitted_model([s for s in samples if not s.limit_w])
    assert without.quality.limit_error is None


@pytest.mark.parametrize(
    ("of_time", "of_power"),
    [
        (throughput(grad_clock_share=0.1, io_s=0.4), power(slope=2.0)),
        (throughput(gamma1=1.0, gamma2=1.0), power(static_w=200.0, grad_w=50.0)),
        (throughput(sustained=0.9), power(knee=0.6)),
    ],
)
def test_a_curve_over_the_clock_is_recovered_within_the_noise(of_time, of_power):
    truth = true_model(of_time, of_power)
    conditions = [(1, 1, 32.0, float(f)) for f in CLOCKS]
    model = fitted_model(samples_of(truth, conditions, noise=0.01))
    assert max(worst(model, truth, conditions)) < 0.03
    assert model.quality.time_error < 0.02
    assert model.quality.power_error < 0.02


def test_an_outlier_does_not_bend_the_curve():
    truth = true_model()
    conditions = [(1, 1, 32.0, float(f)) for f in CLOCKS]
    samples = samples_of(truth, conditions)
    samples[4] = samples[4]._replace(time_s=3 * samples[4].time_s)
    model = fitted_model(samples)
    good = [c for i, c in enumerate(conditions) if i != 4]
    assert worst(model, truth, good)[0] < 0.02


def test_one_sample_is_reproduced_and_the_rest_is_prior_and_says_so():
    model = fitted_model([PerformanceSample(1, 1, 1.0, 1400.0, 2.0, 250.0)])
    time_s, watts = model.predict(conditions_of([PerformanceSample(1, 1, 1.0, 1400.0, 2.0)]))
    assert time_s[0] == pytest.approx(2.0, rel=0.01)
    assert watts[0] == pytest.approx(250.0, rel=0.01)
    assert model.quality.time_error is None
    assert model.confidence() == "time not tested, power not tested (1 condition)"
    assert not model.knows_clock(1399.0)
    assert model.knows_gpus(1)
    assert not model.knows_gpus(2)


def test_without_power_the_gpu_model_gives_it():
    model = fitted_model([PerformanceSample(1, 1, 1.0, 1400.0, 2.0)])
    assert model.quality.power_samples == 0
    assert "power not measured" in model.confidence()
    watts = model.predict(conditions_of([PerformanceSample(1, 1, 1.0, 1400.0, 2.0)]))[1][0]
    assert 200 < watts < 420


def test_an_application_at_one_clock_takes_the_curve_of_its_class():
    compute, memory = true_model(), true_model(throughput(grad_clock_share=0.05, io_s=0.4))
    one = [PerformanceSample(1, 1, 32.0, REFERENCE_MHZ, 1.0, 300.0)]
    low = conditions_of([PerformanceSample(1, 1, 32.0, 700.0, 1.0)])
    times = []
    for truth in (compute, memory):
        base = fitted_model(samples_of(truth, [(1, 1, 32.0, float(f)) for f in CLOCKS]))
        model = fitted_model(one, prior_from(base))
        assert model.knows_clock(700.0)
        times.append(model.predict(low)[0][0])
    assert times[0] > 1.5
    assert times[1] < 1.3


def test_measurements_that_contradict_each_other_are_fitted_once(monkeypatch):
    """Ten more fits for the held-out error would take the most time where it is worth the least."""
    fits = []

    def counted(*args):
        fits.append(1)
        return fit_coefficients(*args)

    monkeypatch.setattr(fitting, "fit_coefficients", counted)
    samples = [PerformanceSample(1, 1, 1.0, 700.0 + f, 10.0 ** (f % 7), 100.0) for f in range(60)]
    with pytest.raises(ValueError, match=r"wrong by \d+% for what was measured"):
        fitted_model(samples)
    assert len(fits) == 1
    assert fitted_model(samples_of(true_model(), [(1, 1, 32.0, float(f)) for f in CLOCKS]))
    assert len(fits) > 3


def test_flat_times_are_fitted_flat():
    samples = [PerformanceSample(1, 1, 1.0, float(f), 1.0, 100.0) for f in CLOCKS]
    model = fitted_model(samples)
    time_s, watts = model.predict(conditions_of(samples))
    assert np.abs(time_s - 1.0).max() < 0.05
    assert np.abs(watts - 100.0).max() < 10.0


@pytest.mark.parametrize(
    "bad",
    [
        {"time_s": math.nan, "power_w": None},
        {"time_s": 0.0},
        {"time_s": math.inf},
        {"power_w": math.nan},
        {"power_w": -5.0},
        {"clock_mhz": math.nan},
        {"clock_mhz": 0.0},
        {"batch_size": 0.0},
        {"gpus": 0},
        {"nodes": 2},
    ],
)
def test_unusable_samples_are_left_out(bad):
    good = PerformanceSample(1, 1, 1.0, 1400.0, 2.0, 250.0)
    assert is_usable(good)
    wrong = good._replace(**bad)
    assert not is_usable(wrong)
    assert fitted_model([good, wrong]).quality.time_samples == 1
    with pytest.raises(ValueError, match="bert on a100: no usable sample"):
        fitted_model([wrong])


def test_extreme_but_usable_samples_give_a_finite_model():
    samples = [
        PerformanceSample(1, 1, 1e-9, 1.0, 1e-9, 1e-3),
        PerformanceSample(99_999, 99_999, 1e12, 100_000.0, 1e9, 1e9),
        PerformanceSample(2, 1, 1.0, 1000.0, 1.0),
        PerformanceSample(4, 2, 1.0, 1000.0, 1.0),
    ]
    model = fitted_model(samples[:2])  # of more, an error above any bound would be found
    for array in model.predict(conditions_of(samples)):
        assert np.isfinite(array).all()
        assert (array > 0).all()
    assert model_from_values(json.loads(json.dumps(model.values()))) == model


def test_runs_of_one_condition_are_one_sample_with_their_medians():
    runs = [PerformanceSample(1, 1, 1.0, 900.0, t, w) for t, w in ((1, 90), (2, None), (9, 110))]
    assert merged(runs) == [PerformanceSample(1, 1, 1.0, 900.0, 2.0, 100.0)]


def test_a_run_without_a_time_gives_its_power_only():
    runs = [PerformanceSample(1, 1, 1.0, 900.0, *one) for one in ((2.0, None), (math.nan, 90.0))]
    assert merged(runs) == [PerformanceSample(1, 1, 1.0, 900.0, 2.0, 90.0)]


@pytest.mark.parametrize("timed", [1, 4])
def test_powers_without_times_count_beside_times(timed):
    """Powers of one GPU at all clocks and of four at one; times at the lowest clocks only."""
    truth = true_model(of_power=power(static_w=200.0))
    samples = samples_of(truth, [(1, 1, 32.0, float(f)) for f in CLOCKS[::2]])
    untimed = [s._replace(time_s=math.nan) for s in samples[timed:]]
    untimed += [s._replace(time_s=math.nan) for s in samples_of(truth, [(4, 1, 32.0, 1400.0)])]
    model = fitted_model([*samples[:timed], *untimed])
    assert worst(model, truth, [(1, 1, 32.0, float(f)) for f in CLOCKS])[1] < 0.03
    quality = model.quality
    assert (quality.time_samples, quality.power_samples) == (timed, len(samples) + 1)
    assert quality.power_error < 0.03
    assert (quality.time_error is None, quality.energy_error is None) == (timed < 3,) * 2
    assert (model.measured.most_gpus, model.measured.high_mhz) == (1, samples[timed - 1].clock_mhz)


def test_held_out_errors_are_those_of_unseen_samples():
    """A wild sample is predicted from the others, so it counts with its whole error."""
    samples = samples_of(true_model(), [(1, 1, 32.0, float(f)) for f in CLOCKS])
    prior = prior_of("", "a100")
    clean = held_out(samples, prior, REFERENCE_MHZ)
    samples[7] = samples[7]._replace(time_s=2 * samples[7].time_s)
    wild = held_out(samples, prior, REFERENCE_MHZ)
    assert clean.time_error < 0.005
    assert wild.time_error == pytest.approx(0.5 / len(samples), rel=0.3)


def test_a_wider_prior_gives_way_to_measurements():
    truth = true_model(throughput(grad_clock_share=0.1))
    samples = samples_of(truth, [(1, 1, 32.0, float(f)) for f in CLOCKS])
    wrong = Prior(0.95, 0.2, 0.6, 1.0, 0.1)
    model = fitted_model(samples, replace(wrong, static_share=0.6))
    assert max(worst(model, truth, [(1, 1, 32.0, float(f)) for f in CLOCKS])) < 0.02
