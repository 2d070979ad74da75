"""Sizing baselines: AFS and Zeus."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from size_samples import ONE_GPU, SCALES, job, table

from slurm_gpu_aware.features.baselines.afs_and_zeus import afs, zeus_clock


def test_a_limit_makes_the_last_jobs_wait():
    jobs = [job(str(i), (1,), ONE_GPU, order=i, clocks_mhz=(1000,)) for i in range(3)]
    found = afs(jobs, 4, 250 + 20, idle_w=10)
    assert [(j.gpus, j.waits_for) for j in found.jobs.values()] == [(1, ""), (1, ""), (0, "power")]
    assert found.power_w == 220


def test_a_job_that_is_too_wide_is_left_out():
    found = afs([job("1", (4,)), job("2", (2,), order=1)], 3)
    assert [(j.gpus, j.waits_for) for j in found.jobs.values()] == [(0, "GPUs"), (2, "")]


def test_a_running_job_stays_whatever_the_limit():
    found = afs([job("1", (1,), ONE_GPU), job("2", (2,), must_run=True)], 4, 5)
    assert [j.gpus for j in found.jobs.values()] == [0, 2]


def test_a_job_without_a_table_counts_with_its_power_limits():
    found = afs([job("1", (2, 4), None, max_w=600, clocks_mhz=())], 8)
    assert (found.jobs["1"].gpus, found.jobs["1"].clock_mhz, found.power_w) == (2, None, 600)


@pytest.mark.parametrize(("eta", "clock"), [(0.0, 1400), (0.5, 1200), (1.0, 1000)])
def test_zeus_weighs_energy_against_time(eta, clock):
    assert zeus_clock(ONE_GPU, 1, 300, eta) == clock


def test_zeus_passes_over_what_is_not_known():
    assert zeus_clock(table([[np.nan, 11, 10]], [[100, 130, -1]]), 1, 300) == 1200
    assert zeus_clock(table([[np.nan] * 3], [[100] * 3]), 1, 300) is None
    assert zeus_clock(ONE_GPU, 2, 600) is None


def test_afs_starts_the_shortest_jobs_and_grows_the_shorter_of_equals():
    jobs = [job("1", work=30), job("2", work=10), job("3", work=20)]
    assert [j.gpus for j in afs(jobs, 2).jobs.values()] == [0, 1, 1]
    assert [j.gpus for j in afs(jobs, 4).jobs.values()] == [1, 2, 1]
    assert [j.gpus for j in afs(jobs, 12).jobs.values()] == [4, 4, 4]


def test_afs_grows_within_the_limit_only():
    found = afs([job("1", of=SCALES), job("2", of=SCALES, work=2)], 8, 1000)
    assert ([j.gpus for j in found.jobs.values()], found.power_w) == ([4, 1], 1000)


def test_afs_grows_no_job_while_another_waits_for_power():
    found = afs([job("1"), job("2", (2,), work=9)], 8, 500)
    assert [(j.gpus, j.waits_for) for j in found.jobs.values()] == [(1, ""), (0, "power")]
    assert afs([job("1")], 8, 500).jobs["1"].gpus == 2


def test_afs_never_takes_a_step_that_does_not_help():
    flat = table([[10] * 3, [10] * 3, [12] * 3], [[100] * 3, [200] * 3, [400] * 3])
    assert afs([job("1", of=flat)], 8).jobs["1"].gpus == 1


@given(
    st.tuples(*[st.floats(0.2, 5)] * 2),
    st.tuples(*[st.floats(1.01, 2)] * 2),
)
def test_afs_gives_a_gpu_where_both_end_sooner_on_average(lengths, speedups):
    """Two schedules of one more GPU, which passes to the later job when the first one ends."""
    first, last = (0, 1) if lengths[0] <= lengths[1] else (1, 0)
    assume(lengths[last] / speedups[last] > lengths[first])
    jobs = [
        job(str(i), (1, 2), table([[1] * 3, [1 / speedups[i]] * 3], [[1] * 3, [2] * 3]), work=w)
        for i, w in enumerate(lengths)
    ]
    q = speedups[last]

    def total(first_ends, rate_of_last):
        return 2 * first_ends + (lengths[last] - rate_of_last * first_ends) / q

    to_first = total(lengths[first] / speedups[first], 1)
    to_last = total(lengths[first], q)
    assume(abs(to_first - to_last) > 1e-9)
    sizes = [j.gpus for j in afs(jobs, 3).jobs.values()]
    assert sizes[first if to_first < to_last else last] == 2
