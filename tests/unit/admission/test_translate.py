"""A parked job as the planner's request: which partition, how many nodes, what is left to Slurm."""

import math
from dataclasses import replace
from typing import Any

import pytest
from cpu_time import least_cpu_s
from make import (
    NOW,
    SLURM,
    asked,
    context_of,
    nodes_for,
    request_of,
    slurm_job,
    slurm_node,
    why_left,
)

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.sizes import default_cpus, least_with_gpus
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.slurm.records import GpuDefaults, SlurmReservation

# -p a,b ------------------------------------------------------------------------------------------

TWO = [slurm_node("n1"), slurm_node("n2")]
FOUR = [slurm_node(f"n{i}") for i in range(1, 5)]
A_B = {"a": ["n1", "n2"], "b": ["n3", "n4"]}
ONE_GPU = {"gpus": (("g0", 1),), "used": (0,)}
USED = {"used": (0, 1, 2, 3)}
CHOICES = {
    "features": ({}, {}, {"features": frozenset({"big"})}, asked(features="big")),
    "excluded nodes": ({}, {}, {}, asked(exc_nodes="n1,n2")),
    "required nodes": ({}, {}, {}, asked(req_nodes="n3")),
    "free GPUs of one node": ({"used": (0, 1, 2)}, {"used": (0, 1, 2)}, {}, asked("gpu:2")),
    "one index on two nodes": ({"used": (1, 2, 3)}, {"used": (0, 2, 3)}, {}, asked(nodes=(2, 2))),
    "free CPUs and memory": ({"cpus_used": 16}, {"memory_used_mb": 64000}, {}, asked()),
    "what it can hold, where none is free": (ONE_GPU, ONE_GPU, USED, asked("gpu:2")),
    "whole nodes": ({"used": (0,)}, {"cpus_used": 1}, {}, asked(exclusive=True)),
}
"""What n1 and n2 of partition a are like, what those of b, and what a job asks for."""


@pytest.mark.parametrize(("n1", "n2", "others", "original"), CHOICES.values(), ids=CHOICES)
def test_the_partition_that_suits_the_request_is_chosen(n1, n2, others, original: OriginalRequest):
    first = [slurm_node("n1", **n1), slurm_node("n2", **n2)]
    where = context_of([*first, slurm_node("n3", **others), slurm_node("n4", **others)], A_B)
    assert nodes_for(where, original, partitions=("a", "b"), cpus=4) == {"n3", "n4"}


@pytest.mark.parametrize("nodes", [None, (1, 1), (1, 2)])
def test_more_required_nodes_than_it_may_have_are_left_to_slurm(nodes: tuple[int, int] | None):
    """``-N1 -w n[1-2]``: Slurm drops required nodes; at the gate the job would wait for ever."""
    original = asked("gpu:1", nodes=nodes, req_nodes="n[1-3]")
    assert "more nodes than it may have" in why_left(slurm_job(), original, context_of(FOUR))


def test_a_reservation_chooses_the_partition():
    kept = SlurmReservation("maintenance", NOW + 60, NOW + 600, frozenset({"n1", "n2"}), cpus=32)
    where = context_of(FOUR, A_B, [kept])
    assert nodes_for(where, partitions=("a", "b")) == {"n3", "n4"}


def test_the_first_partition_that_has_room_is_taken_in_the_order_of_the_tiers():
    where = context_of(FOUR, A_B)
    assert nodes_for(where, partitions=("a", "b")) == {"n1", "n2"}
    above = {**where.partitions, "b": replace(where.partitions["b"], priority_tier=5)}
    where = replace(where, partitions=above)
    assert nodes_for(where, partitions=("a", "b")) == {"n3", "n4"}


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({}, (False, False, False)),
        ({"exclusive": True}, (True, False, False)),
        ({"exclusive_user": True}, (False, True, False)),
        ({"jobs_on_cpu": 4, "oversubscribes": True}, (False, False, True)),
    ],
)
def test_what_one_partition_brings_counts_in_all(fields, rules):
    """Slurm may start the job there, whatever the partition in which it is planned."""
    where = context_of(FOUR, A_B, told={"b": fields})
    nodes = request_of(slurm_job(partitions=("a", "b")), asked("gpu:1"), where).nodes
    assert (nodes.whole, nodes.alone, nodes.sharing.shares) == rules


