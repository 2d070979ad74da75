"""Jobs without GPUs wait for no turn: what they delay is kept for who came before them."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import job_request, placements, plan_round, with_fields, with_running

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.node_users import NodeUsers
from slurm_gpu_aware.model.request import Cpus, LeftToSlurm, Memory, NodeRules, Part, Request
from slurm_gpu_aware.planning.guard import guarded
from slurm_gpu_aware.planning.plan import Plan, PlanSettings

NOW = 10_000.0
HOUR = 3600.0
HEAD = job_request(
    "1",
    4,
    max_nodes=1,
    cpus=8,
    time_limit_s=10 * HOUR,
    priority=5.0,
    submit_s=NOW - 900.0,
    user="alice",
)


def behind(number: int, hours: float, gpus: int = 1, **fields: Any) -> Request:
    given = {"max_nodes": 1, "submit_s": NOW - 60.0, **fields}
    return job_request(str(number), gpus, time_limit_s=hours * HOUR, **given)


def holding(node: int, slots: tuple[int, ...], hours: float, cpus: int = 1) -> RunningJob:
    """A GPU job."""
    return RunningJob(f"g{node}", ((node, slots),), NOW + hours * HOUR, cpus={node: cpus})


def passing(node: int, **fields: Any) -> RunningJob:
    """A job of bob's without GPUs, of most of a node for ten hours."""
    given = {"cpus": {node: 12}, "start_s": NOW - 600.0, "standing": 1.0, "user": "bob", **fields}
    return RunningJob(f"c{node}", (), NOW + 10 * HOUR, **given)


def cluster_beside(nodes: int, *running: RunningJob) -> Cluster:
    cluster = with_running(Cluster.uniform(nodes, 4, cpus_per_node=16), *running)
    for job in running:
        for node, cpus in job.cpus.items():
            if not job.gpus:
                cluster.free_cpus[node] -= cpus
    return cluster


def round_plan(cluster: Cluster, *queue: Request, **settings: Any) -> Plan:
    return plan_round(queue, cluster, PlanSettings(policy="packed", **settings), NOW)


def held_nodes(cluster: Cluster, head: Request, *behind: Request) -> dict[str, Any]:
    """Node -> what is held there for the head against jobs without GPUs."""
    plan = round_plan(cluster, head, *behind)
    return guarded(plan, cluster, {"1": head}, NOW, passing=False)


@pytest.mark.parametrize(
    ("passing_job", "started"),
    [
        ({}, ["3"]),
        ({"standing": HEAD.priority}, ["3"]),  # as where priorities do not differ
        ({"standing": HEAD.priority + 1}, ["2"]),  # it comes before the head
        ({"start_s": HEAD.submit_s - 1}, ["2"]),  # it was there before
        ({"start_s": HEAD.submit_s}, ["3"]),  # Slurm has whole seconds
        ({"standing": float("inf")}, ["2"]),
    ],
)
def test_who_ends_by_the_limit_of_a_job_that_passed_the_head_does_not_start(
    passing_job: dict[str, Any], started: list[str]
) -> None:
    """Without that job the head would start in an hour, and it may end at any time."""
    cluster = cluster_beside(1, holding(0, (0, 1, 2), 1.0), passing(0, **passing_job))
    plan = round_plan(cluster, HEAD, behind(2, 8.0), behind(3, 0.9))
    assert [*placements(plan)] == started
    assert plan.waiting[0].shadow_start_s == NOW + 10 * HOUR


@pytest.mark.parametrize(("hours", "started"), [(1.9, ["2"]), (2.1, [])])
def test_no_job_behind_delays_the_head_for_longer_than_who_passed_it(
    hours: float, started: list[str]
) -> None:
    """Bob's job has held up the head for two hours, and may go on for eight."""
    cluster = cluster_beside(1, passing(0, start_s=NOW - 2 * HOUR))
    head = replace(HEAD, submit_s=NOW - 3 * HOUR)
    plan = round_plan(cluster, head, behind(2, hours))
    assert [*placements(plan)] == started
    assert "; sooner if jobs without GPUs end there" in plan.waiting[0].reason
    kept = [one.reason for one in plan.waiting[1:]]
    early = "would fit now, but job 1 comes first and starts as soon as jobs without GPUs end"
    assert kept == ([] if started else [early])


