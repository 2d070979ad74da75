"""Rounds with jobs whose GPUs Slurm chooses: order, exclusions, power, and no delay of the head."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import job_request, plan_round, with_held

from slurm_gpu_aware.features.power.power_budget import PowerState
from slurm_gpu_aware.features.shards.stage import split_queue, with_shards
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Shards
from slurm_gpu_aware.model.request import LeftToSlurm, Memory, Part, Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings

NOW = 1000.0


def exact(number, gpus=1, *, priority=0.0, limit=math.inf, **kwargs):
    return job_request(str(number), gpus, priority=priority, time_limit_s=limit, **kwargs)


def left(number, gpus=1, *, nodes=1, fixed=False, again=False, shards=0, **kwargs):
    part = Part(gpus, min_nodes=nodes, shards=shards)
    why = LeftToSlurm("place=off", (part,), fixed=fixed, again=again)
    return replace(exact(number, gpus, **kwargs), left=why)


def planned(queue, cluster, **more):
    return plan_round(queue, cluster, PlanSettings(policy="packed"), NOW, **more)


def off(plan):
    return {a.job_id: a.kept_off for a in plan.assignments}


def test_an_idle_cluster_keeps_a_job_off_no_node():
    plan = planned([left(1, 2)], Cluster.uniform(3, 4))
    assert off(plan) == {"1": ()}
    assert plan.waiting == ()


def test_several_jobs_share_a_node_in_one_round():
    plan = planned([left(n) for n in range(4)], Cluster.uniform(1, 4))
    assert sorted(off(plan)) == ["0", "1", "2", "3"]
    assert sorted(a.slots[0][0] for a in plan.assignments) == [0, 1, 2, 3]


def test_an_exact_job_avoids_gpus_that_slurm_may_give_away():
    """Slurm may take any of the node's GPUs for the job that is on its way."""
    cluster = Cluster.uniform(2, 4)
    by_slurm = np.zeros_like(cluster.free)
    by_slurm[0] = True
    cluster = replace(cluster, free=cluster.free & ~by_slurm, by_slurm=by_slurm)
    plan = planned([exact(1, 1), exact(2, 4)], cluster)
    assert {a.job_id: a.nodes for a in plan.assignments} == {"1": (1,)}
    plan = planned([left(3, 1)], cluster)
    assert plan.assignments[0].job_id == "3"


def test_a_job_does_not_start_where_exact_jobs_are_starting():
    cluster = replace(Cluster.uniform(2, 2), starting=np.array([True, False]))
    plan = planned([left(1), exact(3, 2)], cluster)
    assert {a.job_id: a.nodes for a in plan.assignments} == {"1": (1,), "3": (0,)}
    assert off(plan)["1"] == (0,)


@pytest.mark.parametrize("again", [False, True])
def test_while_others_want_exact_gpus_a_job_is_kept_to_its_nodes(again):
    queue = [exact(1, 4, priority=9.0), left(2, 1, again=again), exact(3, 12)]
    plan = planned(queue, Cluster.uniform(3, 4))
    one = next(a for a in plan.assignments if a.job_id == "2")
    first = next(a for a in plan.assignments if a.job_id == "1")
    assert set(one.kept_off) == (set(first.nodes) if again else set(range(3)) - set(one.nodes))


def two_busy():
    """n0 has 2 free GPUs; n1 has 1, and its others end at +100."""
    return with_held(
        Cluster.uniform(2, 4),
        ("r0", 0, [0, 1], NOW + 900),
        ("r1", 1, [1, 2, 3], NOW + 100),
    )


def test_reserved_nodes_are_excluded_unless_the_job_ends_before():
    head = exact(1, 4, priority=9.0)
    (one,) = planned([head, left(2, 1, limit=500.0)], two_busy()).assignments
    assert (one.job_id, one.nodes, one.kept_off) == ("2", (0,), (1,))
    (one,) = planned([head, left(2, 1, limit=50.0)], two_busy()).assignments
    assert one.job_id == "2"
    assert 1 not in one.kept_off or one.nodes == (0,)