# CPUs --------------------------------------------------------------------------------------------


def test_nodes_of_another_partition_do_not_count_for_its_cpus():
    others = [slurm_node("fat", cpus=64), slurm_node("login", cpus=96, gpus=())]
    where = context_of([*FOUR, *others], {"gpu": ["n1", "n2", "n3", "login"], "big": ["fat"]})
    request = request_of(slurm_job(cpus=40), asked(num_tasks=40), where)
    assert (request.min_nodes, request.gpus) == (3, 3)


def test_a_wide_node_that_is_down_is_not_waited_for():
    where = context_of([*TWO, slurm_node("fat", cpus=64, states=frozenset({"DOWN"}))])
    assert request_of(slurm_job(cpus=20), asked(num_tasks=20), where).min_nodes == 2


@pytest.mark.parametrize("away", ["DOWN", "reserved"])
@pytest.mark.parametrize(
    ("record", "original"),
    [
        ({"cpus": 40, "cpus_per_task": 40}, asked(cpus_per_task=40)),
        ({"cpus": 40, "min_cpus_node": 40}, asked()),
    ],
)
def test_a_task_that_only_a_node_that_is_away_can_hold_is_not_cut_in_parts(
    record: dict[str, object], original: OriginalRequest, away: str
):
    """It would be planned on three nodes, with a GPU on each, and called impossible there."""
    kept = SlurmReservation("maintenance", NOW, NOW + 600, frozenset({"fat"}), cpus=64)
    states = frozenset({"DOWN" if away == "DOWN" else "IDLE"})
    fat = slurm_node("fat", cpus=64, states=states)
    where = context_of([*TWO, fat], None, [kept] if away == "reserved" else [])
    request = request_of(slurm_job(**record), original, where)
    assert (request.min_nodes, request.gpus, request.total_cpus) == (1, 1, 40)


@pytest.mark.parametrize(
    ("full", "small", "nodes"),
    [
        ({}, {}, 4),
        ({"memory_used_mb": 1}, {}, 3),
        ({}, {"memory_mb": 32000}, 3),
        ({"memory_used_mb": 1}, {"memory_mb": 32000}, 2),
        ({}, {"gpus": (("v100", 4),), "memory_mb": 32000}, 3),
    ],
)
def test_a_range_of_nodes_counts_those_with_all_that_it_needs(
    full: dict[str, object], small: dict[str, object], nodes: int
):
    """--nodes=2-4 --mem=64000: nodes with free GPUs alone are not enough."""
    here = [slurm_node("n1"), slurm_node("n2"), slurm_node("n3", **full), slurm_node("n4", **small)]
    each = slurm_job(memory_mb_per_node=64000, cpus=2)
    request = request_of(each, asked(nodes=(2, 4), memory=True), context_of(here))
    assert (request.min_nodes, request.max_nodes, request.gpus) == (nodes, nodes, nodes)


def test_all_memory_is_that_of_whatever_node():
    """--mem=0 while no node is wholly free: no amount, and none that no node has."""
    small = slurm_node("n2", memory_mb=32000, memory_used_mb=500)
    everything = slurm_job(memory_mb_per_node=0)
    where = context_of([slurm_node("n1", memory_used_mb=500), small])
    request = request_of(everything, asked(memory=True), where)
    assert (request.memory.whole, request.memory_on_node(1)) == (True, 32000)
    away = context_of([replace(one, states=frozenset({"DOWN"})) for one in TWO])
    assert request_of(everything, asked(memory=True), away).memory_on_node(1) == 64000


