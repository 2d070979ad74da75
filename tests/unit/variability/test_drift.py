"""GPUs that became slower, and those that only seem so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.model.profile import Alarm, Pair
from slurm_gpu_aware.variability.drift import Change, drift, run_spread, slow_again

NOISE = (1.0, 1.004, 0.998)


def pairs(
    factors: Mapping[int, Sequence[float]] | None = None,
    *,
    gpus: int = 16,
    runs: int = 3,
    model: str = "v100",
    all_by: float = 1.0,
) -> list[Pair]:
    """Pairs of GPUs of one model, each with its own speed; ``factors``: GPU -> factor per run."""
    found = []
    for slot in range(gpus):
        base = [100.0 * (1.0 + 0.01 * (slot % 5)) * noise for noise in NOISE[:runs]]
        by = (factors or {}).get(slot, [1.0] * runs)
        now = [all_by * value * f for value, f in zip(base, by, strict=True)]
        found.append(Pair("n1", slot, "A", model, base, now, 1.0, 2.0))
    return found


def test_a_gpu_that_became_slower_is_named_worst_first() -> None:
    found = drift(pairs({3: [1.15] * 3, 7: [1.3] * 3}))
    assert [(c.node, c.slot, c.app_class) for c in found.slower] == [
        ("n1", 7, "A"),
        ("n1", 3, "A"),
    ]
    assert [round(c.rise, 3) for c in found.slower] == [0.3, 0.15]
    assert found.shifts == ()
    assert len(found.changes) == 16


def test_one_slow_run_is_no_drift() -> None:
    assert drift(pairs({3: [1.0, 4.0, 1.0]})).slower == ()


def test_a_rise_in_too_few_runs_is_not_confirmed() -> None:
    found = drift(pairs({3: [1.15]}, runs=1))
    assert found.slower == ()
    assert [c.slot for c in found.unconfirmed] == [3]


def test_a_gpu_that_became_faster_is_not_named() -> None:
    found = drift(pairs({3: [0.8] * 3}))
    assert found.slower == ()
    assert found.changes[-1].slot == 3


def test_all_gpus_together_change_no_score_but_the_median() -> None:
    found = drift(pairs(all_by=1.08))
    assert found.slower == ()
    assert [(s.app_class, s.model, s.gpus) for s in found.shifts] == [("A", "v100", 16)]
    assert found.shifts[0].ratio == pytest.approx(1.08)


def test_models_are_compared_apart() -> None:
    found = drift([*pairs(model="v100", all_by=1.08), *pairs({2: [1.2] * 3}, model="a100")])
    assert [(c.model, c.slot) for c in found.slower] == [("a100", 2)]
    assert [s.model for s in found.shifts] == ["v100"]


def test_two_gpus_cannot_be_judged() -> None:
    found = drift(pairs({0: [1.5] * 3}, gpus=2))
    assert found.slower == ()
    assert len(found.unjudged) == 2


def test_noisy_runs_raise_the_threshold() -> None:
    calm = drift(pairs()).changes[0].threshold
    noisy = [
        p._replace(before_ms=[90.0, 100.0, 111.0], now_ms=[91.0, 100.0, 109.0]) for p in pairs()
    ]
    assert calm < 0.06 < 0.3 < drift(noisy).changes[0].threshold


def test_days_that_differ_more_than_runs_raise_the_threshold() -> None:
    factors = {slot: [1.0 + 0.05 * (-1) ** slot * (slot / 16)] * 3 for slot in range(16)}
    assert drift(pairs(factors)).changes[0].threshold > 0.1


def test_the_least_rise_is_the_sites() -> None:
    found = pairs({3: [1.15] * 3})
    assert drift(found, least=0.2).slower == ()
    assert len(drift(found, least=0.01).slower) == 1


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.05])
def test_the_spread_of_runs_is_estimated_without_bias(sigma: float) -> None:
    draw = np.random.default_rng(1)
    runs = np.exp(sigma * draw.normal(size=(4000, 3))) * draw.uniform(50, 500, (4000, 1))
    assert run_spread(runs.tolist()) == pytest.approx(sigma, rel=0.05)
    runs[:200, 0] *= 3.0  # 5% of the measurements have a disturbed run
    assert run_spread(runs.tolist()) == pytest.approx(sigma, rel=0.1)


def test_the_spread_of_single_runs_is_not_known() -> None:
    assert math.isnan(run_spread([[1.0], [2.0]]))
    assert math.isnan(run_spread([]))


CHANGE = Change("n1", 3, "A", "v100", 1.0, 1.15, 0.15, 0.04, 3, 1.0, 2.0)


def test_a_slow_gpu_is_reported_once() -> None:
    new, known = slow_again([CHANGE], [])
    assert new == [CHANGE]
    assert known == [Alarm("n1", 3, "A", 1.0, 1.15)]
    # Later its slow measurement is the one that newer ones are compared with.
    for later in (CHANGE, replace(CHANGE, before=1.15, now=1.16, rise=0.01)):
        assert slow_again([later], known) == ([], known)


def test_a_gpu_that_became_even_slower_is_reported_again() -> None:
    known = [Alarm("n1", 3, "A", 1.0, 1.15)]
    worse = replace(CHANGE, now=1.3, rise=0.3)
    assert slow_again([worse], known) == ([worse], [Alarm("n1", 3, "A", 1.0, 1.3)])


def test_a_gpu_is_reported_again_after_it_recovered() -> None:
    known = [Alarm("n1", 3, "A", 1.0, 1.15)]
    well = replace(CHANGE, now=1.01, rise=0.01)
    assert slow_again([well], known) == ([], [])
    assert slow_again([CHANGE], [])[0] == [CHANGE]


def test_a_gpu_near_the_threshold_is_not_reported_over_and_over() -> None:
    known = [Alarm("n1", 3, "A", 1.0, 1.045)]
    for now in (1.035, 1.045, 1.038, 1.05):
        change = replace(CHANGE, now=now, rise=now - 1.0)
        assert slow_again([change], known) == ([], known)


def test_what_cannot_be_judged_changes_no_alarm() -> None:
    known = [Alarm("n1", 3, "A", 1.0, 1.15), Alarm("n9", 0, "A", 1.0, 1.2)]
    unjudged = replace(CHANGE, now=1.0, rise=0.0, threshold=math.inf)
    assert slow_again([unjudged], known) == ([], known)
