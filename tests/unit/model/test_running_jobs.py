"""What a round asks of all running jobs."""

import math

import numpy as np

from slurm_gpu_aware.model.assignment import RunningJobs
from slurm_gpu_aware.model.cluster import RunningJob

FIRST = RunningJob("1", ((0, (0, 1)),), 50.0, expected_end_s=90.0)
SECOND = RunningJob("2", ((1, (1,)),), math.inf, cpus={1: 4}, expected_end_s=20.0)
THIRD = RunningJob("3", ((0, (1,)),), 40.0, memory_mb={0: 100})
FOURTH = RunningJob("4", ((1, (0,)),), 50.0)
JOBS = RunningJobs((FIRST, SECOND, THIRD, FOURTH))


def test_the_order_of_ends_keeps_limits_and_the_order_of_the_snapshot():
    assert list(JOBS.by_end) == [SECOND, THIRD, FIRST, FOURTH]


def test_a_gpu_is_free_when_the_first_of_its_jobs_ends():
    until = [[50.0, 40.0, math.nan], [50.0, math.inf, math.nan]]
    assert np.array_equal(JOBS.until((2, 3)), until, equal_nan=True)


def test_what_is_known_of_running_jobs_is_kept():
    assert list(JOBS.beside_gpus) == [SECOND, THIRD]
    assert RunningJobs.of(JOBS) is JOBS
    assert RunningJobs.of((FIRST,)).by_end == [FIRST]
