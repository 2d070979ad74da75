"""One round: order, guaranteed prefix, class priority, shadow reservation, backfill, reasons."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import job_request, placements, plan_round, reasons, with_held, with_running

from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Sockets
from slurm_gpu_aware.model.request import LeftToSlurm, Part, PreemptionRights, Request
from slurm_gpu_aware.placement.facts import Woken
from slurm_gpu_aware.planning import backfill
from slurm_gpu_aware.planning import round as planning
from slurm_gpu_aware.planning.facts import Reserved
from slurm_gpu_aware.planning.guard import cores_left, guarded, leaves_core
from slurm_gpu_aware.planning.plan import Guarded, Plan, PlanSettings, Waiting
from slurm_gpu_aware.planning.reservation import reserve

NOW = 1000.0


def asking(number, gpus, *, limit=math.inf, app_class="B", priority=0.0, **kwargs):
    return job_request(
        str(number), gpus, app_class=app_class, time_limit_s=limit, priority=priority, **kwargs
    )


def plan(queue, cluster, **settings):
    return plan_round(queue, cluster, PlanSettings(**settings), NOW)


def test_class_a_chooses_before_b_inside_the_prefix():
    scores = np.array([[1.4, 0.9]])
    cluster = Cluster.uniform(1, 2, scores={"A": scores, "B": scores})
    result = plan([asking(1, 1, app_class="B"), asking(2, 1, app_class="A")], cluster)
    assert placements(result) == {"2": ((0,), ((1,),)), "1": ((0,), ((0,),))}


def test_class_priority_is_not_scheduling_priority():
    """The class A job behind the head must not take the head's GPUs."""
    cluster = Cluster.uniform(1, 2)
    result = plan([asking(1, 2, app_class="C"), asking(2, 1, app_class="A")], cluster)
    assert placements(result) == {"1": ((0,), ((0, 1),))}
    assert result.waiting[0].job_id == "2"


def test_order_is_priority_then_submit_time_then_number():
    cluster = Cluster.uniform(1, 1)
    queue = [
        asking("98_10", 1, priority=5, submit_s=2.0),
        asking("98_9", 1, priority=5, submit_s=2.0),
        asking("1", 1, priority=1, submit_s=0.0),
    ]
    assert list(placements(plan(queue, cluster))) == ["98_9"]


def test_backfill_outside_the_reservation_and_before_the_shadow():
    cluster = with_held(
        Cluster.uniform(2, 2),
        ("r1", 0, [0, 1], NOW + 100),
        ("r2", 1, [1], NOW + 1000),
    )
    queue = [asking(1, 2), asking(2, 1, limit=5000)]
    result = plan(queue, cluster)
    # The head is reserved node 0 from NOW + 100; node 1's free GPU is not reserved.
    assert placements(result) == {"2": ((1,), ((0,),))}
    assert result.waiting[0].shadow_start_s == NOW + 100
    assert "n0 GPUs 0,1" in result.waiting[0].reason


@pytest.mark.parametrize(("reservations", "starts"), [(1, True), (2, False)])
def test_the_second_job_that_does_not_fit_is_not_delayed(reservations, starts):
    """A long job on the free GPU of node 1 delays job 2, and the head does not need it."""
    cluster = with_held(
        Cluster.uniform(2, 4),
        ("r1", 0, [0, 1, 2, 3], NOW + 100),
        ("r2", 1, [1, 2, 3], NOW + 200),
    )
    queue = [asking(1, 4), asking(2, 4), asking(3, 1, limit=1000), asking(4, 1, limit=200)]
    result = plan(queue[:3], cluster, reservations=reservations)
    assert ("3" in placements(result)) is starts
    if not starts:
        assert "job 2, which comes first" in reasons(result)["3"]
        assert result.waiting[1].kept == (NOW + 200, ((1, (0, 1, 2, 3)),))
    result = plan([*queue[:2], queue[3]], cluster, reservations=reservations)
    assert "4" in placements(result)  # it ends in time


def test_of_jobs_that_fit_after_no_end_one_is_tried(monkeypatch):
    """Who holds GPU 0 of node 1 is not known; node 0 has a free GPU that no job has reserved."""
    tried = []

    def reserved(request, *given):
        tried.append(request.job_id)
        return reserve(request, *given)

    for module in (planning, backfill):
        monkeypatch.setattr(module, "reserve", reserved)
    cluster = with_held(Cluster.uniform(2, 2), ("r1", 0, [0], math.inf))
    cluster.free[1, 0] = False
    queue = [asking(n, 2, max_nodes=1, required=(1,), limit=50) for n in range(1, 6)]
    assert not placements(plan(queue, cluster, reservations=16))
    assert tried == ["1", "2"]