def test_a_head_that_was_held_counts_from_when_it_was_not() -> None:
    cluster = cluster_beside(1, holding(0, (0, 1, 2), 1.0), passing(0))
    head = replace(HEAD, wait=replace(HEAD.wait, ineligible_s=500.0))
    assert [*placements(round_plan(cluster, head, behind(2, 8.0)))] == ["2"]


def test_what_the_head_waits_for_now_is_kept_as_well() -> None:
    """n0, as if the job had not come, and n1, where the head starts in two hours if it stays."""
    cluster = cluster_beside(2, passing(0), holding(1, (0, 1, 2), 2.0))
    queue = [HEAD, behind(2, 8.0), behind(3, 8.0, eligible=np.array([False, True]))]
    plan = round_plan(cluster, *queue, behind(4, 1.9), reservations=4)
    assert {job: nodes for job, (nodes, _) in placements(plan).items()} == {"4": (1,)}
    assert plan.waiting[0].shadow_start_s == NOW + 2 * HOUR


def test_a_node_of_another_user_is_kept_too() -> None:
    """Bob's job of one CPU shares its node with no other user."""
    bobs = passing(0, cpus={0: 1}, alone=True)
    cluster = cluster_beside(1, bobs)
    cluster = replace(cluster, users=NodeUsers.of([bobs], {"alice", "bob"}, 1))
    head = replace(HEAD, user="alice")
    assert not placements(round_plan(cluster, head, behind(2, 8.0, user="bob")))


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ([passing(0)], {"n0": (4, 4, True, 8)}),
        ([replace(passing(0, cpus={0: 0}), end_s=NOW - 1.0)], {}),  # nothing holds the head up
        ([replace(passing(0), end_s=NOW - 1.0)], {"n0": (4, 4, True, 8)}),  # it is ending
        ([holding(0, (0,), 2.0), passing(0)], {}),  # a GPU job ends later
        ([passing(0, start_s=HEAD.submit_s - 1.0)], {}),
        ([passing(0, user=HEAD.user)], {}),  # its own user let it start
    ],
)
def test_while_only_such_jobs_hold_up_the_head_its_share_is_held(
    running: list[RunningJob], expected: dict[str, Any]
) -> None:
    """So no more of them start there, as by plain Slurm, and no GPU job."""
    assert held_nodes(cluster_beside(1, *running), HEAD, behind(2, 8.0)) == expected


def test_all_nodes_of_the_head_are_held_while_a_job_on_one_of_them_ends() -> None:
    """A job kept off until then would start on the others before the head."""
    cluster = cluster_beside(2, replace(passing(0), end_s=NOW - 1.0))
    head = replace(HEAD, gpus=8, min_nodes=2, max_nodes=2, cpus=replace(HEAD.cpus, total=16))
    assert held_nodes(cluster, head).keys() == {"n0", "n1"}


def test_of_a_node_that_waits_for_its_user_all_is_held() -> None:
    """There one CPU is enough to keep the others from it."""
    bobs = passing(0, cpus={0: 1}, alone=True)
    cluster = replace(cluster_beside(1, bobs), users=NodeUsers.of([bobs], {"alice", "bob"}, 1))
    assert held_nodes(cluster, replace(HEAD, user="alice")) == {"n0": (4, 4, True, None)}


def test_beside_such_a_job_all_nodes_that_the_head_waits_for_are_held() -> None:
    """The same user's next job of one CPU could close a node that is still open to the head."""
    bobs = passing(0, cpus={0: 1}, alone=True)
    other = passing(1, cpus={1: 13})
    users = NodeUsers.of([bobs, other], {"bob"}, 2)
    cluster = replace(cluster_beside(2, bobs, other), users=users)
    head = replace(HEAD, gpus=8, min_nodes=2, max_nodes=2, user="alice")
    assert held_nodes(cluster, head) == dict.fromkeys(("n0", "n1"), (4, 4, True, None))


@pytest.mark.parametrize(
    ("memory", "cpus"),
    [(Memory(40), None), (Memory(20), 8), (Memory(whole=True), None), (Memory(), 8)],
)
def test_nodes_are_held_whole_for_a_head_that_lacks_memory_on_one(memory, cpus) -> None:
    """No memory can be held, and a job of one CPU may ask for all of it."""
    cluster = cluster_beside(2, passing(0, memory_mb={0: 70}), passing(1))
    cluster = replace(cluster, memory_mb=np.full(2, 100))
    cluster.free_memory_mb[:] = 30, 100
    head = replace(HEAD, gpus=8, min_nodes=2, max_nodes=2, memory=memory)
    head = replace(head, cpus=replace(HEAD.cpus, total=16))
    assert held_nodes(cluster, head) == dict.fromkeys(("n0", "n1"), (4, 4, True, cpus))


