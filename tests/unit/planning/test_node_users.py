"""Rounds where some jobs share no node with others: `NodeUsers`."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import job_request, placements, plan_round, reasons, replayed, with_running

from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.features.shards.stage import split_queue
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Shards
from slurm_gpu_aware.model.node_users import NodeUsers
from slurm_gpu_aware.model.request import LeftToSlurm, Part, PreemptionRights, Request, Sharing
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.stages import plan_stages

NOW = 1000.0


def runs(name: str, node: int, slots: Sequence[int] = (), end_s: float = 100.0, **fields: Any):
    """A job of bob's, of one CPU, that ends after some seconds."""
    given = {"user": "bob", "alone": True, "cpus": {node: 1}, **fields}
    return RunningJob(name, ((node, tuple(slots)),) if slots else (), NOW + end_s, **given)


def nodes_of(nodes: int, *running: RunningJob) -> Cluster:
    cluster = with_running(Cluster.uniform(nodes, 4), *running)
    return replace(cluster, users=NodeUsers.of(running, {"alice", "bob", "carol"}, nodes))


def sharing(cluster: Cluster) -> Cluster:
    """With eight shards of each GPU; four of the last one are free."""
    free = np.zeros(cluster.shape, dtype=np.int64)
    free[0, 3] = 4
    return replace(cluster, shards=Shards(np.full(cluster.shape, 8), free))


def job_of(
    number: int, gpus: int, user: str, limit_s: float, *counts: int, **fields: Any
) -> Request:
    given = {"time_limit_s": limit_s, "priority": 100.0 - number, **fields}
    return job_request(str(number), gpus, *counts, user=user, **given)


def slurms(request: Request, *, again: bool = False) -> Request:
    left = LeftToSlurm("place=off", (Part(request.gpus),), again=again)
    return replace(request, left=left)


def planned_for(cluster: Cluster, *queue: Request) -> Plan:
    return plan_round(queue, cluster, PlanSettings(policy="packed"), NOW)


def test_a_job_that_needs_a_node_of_another_user_is_passed_by_none() -> None:
    """It has its other node reserved until that user's last such job ends."""
    cluster = nodes_of(
        2, runs("a", 0), runs("b", 0, [0], 50.0), runs("c", 0, [1], 400.0, alone=False)
    )
    wide = job_of(1, 4, "alice", 600.0, 2, 2)
    plan = planned_for(cluster, wide, job_of(2, 4, "bob", 200.0), job_of(3, 1, "bob", 90.0))
    assert [one.shadow_start_s for one in plan.waiting] == [NOW + 100.0, None]
    assert placements(plan).keys() == {"3"}
    assert "jobs that run on n0 keep others off the free GPUs there" in reasons(plan)["1"]
    assert "job 1, which comes first" in reasons(plan)["2"]


def test_on_their_own_node_users_start_jobs() -> None:
    """Also behind one of another user that asks for the same."""
    cluster = nodes_of(2, runs("a", 0), runs("b", 1, [0, 1, 2, 3], alone=False))
    queue = [job_of(n, 1, user, 50.0) for n, user in enumerate(("alice", "alice", "bob"))]
    assert placements(planned_for(cluster, *queue)) == {"2": ((0,), ((0,),))}


@pytest.mark.parametrize("alone", [True, False])
def test_who_keeps_a_node_for_longer_delays_the_job_that_waits_for_it(alone: bool) -> None:
    """A job beside its GPUs that shares nodes does not: the node is open again before it ends."""
    cluster = nodes_of(1, runs("a", 0), runs("b", 0, [0]))
    behind = job_of(2, 1, "bob", 300.0, alone=alone)
    plan = planned_for(cluster, job_of(1, 2, "alice", 600.0), behind)
    assert (placements(plan).keys() == {"2"}) is not alone


@pytest.mark.parametrize(("alone", "kept_off"), [(True, (0,)), (False, ())])
def test_slurm_keeps_such_a_job_off_that_node(alone: bool, kept_off: tuple[int, ...]) -> None:
    """Two of its free GPUs are not reserved."""
    cluster = nodes_of(2, runs("a", 0, [0, 1]))
    cluster = replace(cluster, indexed=~cluster.indexed)
    head = job_of(1, 2, "alice", 600.0, required=(0,))
    behind = slurms(job_of(2, 1, "bob", 300.0, alone=alone), again=True)
    (found,) = planned_for(cluster, head, behind).assignments
    assert (found.nodes, found.kept_off) == ((int(alone),), kept_off)