def test_equal_jobs_have_reservations_of_their_own():
    cluster = with_held(
        Cluster.uniform(3, 4),
        ("r1", 0, [0, 1, 2, 3], NOW + 100),
        ("r2", 1, [0, 1, 2, 3], NOW + 150),
        ("r3", 2, [1, 2, 3], NOW + 200),
    )
    queue = [*(asking(n, 4) for n in (1, 2, 3)), asking(4, 1, limit=1000)]
    for reservations, starts in ((2, True), (3, False)):
        result = plan(queue, cluster, reservations=reservations)
        assert ("4" in placements(result)) is starts


def test_a_backfilled_jobs_account_names_reserved_gpus():
    """The account says that the best free GPU is reserved for the head."""
    scores = np.array([[1.0, 0.8, 1.0, 1.0], [1.3, 1.0, 1.0, 1.0]])
    cluster = with_held(
        Cluster.uniform(2, 4, scores={"B": scores}),
        ("r1", 0, [0, 2, 3], NOW + 100),
        ("r2", 1, [1, 2, 3], NOW + 1000),
    )
    early, late = asking(2, 1, limit=50), asking(2, 1, limit=2000)
    (found,) = plan([asking(1, 4), late], cluster).assignments
    assert (found.nodes, found.slots) == ((1,), ((0,),))
    assert found.why.of(Reserved) == Reserved("1", "n0 GPU 1", {"n0": (1,)})
    assert found.why.text.endswith("; free, but reserved for job 1: n0 GPU 1")
    (found,) = plan([asking(1, 4), early], cluster).assignments
    assert (found.nodes, found.slots) == ((0,), ((1,),))
    assert found.why.of(Reserved) is None
    (found,) = plan([late], cluster).assignments
    assert found.why.of(Reserved) is None


@pytest.mark.parametrize(("limit", "starts"), [(100.0, True), (101.0, False), (math.inf, False)])
def test_backfill_on_reserved_gpus_must_end_before_the_shadow_start(limit, starts):
    cluster = with_held(Cluster.uniform(1, 2), ("r", 0, [0], NOW + 100))
    result = plan([asking(1, 2), asking(2, 1, limit=limit)], cluster)
    assert ("2" in placements(result)) is starts
    if not starts:
        assert "job 1" in reasons(result)["2"]


def test_backfill_leaves_the_cpus_that_the_head_needs():
    cluster = with_held(Cluster.uniform(1, 4, cpus_per_node=8), ("r", 0, [0], NOW + 100))
    queue = [asking(1, 1, cpus=8), asking(2, 1, cpus=4, limit=1000), asking(3, 1, cpus=4, limit=50)]
    result = plan(queue, cluster)
    assert list(placements(result)) == ["3"]


def test_backfill_jobs_together_leave_the_cpus_that_the_head_needs():
    """8 CPUs, the head takes 6 of them later: of two jobs with 2 CPUs only one may stay on."""
    running = RunningJob("r", ((0, (0,)),), NOW + 100, cpus={0: 3})
    cluster = with_running(Cluster.uniform(1, 4, cpus_per_node=8), running)
    queue = [asking(1, 1, cpus=6), *(asking(n, 1, cpus=2, limit=1000) for n in (2, 3))]
    assert list(placements(plan(queue, cluster))) == ["2"]


def test_job_without_limit_does_not_starve_a_head_that_waits_for_one():
    cluster = with_held(Cluster.uniform(1, 2), ("r", 0, [0], math.inf))
    result = plan([asking(1, 2), asking(2, 1), asking(3, 1, limit=60)], cluster)
    assert list(placements(result)) == ["3"]
    assert result.waiting[0].shadow_start_s == math.inf


def test_an_infeasible_job_blocks_no_other():
    result = plan([asking(1, 3, max_nodes=1), asking(2, 2)], Cluster.uniform(1, 2))
    assert list(placements(result)) == ["2"]
    assert "cannot start even on an idle cluster" in reasons(result)["1"]
    assert result.waiting[0].shadow_start_s is None