@pytest.mark.parametrize(
    ("memory_mb", "parts", "starts"),
    [
        (0, [Part(1, cpus=1), Part(1, cpus=1)], True),  # a heterogeneous job, on the other nodes
        (0, [Part(2, min_nodes=2, cpus=2)], True),
        (0, [Part(2, min_nodes=2, cpus=2, whole=True)], True),
        (0, [Part(3, min_nodes=3, cpus=3)], False),
        (0, [Part(3, min_nodes=3)], True),  # takes nothing that the head needs
        (90, [Part(3, min_nodes=3, node_memory_mb=20)], False),
    ],
)
def test_no_job_takes_cpus_and_memory_beside_the_gpus_of_the_head(memory_mb, parts, starts):
    """The head waits for three used GPUs of n0, whose fourth is free, and for all its CPUs."""
    cluster = Cluster.uniform(3, 4, cpus_per_node=16, memory_mb_per_node=100)
    cluster = with_held(cluster, ("r0", 0, [0, 1, 2], NOW + 100))
    there = np.array([True, False, False])
    head = exact(1, 3, priority=9.0, eligible=there, cpus=16, memory=Memory(memory_mb))
    job = replace(left(2, sum(p.gpus for p in parts)), left=LeftToSlurm("it", tuple(parts)))
    for again in (False, True):
        one = replace(job, left=replace(job.left, again=again))
        plan = planned([head, one], cluster)
        assert {a.job_id for a in plan.assignments} == ({"2"} if starts else set())
        for a in plan.assignments:
            assert (0 in a.nodes) != (0 in a.kept_off)


@pytest.mark.parametrize(
    "parts",
    [
        (Part(1, node_memory_mb=20), Part(1, node_memory_mb=20)),
        (Part(0, whole=True), Part(1, cpus=1)),
    ],
)
def test_a_full_node_of_the_head_keeps_a_heterogeneous_job_from_no_other(parts):
    cluster = with_held(Cluster.uniform(4, 4, memory_mb_per_node=100), ("r", 0, range(4), NOW + 99))
    cluster.free_memory_mb[0] = 0
    head = exact(1, 4, priority=9.0, eligible=np.array([True, False, False, False]))
    job = replace(left(2, 2), left=LeftToSlurm("a heterogeneous job", parts, fixed=True))
    plan = planned([head, job], cluster)
    assert {a.job_id for a in plan.assignments} == {"2"}


def test_a_job_whose_nodes_are_fixed_waits_for_the_head():
    head = exact(1, 4, priority=9.0)
    plan = planned([head, left(2, 1, limit=500.0, fixed=True)], two_busy())
    assert {w.job_id for w in plan.waiting} == {"1", "2"}
    there = np.array([True, False])
    plan = planned([head, left(2, 1, limit=500.0, fixed=True, eligible=there)], two_busy())
    assert off(plan) == {"2": ()}


def test_the_first_in_line_waits_for_its_turn_and_keeps_what_it_needs():
    """place=off does not pass a job of higher priority, and is not passed either."""
    head = left(1, 4, priority=9.0)
    plan = planned([head, left(2, 3, limit=math.inf), exact(3, 2)], two_busy())
    assert plan.assignments == () or {a.job_id for a in plan.assignments} <= {"3"}
    reserved = next(w for w in plan.waiting if w.job_id == "1")
    assert reserved.shadow_start_s == NOW + 100


def test_what_a_waiting_job_of_slurms_leaves_is_for_other_such_jobs():
    """Of the head's node one GPU is left over, whichever Slurm gives to the head."""
    cluster = with_held(Cluster.uniform(1, 4), ("r", 0, [0, 1, 2], NOW + 100))
    head = left(1, 3, priority=9.0)
    plan = planned([head, left(2, 1)], cluster)
    assert {a.job_id for a in plan.assignments} == {"2"}
    plan = planned([head, exact(2, 1)], cluster)
    assert plan.assignments == ()


def test_a_power_limit_counts_them():
    cluster = Cluster.uniform(2, 2)
    power = PowerState(np.full((2, 2), 300.0), np.full((2, 2), 50.0), 4 * 50.0 + 2 * 250.0, {})
    queue = [left(n, priority=9.0 - n) for n in range(4)]
    plan = planned(queue, cluster, power=power)
    assert sorted(off(plan)) == ["0", "1"]
    assert {w.job_id for w in plan.waiting} == {"2", "3"}


def test_no_job_starts_on_the_nodes_of_a_waiting_job_that_slurm_places():
    """It is planned on n0, and Slurm could as well start it on n1, which the first one needs."""
    queue = [left(1, 4, priority=9.0), left(2, 1)]
    plan = planned(queue, two_busy())
    (one,) = plan.assignments
    assert (one.job_id, one.nodes, one.kept_off) == ("2", (0,), (1,))
    fixed = [queue[0], left(2, 1, fixed=True)]
    assert planned(fixed, two_busy()).assignments == ()


