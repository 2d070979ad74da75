"""Estimates of run times: what counts, what is bounded, what a running job is expected to do."""

import math
from dataclasses import replace

import pytest

from slurm_gpu_aware.features.estimates.history import (
    ALL_GROUPS,
    KEPT_GROUPS,
    KEPT_RUNS,
    Estimate,
    JobKind,
    RunHistory,
    expected_end_s,
)

HOUR = 3600.0
TRAIN = JobKind("alice", "train", "bio", 2, 4 * HOUR)


def history_of(*runs, kind=TRAIN):
    history = RunHistory()
    for run in runs:
        history.add(kind, run)
    return history


def test_without_history_the_limit_is_the_estimate():
    assert RunHistory().estimate(TRAIN) == Estimate(4 * HOUR, "limit", 0)
    unlimited = replace(TRAIN, time_limit_s=math.inf)
    assert RunHistory().estimate(unlimited).seconds == math.inf


def test_equal_runs_draw_the_estimate_from_the_limit_towards_them():
    few, many = history_of(600.0).estimate(TRAIN), history_of(*[600.0] * 5).estimate(TRAIN)
    assert 600.0 < many.seconds < few.seconds < 700.0
    assert (many.source, many.runs) == ("name", 5)


@pytest.mark.parametrize(
    ("other", "source"),
    [
        (replace(TRAIN, gpus=8), "name"),
        (replace(TRAIN, name="evaluate"), "user"),
        (replace(TRAIN, name="evaluate", gpus=8), "user"),
        (replace(TRAIN, user="bob", name="evaluate"), "account"),
        (replace(TRAIN, user="bob", account="chem"), "limit"),
    ],
)
def test_a_job_without_runs_of_its_own_takes_the_next_coarser_ones(other, source):
    estimate = history_of(*[600.0] * 5).estimate(other)
    assert estimate.source == source
    assert (estimate.seconds == other.time_limit_s) == (source == "limit")


def test_runs_of_the_same_name_outweigh_the_users_others():
    history = history_of(*[600.0] * 5)
    for _ in range(50):
        history.add(replace(TRAIN, name="sweep"), 2 * HOUR)
    assert history.estimate(TRAIN).seconds < 900.0


def test_limits_within_a_factor_make_one_group():
    history = history_of(*[3 * HOUR] * 5)
    assert history.estimate(replace(TRAIN, time_limit_s=4.2 * HOUR)).runs == 5


@pytest.mark.parametrize("factor", [0.01, 0.25, 1.0, 1.1, 40.0])
def test_a_run_counts_as_a_share_of_its_time_limit(factor):
    history = history_of(*[3 * HOUR] * 5)
    same = history.estimate(TRAIN).seconds
    other = history.estimate(replace(TRAIN, time_limit_s=factor * 4 * HOUR))
    assert other.source == "name"
    assert other.seconds == pytest.approx(factor * same, rel=1e-3)


def test_without_a_limit_runs_count_as_they_are():
    unlimited = replace(TRAIN, time_limit_s=math.inf)
    assert history_of(*[600.0] * 5).estimate(unlimited).seconds == pytest.approx(600.0)
    history = history_of(*[600.0] * 5, kind=unlimited)
    assert history.estimate(TRAIN).seconds < 700.0
    assert history.estimate(replace(TRAIN, time_limit_s=300.0)).seconds == 300.0


def test_only_the_last_runs_count():
    history = history_of(*[600.0] * 100, *[HOUR] * KEPT_RUNS)
    assert history.estimate(TRAIN).seconds > 0.99 * HOUR


def test_a_run_that_its_limit_ended_is_a_lower_bound():
    history = RunHistory()
    for _ in range(5):
        history.add(TRAIN, 4 * HOUR, cut_off=True)
    longer = replace(TRAIN, time_limit_s=20 * HOUR)
    assert history.estimate(longer).seconds == 20 * HOUR
    history = history_of(*[600.0] * 8)
    history.add(TRAIN, 4 * HOUR, cut_off=True)
    assert history.estimate(TRAIN).seconds < 700.0  # one of nine


@pytest.mark.parametrize("work", [0.0, -5.0, math.nan, math.inf])
def test_a_run_that_is_no_time_is_ignored(work):
    assert history_of(work).estimate(TRAIN).source == "limit"


def test_jobs_without_users_are_told_apart_by_account_and_name():
    no_user = replace(TRAIN, user="")
    history = history_of(*[600.0] * 5, kind=no_user)
    assert history.estimate(no_user).source == "name"
    assert history.estimate(replace(no_user, name="")).source == "account"
    assert history.estimate(replace(no_user, account="chem")).source == "limit"


def test_a_user_of_a_million_names_displaces_only_own_groups():
    history = history_of(*[600.0] * 5)
    for number in range(20 * KEPT_GROUPS):
        history.add(replace(TRAIN, user="mallory", account="", name=f"{number}" * 1000), 60.0)
    assert len(history) < 2 * KEPT_GROUPS
    assert history.estimate(TRAIN).runs == 5
    mallory = replace(TRAIN, user="mallory", account="", name="new")
    assert history.estimate(mallory).source == "user"  # groups in use stay


def test_the_number_of_groups_is_bounded_over_all_users():
    history = history_of(*[600.0] * 5)
    for number in range(ALL_GROUPS // 4):
        history.add(JobKind(f"user{number}", "job", "", 1, HOUR), 60.0)
    assert len(history) <= ALL_GROUPS
    assert history.estimate(TRAIN).source != "name"  # not used for longest
    assert history.estimate(JobKind(f"user{number}", "job", "", 1, HOUR)).source == "name"


def test_runs_of_a_user_tell_whether_estimates_have_changed():
    history = history_of(600.0)
    before = history.runs_of("alice")
    history.add(replace(TRAIN, user="bob"), 60.0)
    assert history.runs_of("alice") == before
    history.add(TRAIN, 60.0)
    assert history.runs_of("alice") == before + 1


def test_a_running_job_ends_by_its_estimate_then_by_longer_runs_then_by_its_limit():
    history = history_of(*[600.0] * 7, *[HOUR] * 3)

    def end(now, slowdown=1.0, kind=TRAIN, limit=4 * HOUR):
        return expected_end_s(history, kind, slowdown, 1000.0, 1000.0 + limit, now)

    first = end(1000.0)
    assert 1600.0 < first < 1000.0 + HOUR
    second = end(first + 300.0)
    assert 1000.0 + HOUR <= second < 1000.0 + 2 * HOUR
    assert end(second + 1800.0) == 1000.0 + 4 * HOUR
    assert end(1000.0 + 5 * HOUR) == 1000.0 + 4 * HOUR  # Slurm is about to end it
    assert end(1000.0, slowdown=2.0) - 1000.0 == pytest.approx(2 * (first - 1000.0))
    assert end(1000.0, slowdown=100.0) == 1000.0 + 4 * HOUR
    assert end(1000.0, kind=replace(TRAIN, user="bob", account="")) == 1000.0 + 4 * HOUR
    # Runs of others say nothing of when it ends: they could let others wait in vain.
    assert end(1000.0, kind=replace(TRAIN, user="bob")) == 1000.0 + 4 * HOUR