def test_a_node_of_the_other_kind_that_is_down_is_counted():
    """It fits neither now nor when the node is back, so Slurm places it."""
    plain = slurm_node("plain", gpus=(("v100", 4),), states=frozenset({"DOWN"}))
    where = context_of([*FOUR[:3], plain])
    job = slurm_job(cpus=4)
    assert "indexed and plain nodes together" in why_left(job, asked(nodes=(4, 4)), where)


@pytest.mark.parametrize(
    ("record", "original"),
    [
        ({"cpus": 17, "cpus_per_task": 17}, asked(cpus_per_task=17)),
        ({"cpus": 18, "min_cpus_node": 18}, asked()),
        ({"cpus": 20}, asked(num_tasks=10, ntasks_per_node=10, cpus_per_task=2)),
        ({"cpus": 20}, asked("gpu:2", cpus_per_tres="gres/gpu:10")),
        ({"memory_mb_per_cpu": None, "memory_mb_per_node": 65000}, asked()),
        ({"memory_mb_per_cpu": 33000, "cpus": 2}, asked(cpus_per_task=2)),
        ({"memory_mb_per_cpu": None}, asked("gpu:2", mem_per_tres="gres/gpu:33000")),
        ({}, asked("gpu:2", ntasks_per_tres=9)),
    ],
)
def test_more_than_any_node_has_is_left_to_slurm(
    record: dict[str, object], original: OriginalRequest
):
    """Plain Slurm refuses it at submission; no number of nodes would help."""
    assert "than a node has" in why_left(slurm_job(**record), original, context_of(TWO))


def test_what_the_largest_node_has_is_planned():
    full = slurm_job(cpus=16, memory_mb_per_node=64000)
    assert request_of(full, asked(cpus_per_task=16), context_of(TWO)).min_nodes == 1


def test_a_node_that_is_reserved_for_now_is_waited_for():
    kept = SlurmReservation("maintenance", NOW, NOW + 600, frozenset({"fat"}), cpus=64)
    where = context_of([slurm_node("n1"), slurm_node("fat", cpus=64)], None, [kept])
    assert nodes_for(where, asked(cpus_per_task=40), cpus=40) == {"n1"}


@pytest.mark.parametrize("gpus", [4_000_000, 2**31 - 1])
def test_no_number_of_tasks_holds_a_round_up(gpus: int):
    one = asked(tres_per_node=None, tres_per_task="gres/gpu=1", num_tasks=gpus)
    where = context_of([slurm_node("n1")])
    two = replace(one, tres_per_task="gres/gpu=2")

    def read() -> None:
        for asks in (one, two):
            assert "more than 99999 GPUs" in why_left(slurm_job(), asks, where)
        most = request_of(slurm_job(), replace(two, num_tasks=49_999), where)
        assert (most.gpus, most.gpus_per_node) == (99_998, 2)

    assert least_cpu_s(read, 0.5) < 0.5


@pytest.mark.parametrize(("tasks", "per_node"), [(6, 4), (4, 4), (5, 2), (7, 2)])
def test_tasks_of_two_gpus_are_spread_over_as_few_nodes_as_go_evenly(tasks: int, per_node: int):
    original = asked(tres_per_node=None, tres_per_task="gres/gpu=2", num_tasks=tasks)
    assert request_of(slurm_job(), original, context_of(TWO)).gpus_per_node == per_node


# DefCpuPerGPU, DefMemPerGPU ----------------------------------------------------------------------


NOTHING = GpuDefaults()


def with_defaults(own: GpuDefaults, cluster: GpuDefaults = NOTHING) -> AdmissionContext:
    where = of_partition(context_of(TWO), per_gpu=own)
    return replace(where, slurm=replace(SLURM, per_gpu=cluster))


def of_partition(where: AdmissionContext, **fields: Any) -> AdmissionContext:
    """With another partition gpu."""
    return replace(where, partitions={"gpu": replace(where.partitions["gpu"], **fields)})