def test_head_that_waits_for_gpus_of_unknown_holders_keeps_its_place_without_a_promise():
    cluster = Cluster.uniform(1, 2)
    cluster.take(0, [0])  # held, but by no job that the snapshot lists
    result = plan([asking(1, 2), asking(2, 1)], cluster)
    assert list(placements(result)) == ["2"]
    assert reasons(result)["1"].startswith("next in line: needs 2 free GPUs on one node")
    assert result.waiting[0].shadow_start_s is None


def test_prefix_job_keeps_its_turn_when_class_order_leaves_it_no_place():
    """In class order the A job would take n0, the only node that the C job may use."""
    scores = np.array([[0.9], [1.2]])
    only_first = np.array([True, False])
    cluster = Cluster.uniform(2, 1, scores={"A": scores})
    queue = [asking(1, 1, app_class="C", eligible=only_first), asking(2, 1, app_class="A")]
    assert placements(plan(queue, cluster)) == {"1": ((0,), ((0,),)), "2": ((1,), ((0,),))}


def test_without_backfill_everyone_waits_behind_the_head():
    cluster = with_held(Cluster.uniform(1, 2), ("r", 0, [0], NOW + 100))
    result = plan([asking(1, 2), asking(2, 1, limit=1)], cluster, backfill=False)
    assert not result.assignments
    assert reasons(result)["2"] == "waits for its turn behind job 1"
    assert [one.turn for one in result.waiting[:2]] == ["next", "behind"]


def test_backfill_depth_counts_jobs_behind_the_head():
    cluster = with_held(Cluster.uniform(1, 4), ("r", 0, [0], NOW + 100))
    queue = [asking(1, 4), asking(2, 1, limit=1), asking(3, 1, limit=1)]
    assert list(placements(plan(queue, cluster, backfill_depth=1))) == ["2"]


def test_unknown_policy_makes_only_that_job_wait():
    result = plan([asking(1, 1, policy="pal2"), asking(2, 1)], Cluster.uniform(1, 2))
    assert list(placements(result)) == ["2"]
    assert "unknown policy 'pal2'; known: " in reasons(result)["1"]


@pytest.mark.parametrize(
    ("wish", "clock"), [(None, 945), ("auto", 945), ("max", 1530), (1200, 1200), ("1200", 1200)]
)
def test_clock(wish, clock):
    clocks = {"class_clock_mhz": {"B": 945}, "max_clock_mhz": 1530}
    result = plan([asking(1, 1, clock=wish)], Cluster.uniform(1, 1), **clocks)
    assert result.assignments[0].clock_mhz == clock


def test_nodes_that_sleep_are_woken_last():
    cluster = replace(Cluster.uniform(3, 2), asleep=np.array([True, False, True]))
    result = plan([asking(1, 1), asking(2, 2), asking(3, 1), asking(4, 2)], cluster)
    assert [a.nodes for a in result.assignments] == [(1,), (0,), (1,), (2,)]
    assert [a.why.lines().get("woken up") for a in result.assignments] == [None, "n0", None, "n2"]
    result = plan([asking(1, 2), asking(2, 1), asking(3, 1)], cluster)
    assert [a.nodes for a in result.assignments] == [(1,), (0,), (0,)]  # woken once
    named = plan([asking(1, 1, required=(2,))], cluster)
    assert named.assignments[0].nodes == (2,)
    wide = plan([asking(1, 6, gpus_per_node=2)], cluster)
    assert wide.assignments[0].nodes == (0, 1, 2)


def test_a_wide_job_wakes_as_few_nodes_as_it_needs():
    """Although the sleeping nodes have the faster GPUs."""
    scores = np.where(np.arange(12) < 3, 1.3, 1.0)[:, None].repeat(4, axis=1)
    cluster = Cluster.uniform(12, 4, scores=dict.fromkeys("ABC", scores))
    cluster = replace(cluster, asleep=np.arange(12) >= 3)
    (chosen,) = plan([asking(1, 16, gpus_per_node=4)], cluster).assignments
    assert len(chosen.why.of(Woken).nodes) == 1
    assert {0, 1, 2} < set(chosen.nodes)


