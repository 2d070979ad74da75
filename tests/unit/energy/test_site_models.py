"""Models of a site: which are fitted, from what, and why some are not."""

import math

import numpy as np
import pytest
from energy_samples import CLOCKS, REFERENCE_MHZ, power, samples_of, throughput, true_model

from slurm_gpu_aware.features.models import site_models
from slurm_gpu_aware.features.models.fitting import conditions_of, fit_model
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    UNKNOWN_BATCH,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.features.models.site_models import fit_site
from slurm_gpu_aware.features.models.tables import size_table

MEMORY_BOUND = throughput(grad_clock_share=0.05, io_s=0.4)


def swept(name="A", truth=None, gpu_model="a100", clocks=CLOCKS[::3]):
    conditions = [(1, 1, 32.0, float(f)) for f in clocks]
    return [
        NamedSample(name, gpu_model, 1.0, s) for s in samples_of(truth or true_model(), conditions)
    ]


def with_values(samples, **fields):
    """The same samples with other values."""
    return [one._replace(sample=one.sample._replace(**fields)) for one in samples]


def of_application(clock=NOT_LOCKED, app_class="", **more):
    sample = PerformanceSample(1, 1, 32.0, clock, 1.0, 250.0)
    return NamedSample("bert", "a100", 1.0, sample, app_class, **more)


def test_classes_and_applications_get_models():
    found = list(fit_site(swept(), [of_application()], {"a100": 1410}))
    assert [(f.kind, f.name) for f in found] == [("class", "A"), ("application", "bert")]
    assert {f.gpu_model for f in found} == {"a100"}
    assert {f.model.throughput.reference_mhz for f in found} == {1410.0}
    assert found[0].model.quality.time_error < 0.02


def test_the_class_that_the_newest_sample_names_is_the_prior():
    low = conditions_of([PerformanceSample(1, 1, 32.0, 700.0, 1.0)])
    classes = swept("A") + swept("C", true_model(MEMORY_BOUND))
    newest = of_application(app_class="C")._replace(taken_at=9.0)
    times = {}
    for app_class, samples in (
        ("A", [of_application(app_class="A"), of_application()]),
        ("C", [newest, of_application(app_class="A")]),
    ):
        *_, last = fit_site(classes, samples, {"a100": 1400})
        times[app_class] = last.model.predict(low)[0][0]
        assert last.model.knows_clock(700.0)
    assert times["A"] > 1.5 > 1.35 > times["C"]


def test_an_unlocked_sample_ran_at_the_default_clock():
    (fit,) = fit_site([], [of_application()], {"a100": 1350})
    assert fit.model.measured.high_mhz == 1350.0
    (fit,) = fit_site([], [of_application(), of_application(REFERENCE_MHZ)], {})
    assert fit.model.throughput.reference_mhz == REFERENCE_MHZ


@pytest.mark.parametrize(
    ("classes", "applications", "reason"),
    [
        ([], [of_application()], "no clock is known: no sweep has seen this GPU model"),
        (swept(clocks=[1000]), [], "measured at one clock only"),
        (with_values(swept(), time_s=-1.0), [], "no usable sample"),
    ],
)
def test_what_cannot_be_fitted_has_a_reason(classes, applications, reason):
    (fit,) = fit_site(classes, applications, {})
    assert (fit.model, fit.reason) == (None, reason)


def untimed(app_class="A", clocks=CLOCKS[::2], **more):
    """A job without marks: its power at some clocks."""
    found = with_values(swept("bert", clocks=clocks, **more), time_s=math.nan)
    return [one._replace(app_class=app_class) for one in found]


