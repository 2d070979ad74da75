"""Slices of a measured job, by hand."""

import pytest

from gpu_aware_profile.job_watch import Reading, Slice, Slices, by_clock


def readings(seconds, clock=1000.0, each_s=0.4, watts=200.0, begin=0.0, marked=True, before=0):
    """One per half second of a job whose iterations take ``each_s``."""
    for k in range(int(seconds * 2)):
        at = k * 0.5
        marks = before + (int(at / each_s + 1e-9) if marked else 0)
        last = (marks - before) * each_s
        yield Reading(begin + at, marks, begin + last, clock, watts * (begin + at), None)


def cut(*parts, length_s=10.0):
    slices = Slices(length_s)
    for part in parts:
        for one in part:
            slices.add(one)
    return slices.found()


def test_time_and_power_of_an_iteration():
    found = cut(readings(35))
    assert [one.duration_s for one in found] == [10.0, 10.0, 10.0]
    assert found[0].time_s == pytest.approx(0.4)
    assert found[0].power_w == pytest.approx(200.0)
    assert by_clock(found)[0].clock_mhz == 1005


def test_the_start_of_the_program_does_not_count():
    start = readings(30, watts=50.0, marked=False)
    found = cut(start, readings(30, begin=30.0, watts=300.0))
    assert all(one.iterations for one in found)
    assert {round(one.time_s, 6) for one in found} == {0.4}


def test_a_job_without_marks_has_power_and_no_time():
    (at,) = by_clock(cut(readings(25, marked=False)))
    assert (at.time_s, at.iterations, at.slices) == (None, 0, 2)
    assert at.power_w == pytest.approx(200.0)


def test_a_slice_ends_at_an_iteration():
    found = cut(readings(100, each_s=25.0))
    assert [one.iterations for one in found] == [1, 1]
    assert [one.time_s for one in found] == [25.0, 25.0]


def test_a_slice_across_two_clocks_is_of_neither():
    first = readings(15, clock=1410.0)
    then = readings(25, clock=810.0, each_s=0.6, begin=15.0, before=37)
    found = by_clock(cut(first, then))
    assert [at.clock_mhz for at in found] == [810, 1410]
    assert found[0].time_s == pytest.approx(0.6)


def test_pauses_do_not_count_beside_iterations():
    work = Slice(10.0, 20, 0.5, 300.0, 1410.0)
    pause = Slice(10.0, 0, None, 50.0, 1410.0)
    (at,) = by_clock([work, pause, pause])
    assert (at.time_s, at.power_w, at.slices) == (0.5, 300.0, 1)


def test_slices_are_bounded():
    slices = Slices(1.0)
    for k in range(60_000):
        slices.add(Reading(float(k), k + 1, float(k), 1000.0, None, 100.0))
    assert len(slices.found()) <= 10_000
    assert slices.found()[-1].time_s == pytest.approx(1.0)
