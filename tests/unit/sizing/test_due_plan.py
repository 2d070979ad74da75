"""Sizes of a job with a due date, from runs whose work is counted by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from make import job_request

from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.due_dates.plan import MARGIN, RESERVE, due_plan
from slurm_gpu_aware.model.size_table import SizeTable

H = 3600.0
GPUS = np.array([1, 2, 4, 8])
SPEED = {1: 1.0, 2: 1.8, 4: 3.2, 8: 5.0}
TABLE = SizeTable(
    GPUS,
    np.array([1000]),
    np.array([[1 / speed] for speed in SPEED.values()]),
    300.0 * GPUS[:, None],
)
RUNS = ((1, 2 * H), (1, 3 * H), (2, 2 * H), (1, 1 * H))  # work of 2, 3, 3.6 and 1 h on one GPU


def with_due(due_s, *, limit_s=10 * H, gpus=1, runs=RUNS, **more):
    due = DueDate(due_s, runs, **more)
    sizes = tuple(GPUS.tolist())
    return job_request("1", gpus, sizes=sizes, table=TABLE, time_limit_s=limit_s, due=due)


@pytest.mark.parametrize(
    ("due_s", "gpus", "in_time", "longest_s"),
    [
        (10.3 * H, 1, 1.0, 10 * H),  # in time whatever it needs of its limit
        (10 * H, 2, 1.0, 10 * H / 1.8),  # GPUs a little slower than thought would not do
        (9 * H, 2, 1.0, 10 * H / 1.8),
        (2 * H, 8, 1.0, 2 * H),  # 10 h of work just fit
        (1.9 * H, 4, 1.0, 4.5 * H / 3.2),  # the limit does not fit, all runs seen do, and more
        (1.2 * H, 8, 1.0, 4.5 * H / 5.0),
        (0.8 * H, 8, 1.0, 4.0 * H / 5.0),
        (0.65 * H, 8, 0.75, 0.6 * H),
        (0.25 * H, 8, 0.25, 0.2 * H),
        (0.19 * H, 1, 0.0, math.inf),
        (-H, 1, 0.0, math.inf),
    ],
)
def test_a_job_that_cannot_be_moved_gets_the_cheapest_size(due_s, gpus, in_time, longest_s):
    plan = due_plan(with_due(due_s), 0.0)
    assert (plan.gpus, plan.in_time, plan.runs, plan.growth) == (gpus, in_time, 4, ())
    assert plan.longest_s == pytest.approx(longest_s)


def test_a_job_that_can_be_moved_starts_small_and_grows():
    plan = due_plan(with_due(9 * H, restart_s=60.0), 0.0)
    ((at, gpus),) = plan.growth
    assert (plan.gpus, plan.in_time, gpus) == (1, 1.0, 2)
    # All 10 h of work: at 1 GPU until then, a restart, the rest at 1.8 times the speed.
    ends_s = 9 * H * (1 - MARGIN) - RESERVE * 60.0
    assert at + 60.0 + (10 * H - at) / 1.8 == pytest.approx(ends_s)
    assert plan.longest_s == pytest.approx(ends_s)


@pytest.mark.parametrize(("late_s", "in_time"), [(0.0, 1.0), (299.0, 1.0), (900.0, 0.994)])
def test_a_growth_that_is_late_still_pays(late_s, in_time):
    """To the largest number, at which all 10 h of work just fit."""
    first = due_plan(with_due(2.5 * H, restart_s=60.0), 0.0)
    ((at, gpus),) = first.growth
    assert (first.gpus, gpus) == (4, 8)
    now = at + late_s
    one = with_due(2.5 * H, restart_s=60.0, gpus=4, done=now * SPEED[4])
    plan = due_plan(one, now, running=True)
    assert (plan.gpus, plan.growth) == (8, ())
    assert plan.in_time == pytest.approx(in_time, abs=1e-3)


@given(st.floats(5.0, 7.5), st.floats(0.01, 0.95))
def test_when_nothing_was_learnt_the_plan_goes_on(due_h, share):
    def plan(at, **more):
        runs = ((1, 8 * H),)
        return due_plan(with_due(due_h * H, restart_s=60.0, runs=runs, done=at), at, **more)

    assume(plan(0.0).gpus == 1)
    at = plan(0.0).growth[0][0]
    later = plan(at * share, running=True)
    assert later.gpus == 1
    for (then, gpus), (before, before_gpus) in zip(later.growth, plan(0.0).growth, strict=True):
        assert (then, gpus) == (pytest.approx(before - at * share), before_gpus)
    assert plan(at, running=True).gpus == plan(0.0).growth[0][1]


@pytest.mark.parametrize("due_s", [8 * H, 9 * H])
def test_a_job_that_outlives_all_earlier_runs_grows_as_planned(due_s):
    """The longest case is that of its limit, long after the last run of 3.6 h has ended."""
    before = due_plan(with_due(due_s, restart_s=60.0), 0.0)
    ((at, gpus),) = before.growth
    assert at > 4 * H
    plans = [
        due_plan(with_due(due_s, restart_s=60.0, done=now), now, running=True)
        for now in (at - 60.0, at)
    ]
    assert [(plan.gpus, plan.runs, plan.in_time) for plan in plans] == [(1, 0, 1), (gpus, 0, 1)]
    assert plans[0].growth == ((pytest.approx(60.0), gpus),)


def test_slow_gpus_ask_for_more():
    assert due_plan(with_due(10.3 * H), 0.0).gpus == 1
    assert due_plan(with_due(10.3 * H), 0.0, slowdown=1.5).gpus == 2


def test_a_run_that_its_limit_cut_off_needs_all_of_it():
    plan = due_plan(with_due(1.2 * H, runs=((1, H), (2, math.inf))), 0.0)
    assert (plan.gpus, plan.in_time) == (1, 0.5)


def test_without_table_or_range_only_runs_with_its_gpus_count():
    due = DueDate(2.5 * H, RUNS, restart_s=60.0)
    plan = due_plan(job_request("1", 1, time_limit_s=4 * H, due=due), 0.0)
    assert (plan.gpus, plan.in_time, plan.runs, plan.growth) == (1, pytest.approx(2 / 3), 3, ())
    assert plan.longest_s == 2 * H


@pytest.mark.parametrize("gpus", [(4, 8), (2, 4, 8)])
def test_runs_with_a_number_of_gpus_outside_its_range_count(gpus):
    due = {"due": DueDate(1.5 * H, RUNS), "table": TABLE, "time_limit_s": 10 * H}
    plan = due_plan(job_request("1", gpus[0], sizes=gpus, **due), 0.0)
    assert (plan.gpus, plan.in_time, plan.runs) == (4, 1.0, 4)
    assert plan.longest_s == pytest.approx(4.5 * H / 3.2)


def test_a_size_that_is_slower_than_one_outside_the_range_is_a_size():
    slow = SizeTable(np.array([1, 2]), np.array([1000]), np.ones((2, 1)), np.ones((2, 1)))
    due = DueDate(2 * H, ((1, H),))
    plan = due_plan(job_request("1", 2, sizes=(2,), table=slow, due=due, time_limit_s=9 * H), 0.0)
    assert (plan.gpus, plan.in_time) == (2, 1.0)
    assert plan.longest_s == pytest.approx(2 * H)


def test_a_job_that_runs_with_a_size_no_faster_than_less_grows():
    flat = replace(TABLE, time_s=np.array([[1.0], [1.0], [0.5], [0.25]]))
    due = DueDate(2 * H, ((1, 4 * H),), restart_s=60.0)
    asked = job_request("1", 2, sizes=(1, 2, 4, 8), table=flat, due=due, time_limit_s=4 * H)
    plan = due_plan(asked, 0.0, running=True)
    assert (plan.gpus, plan.in_time) == (8, 1.0)


@pytest.mark.parametrize(
    "request_",
    [
        job_request("1", 1, sizes=(1, 2), table=TABLE),
        with_due(H, runs=()),
        with_due(H, runs=((3, H),)),  # no size of the table
        with_due(-H, done=4 * H),  # it has outlived all runs, and is late
    ],
)
def test_nothing_is_known(request_):
    assert due_plan(request_, 0.0) is None


EPOCHS = (10, 1, H)  # 10 epochs of 1 h on one GPU


@pytest.mark.parametrize(
    ("due_s", "more", "gpus", "in_time", "runs"),
    [
        (10.3 * H, {}, 1, 1.0, 0),
        (9 * H, {}, 2, 1.0, 0),
        (1 * H, {}, 8, 0.5, 0),  # 5 of 10 h of work
        (1.5 * H, {}, 8, 0.7, 0),
        (0.1 * H, {}, 1, 0.0, 0),  # not even one epoch
        (10 * H, {"epochs": (5, 2, H)}, 1, 1.0, 0),  # 9 h of work
        (8 * H, {"epochs": (5, 2, H)}, 2, 1.0, 0),
        (10.3 * H, {"runs": RUNS}, 1, 1.0, 4),  # of the runs, but no more than the epochs
        (9 * H, {"runs": RUNS}, 2, 1.0, 4),
    ],
)
def test_epochs_bound_the_work_and_say_what_there_may_be(due_s, more, gpus, in_time, runs):
    one = with_due(due_s, limit_s=50 * H, **{"runs": (), "epochs": EPOCHS, **more})
    plan = due_plan(one, 0.0)
    assert (plan.gpus, plan.in_time, plan.runs) == (gpus, pytest.approx(in_time), runs)
    assert plan.by_epochs == (not runs)


@pytest.mark.parametrize(
    ("limit_s", "gpus", "in_time"),
    [
        (10 * H, 1, 1.0),
        (9 * H, 2, 1.0),
        (5 * H, 4, 1.0),
        (2 * H, 8, 1.0),
        (1.5 * H, 8, 0.7),  # 7.5 of 10 h of work before Slurm ends it, whatever its size
        (0.1 * H, 1, 0.0),
    ],
)
@pytest.mark.parametrize("restart_s", [None, 60.0])
def test_a_size_whose_epochs_exceed_the_time_limit_is_left_out(limit_s, gpus, in_time, restart_s):
    """However late the due date is."""
    one = with_due(1000 * H, limit_s=limit_s, runs=(), epochs=EPOCHS, restart_s=restart_s)
    plan = due_plan(one, 0.0)
    assert (plan.gpus, plan.in_time, plan.growth) == (gpus, pytest.approx(in_time), ())


@pytest.mark.parametrize(("restart_s", "gpus", "in_time"), [(None, 2, 0.5), (60.0, 8, 1.0)])
def test_a_running_job_grows_before_its_time_limit_ends_it(restart_s, gpus, in_time):
    """Its GPUs are slower than thought: 5.6 h of 10 h of work in its time limit."""
    one = with_due(1000 * H, limit_s=5.6 * H, gpus=2, runs=(), epochs=EPOCHS, restart_s=restart_s)
    assert due_plan(replace(one, gpus=1), 0.0).gpus == 2
    plan = due_plan(one, 0.0, running=True, slowdown=1.8)
    assert (plan.gpus, plan.in_time) == (gpus, pytest.approx(in_time))


def test_an_earlier_run_that_ended_within_its_first_epoch_counts():
    short = with_due(600.0, runs=((1, 60.0),), epochs=(9, 1, H))
    assert due_plan(short, 0.0).in_time == 1.0
    assert due_plan(with_due(600.0, runs=(), epochs=(9, 1, H)), 0.0).in_time == 0.0


def test_many_epochs_are_counted_in_steps():
    plan = due_plan(with_due(1 * H, runs=(), epochs=(36_000, 1, 1.0)), 0.0)
    assert plan.in_time == pytest.approx(0.5)


@pytest.mark.parametrize("epochs", [(10, 3, H), None])
def test_epochs_on_a_number_that_it_cannot_have_say_nothing(epochs):
    assert due_plan(with_due(9 * H, runs=(), epochs=epochs), 0.0) is None


hours = st.floats(0.05, 20.0).map(lambda h: h * H)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), hours), min_size=1, max_size=8),
    hours,
    hours,
    st.sampled_from([None, 0.0, 60.0, 600.0]),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0.0, 5.0 * H),
    st.floats(1.0, 2.0),
)
def test_sizes_only_grow(runs, due_s, limit_s, restart_s, gpus, done, slowdown):
    """A running job never gets fewer; what is said to be in time is in time."""
    one = with_due(
        due_s, limit_s=limit_s, gpus=gpus, runs=tuple(runs), restart_s=restart_s, done=done
    )
    plan = due_plan(one, 0.0, slowdown=slowdown, running=True)
    if plan is None:
        return
    sizes = [plan.gpus, *(size for _, size in plan.growth)]
    assert sizes[0] >= gpus
    assert all(a < b for a, b in pairwise(sizes))
    times = [at for at, _ in plan.growth]
    assert times == sorted(times)
    if restart_s is None:
        assert sizes == [gpus]
    assert 0.0 <= plan.in_time <= 1.0
    if plan.in_time:
        assert plan.longest_s <= due_s * (1 + 1e-6) + 1e-3


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), hours), min_size=1, max_size=8),
    hours,
    hours,
    hours,
)
def test_a_later_due_date_is_not_less_likely(runs, limit_s, one_s, other_s):
    first, second = (
        due_plan(with_due(due_s, limit_s=limit_s, runs=tuple(runs)), 0.0)
        for due_s in sorted((one_s, other_s))
    )
    assert first.in_time <= second.in_time