def test_an_exact_job_behind_one_whose_nodes_are_fixed_finds_no_gpu_that_it_may_get():
    head = exact(1, 4, priority=9.0)
    queue = [head, left(2, 1, fixed=True, limit=50.0, priority=8.0), exact(3, 1, limit=500.0)]
    plan = planned(queue, two_busy())
    assert [a.job_id for a in plan.assignments] == ["2"]


def test_a_job_does_not_start_where_an_exact_one_starts_in_the_same_round():
    """Slurm could give it the GPU that the other one is bound to."""
    cluster = Cluster.uniform(1, 3)
    plan = planned([exact(1, 2, priority=9.0), exact(2, 2), left(3, 1, limit=1.0)], cluster)
    assert [a.job_id for a in plan.assignments] == ["1"]
    plan = planned([exact(1, 2, priority=9.0), left(3, 1)], cluster)
    (waiting,) = plan.waiting
    assert (waiting.job_id, waiting.shadow_start_s) == ("3", NOW)
    assert "other jobs are about to start on its nodes" in waiting.reason


def test_no_job_passes_an_exact_one_that_waits_for_slurms_choice():
    """It starts in the next round, as soon as the GPUs of the first are known."""
    queue = [left(n, 1, priority=9.0 - n, limit=5.0, fixed=True) for n in (0, 2)]
    queue.insert(1, exact(1, 1, priority=8.0, limit=5.0))
    plan = planned(queue, Cluster.uniform(1, 2))
    assert [a.job_id for a in plan.assignments] == ["0"]
    assert plan.waiting[0].shadow_start_s == NOW


# Properties ---------------------------------------------------------------------------------------


@st.composite
def mixed_queues(draw):
    """A busy cluster, and a queue of exact jobs and jobs that Slurm places."""
    n, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cluster = Cluster.uniform(n, width)
    held = []
    for node, slot in product(range(n), range(width)):
        if rng.random() < 0.4:
            held.append((f"r{node}.{slot}", node, [slot], NOW + float(rng.choice([10, 20, 40]))))
    cluster = with_held(cluster, *held)
    queue = []
    for number in range(draw(st.integers(1, 7))):
        make = draw(st.sampled_from([exact, left, left]))
        gpus = draw(st.integers(1, min(4, n * width)))
        more = {}
        if make is left:
            more["fixed"] = draw(st.integers(0, 4)) == 0
            more["nodes"] = draw(st.integers(1, min(n, gpus)))
            more["again"] = draw(st.booleans())
        limit = draw(st.sampled_from([5.0, 15.0, 30.0, 100.0]))
        queue.append(make(number, gpus, priority=9.0 - number, limit=limit, **more))
    return cluster, queue


def start_of(head, cluster):
    """When the plan says that the head starts."""
    plan = planned([head], cluster)
    return NOW if plan.assignments else plan.waiting[0].shadow_start_s


def after(one, request, cluster, gpus):
    """The cluster with a job that has started on these GPUs."""
    cluster = replace(cluster.copy(), running=cluster.running)
    for node, slots in gpus:
        cluster.take(node, slots, cpus=1)
    end = NOW + request.time_limit_s
    job = RunningJob(one.job_id, tuple(gpus), end, cpus={node: 1 for node, _ in gpus})
    return replace(cluster, running=(*cluster.running, job))


def wherever(one, request, cluster):
    """Every set of GPUs on one node that the job may get: its own, or one of Slurm's choice."""
    if request.left is None:
        return [one.gpus] if all(cluster.free[n, list(s)].all() for n, s in one.gpus) else []
    may = [i for i in range(cluster.shape[0]) if i not in one.kept_off]
    free = [(i, np.flatnonzero(cluster.free[i]).tolist()) for i in may]
    sets = [(i, s) for i, slots in free for s in combinations(slots, request.gpus)]
    return [((i, s),) for i, s in sets]