def test_power_alone_makes_a_model_with_the_time_of_the_class():
    truth = true_model(of_power=power(static_w=300.0))
    (_, fit) = fit_site(swept(), untimed(truth=truth), {"a100": 1410})
    of_class, quality = next(fit_site(swept(), [], {})).model, fit.model.quality
    assert (quality.time_samples, quality.time_error, quality.energy_error) == (0, None, None)
    assert quality.power_error < 0.05
    assert "time not measured, as that of its class, power within" in fit.model.confidence()
    at = conditions_of([PerformanceSample(1, 1, 32.0, float(f), 1.0) for f in (700, 1000, 1400)])
    (time, watts), (class_time, class_watts) = fit.model.predict(at), of_class.predict(at)
    assert time[0] / time[2] == pytest.approx(class_time[0] / class_time[2], rel=0.08)
    expected = truth.predict(at)[1]
    assert watts == pytest.approx(expected, rel=0.05)
    assert (watts > 1.2 * class_watts).all()


def test_power_without_a_time_under_a_limit_tells_no_time_there():
    """Regression: it counted as not slowed, and `models show` named 100 W as free."""
    limited = with_values(untimed(), limit_w=100.0, power_w=90.0)
    (_, fit) = fit_site(swept(), [*untimed(), *limited], {"a100": 1410})
    assert fit.model is not None
    assert not any(anchor.limit_w for anchor in fit.model.anchors)
    assert fit.model.quality.limit_error is None
    (_, fit) = fit_site(swept(), limited, {"a100": 1410})
    assert fit.reason == "no usable sample"


def test_an_unknown_batch_size_is_that_of_the_other_samples():
    unknown = with_values(untimed(), batch_size=UNKNOWN_BATCH)
    (_, fit) = fit_site(swept(), [*unknown, of_application(1400.0)], {"a100": 1410})
    assert fit.model.measured.batch_size == 32.0
    assert fit.model.quality.power_samples == len(unknown)
    (_, fit) = fit_site(swept(), unknown, {"a100": 1410})
    assert fit.model.measured.batch_size == 1.0


def test_power_alone_is_nothing_without_the_class_and_beside_times():
    (fit,) = fit_site([], untimed(), {"a100": 1410})
    assert fit.model is None
    assert fit.reason == "only its power was measured, and its class has no model here"
    (_, fit) = fit_site(swept(), [*untimed(), of_application(1000.0)], {"a100": 1410})
    assert fit.model.quality.time_samples == 1


def test_power_alone_on_several_numbers_of_gpus_says_nothing_of_scaling():
    """The times of the class are those of one GPU, whatever the number."""
    four = [
        of_four
        for one in untimed()
        for of_four in with_values([one], gpus=4, power_w=4 * one.sample.power_w)
    ]
    for samples, gpus in (([*untimed(), *four[1:]], 1), ([*untimed()[1:], *four], 4)):
        (_, fit) = fit_site(swept(), samples, {"a100": 1410})
        sizes, clocks = (1, 2, 4, 8), (700, 1400)
        table = size_table(fit.model, sizes, clocks, 8)
        known = [int(n) for n in table.gpus[np.isfinite(table.time_s[:, -1])]]
        assert known == sorted({1, gpus})
        (time_s,) = size_table(fit.model, (gpus,), clocks, 8).time_s
        (class_s,) = size_table(next(fit_site(swept(), [], {})).model, (1,), clocks, 8).time_s
        assert time_s == pytest.approx(class_s, rel=0.08)


def test_a_fit_of_few_conditions_takes_one_with_a_time(monkeypatch):
    monkeypatch.setattr(site_models, "_MOST_CONDITIONS", 2)
    (_, fit) = fit_site(swept(), [*untimed(), of_application(1000.0)], {"a100": 1410})
    assert fit.model.quality.time_samples == 1


def test_a_fit_takes_a_bounded_number_of_conditions(monkeypatch):
    monkeypatch.setattr(site_models, "_MOST_CONDITIONS", 5)
    (fit,) = fit_site(swept(clocks=range(700, 1411, 10)), [], {"a100": 1410})
    assert 3 <= fit.model.quality.time_samples <= 5
    assert fit.model.measured.low_mhz == 700.0


