"""Cluster, its running jobs, request and assignment."""

import math

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.errors import AwareError, SourceError
from slurm_gpu_aware.model.assignment import Assignment, RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, each_gpu
from slurm_gpu_aware.model.request import Memory, Request


def test_an_unmeasured_class_scores_one():
    cluster = Cluster.uniform(2, 4, scores={"A": np.full((2, 4), 1.2)})
    assert (cluster.score("A") == 1.2).all()
    assert (cluster.score("B") == 1.0).all()


def test_take_and_give_back_are_inverse_and_leave_the_original_alone():
    cluster = Cluster.uniform(2, 4, cpus_per_node=16, memory_mb_per_node=100)
    work = cluster.copy()
    work.take(1, (0, 2), cpus=4, memory_mb=10)
    assert work.free[1].tolist() == [False, True, False, True]
    assert cluster.free.all()
    assert work.free_cpus.tolist() == [16, 12]
    assert work.free_memory_mb.tolist() == [100, 90]
    work.give_back(1, (0, 2))
    assert work.free.all()


@pytest.mark.parametrize("slots", [(0,), (1, 1)])
def test_no_gpu_is_given_twice(slots):
    cluster = Cluster.uniform(1, 2).copy()
    cluster.take(0, (0,))
    with pytest.raises(ValueError, match="not all free"):
        cluster.take(0, slots)


def test_a_missing_gpu_does_not_become_free():
    cluster = Cluster.uniform(1, 2).copy()
    cluster.exists[0, 1] = False
    cluster.free[0, 1] = False
    cluster.give_back(0, (0, 1))
    assert cluster.free[0].tolist() == [True, False]


@pytest.mark.parametrize(
    ("kwargs", "slots", "counts"),
    [
        ({"gpus": 1}, 4, (1,)),
        ({"gpus": 4}, 4, (1, 2, 4)),
        ({"gpus": 6}, 4, (2, 3, 6)),
        ({"gpus": 8, "gpus_per_node": 4}, 4, (2,)),
        ({"gpus": 8, "gpus_per_node": 8}, 4, ()),
        ({"gpus": 5, "gpus_per_node": 2}, 4, ()),
        ({"gpus": 4, "min_nodes": 2, "max_nodes": 2}, 4, (2,)),
        ({"gpus": 4, "required": (0, 3)}, 4, (2, 4)),
        ({"gpus": 3, "min_nodes": 2, "max_nodes": 2}, 4, ()),
        ({"gpus": 99_996}, 4, (24_999, 33_332, 49_998, 99_996)),
    ],
)
def test_node_counts_are_even_splits(kwargs, slots, counts):
    assert job_request("1", **kwargs).node_counts(slots) == counts


def test_cpus_and_memory_per_node():
    request = job_request("1", gpus=4, cpus=10, memory=Memory(per_cpu_mb=100))
    assert request.cpus_on_node(2) == 5
    assert request.cpus_on_node(3) == 4
    assert request.memory_on_node(2) == 500
    per_gpu = job_request("1", gpus=4, cpus_per_gpu=3, memory=Memory(per_gpu_mb=1000))
    assert per_gpu.cpus_on_node(2) == 6
    assert per_gpu.memory_on_node(2) == 2000
    assert job_request("1", gpus=2, cpus=20, cpus_per_gpu=3).cpus_on_node(2) == 10


@pytest.mark.parametrize("gpus", [0, -1, 100_000, 10**400])
def test_a_request_has_as_many_gpus_as_a_comment_can_say(gpus):
    with pytest.raises(ValueError, match="gpus must be 1 to 99999"):
        Request("1", gpus=gpus)


def test_a_resized_request_keeps_its_nodes_and_its_single_task():
    request = job_request("1", 4, min_nodes=2, gpus_per_node=2, cpus=16, sizes=(2, 4, 8))
    larger = request.resized(8)
    assert (larger.gpus, larger.gpus_per_node, larger.cpus.total) == (8, 4, 16)
    assert larger.node_counts(4) == (2,)
    assert (larger.resized(2).gpus_per_node, larger.resized(4).gpus_per_node) == (1, 2)


def test_a_task_for_each_gpu_brings_its_cpus():
    request = job_request(
        "1", 2, cpus=6, memory=Memory(per_cpu_mb=100), sizes=(1, 2, 8), task_per_gpu=True
    )
    assert request.resized(1).cpus.total == 3
    assert (request.resized(8).cpus.total, request.resized(8).resized(2).cpus.total) == (24, 6)
    assert request.resized(8).memory_on_node(2) == 1200
    per_gpu = job_request("1", 2, cpus_per_gpu=3, sizes=(2, 4))
    assert per_gpu.resized(4).total_cpus == 12


def test_only_a_size_of_the_request_can_be_had():
    request = Request("1", 2, sizes=(1, 2, 4))
    assert request.resized(2) is request
    with pytest.raises(ValueError, match="3 GPUs, not one of its sizes"):
        request.resized(3)


def test_an_assignment_names_its_gpus_by_node():
    found = Assignment("1", (0, 2), ((0, 1), (3,)), "pal", 1.0, "cluster", 1.5)
    assert found.gpus == ((0, (0, 1)), (2, (3,)))
    assert each_gpu(found.gpus) == ((0, 0), (0, 1), (2, 3))


def test_an_error_tells_its_cause_in_one_line():
    error = SourceError("scontrol failed")
    error.__cause__ = OSError("no route")
    assert isinstance(error, AwareError)
    assert str(error) == "scontrol failed: no route"


def test_requests_alike_are_two():
    """A round asks which job of the queue one is by identity."""
    assert Request("1", 1) != Request("1", 1)
    assert len({Request("1", 1), Request("1", 1)}) == 2


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
