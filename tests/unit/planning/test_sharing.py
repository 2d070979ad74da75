"""Jobs of shards fill used GPUs first, best fit, and delay no job before them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import job_request, plan_round, with_fields

from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.features.shards.stage import split_queue, with_shards
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Shards
from slurm_gpu_aware.model.request import LeftToSlurm, Memory, Part, Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings

NOW = 1000.0


def cluster_of(used: Sequence[Sequence[int]], each: int = 4, **more: Any) -> Cluster:
    """Nodes whose GPUs have ``each`` shards, so many of them in use."""
    held = np.array(used, dtype=np.int64)
    free = np.where(held > 0, each - held, 0)
    running = [
        RunningJob(f"r{n}{s}", ((n, (s,)),), NOW + 100, start_s=0.0)
        for n, s in np.argwhere(held).tolist()
    ]
    cluster = Cluster.uniform(*held.shape, running=tuple(running), **more)
    return replace(cluster, free=held == 0, shards=Shards(np.full_like(held, each), free))


def part(job_id: str, shards: int, limit_s: float = 60.0, **more: Any) -> Request:
    usual = {"app_class": "A", "time_limit_s": limit_s, "clock": "default"}
    return job_request(job_id, 1, shards=shards, **{**usual, **more})


def whole(job_id: str, gpus: int = 1, limit_s: float = 60.0) -> Request:
    return Request(job_id, gpus, app_class="A", time_limit_s=limit_s)


def plan_of(queue: Sequence[Request], cluster: Cluster, **more: Any) -> Plan:
    queue = [replace(one, priority=-float(i)) for i, one in enumerate(queue)]
    split = split_queue(queue[::-1], cluster)
    given = split.cluster, PlanSettings(class_clock_mhz={"A": 900}, **more), NOW
    return with_shards(Round(queue, *given, plan=plan_round(split.queue, *given)), split)


def given_to(plan: Plan) -> dict[str, tuple[int, int]]:
    return {one.job_id: (one.nodes[0], one.slots[0][0]) for one in plan.assignments}


def test_the_used_gpu_with_the_fewest_free_shards_that_suffice() -> None:
    cluster = cluster_of([[1, 3, 2, 0], [0, 2, 3, 0]])
    queue = [part("a", 2), part("b", 1), part("c", 1), part("d", 3)]
    assert given_to(plan_of(queue, cluster)) == {"a": (0, 2), "b": (0, 1), "c": (1, 2), "d": (0, 0)}
    (alone,) = plan_of([part("e", 4)], cluster).assignments
    assert (cluster.free[alone.nodes[0], alone.slots[0][0]], alone.exact) == (True, True)


def test_among_equal_ones_the_best_score_of_its_class() -> None:
    scores = {"A": np.array([[1.2, 1.0, 1.1]]), "B": np.array([[1.0, 1.2, 1.1]])}
    cluster = cluster_of([[2, 2, 2]], scores=scores)
    plan = plan_of([part("a", 1), part("b", 1, app_class="B")], cluster)
    assert given_to(plan) == {"a": (0, 1), "b": (0, 1)}  # then it has the fewest
    plan = plan_of([part("b", 2, app_class="B"), part("a", 2)], cluster)
    assert given_to(plan) == {"a": (0, 1), "b": (0, 0)}
    assert [one.slowdown for one in plan.assignments] == [1.0, 1.0]


def test_jobs_that_come_together_share_a_free_gpu() -> None:
    cluster = cluster_of([[0, 0, 0, 0]])
    plan = plan_of([part(name, 2) for name in "abcd"], cluster)
    found = given_to(plan)
    assert found["a"] == found["b"]
    assert found["c"] == found["d"] != found["a"]
    assert all(one.clock_mhz is None for one in plan.assignments)
    texts = [str(one.why.text) for one in plan.assignments]
    assert sum("the first with shards of this GPU: 2 of 4" in text for text in texts) == 2
    assert sum("2 of 4 were free" in text for text in texts) == 2


def test_whole_gpus_get_clocks_as_before() -> None:
    plan = plan_of([whole("w"), part("a", 2)], cluster_of([[0, 0]]))
    assert {one.job_id: one.clock_mhz for one in plan.assignments} == {"w": 900, "a": None}


@pytest.mark.parametrize(("limit_s", "starts"), [(60.0, True), (101.0, False), (math.inf, False)])
def test_no_job_before_it_is_delayed(limit_s: float, starts: bool) -> None:
    """The job before it gets both GPUs when the present ones end, in 100 s."""
    cluster = cluster_of([[1, 1]])
    plan = plan_of([whole("w", 2), part("a", 1, limit_s)], cluster)
    assert (set(given_to(plan)) == {"a"}) is starts
    if not starts:
        assert [(one.job_id, one.reason) for one in plan.waiting][1:] == [
            ("a", "waits for its turn behind job w")
        ]
    first = plan_of([part("a", 1, limit_s), whole("w", 2)], cluster)
    assert set(given_to(first)) == {"a"}


@pytest.mark.parametrize(("cpus", "filled"), [(2, {"a": (0, 2), "b": (1, 0)}), (3, {"a": (1, 0)})])
def test_what_is_not_reserved_is_filled(cpus: int, filled: dict[str, tuple[int, int]]) -> None:
    """The job before it gets two GPUs of the first node, and CPUs of the three that are free."""
    cluster = cluster_of([[1, 1, 1, 0], [1, 0, 0, 0]], cpus_per_node=3, memory_mb_per_node=1000)
    head = with_fields(whole("w", 2), eligible=np.array([True, False]), required=(0,), cpus=cpus)
    cluster = replace(cluster, free=np.zeros_like(cluster.free))
    longer = [part(name, 3, math.inf) for name in "abc"]
    plan = plan_of([head, *longer, part("d", 3, 60.0)], cluster)
    assert [one.reserved for one in plan.waiting if one.job_id == "w"] == [((0, (0, 1)),)]
    assert given_to(plan) == {**filled, "d": (0, 0)}
    assert not plan_of([head, *longer], cluster, backfill=False).assignments


def test_a_gpu_is_kept_for_the_first_job_that_finds_too_few_shards() -> None:
    """Job b would fill GPU 1 each time when a part of it becomes free, and job a would wait on."""
    queue = [part("a", 3), part("b", 2, 10.0), part("c", 1, 10.0)]
    plan = plan_of(queue, cluster_of([[3, 2]]))
    assert given_to(plan) == {"c": (0, 0)}
    assert {one.job_id: one.reason for one in plan.waiting}["b"] == (
        "waits for its turn behind job a"
    )
    assert given_to(plan_of(queue, cluster_of([[3, 1]])))["a"] == (0, 1)


@pytest.mark.parametrize(("reservations", "starts"), [(1, True), (2, False)])
def test_the_second_that_finds_too_few_shards_keeps_a_gpu(reservations: int, starts: bool) -> None:
    """Job c takes the share that job b waits for; without reservations of its own b waits on."""
    queue = [part("a", 3), part("b", 3), part("c", 1)]
    plan = plan_of(queue, cluster_of([[3, 2]]), reservations=reservations)
    assert ("c" in given_to(plan)) is starts


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("used", "starts"), [([[3, 3], [3, 2]], True), ([[3, 2]], False)])
def test_shards_that_slurm_chooses_are_not_those_of_a_kept_gpu(
    used: list[list[int]], starts: bool, fixed: bool
) -> None:
    """Slurm may take any GPU of a node, so the job is kept off the whole node."""
    left = LeftToSlurm("MPS", (Part(1, 1, shards=1),), fixed=fixed)
    queue = [part("a", 3), replace(whole("b"), left=left)]
    plan = plan_of(queue, cluster_of(used))
    if starts and not fixed:
        (one,) = plan.assignments
        assert (one.nodes, one.kept_off) == ((0,), (1,))
    else:
        assert not plan.assignments
        assert plan.waiting[-1].reason == "waits for its turn behind job a"
        assert plan.waiting[-1].turn == "behind"


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(1, 4), st.integers(1, 6))
def test_no_job_behind_them_takes_what_waiting_jobs_of_shards_keep(
    sizes: list[int], last: int, reservations: int
) -> None:
    """Without the last job, each that waits has a GPU with as many free shards as beside it."""
    cluster = cluster_of([[1, 2, 3, 4], [3, 3, 2, 1]])
    queue = [part(f"j{i}", n) for i, n in enumerate(sizes)]
    before = plan_of(queue, cluster, reservations=reservations)
    then = plan_of([*queue, part("last", last)], cluster, reservations=reservations)
    given = given_to(then)
    gpu = given.pop("last", None)
    assert given == given_to(before)
    if gpu is None or not 0 < len(before.waiting) <= reservations:
        return
    free = np.array([[3, 2, 1, 0], [1, 1, 2, 3]])
    for one, at in given.items():
        free[at] -= sizes[int(one[1:])]
    most = np.sort(free.ravel())[::-1][: len(before.waiting)]
    free[gpu] -= last
    assert (np.sort(free.ravel())[::-1][: len(before.waiting)] == most).all()


def test_without_backfill_it_waits_behind_a_job_that_does_not_fit() -> None:
    queue, cluster = [whole("w", 2), part("a", 1)], cluster_of([[1, 1]])
    assert not plan_of(queue, cluster, backfill=False).assignments
    assert set(given_to(plan_of(queue[::-1], cluster, backfill=False))) == {"a"}


def test_a_job_without_a_reservation_holds_up_none() -> None:
    """No job is known whose end frees the GPUs that it waits for."""
    cluster = replace(cluster_of([[1, 1]]), running=())
    plan = plan_of([whole("w", 2), part("a", 1, math.inf)], cluster)
    assert set(given_to(plan)) == {"a"}
    assert [(one.job_id, one.infeasible) for one in plan.waiting] == [("w", False)]


def test_a_job_that_never_fits_holds_up_none() -> None:
    plan = plan_of([whole("w", 3), part("a", 1, math.inf)], cluster_of([[1, 1]]))
    assert set(given_to(plan)) == {"a"}


def test_cpus_memory_and_nodes_bound_it() -> None:
    cluster = cluster_of([[3, 0], [1, 0]], cpus_per_node=4, memory_mb_per_node=1000)
    only = np.array([False, True])
    queue = [part("a", 1, cpus=3), part("b", 1, cpus=3), part("c", 1, eligible=only)]
    assert given_to(plan_of(queue, cluster)) == {"a": (0, 0), "b": (1, 0), "c": (1, 0)}
    plan = plan_of([part("a", 1, memory=Memory(per_node_mb=1001))], cluster)
    assert not plan.assignments


def test_a_small_job_does_not_wait_for_a_large_one() -> None:
    """It would share the GPU of a job that needs more CPUs than are free."""
    cluster = cluster_of([[0, 0]], cpus_per_node=2)
    plan = plan_of([part("a", 1, cpus=2), part("b", 1, cpus=3), part("c", 1, cpus=1)], cluster)
    assert "b" in {one.job_id for one in plan.waiting}
    busy = replace(cluster, free_cpus=np.array([1]))
    plan = plan_of([part("a", 1, math.inf, cpus=2), part("b", 1, cpus=1)], busy)
    assert set(given_to(plan)) == {"b"}


def test_no_job_behind_it_takes_its_cpus() -> None:
    cluster = cluster_of([[1, 0]], cpus_per_node=3)
    plan = plan_of([part("a", 1, cpus=2), whole("w")], cluster)
    assert given_to(plan) == {"a": (0, 0), "w": (0, 1)}
    plan = plan_of([part("a", 1, cpus=2), with_fields(whole("w"), cpus=2)], cluster)
    assert given_to(plan) == {"a": (0, 0)}
    plan = plan_of([with_fields(whole("w"), cpus=2), part("a", 1, cpus=2)], cluster)
    assert given_to(plan) == {"w": (0, 1)}


SIZES = st.lists(st.integers(-3, 4).filter(bool), max_size=8)
"""Shards of jobs, or minus the GPUs of those that ask for whole ones."""


@given(SIZES, st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=2))
def test_no_gpu_is_given_twice_and_no_job_is_lost(sizes: list[int], used: list[list[int]]) -> None:
    cluster = cluster_of(used)
    queue = [part(f"j{i}", n) if n > 0 else whole(f"j{i}", -n) for i, n in enumerate(sizes)]
    plan = plan_of(queue, cluster)
    ids = [one.job_id for one in (*plan.assignments, *plan.waiting)]
    assert sorted(ids) == [one.job_id for one in queue]
    shards = {one.job_id: one.get(SHARDS) for one in queue}
    left = 4 - np.array(used)
    for one in plan.assignments:
        for node, slots in one.gpus:
            for slot in slots:
                left[node, slot] -= shards[one.job_id] or 4
    assert (left >= 0).all()