def test_power_limits_take_no_clock_alone_out_of_a_fit(monkeypatch):
    """Also not the highest one, which all savings are compared with."""
    monkeypatch.setattr(site_models, "_MOST_CONDITIONS", 20)
    given = []
    monkeypatch.setattr(site_models, "fit_model", lambda chosen, *_, **__: given.extend(chosen))
    alone = swept(clocks=range(700, 1411, 50))
    limited = [one for watts in (150.0, 200.0, 250.0) for one in with_values(alone, limit_w=watts)]
    list(fit_site([*alone, *limited], [], {"a100": 1410}))
    clocks = [s.clock_mhz for s in given if not s.limit_w]
    assert clocks == [one.sample.clock_mhz for one in alone]
    assert 0 < len(given) - len(clocks) <= 20 - len(clocks)


def test_samples_that_cannot_be_fitted_stop_no_other_fit(monkeypatch):
    def fails(samples, *args, name, **kwargs):
        if name == "bert":
            raise ValueError("residuals are not finite")
        return fit_model(samples, *args, name=name, **kwargs)

    monkeypatch.setattr(site_models, "fit_model", fails)
    other = of_application()._replace(name="net")
    bert, net = fit_site([], [of_application(), other], {"a100": 1410})
    assert bert.reason == "it cannot be fitted: residuals are not finite"
    assert bert.model is None
    assert net.model is not None


def of_unnamed_job(at, clock, time_s, power_w, *conditions):
    """What a slow job of class C leaves, of such time and power at its default clock, 1400 MHz."""
    longer = 0.3 + 0.7 * 1400 / clock
    both = (clock, longer * time_s, power_w * clock / 1400), (NOT_LOCKED, time_s, power_w)
    samples = [PerformanceSample(*conditions, *one) for one in both]
    return [NamedSample("ada/class C", "a100", at, sample, "C") for sample in samples]


QUICK = of_unnamed_job(1.0, 1005.0, 0.1, 900.0, 4, 1, 64.0)
SLOW = of_unnamed_job(2.0, 1200.0, 10.0, 120.0, 1, 1, 1.0)


@pytest.mark.parametrize("samples", [QUICK + SLOW, SLOW + QUICK])
def test_unnamed_programs_of_one_user_make_one_curve(samples):
    """An iteration of one takes 100 times as long; they draw other power, on other GPUs."""
    (fit,) = fit_site([], samples, {"a100": 1400})
    table = size_table(fit.model, [1], [1005, 1200, 1400], 8)
    slowed = table.time_s[0] / table.time_s[0, -1]
    spent = slowed * table.power_w[0] / table.power_w[0, -1]
    longer = 0.3 + 0.7 * 1400 / table.clocks_mhz
    assert slowed == pytest.approx(longer, abs=0.01)
    assert spent == pytest.approx(longer * table.clocks_mhz / 1400, abs=0.01)
    # The newest one tells the amounts, and neither says how the other one scales.
    assert table.time_s[0, -1] == pytest.approx(10.0, rel=0.01)
    assert table.power_w[0, -1] == pytest.approx(120.0, rel=0.01)
    assert not fit.model.knows_gpus(4)


def test_an_unnamed_job_without_its_default_clock_is_left_out():
    (fit,) = fit_site([], QUICK[:1] + SLOW, {"a100": 1400})
    assert fit.model.quality.time_samples == 2
    (fit,) = fit_site([], QUICK[:1], {"a100": 1400})
    assert fit.reason == "no job has a time at its default clock"


def test_an_unnamed_job_with_an_unusable_time_spoils_no_other():
    broken = of_unnamed_job(3.0, 1100.0, 1e-300, 120.0, 1, 1, 1.0)
    (fit,) = fit_site([], QUICK + SLOW + broken, {"a100": 1400})
    assert fit.model.quality.time_samples == 3