def test_the_next_jobs_with_a_reservation_are_kept_from_passing_too() -> None:
    """The head waits for n0; the second job would start on n1 in an hour."""
    cluster = cluster_beside(
        2, holding(0, (0, 1, 2, 3), 20.0), holding(1, (0, 1, 2), 1.0), passing(1)
    )
    head = replace(HEAD, nodes=replace(HEAD.nodes, eligible=np.array([True, False])))
    second = replace(HEAD, job_id="2", priority=4.0)
    queue = [head, second, behind(3, 8.0), behind(4, 0.9)]
    assert [*placements(round_plan(cluster, *queue))] == ["3"]
    assert [*placements(round_plan(cluster, *queue, reservations=2))] == ["4"]


def test_no_job_behind_delays_the_head_when_those_without_gpus_end_at_once() -> None:
    """Random clusters: the head's start on the cluster without them, before and after the round.

    Jobs behind may delay it for as long as those have, which is ten minutes.
    """
    rng, held_up, started = random.Random(5), 0, 0
    for _ in range(150):
        running = [
            RunningJob(f"g{n}", ((n, tuple(range(k))),), NOW + rng.random() * HOUR, cpus={n: k})
            for n in range(3)
            if (k := rng.randrange(5))
        ]
        passed = [passing(n, cpus={n: rng.randint(1, 12)}) for n in range(3) if rng.random() < 0.7]
        head = replace(HEAD, gpus=rng.randint(1, 4), cpus=Cpus(rng.randint(4, 16)))
        queue = [
            behind(n, rng.random() * 12, rng.randint(1, 4), cpus=rng.randint(1, 4))
            for n in range(2, 8)
        ]
        plan = round_plan(cluster_beside(3, *running, *passed), head, *queue, reservations=2)
        if any(one.job_id == head.job_id for one in plan.assignments):
            continue
        asked = {one.job_id: one for one in queue}
        begun = [
            RunningJob(
                a.job_id,
                a.gpus,
                NOW + asked[a.job_id].time_limit_s,
                cpus={a.nodes[0]: asked[a.job_id].cpus.total},
            )
            for a in plan.assignments
        ]
        before = start_of(head, cluster_beside(3, *running))
        after = start_of(head, cluster_beside(3, *running, *begun))
        assert after <= max(before, NOW + 600.0)
        held_up += before < (plan.waiting[0].shadow_start_s or 0.0)
        started += len(begun)
    assert held_up > 20
    assert started > 20


def start_of(job: Request, cluster: Cluster) -> float:
    """When a job alone would start at the latest."""
    plan = round_plan(cluster, job)
    return NOW if plan.assignments else plan.waiting[0].shadow_start_s or 0.0


def outside(priority: float, cpus: int = 1, **fields: Any) -> Request:
    """A pending job without GPUs, which waits at no gate."""
    part = Part(0, None, 1, None, cpus=cpus, tasks=1, **fields)
    left = LeftToSlurm("", (part,))
    return Request("9", 1, app_class="", priority=priority, user="carol", left=left)


@pytest.mark.parametrize(
    ("others", "held"),
    [
        ([], {"n0": None, "n1": None}),
        ([outside(HEAD.priority)], {"n0": None, "n1": None}),
        # Of nodes that do as well one, and there no more than it needs
        ([outside(HEAD.priority + 1.0)], {"n0": 15, "n1": None}),
        ([outside(HEAD.priority + 1.0, 16)], {"n0": 0, "n1": None}),
        ([outside(HEAD.priority + 1.0, 17)], {"n0": None, "n1": None}),  # no node has room for it
        ([outside(HEAD.priority + 1.0, 16)] * 2, {"n0": 0, "n1": 0}),
        (
            [outside(HEAD.priority + 1.0, 6)] * 2,
            {"n0": 4, "n1": None},
        ),  # one node has room for both
        ([outside(HEAD.priority + 1.0, whole=True)], {"n1": None}),
        ([replace(outside(HEAD.priority + 1.0), nodes=NodeRules(alone=True))], {"n1": None}),
        (
            [outside(HEAD.priority - 1.0, 16), outside(HEAD.priority + 1.0, 16)],
            {"n0": 0, "n1": None},
        ),
    ],
)
def test_no_node_is_held_against_a_job_that_comes_before_the_head(
    others: list[Request], held: dict[str, int | None]
) -> None:
    """The head needs three whole nodes; one job of bob's holds it up on the last of them."""
    cluster = cluster_beside(3, passing(2))
    cluster = replace(cluster, cpus=np.full(3, 16))
    whole = NodeRules(whole=True)
    head = replace(HEAD, gpus=12, min_nodes=3, max_nodes=3, nodes=whole)
    plan = round_plan(cluster, head)
    kept = guarded(plan, cluster, {"1": head}, NOW, passing=False, outside=others)
    assert {node: one.cpus for node, one in kept.items() if node != "n2"} == held
    assert all(one.cpus is None or one.gpus <= one.cpus for one in kept.values())


