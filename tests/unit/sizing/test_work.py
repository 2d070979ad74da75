"""Distributions of work: survival, inverse, integral, conditions."""

import numpy as np
import pytest
from due_samples import any_work, survival
from hypothesis import assume, given
from hypothesis import strategies as st
from parametric_work import beta, piecewise, weibull, with_atom

from slurm_gpu_aware.features.due_dates.work import empirical, uniform


@given(any_work, st.floats(0, 1))
def test_the_inverse_is_the_last_work_at_a_level(work, level):
    found = float(work.inverse(np.array([level]))[0])
    step = 1e-7 * work.most
    if found - step > 0:
        assert survival(work, found - step) >= level - 1e-6
    if found + step < work.most:
        assert survival(work, found + step) <= level + 1e-6


@given(any_work, st.floats(0, 0.99), st.floats(0.01, 1))
def test_the_integral_is_the_area(work, start, share):
    """Where work gets at all: below that the survival is the difference of nearly equal numbers."""
    assume(survival(work, start * work.most) > 1e-6)
    work = work.given(start * work.most)
    to = work.done + share * (work.most - work.done)
    cells = np.linspace(work.done, to, 20_001)
    area = work.survival((cells[1:] + cells[:-1]) / 2).mean() * (to - work.done)
    assert float(work.integral(np.array([to]))[0]) == pytest.approx(area, rel=2e-3, abs=1e-9)


@given(any_work, st.floats(0, 0.9), st.floats(0, 0.99), st.floats(0, 1))
def test_a_condition_divides_by_the_probability_to_get_there(work, first, then, share):
    once = work.given(first * work.most)
    twice = once.given(once.done + then * (work.most - once.done))
    at = twice.done + share * (work.most - twice.done)
    if (reached := survival(work, twice.done)) > 1e-6:
        assert survival(twice, at) == pytest.approx(survival(work, at) / reached, abs=1e-7)


def test_means():
    assert uniform(100, 100).mean_left == pytest.approx(50)
    assert uniform(100, 100).given(40).mean_left == pytest.approx(30)
    assert uniform(100, 60).mean_left == pytest.approx(42)
    assert beta(80, 3, 1).mean_left == pytest.approx(60)
    assert weibull(1e4, 50).mean_left == pytest.approx(50)
    assert with_atom(uniform(100, 100), 0.2).mean_left == pytest.approx(60)
    assert empirical([10, 20, 60], 100).mean_left == pytest.approx(30)
    assert piecewise([0, 10, 10, 20], [1, 1, 0.5, 0]).mean_left == pytest.approx(12.5)


def test_cases_above_the_most_work_are_an_atom_there():
    work = empirical([10, 200, 300, 50], 100)
    assert [survival(work, w) for w in (0, 10, 49, 50, 99.9, 100)] == [1, 0.75, 0.75, 0.5, 0.5, 0]
    assert work.inverse(np.array([0.75, 0.6, 0.5, 0.0])).tolist() == [50, 50, 100, 100]


def test_a_job_that_outlived_all_cases_does_all_the_work():
    work = empirical([10, 20], 100).given(30)
    assert (survival(work, 30), survival(work, 99)) == (1, 1)
    assert work.mean_left == 70
    assert work.inverse(np.array([0.5, 2.0])).tolist() == [100, 30]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: uniform(10, 10).given(10), "below 10"),
        (lambda: uniform(10, 10).given(5).given(4), "from 5"),
        (lambda: empirical([], 10), "cases are needed"),
        (lambda: piecewise([0, 2, 1], [1, 0.5, 0]), "ascend"),
        (lambda: piecewise([0, 2], [1, 0.5]), "0 at the end"),
        (lambda: piecewise([1, 2], [1, 0]), "from work 0"),
    ],
)
def test_what_is_no_distribution(make, words):
    with pytest.raises(ValueError, match=words):
        make()
