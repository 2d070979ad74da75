"""Bound requests in a round: GPUs and CPUs of one socket, or Slurm's choice; order of waiting."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from make import job_request, placements, plan_round, replayed

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Sockets
from slurm_gpu_aware.model.request import Memory, PreemptionRights, Request
from slurm_gpu_aware.model.socket_views import views
from slurm_gpu_aware.placement.constraints import OnSockets
from slurm_gpu_aware.placement.policy import make_policy, policy_names
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings

NOW = 1000.0
S0, S1 = (0, 1), (2, 3)
"""GPUs of each socket of 8 cores."""


def socket_nodes(nodes: int = 1, *, scores: Any = None) -> Cluster:
    """Nodes of two sockets with 8 cores and two GPUs each."""
    gpu = np.array([[0, 0, 1, 1]] * nodes)
    free = np.full((nodes, 2), 8)
    sockets = Sockets(
        gpu=gpu,
        cpus=free.copy(),
        free_cpus=free,
        per_core=np.ones(nodes, dtype=np.int64),
        quiet=np.ones(nodes, dtype=np.bool_),
    )
    found = Cluster.uniform(
        nodes, 4, cpus_per_node=16, memory_mb_per_node=64000, scores=scores or {}
    )
    return replace(found, sockets=sockets, cpus=np.full(nodes, 16))


def with_job(
    found: Cluster,
    name: str,
    node: int,
    slots: tuple[int, ...],
    cpus: tuple[int, int],
    end: float = math.inf,
    **fields: Any,
) -> Cluster:
    """A job that runs until ``end``, with these CPUs of each socket."""
    found.take(node, slots, sum(cpus), 0, cpus)
    found.sockets.quiet[node] = True
    gpus = ((node, slots),) if slots else ()
    job = RunningJob(name, gpus, end, cpus={node: sum(cpus)}, socket_cpus={node: cpus}, **fields)
    return replace(found, running=(*found.running, job))


def bound(number: int, gpus: int, cpus: int = 1, **fields: Any) -> Request:
    usual = {"max_nodes": 1, "bound": True, "several": 0}
    return job_request(str(number), gpus, cpus=cpus, **{**usual, **fields})


def free(number: int, gpus: int, cpus: int = 1, **fields: Any) -> Request:
    return job_request(str(number), gpus, cpus=cpus, **{"max_nodes": 1, **fields})


def plan_at(queue: list[Request], where: Cluster) -> Plan:
    """A plan does not change the snapshot."""
    before = where.free.copy(), None if where.sockets is None else where.sockets.free_cpus.copy()
    plan = plan_round(queue, where, PlanSettings(), NOW)
    assert np.array_equal(where.free, before[0])
    assert where.sockets is None or np.array_equal(where.sockets.free_cpus, before[1])
    return plan


# one round ---------------------------------------------------------------------------------------


def test_a_socket_without_enough_cores_gives_no_gpu() -> None:
    """Regression: per node 10 CPUs are free, so GPU 0 was chosen, and the job hung."""
    here = with_job(socket_nodes(), "run", 0, (), (6, 0))
    assert placements(plan_at([bound(1, 1, 4)], here)) == {"1": ((0,), ((2,),))}
    assert placements(plan_at([free(1, 1, 4)], here)) == {"1": ((0,), ((0,),))}


def test_the_faster_socket_is_taken() -> None:
    scores = {"B": np.array([[1.0, 1.5, 1.2, 1.2]])}
    assert placements(plan_at([bound(1, 2)], socket_nodes(scores=scores))) == {"1": ((0,), (S1,))}


def test_where_no_socket_has_both_slurm_chooses() -> None:
    here = with_job(with_job(socket_nodes(), "a", 0, (0,), (1, 0)), "b", 0, (2,), (0, 1))
    (found,) = plan_at([bound(1, 2, 2)], here).assignments
    assert (found.nodes, found.exact) == ((0,), False)
    assert "Slurm chooses its GPUs" in found.why.text


def test_no_job_is_sent_where_slurm_chooses() -> None:
    """Slurm may start the job first, on the GPU that was chosen for the other."""
    here = with_job(with_job(socket_nodes(), "a", 0, (0,), (1, 0)), "b", 0, (2,), (0, 1))
    assert [a.job_id for a in plan_at([bound(1, 2, 2), free(2, 1)], here).assignments] == ["1"]
    idle = plan_at([bound(1, 3), free(2, 1, time_limit_s=1.0)], socket_nodes())
    assert [a.job_id for a in idle.assignments] == ["1"]
    assert idle.waiting[0].shadow_start_s == NOW  # as soon as the other has started
    named_first = plan_at([free(1, 1), bound(2, 3)], socket_nodes())
    assert [a.job_id for a in named_first.assignments] == ["1"]
    two = with_job(with_job(socket_nodes(2), "a", 0, (0,), (1, 0)), "b", 0, (2,), (0, 1))
    two.sockets.quiet[:] = False
    queue = [bound(1, 4, 2, required=(0,)), bound(2, 4, 2, required=(1,))]
    assert plan_at(queue, two).assignments == ()


def test_slurm_wants_the_cpus_on_the_sockets_of_the_gpus() -> None:
    """One GPU and ten CPUs: its socket has eight."""
    result = plan_at([bound(1, 1, 10)], socket_nodes())
    assert result.assignments == ()
    assert result.waiting[0].infeasible
    assert "enforce-binding" in result.waiting[0].reason


def test_cores_of_an_unknown_job_may_come_back() -> None:
    here = socket_nodes()
    here.sockets.free_cpus[:] = 0
    assert not plan_at([bound(1, 1)], here).waiting[0].infeasible


def test_two_jobs_that_fill_their_socket_get_one_each() -> None:
    queue = [bound(n, 1, fills=True) for n in (1, 2)]
    slots = [a.slots[0][0] // 2 for a in plan_at(queue, socket_nodes()).assignments]
    assert sorted(slots) == [0, 1]


def test_a_third_job_has_no_cores_beside_jobs_that_fill_their_sockets() -> None:
    for more, third, started in (
        ({"fills": True}, bound(3, 1), 2),
        ({"fills": True}, free(3, 1), 2),  # of the node none is left
        ({}, bound(3, 1), 3),
    ):
        queue = [bound(1, 1, **more), bound(2, 1, **more), third]
        assert len(plan_at(queue, socket_nodes()).assignments) == started


def test_a_job_that_fills_its_socket_takes_memory_with_each_cpu() -> None:
    queue = [bound(1, 1, fills=True, memory=Memory(per_cpu_mb=500))]
    here = socket_nodes()
    result = plan_at([*queue, free(2, 1, memory=Memory(per_node_mb=60001))], here)
    assert [a.job_id for a in result.assignments] == ["1"]
    result = plan_at([*queue, free(2, 1, memory=Memory(per_node_mb=60000))], here)
    assert [a.job_id for a in result.assignments] == ["1", "2"]


def test_others_take_cores_beside_their_gpus() -> None:
    here = socket_nodes()
    result = plan_at([free(1, 1, 6), bound(2, 1, 4)], here)
    first, second = (a.slots[0][0] // 2 for a in result.assignments)
    assert first != second


def test_on_several_nodes_the_same_gpus_of_one_socket() -> None:
    here = with_job(socket_nodes(2), "run", 1, (0,), (1, 0))
    asked = bound(1, 4, 8, min_nodes=2, max_nodes=2, gpus_per_node=2)
    assert placements(plan_at([asked], here)) == {"1": ((0, 1), (S1, S1))}


def test_the_flag_changes_nothing_where_sockets_are_not_known() -> None:
    here = replace(socket_nodes(), sockets=None)
    asked, plain = (placements(plan_at([kind(1, 1, 10)], here)) for kind in (bound, free))
    assert asked == plain != {}


# later -------------------------------------------------------------------------------------------


def test_a_head_waits_for_cores_of_a_socket() -> None:
    """GPUs are free from the start; six of eight cores of both sockets are not."""
    here = with_job(socket_nodes(), "short", 0, (), (6, 0), NOW + 100)
    here = with_job(here, "long", 0, (), (0, 6), NOW + 500)
    (waiting,) = plan_at([bound(1, 1, 4)], here).waiting
    assert waiting.shadow_start_s == NOW + 100
    assert "reserved: n0 GPU 0" in waiting.reason


@pytest.mark.parametrize("kind", [free, bound])
@pytest.mark.parametrize(("limit", "reserved"), [(100.0, False), (101.0, True)])
def test_a_job_that_outlasts_its_start_leaves_the_heads_cores(
    kind: Callable[..., Request], limit: float, reserved: bool
) -> None:
    """The head gets GPU 0 and all cores of socket 0. GPU 1 is not reserved, its cores are:
    Slurm takes cores beside the GPU first, also for a job that does not ask for it."""
    here = with_job(socket_nodes(), "short", 0, (), (4, 0), NOW + 100)
    here = with_job(here, "long", 0, (2,), (0, 1), NOW + 900)
    head = bound(1, 1, 8, priority=9)
    beside = kind(2, 1, 2, time_limit_s=limit)
    assert placements(plan_at([head, beside], here)) == {"2": ((0,), ((3 if reserved else 0,),))}


@pytest.mark.parametrize("head", [bound(1, 1, 6, priority=9), free(1, 1, 6, priority=9)])
@pytest.mark.parametrize(("limit", "reserved"), [(100.0, False), (101.0, True)])
def test_a_job_that_fills_its_socket_takes_no_reserved_cores(
    head: Request, limit: float, reserved: bool
) -> None:
    """It asks for one CPU, two would be left beside the head, and Slurm gives it all four."""
    here = with_job(socket_nodes(), "short", 0, (0,), (4, 0), NOW + 100)
    here = with_job(here, "long", 0, S1, (0, 8))
    fills = bound(2, 1, time_limit_s=limit, fills=True)
    result = plan_at([head, fills], here)
    assert placements(result) == ({} if reserved else {"2": ((0,), ((1,),))})
    assert result.waiting[0].shadow_start_s == NOW + 100


@pytest.mark.parametrize(("memory_mb", "fits"), [(60000, True), (60001, False)])
def test_a_job_that_fills_its_socket_takes_no_reserved_memory(memory_mb: int, fits: bool) -> None:
    """It would get 8 CPUs with 500 MB each of the 64000 MB of the node."""
    here = with_job(socket_nodes(), "short", 0, S0, (8, 0), NOW + 100)
    here = with_job(here, "long", 0, (2,), (0, 0))
    head = bound(1, 2, 8, memory=Memory(per_node_mb=memory_mb), priority=9)
    fills = bound(2, 1, fills=True, memory=Memory(per_cpu_mb=500))
    assert placements(plan_at([head, fills], here)) == ({"2": ((0,), ((3,),))} if fits else {})


@pytest.mark.parametrize("when", ["in an earlier round", "in this round"])
def test_a_job_just_placed_does_not_last_until_the_reservation(when: str) -> None:
    """Otherwise the head, which needs both sockets, has no reservation, and later jobs delay it."""
    here = with_job(socket_nodes(), "a", 0, (0,), (1, 0), NOW + 100)
    queue = [bound(1, 4, 4, priority=9), free(2, 1, time_limit_s=1e6)]
    if when == "in this round":
        queue = [free(3, 1, priority=10, time_limit_s=60.0), *queue]
    else:
        here = with_job(here, "3", 0, (1,), (1, 0), NOW + 50)
        here.sockets.quiet[:] = False
    result = plan_at(queue, here)
    assert set(placements(result)) == ({"3"} if when == "in this round" else set())
    assert result.waiting[0].shadow_start_s == NOW + 100


def test_victims_give_back_cores() -> None:
    here = with_job(socket_nodes(), "a", 0, S0, (8, 0), preemptable_by=1.0)
    here = with_job(here, "b", 0, S1, (0, 4), preemptable_by=1.0)
    (found,) = plan_at([bound(1, 2, 8, preemption=PreemptionRights(tier=2.0))], here).assignments
    assert (len(found.victims), found.exact) == (1, True)
    assert found.slots in ((S0,), (S1,))


def test_cores_that_a_pushing_job_takes_are_given_once() -> None:
    """It takes six of its victim and the two free ones."""
    here = with_job(socket_nodes(), "a", 0, (0,), (6, 0), preemptable_by=1.0)
    here = with_job(here, "b", 0, S1, (0, 1))
    result = plan_at([bound(1, 1, 8, preemption=PreemptionRights(tier=2.0)), bound(2, 1, 1)], here)
    assert [(a.job_id, a.victims) for a in result.assignments] == [("1", ("a",))]


def test_cores_that_victims_leave_over_are_free_as_soon_as_they_are_gone() -> None:
    here = with_job(socket_nodes(), "a", 0, (0,), (8, 0), preemptable_by=1.0)
    here = with_job(here, "b", 0, S1, (0, 8))
    result = plan_at([bound(1, 1, 2, preemption=PreemptionRights(tier=2.0)), bound(2, 1, 4)], here)
    assert [(a.job_id, a.victims) for a in result.assignments] == [("1", ("a",))]
    assert result.waiting[0].shadow_start_s == NOW


def test_no_job_is_preempted_for_gpus_that_slurm_chooses() -> None:
    here = with_job(socket_nodes(), "a", 0, (0,), (1, 0), preemptable_by=1.0)
    assert plan_at([bound(1, 4, 2, preemption=PreemptionRights(tier=2.0))], here).assignments == ()


def test_a_round_with_sockets_is_recorded() -> None:
    here = with_job(socket_nodes(2), "run", 0, (0,), (6, 0), NOW + 50)
    queue = [bound(1, 1, 4), bound(2, 2, 8)]
    again = replayed(Round(queue, here, PlanSettings(), NOW))
    assert len(again.placed) == 2
    assert again.asked.cluster.running[0].socket_cpus == {0: (6, 0)}


# against counting by hand ------------------------------------------------------------------------


def random_cluster(random: Random) -> Cluster:
    here = socket_nodes(2)
    for node in range(2):
        for slot in range(4):
            here.free[node, slot] = random.random() < 0.6
        here.sockets.free_cpus[node] = [random.randint(0, 8), random.randint(0, 8)]
        here.free_cpus[node] = here.sockets.free_cpus[node].sum()
        here.sockets.quiet[node] = random.random() < 0.8
    return here


def by_name(here: Cluster, gpus: int, cpus: int) -> set[tuple[int, tuple[int, ...]]]:
    """Every set of GPUs of one node and socket with the CPUs beside it."""
    return {
        (node, slots)
        for node in range(here.shape[0])
        for slots in combinations(range(4), gpus)
        if here.free[node, list(slots)].all()
        and len({slot // 2 for slot in slots}) == 1
        and here.sockets.free_cpus[node, slots[0] // 2] >= cpus
    }


def by_slurm(here: Cluster, gpus: int, cpus: int) -> set[int]:
    """Nodes where Slurm finds enough, from the socket with the most cores on."""
    found = set()
    for node in range(here.shape[0]):
        cores = here.sockets.free_cpus[node].tolist()
        got = beside = 0
        for socket in sorted((0, 1), key=lambda s: -cores[s]):
            there = int(here.free[node, 2 * socket : 2 * socket + 2].sum())
            if got < gpus and there and cores[socket]:
                got, beside = got + there, beside + cores[socket]
        if got >= gpus and beside >= cpus and here.sockets.quiet[node]:
            found.add(node)
    return found


@pytest.mark.parametrize("policy", ["pal+mapa", "packed", "random"])
def test_small_clusters_by_hand(policy: str) -> None:
    random = Random(5)
    chosen = make_policy(policy)
    seen = {"named": 0, "by Slurm": 0, "nowhere": 0}
    for _ in range(300):
        here = random_cluster(random)
        gpus, cpus = random.randint(1, 4), random.randint(1, 10)
        found: Assignment | None = OnSockets(chosen).place(bound(1, gpus, cpus), here)
        named = by_name(here, gpus, cpus)
        others = by_slurm(here, gpus, cpus) if gpus > 1 else set()
        if found is None:
            assert not named
            assert not others
            seen["nowhere"] += 1
        elif found.exact:
            assert (found.nodes[0], found.slots[0]) in named
            seen["named"] += 1
        else:
            assert not named
            assert found.nodes[0] in others
            seen["by Slurm"] += 1
    assert min(seen.values()) >= 20, seen


def test_every_policy_keeps_to_the_socket() -> None:
    for policy in policy_names():
        here = with_job(socket_nodes(), "run", 0, (), (6, 0))
        found = OnSockets(make_policy(policy)).place(bound(1, 2, 4), here)
        assert found is not None, policy
        assert (found.slots, found.exact) == ((S1,), True), policy


def test_views_need_sockets() -> None:
    with pytest.raises(ValueError, match="not known"):
        list(views(bound(1, 1), replace(socket_nodes(), sockets=None)))


def spread(number: int, per_socket: int, sockets: int, nodes: int = 1) -> Request:
    """``--gpus-per-socket`` with ``--sockets-per-node``."""
    each = per_socket * sockets
    counts = {"gpus_per_node": each, "min_nodes": nodes, "max_nodes": nodes}
    return job_request(str(number), each * nodes, gpus_each=per_socket, **counts)


SLOW = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 5.0]])


@pytest.mark.parametrize("policy", policy_names())
def test_each_socket_gives_its_gpus(policy: str) -> None:
    """GPU 0 is busy on the first node, GPU 3 is slow on the second."""
    here = with_job(socket_nodes(2, scores={"B": SLOW}), "running", 0, (0,), (1, 0))
    place = OnSockets(make_policy(policy)).place
    one = place(spread(1, 1, 2), here)
    assert {slot // 2 for slot in one.slots[0]} == {0, 1}
    same = place(spread(2, 2, 1), here)
    assert sorted(same.slots[0]) in ([0, 1], [2, 3])
    two = place(spread(3, 1, 2, nodes=2), here)
    assert all(0 not in slots and {s // 2 for s in slots} == {0, 1} for slots in two.slots)
    assert place(spread(4, 2, 2, nodes=2), here) is None


def test_the_fastest_gpus_of_each_socket_are_chosen() -> None:
    here = socket_nodes(scores={"B": np.array([[2.0, 1.0, 1.0, 2.0]])})
    found = OnSockets(make_policy("pal")).place(spread(1, 1, 2), here)
    assert sorted(found.slots[0]) == [1, 2]


def test_a_round_says_why_sockets_hold_no_more() -> None:
    here = with_job(socket_nodes(), "running", 0, (0, 1), (1, 0))
    found = plan_at([spread(1, 1, 2)], here)
    assert found.assignments == ()
    assert "not as many on each socket" in found.waiting[0].reason
