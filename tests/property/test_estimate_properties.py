"""Bounds that hold for estimates of run times whatever ran before."""

import math

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory, expected_end_s

KINDS = st.builds(
    JobKind,
    st.sampled_from(["", "alice", "bob"]),
    st.sampled_from(["", "train", "evaluate"]),
    st.sampled_from(["", "bio"]),
    st.integers(1, 4),
    st.one_of(st.floats(0.001, 1e9), st.just(math.inf)),
)
WORK = st.floats(0.001, 1e9)
RUNS = st.lists(st.tuples(KINDS, WORK, st.booleans()), max_size=40)


def history_of(runs):
    history = RunHistory()
    for kind, work, cut_off in runs:
        history.add(kind, work, cut_off=cut_off)
    return history


@given(RUNS, KINDS, st.floats(0, 1e9))
def test_an_estimate_is_between_what_is_done_and_the_limit(runs, kind, done):
    history = history_of(runs)
    estimate = history.estimate(kind, done)
    assert 0 < estimate.seconds <= kind.time_limit_s
    assert estimate.seconds >= min(done, kind.time_limit_s) * (1 - 1e-9)
    assert (estimate.source == "limit") == (estimate.runs == 0)
    assert history.estimate(kind, done) == history_of(runs).estimate(kind, done) == estimate


@given(RUNS, KINDS, WORK, WORK, st.floats(0.1, 10))
def test_an_expected_end_is_neither_past_nor_after_the_limit(runs, kind, start, since, slowdown):
    end, now = start + kind.time_limit_s, start + since
    expected = expected_end_s(history_of(runs), kind, slowdown, start, end, now)
    assert min(now, end) <= expected <= end