@pytest.mark.parametrize(
    ("own", "cluster"),
    [
        (GpuDefaults(4, 1000), GpuDefaults()),
        (GpuDefaults(), GpuDefaults(4, 1000)),
        (GpuDefaults(4, 1000), GpuDefaults(2, 5)),
    ],
)
def test_what_each_gpu_brings_is_counted(own: GpuDefaults, cluster: GpuDefaults):
    where = with_defaults(own, cluster)
    # Without a default of its own Slurm shows the job as one that asks for all memory.
    record = slurm_job(memory_mb_per_node=0)
    request = request_of(record, asked("gpu:2"), where)
    assert (request.total_cpus, request.memory_on_node(1)) == (8, 2000)
    many = request_of(slurm_job(cpus=12), asked("gpu:1", num_tasks=12), where)
    assert many.total_cpus == 12


def test_what_the_user_asks_keeps_the_defaults_away():
    where = with_defaults(GpuDefaults(4, 1000))
    original = asked("gpu:2", cpus_per_task=2, memory=True)
    request = request_of(slurm_job(cpus=2, cpus_per_task=2), original, where)
    assert (request.total_cpus, request.memory_on_node(1)) == (2, 1000)
    by_gpu = asked("gpu:2", mem_per_tres="gres/gpu:300")
    assert request_of(slurm_job(), by_gpu, where).memory_on_node(1) == 600
    by_cpus = request_of(slurm_job(), asked("gpu:2", cpus_per_tres="gres/gpu:2"), where)
    assert by_cpus.total_cpus == 4
    assert default_cpus(slurm_job(), by_cpus, where) == 2
    assert default_cpus(slurm_job(), request, where) is None
    assert default_cpus(slurm_job(), by_cpus, with_defaults(NOTHING)) is None


@pytest.mark.parametrize(
    ("original", "evenly"),
    [
        (asked("gpu:2", num_tasks=3), True),
        (asked("gpu:2", num_tasks=4), False),
        (asked("gpu:2", num_tasks=6), False),  # one CPU each: taken for none given
        (asked("gpu:1", num_tasks=2), True),  # one type only, Slurm's default works
        (asked("gpu:1", num_tasks=2, cpus_per_tres="gres/gpu:3"), False),
        (asked(tres_per_node=None, tres_per_task="gres/gpu=1", num_tasks=4), True),
    ],
)
def test_tasks_that_do_not_share_the_cpus_are_left_to_slurm(original, evenly: bool):
    where = with_defaults(GpuDefaults(3))
    if evenly:
        request_of(slurm_job(), original, where)
    else:
        assert "beside DefCpuPerGPU" in why_left(slurm_job(), original, where)


@pytest.mark.parametrize(
    ("partition", "original", "least"),
    [
        ("gpu", asked("gpu:1"), (4, 1000)),
        ("gpu", asked("gpu:1", cpus_per_task=2, memory=True), (0, 0)),
        ("gone", asked("gpu:1"), (0, 0)),
    ],
)
def test_what_a_placed_job_will_hold_counts_the_defaults(partition, original, least):
    where, job = with_defaults(GpuDefaults(4, 1000)), slurm_job(partitions=(partition,))
    assert least_with_gpus(job, original, where.slurm, where.partitions) == least


@pytest.mark.parametrize("own", [GpuDefaults(cpus=9), GpuDefaults(memory_mb=40000)])
def test_defaults_that_no_node_can_give_are_left_to_slurm(own: GpuDefaults):
    assert "than a node has" in why_left(slurm_job(), asked("gpu:2"), with_defaults(own))


# What only Slurm can check ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "original", "threads", "reason"),
    [
        ({"unsupported": ("--core-spec",)}, asked(), 1, "--core-spec is left"),
        ({}, asked("gpu:1,gres/nic:1"), 1, "other GRES"),
        ({"threads_per_core": 1}, asked(), 2, "--threads-per-core"),
        ({"threads_per_core": 2}, asked(), 1, "--threads-per-core"),
        ({"tasks_per_core": 1}, asked(), 2, "--ntasks-per-core"),
    ],
)
def test_what_is_not_looked_at_is_left_to_slurm(
    record: dict[str, object], original: OriginalRequest, threads: int, reason: str
):
    where = context_of([slurm_node("n1", threads=threads)])
    assert reason in why_left(slurm_job(**record), original, where)