def test_preemption_names_the_fewest_cheapest_victims():
    cluster = with_held(
        Cluster.uniform(2, 2),
        ("two", 0, [0, 1], NOW + 100, 1.0),
        ("old", 1, [0], NOW + 100, 1.0),
        ("new", 1, [1], NOW + 200, 1.0),
    )
    result = plan([asking(1, 2, preemption=PreemptionRights(tier=2.0))], cluster)
    assert result.assignments[0].victims == ("two",)
    result = plan([asking(1, 1, preemption=PreemptionRights(tier=2.0))], cluster)
    assert result.assignments[0].victims == ("new",)
    assert result.assignments[0].slots == ((1,),)


def test_preemption_within_a_group_goes_by_priority():
    cluster = with_held(
        Cluster.uniform(1, 2), ("low", 0, [0], NOW + 100, 1.0), ("peer", 0, [1], NOW + 200, 1.0)
    )
    priorities = {"low": 10.0, "peer": 50.0}
    running = tuple(
        replace(job, preempt_group="mine", priority=priorities[job.job_id])
        for job in cluster.running
    )
    cluster = replace(cluster, running=running)

    def as_mine(gpus: int, own: float) -> Request:
        mine = frozenset({"mine"})
        return asking(
            1, gpus, priority=1e9, preemption=PreemptionRights(lower_groups=mine, priority=own)
        )

    assert plan([as_mine(1, 50.0)], cluster).assignments[0].victims == ("low",)
    assert not plan([as_mine(1, 10.0)], cluster).assignments
    assert not plan([as_mine(2, 50.0)], cluster).assignments
    assert not plan([asking(1, 1, priority=50.0)], cluster).assignments


def test_preemption_on_a_plain_node_names_all_candidates_of_slurm():
    cluster = with_held(
        Cluster.uniform(1, 4),
        ("a", 0, [0], NOW + 100, 1.0),
        ("b", 0, [1], NOW + 200, 1.0),
        ("spared", 0, [2, 3], NOW + 300),
    )
    plain = replace(cluster, indexed=np.zeros(1, dtype=np.bool_))
    (chosen,) = plan([asking(1, 1, preemption=PreemptionRights(tier=2.0))], plain).assignments
    assert (chosen.exact, chosen.victims) == (False, ("a", "b"))
    assert chosen.why.text.endswith("; preempts 1 of a, b (Slurm chooses)")
    (both,) = plan([asking(1, 2, preemption=PreemptionRights(tier=2.0))], plain).assignments
    assert both.why.text.endswith("; preempts a, b")


def test_preemption_over_nodes_spares_jobs_if_possible():
    cluster = with_held(
        Cluster.uniform(3, 2),
        ("a", 0, [0, 1], NOW + 300, 1.0),
        ("b", 1, [0, 1], NOW + 200, 1.0),
        ("c", 2, [0], NOW + 100, 1.0),
    )
    result = plan([asking(1, 4, gpus_per_node=2, preemption=PreemptionRights(tier=2.0))], cluster)
    assert len(result.assignments[0].victims) == 2
    assert len(result.assignments[0].nodes) == 2


def test_resources_left_by_victims_are_not_given_away_in_the_same_round():
    cluster = with_held(Cluster.uniform(1, 2), ("r", 0, [0, 1], NOW + 100, 1.0))
    result = plan([asking(1, 1, preemption=PreemptionRights(tier=2.0)), asking(2, 1)], cluster)
    assert list(placements(result)) == ["1"]
    assert result.waiting[0].shadow_start_s == NOW


def test_no_job_is_backfilled_on_guarded_nodes():
    """Slurm holds GPUs of n0 for the head against jobs that pass the gate, and would have to give
    them free for a moment."""
    held = RunningJob("r", ((0, (0, 1)),), 3600.0)
    cluster = with_running(Cluster.uniform(2, 4), held)
    queue = [
        job_request("1", 4, max_nodes=1, required=(0,), time_limit_s=3600.0),
        job_request("2", 1, max_nodes=1, eligible=np.array([True, False]), time_limit_s=60.0),
        Request("3", 1, max_nodes=1, time_limit_s=60.0),
    ]
    usual = plan_round(queue, cluster, PlanSettings(policy="packed"), 0.0)
    assert {a.job_id for a in usual.assignments} == {"2", "3"}
    guarded = plan_round(queue, cluster, PlanSettings(policy="packed", guarded=True), 0.0)
    (started,) = guarded.assignments
    assert (started.job_id, started.nodes) == ("3", (1,))
    (why,) = [waits.reason for waits in guarded.waiting if waits.job_id == "2"]
    assert why.endswith("kept for job 1, as jobs that Slurm starts by itself wait")