def test_a_job_whose_gpus_slurm_chooses_is_not_opened_for_such_a_node() -> None:
    cluster = nodes_of(2, runs("a", 0), runs("b", 1, [0, 1, 2, 3], alone=False))
    plan = planned_for(
        cluster, slurms(job_of(1, 1, "alice", 60.0)), slurms(job_of(2, 1, "bob", 50.0))
    )
    assert placements(plan).keys() == {"2"}
    assert "0 are free; jobs that run on n0 keep others off" in reasons(plan)["1"]


def test_a_job_that_shares_no_node_gets_one_without_others() -> None:
    cluster = nodes_of(
        3, runs("a", 0, [0, 1], alone=False, user="carol"), runs("b", 1, alone=False)
    )
    first = job_of(1, 1, "alice", 60.0, alone=True), job_of(2, 1, "alice", 60.0, alone=True)
    plan = planned_for(cluster, *first, job_of(3, 1, "bob", 60.0, alone=True))
    assert {job: nodes for job, (nodes, _) in placements(plan).items()} == {
        "1": (2,),
        "2": (2,),
        "3": (1,),
    }
    more = job_of(4, 1, "dave", 60.0, alone=True)
    plan = planned_for(cluster, *first, more)
    assert "it shares no node with other users, and their jobs run on n0" in reasons(plan)["4"]


def test_others_do_not_pass_a_job_that_waits_for_a_node_without_them() -> None:
    cluster = nodes_of(1, runs("a", 0, [0], alone=False))
    head = job_of(1, 1, "alice", 600.0, alone=True)
    plan = planned_for(cluster, head, job_of(2, 1, "bob", 200.0), job_of(3, 1, "bob", 100.0))
    assert placements(plan).keys() == {"3"}
    assert plan.waiting[0].shadow_start_s == NOW + 100.0


def test_the_next_reservation_begins_when_the_first_one_opens_the_node() -> None:
    cluster = nodes_of(1, runs("a", 0, [0], alone=False))
    queue = job_of(1, 1, "alice", 600.0, alone=True), job_of(2, 1, "bob", 200.0)
    plan = plan_round(queue, cluster, PlanSettings(policy="packed", reservations=2), NOW)
    assert plan.waiting[1].kept is not None
    assert plan.waiting[1].kept.start_s == NOW + 700.0


@pytest.mark.parametrize(("victim", "preempts"), [("bob", False), ("alice", True)])
def test_slurm_preempts_no_job_that_keeps_its_node_from_the_user(victim, preempts) -> None:
    low = runs("a", 0, [0, 1, 2, 3], user=victim, preemptable_by=1.0)
    high = replace(job_of(1, 1, "alice", 60.0), preemption=PreemptionRights(tier=2.0))
    assert (placements(planned_for(nodes_of(1, low), high)).keys() == {"1"}) is preempts


def test_a_recorded_round_is_replayed() -> None:
    queue = job_of(1, 1, "alice", 600.0, alone=True), job_of(2, 1, "bob", 60.0)
    one = Round(queue, nodes_of(1, runs("a", 0)), PlanSettings(policy="packed"), NOW)
    assert replayed(one).placed == {"2": (("n0",), ((0,),))}


@pytest.mark.parametrize(("user", "alone"), [("bob", True), ("alice", True), ("alice", False)])
def test_a_used_gpu_of_such_a_node_is_shared_by_its_user_only(user: str, alone: bool) -> None:
    cluster = sharing(nodes_of(1, runs("a", 0, [3], alone=alone)))
    placed = split_queue([job_of(1, 1, user, 60.0, shards=2)], cluster).placed
    assert bool(placed) is (user == "bob" or not alone)


@pytest.mark.parametrize(("alone", "starts"), [(True, set()), (False, {"2"})])
def test_none_shares_a_gpu_past_the_start_of_a_job_that_shares_no_node(alone, starts) -> None:
    jobs = runs("a", 0, [3], alone=False), runs("b", 0, [2], 50.0, alone=False)
    cluster = sharing(nodes_of(1, *jobs))
    head = job_of(1, 3, "alice", 600.0, alone=alone)
    queue = head, job_of(2, 1, "bob", 300.0, shards=2)
    one = Round(queue, cluster, PlanSettings(policy="packed"), NOW)
    assert placements(plan_stages(one, FEATURES)).keys() == starts


