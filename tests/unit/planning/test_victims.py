"""Victims: the jobs that Slurm preempts by its order are those that the plan names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from make import job_request, with_fields

from slurm_gpu_aware.model.cluster import Cluster, PreemptionOrder, RunningJob
from slurm_gpu_aware.model.request import PreemptionRights, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.preempt import Preemption, Shortage, VictimQueue, plan_preemption
from slurm_gpu_aware.planning.timeline import take

USUAL = PreemptionOrder()
DISPATCHER = Dispatcher(PlanSettings(policy="packed"))


def holder(
    name: int, *nodes: int, tier: float = 1.0, start_s: float = 0.0, cpus: int = 1
) -> RunningJob:
    on = nodes or (0,)
    return RunningJob(
        str(name),
        tuple((node, (name % 8,)) for node in on),
        end_s=100.0 + name,
        cpus=dict.fromkeys(on, cpus),
        preemptable_by=tier,
        start_s=start_s,
        node_count=len(on),
    )


def without_gpus(name: int, node: int = 0, *, cpus: int = 1, start_s: float = 0.0) -> RunningJob:
    return replace(holder(name, node, cpus=cpus, start_s=start_s), gpus=())


def names(jobs: Sequence[RunningJob] | None) -> list[int]:
    return [int(found.job_id) for found in jobs]


def preempted(
    needed: Sequence[RunningJob],
    candidates: Sequence[RunningJob],
    nodes: tuple[int, ...] = (0,),
    order: PreemptionOrder = USUAL,
) -> list[int]:
    """Jobs that Slurm preempts for the GPUs of ``needed`` on ``nodes``."""
    shortage = Shortage(slots={(n, s) for held in needed for n, slots in held.gpus for s in slots})
    shortage.slots = {(node, slot) for node, slot in shortage.slots if node in nodes}
    return sorted(names(VictimQueue(candidates, order).preempted(nodes, shortage)))


FOUR = [holder(i) for i in range(1, 5)]


@pytest.mark.parametrize(
    ("needed", "taken"),
    [
        ([1], [1]),
        ([4], [4]),
        ([2, 4], [2, 4]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 3, 4], [1, 3, 4]),
        ([2, 3, 4], [1, 2, 3, 4]),  # seen on 26.05: "preempted 215 .. 216 .. 213 .. 214"
        ([1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_one_gpu_jobs_of_a_node(needed: list[int], taken: list[int]) -> None:
    assert preempted([FOUR[i - 1] for i in needed], FOUR) == taken


def test_order_by_tier_then_nodes_then_record() -> None:
    jobs = [holder(1, tier=2.0), holder(2, 0, 1), holder(3), holder(4), holder(5, tier=2.0)]
    assert names(VictimQueue(jobs, USUAL).jobs) == [3, 4, 2, 1, 5]


def test_the_newest_first_whatever_its_tier() -> None:
    jobs = [
        holder(1, tier=2.0, start_s=30.0),
        holder(2, start_s=10.0),
        holder(3, 0, 1, start_s=30.0),
    ]
    assert names(VictimQueue(jobs, PreemptionOrder(youngest_first=True)).jobs) == [1, 3, 2]


def test_a_gpu_that_no_job_holds_cannot_be_freed() -> None:
    shortage = Shortage(slots={(0, 7)})
    assert VictimQueue(FOUR, USUAL).preempted((0,), shortage) is None


def preemption(
    running: Sequence[RunningJob],
    request: Request,
    nodes: int = 1,
    width: int = 4,
    cpus: int = 1 << 20,
    order: PreemptionOrder = USUAL,
) -> tuple[Cluster, Preemption | None]:
    uniform = Cluster.uniform(nodes, width, cpus_per_node=cpus)
    cluster = replace(uniform, preemption=order, cpus=uniform.free_cpus.copy())
    for held in running:
        for node, slots in held.gpus:
            cluster.take(node, slots)
        for node, count in held.cpus.items():
            cluster.free_cpus[node] -= count
    return cluster, plan_preemption(request, cluster, running, DISPATCHER)


def victims(running: Sequence[RunningJob], request: Request, **given_: int) -> list[int]:
    _, found = preemption(running, request, **given_)
    assert found is not None
    return sorted(names(found.victims))


def holders(*counts: int) -> list[RunningJob]:
    """Jobs of one node with these numbers of GPUs, in the order of their starts."""
    jobs, first = [], 0
    for number, count in enumerate(counts, 1):
        slots = tuple(range(first, first + count))
        jobs.append(replace(holder(number, start_s=float(number)), gpus=((0, slots),)))
        first += count
    return jobs


def preempting(gpus: int, **more: Any) -> Request:
    return job_request("99", gpus, preemption=PreemptionRights(tier=5.0), **more)


@pytest.mark.parametrize(
    ("gpus", "taken"), [(1, [4]), (2, [3, 4]), (3, [1, 3, 4]), (4, [1, 2, 3, 4])]
)
def test_the_newest_beside_the_first_as_slurm_takes_them(gpus: int, taken: list[int]) -> None:
    assert victims(holders(1, 1, 1, 1), preempting(gpus)) == taken


def test_the_fewest_are_those_that_slurm_takes() -> None:
    """The two jobs of two GPUs and the oldest; with any other one Slurm takes more along."""
    sizes = [1, 1, 1, 1, 2, 2]
    assert victims(holders(*sizes), preempting(5), width=8) == [1, 5, 6]


def test_nodes_that_the_job_may_not_use_are_not_tried() -> None:
    wide = [replace(holder(i, i), gpus=((i, (0, 1, 2, 3)),), start_s=50.0) for i in range(16)]
    old = replace(holder(30, 17), gpus=((17, (0, 1, 2, 3)),))
    small = [holder(104 + i, 16, start_s=9.0) for i in range(4)]
    asked = with_fields(preempting(4), eligible=np.arange(18) >= 16)
    assert victims([*wide, old, *small], asked, nodes=18) == [30]


def test_of_whole_nodes_that_with_fewest_jobs() -> None:
    """Jobs without GPUs end, too."""
    old = replace(holder(1, 0), gpus=((0, (0, 1, 2, 3)),))
    new = [holder(8 + i, 1, start_s=9.0) for i in range(4)]
    running = [without_gpus(20, 0), old, without_gpus(21, 1, start_s=9.0), *new]
    assert victims(running, preempting(1, whole=True), nodes=2) == [1, 20]


def test_a_missing_gpu_of_a_whole_node_is_not_waited_for() -> None:
    uniform = Cluster.uniform(1, 4, cpus_per_node=8)
    exists = uniform.exists.copy()
    exists[0, 0] = False
    none_free = np.zeros_like(exists)
    cluster = replace(uniform, exists=exists, free=none_free, cpus=uniform.free_cpus.copy())
    cluster.free_cpus[:] = 0
    sizes = ((1, (0,), 4), (2, (1, 2), 4), (3, (3,), 0))
    running = [
        replace(holder(i, cpus=cpus), gpus=((0, slots),), start_s=float(i))
        for i, slots, cpus in sizes
    ]
    found = plan_preemption(preempting(1, whole=True), cluster, running, DISPATCHER)
    assert sorted(names(found.victims)) == [1, 2, 3]
    take(found.after, preempting(1, whole=True), found.assignment)


def test_no_job_ends_if_slurm_would_suspend_the_first() -> None:
    """preempt/qos: ``_run_now`` looks at the mode of the first candidate alone."""
    running = [
        replace(holder(1, 1), keeps_gpus=True),
        replace(holder(2, tier=5.0), preempt_group="std"),
    ]
    running[0] = replace(running[0], preempt_group="cheap")
    asked = replace(preempting(4), preemption=PreemptionRights(groups=frozenset({"std", "cheap"})))
    _, found = preemption(running, asked, nodes=1 + 1)
    assert found is None
    _, found = preemption([replace(running[0], preemptable_by=9.0), running[1]], asked, nodes=2)
    assert names(found.victims) == [2]


def test_where_cpus_are_short_slurm_takes_the_first_in_its_order() -> None:
    running = [without_gpus(1, cpus=4, start_s=1.0), without_gpus(2, cpus=4, start_s=2.0)]
    assert victims(running, preempting(1, cpus=4), cpus=8) == [1]


def test_a_job_without_chosen_gpus_is_spared() -> None:
    slots = [(0, 1, 2), (3,), (4, 5), (6, 7)]
    tiers = [2.0, 1.0, 1.0, 1.0]
    running = [
        replace(holder(i + 1, tier=tiers[i]), gpus=((0, slots[i]),), end_s=100.0)
        for i in (1, 3, 2, 0)
    ]
    _, found = preemption(running, preempting(6), width=8)
    chosen = set(found.assignment.slots[0])
    for victim in found.victims:
        assert chosen & set(victim.gpus[0][1])


def by_run_now(
    jobs: Sequence[RunningJob],
    nodes: set[int],
    order: PreemptionOrder,
    fits: Callable[[list[RunningJob]], bool],
) -> set[str]:
    """Slurm 24.11.5, `_run_now` of select/cons_tres, statement by statement."""
    passes = 0
    queue = list(jobs)
    while True:
        removed: list[RunningJob] = []
        for candidate in queue:
            if candidate.on_nodes & nodes:
                removed.append(candidate)
                if fits(removed):
                    break
        assert fits(removed)
        place = queue.index(removed[-1])
        enough = passes > order.reorder_count
        passes += 1
        if enough or len(queue) <= passes:
            return {candidate.job_id for candidate in removed}
        last = queue[place]
        if order.strict:
            queue = [last, *queue[:place], *queue[place + 1 :]]
        else:
            usable = {j.job_id: len(j.on_nodes & nodes) for j in queue[:place]}
            usable[last.job_id] = 99999
            queue.sort(key=lambda j: -usable.get(j.job_id, 0))


ORDERS = st.builds(PreemptionOrder, st.booleans(), st.booleans(), st.integers(0, 3))
SHAPES = st.lists(
    st.tuples(
        st.integers(0, 2),  # node
        st.integers(0, 4),  # GPUs; none: a job without
        st.integers(1, 3),  # tier
        st.integers(0, 9),  # start
        st.integers(1, 4),  # CPUs
        st.booleans(),  # on the next node, too
    ),
    max_size=12,
)


def running_jobs(shapes: Sequence[tuple[int, int, int, int, int, bool]]) -> list[RunningJob]:
    """Jobs that fit side by side on three nodes of 4 GPUs and 12 CPUs."""
    gpus, cpus = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    found = []
    for number, (node, count, tier, start, cores, wide) in enumerate(shapes):
        on = [node, node + 1] if wide and node < 2 else [node]
        cores = min(cores, *(12 - cpus[n] for n in on))
        count = min(count, *(4 - gpus[n] for n in on))
        if cores < 1:
            continue
        held = tuple((n, tuple(range(gpus[n], gpus[n] + count))) for n in on) if count else ()
        found.append(
            RunningJob(
                str(number),
                held,
                end_s=100.0,
                cpus=dict.fromkeys(on, cores),
                preemptable_by=float(tier),
                start_s=float(start),
                node_count=len(on),
            )
        )
        for n in on:
            gpus[n] += count
            cpus[n] += cores
    return found


REQUESTS = st.builds(
    lambda gpus, cpus, nodes, whole: preempting(
        gpus * nodes, min_nodes=nodes, max_nodes=nodes, cpus=cpus, whole=whole
    ),
    st.integers(1, 4),
    st.sampled_from([1, 1, 6, 12]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([False, False, True]),
)


@given(SHAPES, REQUESTS, ORDERS)
@example([(0, 0, 1, 1, 4, False), (0, 0, 1, 2, 4, False)], preempting(1, cpus=6), USUAL)
@example(
    [(0, 2, 2, 0, 1, False), (0, 1, 1, 1, 1, False), (0, 1, 1, 2, 1, False)], preempting(3), USUAL
)
def test_the_plan_names_the_jobs_that_slurm_preempts(
    shapes: list[tuple[int, int, int, int, int, bool]], request: Request, order: PreemptionOrder
) -> None:
    running = running_jobs(shapes)
    cluster, found = preemption(running, request, nodes=3, cpus=12, order=order)
    assume(found is not None and DISPATCHER.place(request, cluster) is None)
    chosen = found.assignment

    def fits(removed: list[RunningJob]) -> bool:
        after = cluster.copy()
        for over in removed:
            for node, slots in over.gpus:
                after.free[node, list(slots)] = True
            for node, count in over.cpus.items():
                after.free_cpus[node] += count
        return all(
            bool(after.free[node, list(slots)].all())
            and after.free_cpus[node]
            >= (12 if request.nodes.whole else request.cpus_on_node(len(chosen.nodes)))
            for node, slots in zip(chosen.nodes, chosen.slots, strict=True)
        )

    candidates = VictimQueue(running, order).jobs
    expected = by_run_now(candidates, set(chosen.nodes), order, fits)
    assert {victim.job_id for victim in found.victims} == expected