@pytest.mark.parametrize("record", [{"threads_per_core": 1}, {"tasks_per_core": 1}])
def test_cores_of_one_thread_are_planned(record: dict[str, object]):
    assert request_of(slurm_job(**record), asked(), context_of(TWO)).gpus == 1


# Reservations ------------------------------------------------------------------------------------


def reservation(*nodes: str, **more: object) -> SlurmReservation:
    return SlurmReservation("r", NOW, NOW + 9000, frozenset(nodes), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [{"cpus": 4}, {"cpus": 32, "gpus": 2}])
def test_a_job_in_a_reservation_of_a_part_is_left_to_slurm(part: dict[str, int]):
    where = context_of(TWO, None, [reservation("n1", "n2", **part)])
    job = slurm_job(reservation="r")
    assert "reservation r holds only a part" in why_left(job, asked(), where)


def test_a_job_in_a_reservation_of_whole_nodes_is_planned():
    where = context_of(TWO, None, [reservation("n1", cpus=16, gpus=4)])
    assert nodes_for(where, reservation="r") == {"n1"}


@pytest.mark.parametrize(
    "kind", [{"cpus": 32, "flags": frozenset({"MAGNETIC"})}, {"cpus": 4}], ids=["magnetic", "part"]
)
def test_where_only_slurm_knows_what_a_reservation_lets_in(kind: dict[str, object]):
    held = reservation("n1", "n2", **kind)
    assert "may let it in" in why_left(slurm_job(), asked(), context_of(TWO, None, [held]))
    where = context_of(FOUR[:3], None, [held])
    assert nodes_for(where) == {"n3"}
    assert "may let it in" in why_left(slurm_job(), asked(req_nodes="n1"), where)


def test_maintenance_of_all_nodes_is_waited_for():
    kept = reservation("n1", cpus=16, flags=frozenset({"MAINT"}))
    assert nodes_for(context_of(TWO[:1], None, [kept])) == set()


MAINTENANCE = SlurmReservation("m", NOW + 400, NOW + 9000, frozenset({"n1"}), cpus=16)


@pytest.mark.parametrize("others", [[], [slurm_node("n2", used=(0, 1, 2, 3))]])
def test_before_maintenance_a_job_that_backfill_may_shorten_is_left_to_slurm(others):
    where = context_of([*TWO[:1], *others], None, [MAINTENANCE])
    assert "n1" not in nodes_for(where)
    assert "--time-min" in why_left(slurm_job(time_min_s=300.0), asked(), where)


@pytest.mark.parametrize(("limit_s", "planned_s"), [(None, 60.0), (math.inf, math.inf)])
def test_a_job_without_end_does_not_get_the_default_limit(limit_s, planned_s) -> None:
    """Else ``-t UNLIMITED`` would start before what a first waiting job has reserved."""
    where = of_partition(context_of(TWO), default_time_s=60.0)
    request = request_of(slurm_job(time_limit_s=limit_s), asked(), where)
    assert request.time_limit_s == planned_s


def test_a_job_without_end_waits_where_the_partition_has_a_longest_time() -> None:
    where = of_partition(context_of(TWO), max_time_s=3600.0)
    with pytest.raises(CannotPlanError, match="longer than its partition allows"):
        request_of(slurm_job(time_limit_s=math.inf), asked(), where)


def test_with_time_min_a_job_is_planned_by_its_limit_where_that_fits():
    where = context_of(TWO, None, [MAINTENANCE])
    assert nodes_for(where, time_min_s=300.0) == {"n2"}
    assert request_of(slurm_job(time_min_s=300.0), asked(), where).time_limit_s == 600
    where = context_of(TWO[:1], None, [MAINTENANCE])
    assert nodes_for(where, time_min_s=500.0) == set()