@pytest.mark.parametrize(
    ("cpus", "held"),
    [(11, (4, 3, True, 0)), (13, (0, 0, False, 2)), (15, (0, 0, False, 0)), (16, (4, 3, True, 0))],
)
def test_beside_a_share_there_is_room_for_who_comes_before(cpus: int, held: Any) -> None:
    """GPUs are kept for the head, with a core each; a GPU job has one of 16."""
    cluster = cluster_beside(1, holding(0, (0,), 2.0))
    cluster.free_cpus[0] = 15
    plan, others = round_plan(cluster, HEAD), [outside(9.0, cpus)]
    kept = guarded(plan, cluster, {"1": HEAD}, NOW, passing=True, outside=others)
    assert kept.get("n0") == held


def test_what_the_round_gives_away_is_not_free_for_who_comes_before() -> None:
    """Job 2 gets n0, so bob's four CPUs of n1 are all that there is."""
    cluster = cluster_beside(2, passing(1))
    head = with_fields(HEAD, eligible=np.array([False, True]))
    second = behind(2, 0.5, 4, cpus=16, eligible=np.array([True, False]))
    plan = round_plan(cluster, head, second)
    assert [*placements(plan)] == ["2"]
    queue = {"1": head, "2": second}
    kept = guarded(plan, cluster, queue, NOW, passing=False, outside=[outside(9.0, 4)])
    assert kept == {"n1": (0, 0, False, 0)}


def test_what_ends_is_held_too() -> None:
    """Two CPUs are free, and two of a job that is ending; who comes before needs two."""
    ending = RunningJob("e", (), NOW - 1.0, cpus={0: 2})
    cluster = cluster_beside(1, passing(0), ending)
    plan, others = round_plan(cluster, HEAD), [outside(9.0, 2)]
    kept = guarded(plan, cluster, {"1": HEAD}, NOW, passing=False, outside=others)
    assert kept == {"n0": (0, 0, False, 2)}


@pytest.mark.parametrize(
    ("hours", "above", "held"),
    [
        (1.9, -math.inf, (0, 0, False, 2)),
        (1.9, 0.5, (0, 0, False, 2)),
        (2.1, -math.inf, (4, 3, True, 0)),  # past the start of the head
        (1.9, 1.0, (4, 3, True, 0)),  # a job of one GPU could start in its place
    ],
)
def test_who_ends_before_the_head_starts_is_not_kept_off(
    hours: float, above: float, held: tuple[int, int, bool, int]
) -> None:
    cluster = cluster_beside(1, holding(0, (0,), 2.0))
    cluster.free_cpus[0] = 15
    plan, queue = round_plan(cluster, HEAD), {"1": HEAD}
    short = replace(outside(1.0, 13), time_limit_s=hours * HOUR)
    kept = guarded(plan, cluster, queue, NOW, passing=True, above=above, outside=[short])
    assert kept == {"n0": held}


def test_each_of_two_gpu_jobs_before_the_head_gets_a_node() -> None:
    cluster = cluster_beside(3, passing(2))
    head = replace(HEAD, gpus=12, min_nodes=3, max_nodes=3, cpus=Cpus(24))
    left = LeftToSlurm("", (Part(4, 4, 1, 1, cpus=1),))
    others = [replace(outside(9.0), job_id=job, gpus=4, left=left) for job in ("8", "9")]
    plan = round_plan(cluster, head)
    kept = guarded(plan, cluster, {"1": head}, NOW, passing=False, outside=others)
    assert [*kept] == ["n2"]
