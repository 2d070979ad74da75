"""Whom Slurm preempts, by its own order, so that the plan names no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.cluster import Cluster, RunningJob
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.preempt import Preemption, plan_preemption
from slurm_gpu_aware.planning.victims import in_slurms_order, pushed_out
from slurm_gpu_aware.request import Request


def job(name: int, *nodes: int, tier: float = 1.0) -> RunningJob:
    gpus = tuple((node, (name % 8,)) for node in nodes or (0,))
    return RunningJob(str(name), gpus, end_s=100.0 + name, preemptable_by=tier)


FOUR = [job(i) for i in range(1, 5)]


def names(jobs: list[RunningJob]) -> list[int]:
    return [int(found.job_id) for found in jobs]


@pytest.mark.parametrize(
    ("needed", "gone"),
    [
        ([1], [1]),
        ([4], [4]),
        ([2, 4], [2, 4]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 3, 4], [1, 3, 4]),
        ([2, 3, 4], [1, 2, 3, 4]),  # seen on 26.05: "preempted 215 .. 216 .. 213 .. 214"
        ([1, 2, 3, 4], [1, 2, 3, 4]),
        ([], []),
    ],
)
def test_one_gpu_jobs_of_a_node(needed: list[int], gone: list[int]) -> None:
    found = pushed_out([FOUR[i - 1] for i in needed], FOUR, {0})
    assert sorted(names(found)) == gone


def test_jobs_of_other_nodes_are_not_touched() -> None:
    candidates = [job(1, 1), job(2), job(3, 1), job(4), job(5), job(6)]
    found = pushed_out([candidates[i] for i in (3, 4, 5)], candidates, {0})
    assert sorted(names(found)) == [2, 4, 5, 6]


def test_order_by_tier_then_nodes_then_record() -> None:
    jobs = [job(1, tier=2.0), job(2, 0, 1), job(3), job(4), job(5, tier=2.0)]
    assert names(in_slurms_order(jobs)) == [3, 4, 2, 1, 5]


@given(st.permutations(FOUR), st.sets(st.integers(0, 3), min_size=1))
def test_all_that_are_needed_go_and_two_go_alone(order: list[RunningJob], which: set[int]) -> None:
    needed = [order[i] for i in which]
    gone = pushed_out(needed, order, {0})
    assert {found.job_id for found in gone} >= {wanted.job_id for wanted in needed}
    if len(needed) <= 2 or which == set(range(len(which))):
        assert len(gone) == len(needed)


def test_fewer_candidates_than_tries() -> None:
    assert names(pushed_out([FOUR[1]], FOUR[:2], {0})) == [2]
    assert names(pushed_out([FOUR[0]], [replace(FOUR[0])], {0})) == [1]


def plan(running: list[RunningJob], gpus: int, nodes: int = 1) -> Preemption | None:
    cluster = Cluster.uniform(nodes, 4)
    for held in running:
        for node, slots in held.gpus:
            cluster.take(node, slots)
    policy = make_policy("packed")
    asked = Request("9", gpus, preemption_tier=5.0)
    return plan_preemption(asked, cluster, running, policy.place)


def holders(*counts: int) -> list[RunningJob]:
    """Jobs of one node, each with so many GPUs; the later ones have begun later."""
    jobs, first = [], 0
    for number, count in enumerate(counts, 1):
        slots = tuple(range(first, first + count))
        jobs.append(replace(job(number), gpus=((0, slots),)))
        first += count
    return jobs


@pytest.mark.parametrize(
    ("gpus", "victims"), [(1, [4]), (2, [3, 4]), (3, [1, 2, 3]), (4, [1, 2, 3, 4])]
)
def test_the_newest_but_three_only_as_slurm_takes_them(gpus: int, victims: list[int]) -> None:
    found = plan(holders(1, 1, 1, 1), gpus)
    assert found is not None
    assert sorted(names(list(found.victims))) == victims


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), max_size=10),
    st.integers(1, 8),
    st.permutations(range(10)),
)
def test_the_plan_names_all_whom_slurm_takes(
    given_jobs: list[tuple[int, int, int]], gpus: int, ages: list[int]
) -> None:
    taken: set[tuple[int, int]] = set()
    running = []
    for number, (node, first, tier) in enumerate(given_jobs):
        slots = tuple(s for s in range(first, 4) if (node, s) not in taken)[: 1 + number % 2]
        taken |= {(node, slot) for slot in slots}
        end_s = 100.0 + ages[number]
        if slots:
            held = RunningJob(str(number), ((node, slots),), end_s, preemptable_by=float(tier))
            running.append(held)
    found = plan(running, gpus, nodes=3)
    if found is None:
        return
    gone = pushed_out(found.victims, in_slurms_order(running), set(found.assignment.nodes))
    assert {victim.job_id for victim in gone} == {victim.job_id for victim in found.victims}
