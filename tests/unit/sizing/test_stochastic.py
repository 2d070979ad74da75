"""One job with a due date: against convex optimisation, solved examples, and what must hold."""

import json
from dataclasses import replace

import numpy as np
import pytest
from due_samples import (
    any_work,
    concave_speeds,
    cost_by_descent,
    cost_by_duality,
    cost_by_linear_program,
    node_power,
    smooth,
    speeds_like,
    speeds_of_any_kind,
    stepwise,
    survival,
    time_left,
    with_atoms,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from needs import shared_data
from parametric_work import beta, weibull, with_atom
from size_samples import SCALES

from slurm_gpu_aware.features.due_dates.work import best_constant, empirical, optimum, uniform
from slurm_gpu_aware.features.sizes.speeds import Speeds, speeds_of
from slurm_gpu_aware.model.size_table import SizeTable

MAKERS = {
    "uniform": lambda d: uniform(d["w_max"], d["w_max"]),
    "truncated_exponential": lambda d: weibull(d["w_max"], 1 / d["rate"]),
    "beta": lambda d: beta(d["w_max"], d["a"], d["b"]),
    "atom_at_max": lambda d: with_atom(
        MAKERS[d["continuous_part"]["type"]](d["continuous_part"]), d["p_max"]
    ),
}


@pytest.mark.shared
def test_solved_examples():
    for case in json.loads(shared_data("sts/examples.json").read_text())["cases"]:
        work = MAKERS[case["distribution"]["type"]](case["distribution"]).given(case["w_c"])
        speeds = Speeds(*(np.array(case[key], float) for key in ("gpus", "speeds", "power")))
        plan = optimum(work, speeds, case["deadline"])
        answer = case["answer"]
        if answer["status"] == "infeasible":
            best = answer["best_effort"]
            assert (plan.cost, plan.late) == (
                pytest.approx(best["objective"]),
                pytest.approx(best["worst_case_tardiness"]),
            )
            continue
        assert plan.late == 0
        assert plan.cost == pytest.approx(answer["objective"], rel=1e-9), case["id"]
        assert plan.longest == pytest.approx(answer["worst_case_time"])
        constant = best_constant(work, speeds, case["deadline"])
        cheapest = case["baselines"]["cheapest_feasible_constant"]["objective"]
        assert constant.cost == pytest.approx(cheapest)
        assert plan.gpus == tuple(case["gpus"][k - 1] for k in answer["used_speeds"])
        used = [*answer["x"], work.most][-len(plan.until) :]
        assert plan.until == pytest.approx(used, abs=1e-4 * work.most)
        assert plan.leaves[0] == pytest.approx(answer["first_change"]["after_time"], rel=1e-4)


@settings(max_examples=60)
@given(st.one_of(smooth, with_atoms), concave_speeds, st.floats(0.02, 0.98), st.floats(0, 0.8))
def test_smooth_distributions_against_descent(work, speeds, share, done):
    assume(survival(work, done * work.most) > 1e-9)  # or the little area left is rounding
    work = work.given(done * work.most)
    speeds = speeds.undominated
    assume(len(speeds.gpus) > 1)
    left = time_left(work, speeds, share)
    expected = cost_by_descent(work, speeds, left)
    assert optimum(work, speeds, left).cost == pytest.approx(expected, rel=1e-6)


@settings(max_examples=150)
@given(stepwise, speeds_of_any_kind(), st.floats(0, 1.1), st.floats(0, 0.9))
def test_steps_against_linear_programming(work, speeds, share, done):
    """Sizes that are dominated are in the linear program, too."""
    work = work.given(done * work.most)
    left = time_left(work, speeds, share)
    steps = np.unique(np.concatenate(([work.done], work.shape.work, [work.most])))
    steps = steps[steps >= work.done]
    levels = work.survival(steps[:-1])
    expected = cost_by_linear_program(steps, levels, speeds, left * (1 + 1e-12))
    assert optimum(work, speeds, left).cost == pytest.approx(expected, rel=1e-6)


@settings(max_examples=40)
@given(any_work, speeds_of_any_kind(), st.floats(0, 1.1), st.floats(0, 0.9))
def test_all_distributions_and_speeds_against_duality(work, speeds, share, done):
    """Atoms, steps and smooth parts; with dominated sizes, whose cost the dual knows, too."""
    assume(survival(work, done * work.most) > 1e-6)  # or the little area left is rounding
    work = work.given(done * work.most)
    left = time_left(work, speeds, share)
    plan = optimum(work, speeds, left)
    assert plan.late == 0
    assert plan.cost == pytest.approx(cost_by_duality(work, speeds, left), rel=1e-6)


@pytest.mark.parametrize("best", [optimum, best_constant])
@given(any_work, speeds_of_any_kind(), st.floats(-0.2, 1.2), st.floats(0, 0.5))
def test_a_later_due_date_never_costs_more(best, work, speeds, share, more):
    left = max(time_left(work, speeds, share), 0.0)
    sooner, later = (best(work, speeds, left * factor) for factor in (1, 1 + more))
    assert later.cost <= sooner.cost * (1 + 1e-9)
    assert later.in_time >= sooner.in_time - 1e-9
    assert later.late <= sooner.late


@given(any_work, speeds_of_any_kind(), st.floats(-0.2, 1.2))
def test_what_every_plan_is(work, speeds, share):
    left = max(time_left(work, speeds, share), 0.0)
    plan = optimum(work, speeds, left)
    sizes = speeds.undominated.gpus.tolist()
    assert list(plan.gpus) == sorted(set(plan.gpus))
    assert set(plan.gpus) <= set(sizes)
    assert list(plan.until) == sorted(plan.until)
    assert plan.until[-1] == work.most
    assert plan.longest == pytest.approx(min(left, plan.longest) + plan.late)
    assert 0 <= plan.in_time <= 1
    assert (plan.in_time == 1) or plan.late > 0
    if plan.late > 0:
        assert plan.gpus == (sizes[-1],)
        reached = work.done + left * speeds.speed[-1]
        assert plan.in_time == pytest.approx(1 - survival(work, reached))


@given(smooth, concave_speeds, st.floats(0.02, 0.98))
def test_strictly_falling_distributions_use_consecutive_sizes_to_the_fastest(work, speeds, share):
    """Each but the slowest is used unless it is too short to see."""
    plan = optimum(work, speeds, time_left(work, speeds, share))
    sizes = speeds.undominated.gpus.tolist()
    used = [sizes.index(gpus) for gpus in plan.gpus]
    gaps = [k for k in range(used[0], len(sizes)) if k not in used]
    assert all(_is_short(work, speeds.undominated, plan, k) for k in gaps)


def _is_short(work, speeds, plan, k):
    """P(W > w) falls so steeply that the size has less than a billionth of the work."""
    start = max((u for g, u in zip(plan.gpus, plan.until, strict=True) if g < speeds.gpus[k]))
    step = 2e-9 * work.most
    return survival(work, max(start - step, work.done)) > 1.0001 * survival(work, start + step)


@given(st.one_of(smooth, with_atoms), concave_speeds, st.floats(0.05, 0.95), st.floats(0.05, 0.9))
def test_a_restart_agrees_with_the_plan_when_nothing_was_learnt(work, speeds, share, passed):
    left = time_left(work, speeds, share)
    plan = optimum(work, speeds, left)
    unit = dict(zip(speeds.gpus.tolist(), speeds.unit_time, strict=True))
    at, spent, start = passed * work.most, 0.0, 0.0
    for gpus, until in zip(plan.gpus, plan.until, strict=True):
        spent += (min(until, at) - min(start, at)) * unit[gpus]
        start = until
    assume(survival(work, at) > 1e-3)
    again = optimum(work.given(at), speeds, left - spent)
    later = [u for u in plan.until if u > at + 1e-4 * work.most]
    assume(later and abs(min(plan.until, key=lambda u: abs(u - at)) - at) > 1e-3 * work.most)
    assert again.until[-len(later) :] == pytest.approx(later, abs=1e-4 * work.most)
    assert again.late == 0


def test_with_all_the_time_a_job_takes_the_cheapest_size():
    plan = optimum(uniform(100, 100), speeds_like(4), 1000)
    assert (plan.gpus, plan.until, plan.leaves) == ((1,), (100,), (50,))


def test_a_job_that_always_does_all_its_work_mixes_two_sizes():
    speeds = speeds_like(4)
    left = time_left(uniform(100, 100), speeds, 0.1)
    plan = optimum(empirical([100], 100), speeds, left)
    assert len(plan.gpus) == 2
    assert plan.longest == pytest.approx(left)


def test_the_time_of_the_next_growth():
    plan = optimum(uniform(100, 100), speeds_like(4), 25)
    assert [plan.growth_time(gpus) for gpus in plan.gpus] == [*plan.leaves[:-1], np.inf]
    assert plan.growth_time(0.5) == np.inf


def test_a_job_that_may_not_grow_gets_the_cheapest_size_that_is_in_time():
    assert best_constant(uniform(100, 100), speeds_like(4), 30).gpus == (3,)
    late = best_constant(uniform(100, 100), speeds_like(4), 10)
    assert (late.gpus, late.late > 0, 0 < late.in_time < 1) == ((4,), True, True)


def test_dominated_sizes_are_taken_out():
    """Idle power makes one GPU dear; three GPUs are hardly faster than two."""
    gpus = np.arange(1.0, 5)
    speeds = Speeds(gpus, np.array([1, 2.2, 2.3, 4.0]), node_power(gpus, 4, 300, 100))
    assert speeds.undominated.gpus.tolist() == [4]
    assert replace(speeds, power=300 * gpus).undominated.gpus.tolist() == [2, 4]
    assert speeds_like(8).undominated.gpus.tolist() == list(range(1, 9))


def test_sizes_below_those_held_are_left_out():
    speeds = speeds_like(4)
    assert speeds.at_least(2).gpus.tolist() == [2, 3, 4]
    assert speeds.at_least(1) is speeds
    assert speeds.at_least(5) is None


def test_speeds_of_a_size_table():
    speeds = speeds_of(SCALES, (1, 2, 4))
    assert speeds.gpus.tolist() == [1, 2, 4]
    assert speeds.speed.tolist() == [0.1, 0.2, 0.4]
    assert speeds.power.tolist() == [200, 400, 800]
    assert speeds_of(SCALES, (2, 4)).gpus.tolist() == [2, 4]


def test_sizes_of_a_table_that_are_unknown_or_no_faster_are_left_out():
    times = np.array([[10.0], [11.0], [np.nan], [5.0], [5.0]])
    table = SizeTable(np.arange(1, 6), np.array([1000]), times, np.full((5, 1), 100.0))
    assert speeds_of(table, (1, 2, 3, 4, 5)).gpus.tolist() == [1, 4]
    nothing = replace(table, time_s=np.full((5, 1), np.nan))
    assert speeds_of(nothing, (1, 4)) is None


@pytest.mark.parametrize(
    ("gpus", "speed", "power"),
    [([], [], []), ([1], [0], [1]), ([1, 2], [1, 1], [1, 2]), ([2, 1], [1, 2], [1, 2])],
)
def test_what_are_no_speeds(gpus, speed, power):
    with pytest.raises(ValueError, match="must"):
        Speeds(*(np.array(values, dtype=float) for values in (gpus, speed, power)))


def test_next_to_no_work_left_is_planned_with_one_size():
    speeds = speeds_like(4)
    work = empirical([100.0], 100.0).given(100.0 * (1 - 1e-12))
    for left in (1e-9, 1.0, -1.0):
        assert len(optimum(work, speeds, left).gpus) == 1