@settings(max_examples=300, deadline=None)
@given(mixed_queues())
def test_no_job_is_kept_off_its_own_nodes_and_no_gpu_is_planned_twice(situation):
    cluster, queue = situation
    plan = planned(queue, cluster)
    listed = [a.job_id for a in plan.assignments] + [w.job_id for w in plan.waiting]
    assert sorted(listed) == sorted(r.job_id for r in queue)
    jobs = {r.job_id: r for r in queue}
    free = cluster.not_held.sum(axis=1)
    nodes_of_exact = {n for a in plan.assignments if jobs[a.job_id].left is None for n in a.nodes}
    for a in plan.assignments:
        assert sum(map(len, a.slots)) == jobs[a.job_id].gpus
        for node, slots in a.gpus:
            free[node] -= len(slots)
        if jobs[a.job_id].left is None:
            assert a.kept_off == ()
            continue
        assert not {*a.kept_off} & {*a.nodes}
        if not jobs[a.job_id].left.fixed:
            assert nodes_of_exact <= {*a.kept_off}
            assert not nodes_of_exact & {*a.nodes}
    assert (free >= 0).all()


@settings(max_examples=300, deadline=None)
@given(mixed_queues())
def test_no_start_delays_the_first_that_waits_wherever_slurm_starts_it(situation):
    """The head starts as early as without the jobs behind it, whatever GPUs Slurm gives them."""
    cluster, queue = situation
    plan = planned(queue, cluster)
    jobs = {r.job_id: r for r in queue}
    waits = {w.job_id for w in plan.waiting if not w.infeasible}
    head = next((r for r in queue if r.job_id in waits), None)
    if head is None:
        return
    behind = [a for a in plan.assignments if jobs[a.job_id].priority < head.priority]
    before = cluster
    for a in plan.assignments:
        if a not in behind:
            sets = wherever(a, jobs[a.job_id], before)
            if a.gpus not in sets:
                return  # it cannot start where it is planned: on several nodes
            before = after(a, jobs[a.job_id], before, a.gpus)
    promised = start_of(head, before)
    states = [before]
    for a in behind:
        states = [
            after(a, jobs[a.job_id], state, gpus)
            for state in states
            for gpus in wherever(a, jobs[a.job_id], state)
        ][:12] or states
        assert all(start_of(head, state) <= promised for state in states)


@pytest.mark.parametrize("limit_s", [200.0, 86_400.0])
def test_shards_that_slurm_chooses_prolong_no_gpu_that_the_head_waits_for(limit_s: float) -> None:
    used = np.array([[2, 0]])
    running = (
        RunningJob("c1", ((0, (0,)),), 1300.0, user="carol"),
        RunningJob("c2", ((0, (1,)),), 37_000.0, user="carol"),
    )
    cluster = replace(
        Cluster.uniform(1, 2, running=running),
        free=np.zeros((1, 2), dtype=np.bool_),
        shards=Shards(np.full_like(used, 4), used),
    )
    part = Part(1, 1, 1, None, 1, 500, shards=2)
    head = Request("1", 1, app_class="A", time_limit_s=3600.0, user="alice", priority=100.0)
    left = LeftToSlurm("place=off", (part,))
    later = replace(head, job_id="2", user="bob", priority=1.0, time_limit_s=limit_s, left=left)
    split = split_queue([head, later], cluster)
    given = split.cluster, PlanSettings(), 1000.0
    plan = with_shards(Round(split.all, *given, plan=plan_round(split.queue, *given)), split)
    assert [one.job_id for one in plan.assignments] == (["2"] if limit_s < 300.0 else [])


def gpuless(number, *, whole, cpus=1, **kwargs):
    part = Part(0, cpus=cpus, whole=whole)
    one = exact(number, 2, whole=whole, **kwargs)
    return replace(one, left=LeftToSlurm("whole nodes", (part,)))


def idle():
    return Cluster.uniform(2, 2, cpus_per_node=16, cpus=np.full(2, 16))


def test_a_job_of_whole_nodes_takes_no_free_node_of_the_first_that_waits():
    busy = with_held(idle(), ("9", 1, [0], NOW + 60))
    queue = [exact(1, 4, priority=9.0), gpuless(2, whole=True)]
    plan = planned(queue, busy)
    assert plan.assignments == ()
    assert [one.job_id for one in plan.waiting] == ["1", "2"]
    short = gpuless(2, whole=True, limit=50.0)
    assert [one.slots for one in planned([queue[0], short], busy).assignments] == [((0, 1),)]


def test_nothing_is_left_beside_a_job_of_whole_nodes():
    """It asks for one CPU, and gets all."""
    wholes = [gpuless(n, whole=True, priority=9.0) for n in (1, 2)]
    beside = gpuless(3, whole=False, cpus=2)
    plan = planned([*wholes, beside], idle())
    assert [one.job_id for one in plan.assignments] == ["1", "2"]
    assert [one.job_id for one in planned([wholes[0], beside], idle()).assignments] == ["1", "3"]