def test_none_shares_a_gpu_beside_one_that_shares_no_node_of_the_same_round() -> None:
    cluster = sharing(nodes_of(1, runs("a", 0, [3], alone=False)))
    first = job_of(1, 1, "bob", 60.0, shards=2, alone=True)
    placed = split_queue([first, job_of(2, 1, "alice", 60.0, shards=2)], cluster).placed
    assert [one.job_id for one in placed] == ["1"]


FORCE, YES, OTHER = Sharing("force", shares=True), Sharing("yes"), Sharing()
ASKED = Sharing("yes", shares=True)  # With --oversubscribe.
SINGLE = Sharing(shares=True)  # FORCE:1.


@pytest.mark.parametrize(
    ("running", "job", "opens"),
    [
        *((FORCE, other, False) for other in (OTHER, YES)),
        *((other, sharing, False) for other in (OTHER, YES) for sharing in (FORCE, ASKED, SINGLE)),
        *((FORCE, sharing, True) for sharing in (FORCE, ASKED, SINGLE)),
        *((SINGLE, other, True) for other in (OTHER, YES, FORCE)),
        (ASKED, OTHER, False),
        (ASKED, YES, True),
    ],
)
def test_who_shares_cpus_and_who_does_not_share_no_node(
    running: Sharing, job: Sharing, opens: bool
) -> None:
    there = runs("a", 0, [0], alone=False, sharing=running)
    kinds = {FORCE, YES, OTHER, ASKED, SINGLE}
    cluster = replace(nodes_of(1, there), users=NodeUsers.of([there], (), 1, kinds))
    head = job_of(1, 1, "bob", 600.0, sharing=job)
    plan = planned_for(cluster, head, job_of(2, 1, "bob", 200.0, sharing=running))
    assert ("1" in placements(plan)) is opens
    if not opens:  # nor does one of the running kind keep the node for longer
        assert plan.waiting[0].shadow_start_s == NOW + 100.0
        assert "2" not in placements(plan)
        assert "jobs that run on n0 keep others off the free GPUs there" in reasons(plan)["1"]


def random_job(rng: random.Random, number: int, nodes: int) -> Request:
    user, alone = rng.choice(["alice", "bob", "carol"]), rng.random() < 0.5
    limit_s, wide = float(rng.randrange(10, 300)), rng.random() < 0.3
    own = job_of(number, 2 * nodes if wide else rng.randrange(1, 5), user, limit_s, alone=alone)
    if wide:
        return replace(own, min_nodes=nodes, max_nodes=nodes)
    return slurms(own, again=rng.random() < 0.5) if rng.random() < 0.3 else own


def starts_of(plan: Plan, queue: Sequence[Request]) -> list[RunningJob]:
    """The jobs that a plan starts, as they run."""
    asked, jobs = {request.job_id: request for request in queue}, []
    for one in plan.assignments:
        job, name = asked[one.job_id], one.job_id
        who = {"user": job.user, "alone": job.nodes.alone}
        jobs.append(RunningJob(name, one.gpus, NOW + job.time_limit_s, **who))
    return jobs


@pytest.mark.parametrize("seed", range(60))
def test_users_share_no_node_and_delay_no_head(seed: int) -> None:
    rng, nodes = random.Random(seed), 3
    queue = [random_job(rng, number, nodes) for number in range(12)]
    there = starts_of(planned_for(nodes_of(nodes), *queue[:6]), queue)
    ids = {job.job_id for job in there}
    plan = planned_for(nodes_of(nodes, *there), *(r for r in queue if r.job_id not in ids))
    there += starts_of(plan, queue)
    for one, other in itertools.combinations(there, 2):
        if (one.alone or other.alone) and one.user != other.user:
            assert one.on_nodes.isdisjoint(other.on_nodes)
    heads = [one for one in plan.waiting if one.turn == "next"]
    for head in heads:
        assert head.shadow_start_s is not None
        request = next(r for r in queue if r.job_id == head.job_id)
        (again,) = planned_for(nodes_of(nodes, *there), request).waiting
        assert again.shadow_start_s is not None
        assert again.shadow_start_s <= head.shadow_start_s
