"""Size tables and the frontier of energy and time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from energy_samples import CLOCKS, true_model

from slurm_gpu_aware.features.models.fitting import conditions_of
from slurm_gpu_aware.features.models.performance_model import Anchor, PerformanceSample
from slurm_gpu_aware.features.models.tables import (
    at_most_slower,
    efficient_point,
    frontier,
    points,
    size_table,
)
from slurm_gpu_aware.features.models.throughput import between_limits
from slurm_gpu_aware.model.profile import LimitRange
from slurm_gpu_aware.model.size_table import SizeTable


def test_all_sizes_do_the_same_work_on_as_few_nodes_as_hold_them():
    model = true_model()
    table = size_table(model, (1, 4, 8, 16), (700, 1400), gpus_per_node=8, batch_size=64)
    for row, (gpus, nodes) in enumerate(((1, 1), (4, 1), (8, 1), (16, 2))):
        for column, clock in enumerate((700.0, 1400.0)):
            at = conditions_of([PerformanceSample(gpus, nodes, 64 / gpus, clock, 1.0)])
            time_s, each_w = model.predict(at)
            assert table.time_s[row, column] == pytest.approx(time_s[0])
            assert table.power_w[row, column] == pytest.approx(gpus * each_w[0])


def test_without_a_batch_size_the_work_is_the_measured_one():
    model = true_model()
    wanted = size_table(model, (2, 4), (1400,), 8, batch_size=model.measured.global_batch)
    assert (size_table(model, (2, 4), (1400,), 8).time_s == wanted.time_s).all()


def test_a_model_of_one_gpu_count_keeps_the_work_of_each_gpu():
    model = true_model()
    model = replace(model, measured=replace(model.measured, most_gpus=1, least_gpus=1))
    table = size_table(model, (8,), (1400,), 8)
    at = conditions_of([PerformanceSample(8, 1, model.measured.batch_size, 1400.0, 1.0)])
    assert table.time_s[0, 0] == pytest.approx(model.predict(at)[0][0])


def test_what_was_not_measured_is_not_known():
    table = size_table(true_model(), (2, 64, 128), (400, 700, 1400), 8)
    known = np.isfinite(table.time_s)
    assert known.tolist() == [[False, True, True], [False, True, True], [False, False, False]]
    assert (known == np.isfinite(table.power_w)).all()


@pytest.mark.parametrize(
    ("least", "known"),
    [(2, [1, 2, 64]), (128, [128, 256])],  # measured: up to 32 GPUs
)
def test_other_gpu_counts_hide_no_size(least, known):
    table = size_table(true_model(), (least, max(known)), (1400,), 8, beside=(1, 128))
    assert table.gpus.tolist() == known
    assert np.isfinite(table.time_s[table.row(least)]).all()


def test_the_least_size_and_the_highest_clock_are_always_known():
    table = size_table(true_model(), (128, 256), (300, 400), 8)
    assert np.isfinite(table.time_s).tolist() == [[False, True], [False, False]]


def test_the_source_names_model_and_quality():
    source = size_table(true_model(), (1,), (1400,), 8).source
    assert source == "bert on a100: time within 1.0%, power within 2.0% (10 conditions)"


def curve(times, watts):
    clocks = range(100, 100 * len(times) + 1, 100)
    return points(
        SizeTable(
            np.array([1]),
            np.array(list(clocks)),
            np.array([times], float),
            np.array([watts], float),
        )
    )


def test_frontier_by_brute_force():
    rng = np.random.default_rng(3)
    for _ in range(50):
        known = curve(rng.integers(1, 6, 8), rng.integers(1, 6, 8))
        kept = frontier(known)
        for p in known:
            beaten = any(
                q.time_s <= p.time_s
                and q.energy_j <= p.energy_j
                and (q.time_s, q.energy_j) != (p.time_s, p.energy_j)
                for q in known
            )
            same = any((q.time_s, q.energy_j) == (p.time_s, p.energy_j) for q in kept)
            assert same != beaten
        assert all(a.time_s < b.time_s and a.energy_j > b.energy_j for a, b in pairwise(kept))


def test_efficient_clock_and_the_best_one_within_a_slowdown():
    known = curve([4.0, 2.0, 1.5, 1.4], [100, 120, 150, 300])  # 400, 240, 225, 420 J
    assert efficient_point(known).clock_mhz == 300
    assert at_most_slower(known, 0.0).clock_mhz == 400
    assert at_most_slower(known, 0.1).clock_mhz == 300
    assert at_most_slower(known, 5.0).clock_mhz == 300


def test_unknown_points_are_left_out():
    known = curve([np.nan, 2.0, 1.0, 1.0], [100, np.nan, 150, -1.0])
    assert [p.clock_mhz for p in known] == [300]
    assert efficient_point([]) is None
    assert at_most_slower([], 0.1) is None
    assert frontier([]) == []


def test_a_compute_bound_model_saves_energy_below_the_highest_clock():
    table = size_table(true_model(), (1,), CLOCKS, 8, batch_size=32)
    known = points(table)
    best = efficient_point(known)
    assert 700 <= best.clock_mhz < 1400
    assert best.energy_j < 0.9 * known[-1].energy_j
    assert best in frontier(known)


def with_anchors(*times, error=0.1):
    """The true model, with times that were measured at 700, 1000 and 1400 MHz against its own."""
    model = true_model()
    found = [Anchor(mhz, t, 1.0) for mhz, t in zip((700.0, 1000.0, 1400.0), times, strict=True)]
    quality = replace(model.quality, time_error=error)
    return replace(model, anchors=tuple(reversed(found)), quality=quality)


def test_between_measured_clocks_time_is_at_most_on_their_line():
    """At 840 MHz the line over 1 / clock is 4 / 9 on the way from 1000 to 700 MHz."""
    clocks = (700, 840, 1000, 1400, 1600)
    own = size_table(true_model(), (2, 4), clocks, 8).time_s
    free = size_table(with_anchors(1.0, 1.0, 1.0), (2, 4), clocks, 8)
    line = own[:, 2] + (own[:, 0] - own[:, 2]) * 4 / 9
    assert (own[:, 1] < line).all()
    assert free.time_s == pytest.approx(own)
    assert free.time_error[[0, 2, 3]] == pytest.approx(0.0)
    assert free.time_error[1] == pytest.approx((line / own[:, 1] - 1).max())
    assert free.time_error[4] > 0.05  # beyond the measured clocks there is no line
    # Faster at 1000 MHz than the curve: the line is below it.
    fast = size_table(with_anchors(1.0, 0.95, 1.0), (2, 4), clocks, 8)
    line = 0.95 * own[:, 2] + (own[:, 0] - 0.95 * own[:, 2]) * 4 / 9
    assert fast.time_s[:, 1] == pytest.approx(line)
    assert (line < own[:, 1]).all()


def test_measured_clocks_that_disagree_have_an_error_there():
    """3% above the curve at 1000 MHz, 3% below it at 1010, where the curve cannot meet both."""
    model = with_anchors(1.0, 1.03, 1.0)
    model = replace(model, anchors=(*model.anchors, Anchor(1010.0, 0.97, 1.0)))
    table = size_table(model, (1,), (700, 1000, 1010, 1400), 8)
    assert table.time_error[[0, 3]] == pytest.approx(0.0, abs=1e-3)
    assert (table.time_error[[1, 2]] > 0.02).all()
    alone = size_table(with_anchors(1.0, 1.03, 1.0), (1,), (700, 1000, 1400), 8)
    assert alone.time_error[1] < 0.005


def test_a_power_limit_counts_at_the_clock_at_which_the_power_meets_it():
    """240 W was measured at 1400 MHz, 150 W at 700 MHz, where it limits nothing."""
    model = with_anchors(1.0, 1.0, 1.0)
    measured = (Anchor(1100.0, 0.9, 0.8, 240.0, 1400.0), Anchor(700.0, 1.0, 1.0, 150.0, 700.0))
    quality = replace(model.quality, limit_error=0.02)
    model = replace(model, anchors=(*model.anchors, *measured), quality=quality)
    plain = size_table(with_anchors(1.0, 1.0, 1.0), (1, 2), tuple(range(700, 1401)), 8)
    table = size_table(model, (1, 2), tuple(range(700, 1401)), 8)
    assert table.time_s == pytest.approx(plain.time_s)  # limits say nothing of clocks alone
    one = table.limited
    assert list(zip(one.clocks_mhz, one.limits_w, strict=True)) == [
        (700, 150),
        (700, 240),
        (1400, 150),
        (1400, 240),
    ]
    assert one.time_error == pytest.approx([0.0, np.nan, 0.02, 0.0], nan_ok=True)
    assert one.time_s[:, :2] == pytest.approx(plain.time_s[:, [0, 0]])
    assert one.power_w[:, 2] == pytest.approx([150.0, 300.0], rel=1e-3)
    for row in (0, 1):
        each_w = plain.power_w[row] / table.gpus[row]
        kept = [int(np.searchsorted(each_w, watts)) for watts in (150.0, 240.0)]
        times = plain.time_s[row][kept] * (1.0, 0.9)
        assert one.time_s[row, 2:] == pytest.approx(times, rel=2e-3)
    assert one.power_w[:, 3] == pytest.approx(0.8 * 240.0 * table.gpus, rel=1e-3)
    assert [(p.clock_mhz, p.limit_w) for p in points(table)[:5]] == [
        *zip(one.clocks_mhz, one.limits_w, strict=True),
        (700, 0),
    ]
    assert size_table(model, (1,), (1000, 1300), 8).limited is None


def test_a_measured_power_above_its_limit_stays_as_it_was_measured():
    over = Anchor(1100.0, 1.0, 1.04, 240.0, 1400.0)
    model = with_anchors(1.0, 1.0, 1.0)
    quality = replace(model.quality, limit_error=0.02)
    model = replace(model, anchors=(*model.anchors, over), quality=quality)
    table = size_table(model, (1,), tuple(range(700, 1401)), 8)
    (found,) = [p for p in points(table) if (p.clock_mhz, p.limit_w) == (1400, 240)]
    assert found.power_w == pytest.approx(1.04 * 240.0, rel=2e-3)


def limited_model(*anchors, top=1.0):
    """`with_anchors` with settings that were measured at 1400 MHz: clock of the curve, time, W."""
    model = with_anchors(1.0, 1.0, 1.0)
    clocks = (*model.anchors[1:], Anchor(1400.0, 1.0, top))
    measured = tuple(Anchor(mhz, t, 1.0, watts, 1400.0) for mhz, t, watts in anchors)
    quality = replace(model.quality, limit_error=0.02)
    return replace(model, anchors=(*clocks, *measured), quality=quality)


def test_between_two_measured_limits_time_and_power_are_the_most_that_they_can_be():
    table = size_table(limited_model((1000.0, 1.0, 200.0), (1100.0, 1.0, 220.0)), (1,), CLOCKS, 8)
    one = table.limited
    assert one.limits_w.tolist() == [200, 204, 208, 212, 216, 220]
    assert one.time_error == pytest.approx(0.0)
    times, shares = one.time_s[0], (220 - one.limits_w) / (220 - 200)
    assert times == pytest.approx(times[-1] + (times[0] - times[-1]) * shares)
    assert one.power_w[0] == pytest.approx(one.limits_w, rel=2e-3)
    # A program that draws 180 W where 240 W are allowed draws no more below that.
    model = limited_model((1000.0, 1.0, 200.0), (1400.0, 1.0, 240.0))
    model = replace(
        model, anchors=(*model.anchors[:-1], replace(model.anchors[-1], power_ratio=0.75))
    )
    watts = size_table(model, (1,), CLOCKS, 8).limited.power_w[0]
    assert watts[1:] == pytest.approx(watts[-1])


def test_a_limit_that_the_cards_refuse_or_the_site_has_lowered_is_left_out():
    model = limited_model((1000.0, 1.0, 200.0), (1100.0, 1.0, 220.0))
    some = size_table(model, (1,), CLOCKS, 8, limits_w=LimitRange(206.5, 216.0)).limited
    assert some.limits_w.tolist() == [208, 212]
    assert size_table(model, (1,), CLOCKS, 8, limits_w=LimitRange(221.0, 300.0)).limited is None


def test_no_limit_between_measured_ones_is_slower_than_it_is_said():
    """Power rises with the square of the voltage, so far above its idle part 1 / limit says little.

    Regression: between 100 and 290 W a job was up to 1.35 points slower than its bound.
    """
    clocks = np.linspace(500.0, 1400.0, 901)
    volts = np.maximum(0.55, 0.55 + 2.0 * (clocks / 1400 - 0.4) * 0.45)
    drawn = 40.0 + 260.0 * (volts / volts[-1]) ** 2 * clocks / 1400
    limits_w = np.linspace(100.0, 290.0, 96)
    true_s = 1400.0 / np.interp(limits_w, drawn, clocks)
    found, _ = between_limits(limits_w, limits_w[[0, -1]], true_s[[0, -1]], limits_w[[0, -1]])
    assert (found >= true_s - 1e-9).all()


def test_limits_between_times_that_rise_with_them_are_not_known():
    """Measured 10% slower under 220 W than under 200 W."""
    slow = (1000.0, 0.7, 200.0), (1100.0, 1.0, 220.0), (1200.0, 0.8, 240.0)
    table = size_table(limited_model(*slow), (1,), CLOCKS, 8)
    assert {p.limit_w for p in points(table)} == {0, 200, 220, 240}


def test_power_under_a_limit_keeps_its_ratio_to_that_at_the_default_clock():
    """The default clock was measured 10% above the curve, its neighbours on it: it moves less."""
    table = size_table(limited_model((1100.0, 1.0, 220.0), top=1.1), (1,), CLOCKS, 8)
    plain = size_table(limited_model((1100.0, 1.0, 220.0)), (1,), CLOCKS, 8)
    default = table.power_w[0, -1] / plain.power_w[0, -1]
    assert 1.05 < default < 1.1
    ratio = table.limited.power_w[0] / plain.limited.power_w[0]
    assert ratio == pytest.approx(default / 1.1)


def test_times_that_rise_with_the_clock_or_bend_bound_nothing():
    clocks = (700, 840, 1000, 1400)
    odd = size_table(with_anchors(0.5, 1.0, 1.0), (2,), clocks, 8)
    assert odd.time_s[0, 0] < odd.time_s[0, 2]
    assert odd.time_error[1] > 0.05
    bent = size_table(with_anchors(1.0, 1.2, 1.0), (2,), clocks, 8)
    assert bent.time_s[0, 0] > bent.time_s[0, 2] > bent.time_s[0, 3]
    assert bent.time_error[1] > 0.05


def test_without_a_tested_error_times_are_known_between_measured_clocks_alone():
    """As of two measured clocks: there is nothing to hold out. Times of the class say nothing."""
    clocks = (690, 700, 840, 1400, 1600)
    model = with_anchors(1.0, 1.0, 1.0, error=None)
    table = size_table(model, (2,), clocks, 8)
    assert (np.isfinite(table.time_error) == [False, True, True, True, False]).all()
    assert table.time_error[1:4] == pytest.approx(0.0, abs=1e-3)
    untimed = replace(model, quality=replace(model.quality, time_samples=0))
    assert np.isnan(size_table(untimed, (2,), clocks, 8).time_error).all()