# Where hints come from ---------------------------------------------------------------------------


def with_site(**settings: Any) -> AdmissionContext:
    """A site with defaults for hints, or of its placement."""
    where = context_of(TWO)
    parts = {"site": where.config.site, "placement": where.config.placement}
    changed = {part: replace(parts[part], **fields) for part, fields in settings.items()}
    return replace(where, config=replace(where.config, **changed))


@pytest.mark.parametrize(
    ("comment", "environment", "app_class", "bw"),
    [
        ("class=A", "class=C", "A", True),
        ("run 7", "class=C,bw=low", "C", False),
        ("run 7, class=A", None, "B", True),
        ("class=auto", None, "B", True),
        ("class=D", "class=C", "B", True),  # the site had a class D
        (None, None, "B", True),
    ],
)
def test_hints_come_from_comment_environment_and_defaults(
    comment: str | None, environment: str | None, app_class: str, bw: bool
):
    defaults = {
        "user": {"alice": "bw=high"},
        "account": {"bio": "class=B,bw=low"},
        "qos": {"long": "class=A"},
        "partition": {"gpu": "class=C,pattern=tree"},
    }
    record = slurm_job(account="bio", qos="long", comment=comment)
    where = with_site(site={"defaults": defaults})
    request = request_of(record, asked(environment=environment), where)
    found = request.app_class, request.bandwidth_sensitive, request.pattern
    assert found == (app_class, bw, "tree")


def test_a_site_leaves_the_jobs_of_a_partition_to_slurm():
    where = with_site(site={"defaults": {"partition": {"gpu": "place=off"}}})
    assert "place=off" in why_left(slurm_job(), asked(), where)
    chosen = slurm_job(comment="place=packed")
    assert request_of(chosen, asked(), where).policy.name == "packed"


def test_a_comment_may_name_the_sites_own_policy_though_it_is_not_in_the_list_for_users():
    where = with_site(placement={"policy": "packed", "allowed": ("pal",)})
    request = request_of(slurm_job(comment="class=A,place=packed"), asked(), where)
    assert (request.app_class, request.policy.name) == ("A", "packed")


# salloc, srun, tasks per GPU ----------------------------------------------------------------------


def test_only_known_clients_get_several_nodes_without_a_script():
    """The step of a direct srun asks in another way than those inside salloc."""
    where = context_of(TWO)
    four = OriginalRequest(tres_per_job="gres/gpu:4", interactive=True)
    two_nodes = replace(four, nodes=(2, 2))
    for name in ("salloc", "srun"):
        assert request_of(slurm_job(submitted_with=name), four, where).max_nodes is None
        assert request_of(slurm_job(submitted_with=name), two_nodes, where).min_nodes == 2
    for unknown in (None, "flux"):
        job = slurm_job(submitted_with=unknown)
        assert request_of(job, four, where).max_nodes == 1
        assert "Slurm does not say which" in why_left(job, two_nodes, where)


def test_a_direct_srun_with_cpus_per_gpu_gets_one_node():
    where, direct = context_of(TWO), slurm_job(submitted_with="srun")
    four = OriginalRequest(tres_per_job="gres/gpu:4", cpus_per_tres="gres/gpu:2", interactive=True)
    assert request_of(direct, four, where).max_nodes == 1
    assert request_of(slurm_job(submitted_with="salloc"), four, where).max_nodes is None
    two_nodes = replace(four, nodes=(2, 2))
    assert "direct srun on several nodes" in why_left(direct, two_nodes, where)


def test_each_gpu_has_the_cpus_of_its_tasks():
    original = asked("gpu:2", ntasks_per_tres=2, cpus_per_task=3)
    request = request_of(slurm_job(), original, context_of(TWO))
    assert (request.cpus.per_gpu, request.total_cpus) == (6, 12)