@pytest.mark.parametrize(
    ("fields", "starts"), [({"cpus": 12}, True), ({"cpus": 13}, False), ({"whole": True}, False)]
)
def test_who_leaves_no_core_is_not_backfilled_on_the_nodes_of_the_head(
    fields: dict[str, Any], starts: bool
) -> None:
    """The core stays held against jobs of whole nodes, which would take the node before."""
    held = RunningJob("r", ((0, (0,)),), 3600.0)
    cluster = with_running(Cluster.uniform(1, 4, cpus_per_node=16), held)
    queue = [
        job_request("1", 4, time_limit_s=3600.0, priority=1.0),
        job_request("2", 1, time_limit_s=60.0, priority=1.0, **fields),
    ]
    settings = PlanSettings(policy="packed", guarded_core=True)
    plan = plan_round(queue, cluster, settings, 0.0)
    assert bool(plan.assignments) is starts
    requests = {one.job_id: one for one in queue}
    there = cores_left(plan, cluster, requests, frozenset())
    assert there == ({"n0"} if starts else set())
    free = guarded(plan, cluster, requests, 0.0, passing=True, parts=False, cores=there)
    assert free == {"n0": Guarded(0, 0, False, 1)}


def test_a_core_that_is_held_when_a_job_was_placed_stays_until_it_starts() -> None:
    """One that is held later may be one that the job needs."""
    cluster = with_running(Cluster.uniform(2, 4, cpus_per_node=16))
    cluster = replace(cluster, starting=np.array([True, True]))
    head = job_request("1", 8, max_nodes=2)
    plan = Plan((), (Waiting("1", "", reserved=((0, (0,)), (1, (0,)))),))
    assert cores_left(plan, cluster, {"1": head}, {"n0"}) == {"n0"}
    cluster.free_cpus[0] = 3
    assert cores_left(plan, cluster, {"1": head}, {"n0"}) == set()


@pytest.mark.parametrize(
    ("fields", "free", "expected"),
    [
        ({"cpus": 4}, (8, 8), True),
        ({"cpus": 4, "bound": True}, (8, 8), True),
        ({"cpus": 5, "bound": True}, (8, 8), False),
        ({"cpus": 4, "bound": True}, (8, 7), False),
        ({"cpus": 5}, (8, 1), True),
        ({"cpus": 6}, (8, 1), False),
        ({"cpus": 1, "bound": True, "fills": True}, (8, 8), False),
    ],
)
def test_a_job_leaves_a_core_of_each_socket_to_which_it_may_be_bound(
    fields: dict[str, Any], free: tuple[int, int], expected: bool
) -> None:
    """Slurm may reserve any of them."""
    cluster = Cluster.uniform(1, 4, cpus_per_node=sum(free))
    sockets = Sockets(
        gpu=np.array([[0, 0, 1, 1]]),
        cpus=np.array([[8, 8]]),
        free_cpus=np.array([free]),
        per_core=np.array([1]),
        quiet=np.array([True]),
    )
    job = job_request("1", 1, **fields)
    assert leaves_core(job, replace(cluster, sockets=sockets)).tolist() == [expected]
    if "bound" in fields:
        assert not leaves_core(job, cluster).any()


@pytest.mark.parametrize(
    ("parts", "slow", "starts"), [(1, False, True), (1, True, False), (2, False, False)]
)
def test_no_job_that_may_not_start_at_once_is_backfilled_on_the_nodes_of_the_head(
    parts: int, slow: bool, starts: bool
) -> None:
    """The guard of the head is gone in between."""
    held = RunningJob("r", ((0, (0, 1)),), 3600.0)
    cluster = with_running(Cluster.uniform(2, 4), held)
    part = Part(1, 1, cpus=1)
    left = job_request("2", parts, max_nodes=2, time_limit_s=60.0)
    queue = [
        job_request("1", 8, max_nodes=2, time_limit_s=3600.0),
        replace(left, left=LeftToSlurm("its form", (part,) * parts)),
    ]
    found = plan_round(queue, cluster, PlanSettings(policy="packed", guarded_core=slow), 0.0)
    assert {one.job_id for one in found.assignments} == ({"2"} if starts else set())
