"""PowerFlow's allocator on cases small enough to follow by hand."""

import pytest
from size_samples import ONE_GPU, job, table

from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate


def test_without_a_limit_jobs_get_all_gpus_and_the_highest_clock():
    found = allocate([job("1"), job("2")], 8)
    assert [(j.gpus, j.clock_mhz) for j in found.jobs.values()] == [(4, 1400), (4, 1400)]
    assert found.power_w == 1600


def test_every_job_starts_at_its_most_efficient_clock():
    found = allocate([job(str(i), of=ONE_GPU, sizes=(1,)) for i in range(4)], 4, 400)
    assert [(j.gpus, j.clock_mhz) for j in found.jobs.values()] == [(1, 1000)] * 4
    assert found.power_w == 400


def test_clocks_rise_as_far_as_the_power_goes():
    found = allocate([job("1", of=ONE_GPU, sizes=(1,)), job("2", of=ONE_GPU, sizes=(1,))], 2, 260)
    assert sorted(j.clock_mhz for j in found.jobs.values()) == [1200, 1200]


def test_a_job_waits_for_power_and_one_for_gpus():
    jobs = [job("1", (1,)), job("2", (4,)), job("3", (1,))]
    for order, each in enumerate(jobs):
        object.__setattr__(each, "order", order)
    found = allocate(jobs, 4, 150)
    assert [(j.gpus, j.waits_for) for j in found.jobs.values()] == [
        (1, ""),
        (0, "GPUs"),
        (0, "power"),
    ]


def test_the_smallest_energy_starts_first_where_the_order_is_equal():
    hungry = table([[13, 11, 10]], [[110, 140, 210]])
    found = allocate([job("1", (1,), hungry), job("2", (1,), ONE_GPU)], 1)
    assert [j.gpus for j in found.jobs.values()] == [0, 1]


def test_a_step_at_no_cost_comes_first_however_little_it_brings():
    free = table([[10] * 3, [9.999] * 3], [[200] * 3, [200] * 3])
    dear = table([[10] * 3, [1] * 3], [[200] * 3, [200.001] * 3])
    found = allocate([job("1", (1, 2), dear), job("2", (1, 2), free)], 3)
    assert [j.gpus for j in found.jobs.values()] == [1, 2]


def test_a_step_that_brings_nothing_is_part_of_the_next_one():
    late = table([[10] * 3, [11] * 3, [2] * 3], [[100] * 3, [200] * 3, [400] * 3])
    assert [allocate([job("1", of=late)], n).jobs["1"].gpus for n in (2, 3, 4)] == [1, 1, 4]


def test_a_running_job_is_slowed_down_and_never_stopped():
    running = job("1", (1,), table([[15, 13, 10]], [[90, 100, 200]]), must_run=True)
    slow, over = allocate([running], 1, 95), allocate([running], 1, 10)
    assert slow.jobs["1"].clock_mhz == over.jobs["1"].clock_mhz == 1000
    assert over.power_w == 90
    assert allocate([running], 1, 100).jobs["1"].clock_mhz == 1200


def test_nothing_starts_while_a_running_job_is_below_its_efficient_clock():
    running = job("1", (1,), table([[15, 5, 4.9]], [[90, 180, 200]]), must_run=True)
    small = job("2", (1,), table([[13] * 3], [[5] * 3]))
    assert allocate([running, small], 2, 100).jobs["2"].waits_for == "power"
    found = allocate([running, small], 2, 185)
    assert [(j.gpus, j.clock_mhz) for j in found.jobs.values()] == [(1, 1200), (1, 1000)]


def test_a_job_without_a_table_counts_with_its_power_limits_and_keeps_its_clock():
    found = allocate([SizingJob("1", (2, 4), 600.0, clocks_mhz=(1200,))], 8, 700)
    assert (found.jobs["1"].gpus, found.jobs["1"].clock_mhz, found.power_w) == (2, 1200, 600)


def test_idle_gpus_count():
    found = allocate([job("1", (1,), ONE_GPU)], 4, 250, idle_w=50)
    assert found.power_w == 100 + 3 * 50


def test_sizes_of_no_order_are_refused():
    with pytest.raises(ValueError, match="ascending"):
        SizingJob("1", (2, 1), 300.0)
