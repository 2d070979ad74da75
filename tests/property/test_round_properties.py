"""Properties of every round: completeness, no GPU twice, no delay of the head."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import job_request, plan_round
from small_clusters import clusters, requests

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import PreemptionRights
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.plan import PlanSettings

NOW = 100.0
LIMITS = (10.0, 20.0, 30.0, math.inf)


@st.composite
def situations(draw):
    """A cluster with running jobs on its busy GPUs, and a queue."""
    cluster = draw(clusters(most_gpus=10))
    cluster = replace(
        cluster, free_cpus=cluster.free_cpus + 4, free_memory_mb=cluster.free_memory_mb + 4
    )
    running = []
    for node, slot in np.argwhere(cluster.exists & ~cluster.free).tolist():
        if draw(st.integers(0, 5)) == 0:
            continue  # held by an unknown job
        end = NOW + draw(st.sampled_from([-1.0, 10.0, 20.0, math.inf]))
        tier = draw(st.sampled_from([None, 1.0, 2.0]))
        running.append(
            RunningJob(f"r{node}.{slot}", ((node, (slot,)),), end, {node: 1}, {node: 1}, "B", tier)
        )
    queue = [
        replace(
            draw(requests(cluster, str(number), draw(st.sampled_from("ABC")))),
            time_limit_s=draw(st.sampled_from(LIMITS)),
            priority=draw(st.sampled_from([0.0, 0.0, 1.0])),
        )
        for number in range(draw(st.integers(0, 7)))
    ]
    return replace(cluster, running=tuple(running)), queue


@st.composite
def crowded(draw):
    """A head that fits only later, and small jobs behind it: some fit beside it, some before."""
    n, width = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = {c: rng.choice([0.9, 1.0, 1.5], (n, width)) for c in "AB"}
    cluster = Cluster.uniform(n, width, scores=scores, same_indices=draw(st.booleans()))
    cluster.free[:] = rng.random((n, width)) < 0.5
    cluster.free_cpus[:] = cluster.free.sum(axis=1) + rng.integers(0, 3, n)
    running = []
    for node, slot in np.argwhere(~cluster.free).tolist():
        end = NOW + draw(st.sampled_from([10.0, 20.0]))
        running.append(RunningJob(f"r{node}.{slot}", ((node, (slot,)),), end, {node: 1}))
    one_node = draw(st.booleans())
    least = int(cluster.free.sum(axis=1).max() if one_node else cluster.free.sum())
    most = width if one_node else n * width
    head = job_request(
        "0",
        draw(st.integers(min(least + 1, most), most)),
        max_nodes=1 if one_node else None,
        app_class="A",
        cpus_per_gpu=1,
        time_limit_s=30.0,
        priority=1.0,
    )
    behind = [
        job_request(
            str(number),
            draw(st.integers(1, 2)),
            app_class=draw(st.sampled_from("AB")),
            cpus_per_gpu=draw(st.integers(0, 2)),
            time_limit_s=draw(st.sampled_from([5.0, 10.0, 15.0, 30.0, math.inf])),
        )
        for number in range(1, draw(st.integers(2, 6)))
    ]
    return replace(cluster, running=tuple(running)), [head, *behind]


def demands(request, assignment):
    count = len(assignment.nodes)
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        yield node, slots, *node_demand(request, count, len(slots))


@settings(max_examples=500, deadline=None)
@given(situations())
def test_every_request_is_in_one_list_and_no_gpu_is_given_twice(situation):
    cluster, queue = situation
    plan = plan_round(queue, cluster, PlanSettings(), NOW)
    ids = [a.job_id for a in plan.assignments] + [w.job_id for w in plan.waiting]
    assert sorted(ids) == sorted(r.job_id for r in queue)
    assert all(w.reason for w in plan.waiting)
    held = cluster.copy()
    by_id = {r.job_id: r for r in queue}
    for assignment in plan.assignments:
        for demand in demands(by_id[assignment.job_id], assignment):
            held.take(*demand)  # raises if a GPU is not free
    assert (held.free_cpus >= np.minimum(cluster.free_cpus, 0)).all()
    assert (held.free_memory_mb >= np.minimum(cluster.free_memory_mb, 0)).all()
    assert plan == plan_round(list(reversed(queue)), cluster, PlanSettings(), NOW)


def cluster_at(cluster, jobs, time_s):
    """Free GPUs, CPUs and memory when all jobs that end by ``time_s`` are gone: step by step."""
    later = cluster.copy()
    for gpus, end, cpus, memory in jobs:
        if max(end, NOW) <= time_s:
            for node, slots in gpus:
                later.give_back(node, slots)
                later.free_cpus[node] += cpus.get(node, 0)
                later.free_memory_mb[node] += memory.get(node, 0)
    return later


@pytest.mark.parametrize("name", ["pal", "eft"])
@settings(max_examples=300, deadline=None)
@given(st.one_of(situations(), crowded()))
def test_backfill_never_delays_the_head(name, situation):
    """If all jobs run to their limits, the head's policy still places it at the promised time.

    And the promise itself is the earliest end at which the head fits beside the jobs before it.
    """
    cluster, queue = situation
    rules = PlanSettings(policy=name)
    plan = plan_round(queue, cluster, rules, NOW)
    heads = [w for w in plan.waiting if w.reason.startswith("next in line")]
    assert len(heads) <= 1
    if not heads or heads[0].shadow_start_s is None:
        return
    head = heads[0]
    by_id = {r.job_id: r for r in queue}
    without = plan_round(queue, cluster, replace(rules, backfill=False), NOW)
    before = {a.job_id for a in without.assignments}
    assert [w.shadow_start_s for w in without.waiting if w.job_id == head.job_id] == [
        head.shadow_start_s
    ]
    policy = make_policy(name)
    for chosen, exact in ((plan.assignments, False), (without.assignments, True)):
        now = cluster.copy()
        jobs = [(j.gpus, j.end_s, j.cpus, j.memory_mb) for j in cluster.running]
        for a in chosen:
            request = by_id[a.job_id]
            parts = list(demands(request, a))
            for part in parts:
                now.take(*part)
            gpus = [(node, slots) for node, slots, _, _ in parts]
            cpus = {node: c for node, _, c, _ in parts}
            memory = {node: m for node, _, _, m in parts}
            jobs.append((gpus, NOW + request.time_limit_s, cpus, memory))
        promised = cluster_at(now, jobs, head.shadow_start_s)
        assert policy.place(by_id[head.job_id], promised) is not None
        if exact:
            ends = {max(end, NOW) for _, end, _, _ in jobs}
            for end in ends | {NOW - 1}:
                if end < head.shadow_start_s:
                    earlier = cluster_at(now, jobs, end)
                    assert policy.place(by_id[head.job_id], earlier) is None
    assert before <= {a.job_id for a in plan.assignments}


@pytest.mark.parametrize("name", ["packed", "pal", "eft"])
@settings(max_examples=300, deadline=None)
@given(st.one_of(situations(), crowded()))
def test_backfill_delays_no_job_with_a_reservation(name, situation):
    """Each job that does not fit has its place at its time, and no two hold a GPU at a time."""
    cluster, queue = situation
    plan = plan_round(queue, cluster, PlanSettings(policy=name, reservations=1000), NOW)
    by_id = {r.job_id: r for r in queue}
    held = [(gpu, NOW, max(j.end_s, NOW)) for j in cluster.running for gpu in j.each_gpu]
    now, jobs = cluster.copy(), [(j.gpus, j.end_s, j.cpus, j.memory_mb) for j in cluster.running]
    for a in plan.assignments:
        end, parts = NOW + by_id[a.job_id].time_limit_s, list(demands(by_id[a.job_id], a))
        held += [((node, slot), NOW, end) for node, slots in a.gpus for slot in slots]
        for part in parts:
            now.take(*part)
        cpus, memory = ({part[0]: part[i] for part in parts} for i in (2, 3))
        jobs.append((a.gpus, end, cpus, memory))
    policy = make_policy(name)
    for w in plan.waiting:
        start, gpus = w.kept or (w.shadow_start_s, w.reserved)
        if not gpus:
            continue
        end = start + by_id[w.job_id].time_limit_s
        held += [((node, slot), start, end) for node, slots in gpus for slot in slots]
        assert policy.place(by_id[w.job_id], cluster_at(now, jobs, start)) is not None
    for (gpu, since, until), (other, first, last) in itertools.combinations(held, 2):
        assert gpu != other or until <= first or last <= since


@pytest.mark.parametrize("name", ["packed", "eft", "topo-aware-p"])
@pytest.mark.parametrize("backfill", [False, True])
@settings(max_examples=100, deadline=None)
@given(situations())
def test_a_plan_without_reasons_decides_the_same(name, backfill, situation):
    cluster, queue = situation
    rules = PlanSettings(policy=name, backfill=backfill)
    plan = plan_round(queue, cluster, rules, NOW)
    while never := {w.job_id for w in plan.waiting if w.infeasible}:
        queue = [request for request in queue if request.job_id not in never]
        plan = plan_round(queue, cluster, rules, NOW)
    bare = plan_round(queue, cluster, rules, NOW, explain=False)
    assert bare.assignments == plan.assignments
    assert [(w.job_id, w.postponement) for w in bare.waiting] == [
        (w.job_id, w.postponement) for w in plan.waiting
    ]


@settings(max_examples=300, deadline=None)
@given(situations())
def test_no_job_overtakes_inside_the_prefix(situation):
    """Strict order without backfill: once a job that could ever start waits, all behind it wait."""
    cluster, queue = situation
    plan = plan_round(queue, cluster, PlanSettings(backfill=False), NOW)
    started = {a.job_id for a in plan.assignments}
    stuck = {
        w.job_id for w in plan.waiting if w.postponed or w.reason.startswith("cannot start even")
    }
    ordered = sorted(queue, key=lambda r: (-r.priority, int(r.job_id)))
    in_order = [r.job_id in started for r in ordered if r.job_id not in stuck]
    assert in_order == sorted(in_order, reverse=True)


@settings(max_examples=300, deadline=None)
@given(situations())
def test_victims_are_lower_hold_what_is_taken_and_none_could_be_spared(situation):
    cluster, queue = situation
    queue = [replace(r, preemption=PreemptionRights(tier=2.0)) for r in queue[:1]]
    plan = plan_round(queue, cluster, PlanSettings(), NOW)
    policy = make_policy("pal")
    if queue and not plan.assignments and not plan.waiting[0].postponed:
        every = [j for j in cluster.running if j.preemptable_by == 1.0]
        assert policy.place(queue[0], _without(cluster, every)) is None
    for assignment in plan.assignments:
        victims = [j for j in cluster.running if j.job_id in assignment.victims]
        assert len(victims) == len(assignment.victims)
        assert all(job.preemptable_by == 1.0 for job in victims)
        if not victims:
            continue
        assert policy.place(queue[0], cluster) is None
        gone = _without(cluster, victims)
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            assert gone.free[node, list(slots)].all()
        if len(assignment.nodes) > 1 or len(victims) > 2 or not assignment.exact:
            continue  # Slurm takes others along, or chooses itself (tests/unit/test_victims.py)
        for job in victims:
            spared = [other for other in victims if other is not job]
            assert policy.place(queue[0], _without(cluster, spared)) is None


def _without(cluster, victims):
    gone = cluster.copy()
    for job in victims:
        for node, slots in job.gpus:
            gone.give_back(node, slots)
            gone.free_cpus[node] += job.cpus[node]
            gone.free_memory_mb[node] += job.memory_mb[node]
    return gone
