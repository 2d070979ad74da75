"""A parked job as the planner's request: which partition, how many nodes, what is left to Slurm."""

import math
from dataclasses import replace

import pytest
from cpu_time import least_cpu_s
from make import NOW, SLURM, asked, context_of, eligible, request_of, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.sizes import default_cpus, least_with_gpus
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.slurm.records import (
    GpuDefaults,
    SlurmReservation,
)

# -p a,b ------------------------------------------------------------------------------------------

A_B = {"a": ["n1", "n2"], "b": ["n3", "n4"]}


def test_features_choose_the_partition():
    big = [
        slurm_node("n1"),
        slurm_node("n2"),
        slurm_node("n3", features=frozenset({"big"})),
        slurm_node("n4"),
    ]
    where = context_of(big, A_B)
    request = request_of(slurm_job(partitions=("a", "b")), asked(features="big"), where)
    assert eligible(request, where) == {"n3"}


@pytest.mark.parametrize(
    ("original", "nodes"),
    [
        (asked(exc_nodes="n1,n2"), {"n3", "n4"}),
        (asked(req_nodes="n3"), {"n3", "n4"}),
    ],
)
def test_excluded_and_required_nodes_choose_the_partition(
    original: OriginalRequest, nodes: set[str]
):
    where = context_of([slurm_node(f"n{i}") for i in range(1, 5)], A_B)
    assert eligible(request_of(slurm_job(partitions=("a", "b")), original, where), where) == nodes


@pytest.mark.parametrize("nodes", [None, (1, 1), (1, 2)])
def test_more_required_nodes_than_it_may_have_are_left_to_slurm(nodes: tuple[int, int] | None):
    """``-N1 -w n[1-2]``: Slurm drops required nodes; at the gate the job would wait for ever."""
    where = context_of([slurm_node(f"n{i}") for i in range(1, 5)])
    original = asked("gpu:1", nodes=nodes, req_nodes="n[1-3]")
    with pytest.raises(CannotPlanError, match="more nodes than it may have") as caught:
        request_of(slurm_job(), original, where)
    assert caught.value.leave


def test_a_reservation_chooses_the_partition():
    kept = SlurmReservation("maintenance", NOW + 60, NOW + 600, frozenset({"n1", "n2"}), cpus=32)
    where = context_of([slurm_node(f"n{i}") for i in range(1, 5)], A_B, [kept])
    assert eligible(request_of(slurm_job(partitions=("a", "b")), asked(), where), where) == {
        "n3",
        "n4",
    }


def test_free_gpus_of_several_nodes_do_not_make_one_node():
    scattered = [slurm_node(f"n{i}", used=(0, 1, 2)) for i in range(1, 5)]
    inside = {"a": ["n1", "n2", "n3", "n4"], "b": ["n5"]}
    where = context_of([*scattered, slurm_node("n5")], inside)
    assert eligible(request_of(slurm_job(partitions=("a", "b")), asked("gpu:4"), where), where) == {
        "n5"
    }


def test_the_same_indices_on_two_nodes():
    """Free GPUs 0 and 1 are no place for a job over two nodes; one index on both is."""
    halves = [slurm_node("n1", used=(1, 2, 3)), slurm_node("n2", used=(0, 2, 3))]
    where = context_of([*halves, slurm_node("n3"), slurm_node("n4")], A_B)
    two = asked(nodes=(2, 2))
    assert eligible(request_of(slurm_job(partitions=("a", "b")), two, where), where) == {"n3", "n4"}


def test_free_cpus_and_memory_choose_the_partition():
    busy = [slurm_node("n1", cpus_used=16), slurm_node("n2", memory_used_mb=64000)]
    where = context_of([*busy, slurm_node("n3"), slurm_node("n4")], A_B)
    request = request_of(slurm_job(partitions=("a", "b"), cpus=4), asked(), where)
    assert eligible(request, where) == {"n3", "n4"}


def test_where_nothing_is_free_it_waits_for_the_partition_that_can_hold_it():
    full = [slurm_node("n1", gpus=(("g0", 1),), used=(0,)), slurm_node("n3", used=(0, 1, 2, 3))]
    where = context_of(full, {"a": ["n1"], "b": ["n3"]})
    assert eligible(request_of(slurm_job(partitions=("a", "b")), asked("gpu:2"), where), where) == {
        "n3"
    }


def test_whole_nodes_choose_the_partition():
    where = context_of(
        [slurm_node("n1", used=(0,), cpus_used=1), slurm_node("n3")], {"a": ["n1"], "b": ["n3"]}
    )
    request = request_of(slurm_job(partitions=("a", "b")), asked(exclusive=True), where)
    assert eligible(request, where) == {"n3"}


def test_the_first_partition_that_has_room_is_taken_in_the_order_of_the_tiers():
    where = context_of([slurm_node(f"n{i}") for i in range(1, 5)], A_B)
    assert eligible(request_of(slurm_job(partitions=("a", "b")), asked(), where), where) == {
        "n1",
        "n2",
    }
    above = {**where.partitions, "b": replace(where.partitions["b"], priority_tier=5)}
    where = replace(where, partitions=above)
    assert eligible(request_of(slurm_job(partitions=("a", "b")), asked(), where), where) == {
        "n3",
        "n4",
    }


# CPUs --------------------------------------------------------------------------------------------


def test_nodes_of_another_partition_do_not_count_for_its_cpus():
    where = context_of(
        [
            slurm_node("n1"),
            slurm_node("n2"),
            slurm_node("n3"),
            slurm_node("fat", cpus=64),
            slurm_node("login", cpus=96, gpus=()),
        ],
        {"gpu": ["n1", "n2", "n3", "login"], "big": ["fat"]},
    )
    request = request_of(slurm_job(cpus=40), asked(num_tasks=40), where)
    assert (request.min_nodes, request.gpus) == (3, 3)


def test_a_wide_node_that_is_down_is_not_waited_for():
    where = context_of(
        [slurm_node("n1"), slurm_node("n2"), slurm_node("fat", cpus=64, states=frozenset({"DOWN"}))]
    )
    assert request_of(slurm_job(cpus=20), asked(num_tasks=20), where).min_nodes == 2


@pytest.mark.parametrize("away", ["down", "reserved"])
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
    fat = slurm_node("fat", cpus=64, states=frozenset({"DOWN" if away == "down" else "IDLE"}))
    kept = SlurmReservation("maintenance", NOW, NOW + 600, frozenset({"fat"}), cpus=64)
    where = context_of(
        [slurm_node("n1"), slurm_node("n2"), fat], None, [kept] if away == "reserved" else []
    )
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
    busy = [
        slurm_node("n1", memory_used_mb=500),
        slurm_node("n2", memory_mb=32000, memory_used_mb=500),
    ]
    everything = slurm_job(memory_mb_per_node=0)
    request = request_of(everything, asked(memory=True), context_of(busy))
    assert (request.memory.whole, request.memory_on_node(1)) == (True, 32000)
    away = [
        slurm_node("n1", states=frozenset({"DOWN"})),
        slurm_node("n2", states=frozenset({"DOWN"})),
    ]
    assert request_of(everything, asked(memory=True), context_of(away)).memory_on_node(1) == 64000


def test_a_node_of_the_other_kind_that_is_down_is_counted():
    """It fits neither now nor when the node is back, so Slurm places it."""
    here = [*(slurm_node(f"n{i}") for i in range(3)), slurm_node("plain", gpus=(("v100", 4),))]
    here[3] = replace(here[3], states=frozenset({"DOWN"}))
    with pytest.raises(CannotPlanError, match="indexed and plain nodes together"):
        request_of(slurm_job(cpus=4), asked(nodes=(4, 4)), context_of(here))


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
    ],
)
def test_more_than_any_node_has_is_left_to_slurm(
    record: dict[str, object], original: OriginalRequest
):
    """Plain Slurm refuses it at submission; no number of nodes would help."""
    with pytest.raises(CannotPlanError, match="than a node has") as caught:
        request_of(slurm_job(**record), original, context_of([slurm_node("n1"), slurm_node("n2")]))
    assert caught.value.leave


def test_what_the_largest_node_has_is_planned():
    where = context_of([slurm_node("n1"), slurm_node("n2")])
    full = slurm_job(cpus=16, memory_mb_per_node=64000)
    assert request_of(full, asked(cpus_per_task=16), where).min_nodes == 1


def test_a_node_that_is_reserved_for_now_is_waited_for():
    kept = SlurmReservation("maintenance", NOW, NOW + 600, frozenset({"fat"}), cpus=64)
    where = context_of([slurm_node("n1"), slurm_node("fat", cpus=64)], None, [kept])
    request = request_of(slurm_job(cpus=40), asked(cpus_per_task=40), where)
    assert eligible(request, where) == {"n1"}


@pytest.mark.parametrize("gpus", [4_000_000, 2**31 - 1])
def test_no_number_of_tasks_holds_a_round_up(gpus: int):
    one = asked(tres_per_node=None, tres_per_task="gres/gpu=1", num_tasks=gpus)
    where = context_of([slurm_node("n1")])
    two = replace(one, tres_per_task="gres/gpu=2")

    def read() -> None:
        for asks in (one, two):
            with pytest.raises(CannotPlanError, match="more than 99999 GPUs") as caught:
                request_of(slurm_job(), asks, where)
            assert caught.value.leave
        most = request_of(slurm_job(), replace(two, num_tasks=49_999), where)
        assert (most.gpus, most.gpus_per_node) == (99_998, 2)

    assert least_cpu_s(read, 0.5) < 0.5


@pytest.mark.parametrize(("tasks", "per_node"), [(6, 4), (4, 4), (5, 2), (7, 2)])
def test_tasks_of_two_gpus_are_spread_over_as_few_nodes_as_go_evenly(tasks: int, per_node: int):
    original = asked(tres_per_node=None, tres_per_task="gres/gpu=2", num_tasks=tasks)
    assert (
        request_of(slurm_job(), original, context_of([slurm_node("n1")])).gpus_per_node == per_node
    )


# DefCpuPerGPU, DefMemPerGPU ----------------------------------------------------------------------


NOTHING = GpuDefaults()


def with_defaults(own: GpuDefaults, cluster: GpuDefaults = NOTHING) -> AdmissionContext:
    where = context_of([slurm_node("n1"), slurm_node("n2")])
    partition = replace(where.partitions["gpu"], per_gpu=own)
    return replace(where, partitions={"gpu": partition}, slurm=replace(SLURM, per_gpu=cluster))


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
        with pytest.raises(CannotPlanError, match="beside DefCpuPerGPU") as caught:
            request_of(slurm_job(), original, where)
        assert caught.value.leave


def test_what_a_placed_job_will_hold_counts_the_defaults():
    where = with_defaults(GpuDefaults(4, 1000))
    partitions = where.partitions
    assert least_with_gpus(slurm_job(), asked("gpu:1"), where.slurm, partitions) == (4, 1000)
    own = asked("gpu:1", cpus_per_task=2, memory=True)
    assert least_with_gpus(slurm_job(), own, where.slurm, partitions) == (0, 0)
    assert least_with_gpus(
        slurm_job(partitions=("gone",)), asked("gpu:1"), where.slurm, partitions
    ) == (0, 0)


def test_defaults_that_no_node_can_give_are_left_to_slurm():
    for own in (GpuDefaults(cpus=9), GpuDefaults(memory_mb=40000)):
        with pytest.raises(CannotPlanError, match="than a node has") as caught:
            request_of(slurm_job(), asked("gpu:2"), with_defaults(own))
        assert caught.value.leave


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
    with pytest.raises(CannotPlanError, match=reason) as caught:
        request_of(slurm_job(**record), original, context_of([slurm_node("n1", threads=threads)]))
    assert caught.value.leave


@pytest.mark.parametrize("record", [{"threads_per_core": 1}, {"tasks_per_core": 1}])
def test_cores_of_one_thread_are_planned(record: dict[str, object]):
    assert request_of(slurm_job(**record), asked(), context_of([slurm_node("n1")])).gpus == 1


# Reservations ------------------------------------------------------------------------------------


def reservation(*nodes: str, **more: object) -> SlurmReservation:
    return SlurmReservation("r", NOW, NOW + 9000, frozenset(nodes), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [{"cpus": 4}, {"cpus": 32, "gpus": 2}])
def test_a_job_in_a_reservation_of_a_part_is_left_to_slurm(part: dict[str, int]):
    where = context_of(
        [slurm_node("n1"), slurm_node("n2")], None, [reservation("n1", "n2", **part)]
    )
    with pytest.raises(CannotPlanError, match="reservation r holds only a part") as caught:
        request_of(slurm_job(reservation="r"), asked(), where)
    assert caught.value.leave


def test_a_job_in_a_reservation_of_whole_nodes_is_planned():
    where = context_of(
        [slurm_node("n1"), slurm_node("n2")], None, [reservation("n1", cpus=16, gpus=4)]
    )
    assert eligible(request_of(slurm_job(reservation="r"), asked(), where), where) == {"n1"}


@pytest.mark.parametrize(
    "kind", [{"cpus": 32, "flags": frozenset({"MAGNETIC"})}, {"cpus": 4}], ids=["magnetic", "part"]
)
def test_where_only_slurm_knows_what_a_reservation_lets_in(kind: dict[str, object]):
    held = reservation("n1", "n2", **kind)
    with pytest.raises(CannotPlanError, match="may let it in") as caught:
        request_of(
            slurm_job(), asked(), context_of([slurm_node("n1"), slurm_node("n2")], None, [held])
        )
    assert caught.value.leave
    where = context_of([slurm_node("n1"), slurm_node("n2"), slurm_node("n3")], None, [held])
    assert eligible(request_of(slurm_job(), asked(), where), where) == {"n3"}
    with pytest.raises(CannotPlanError, match="may let it in"):
        request_of(slurm_job(), asked(req_nodes="n1"), where)


def test_maintenance_of_all_nodes_is_waited_for():
    where = context_of(
        [slurm_node("n1")], None, [reservation("n1", cpus=16, flags=frozenset({"MAINT"}))]
    )
    assert eligible(request_of(slurm_job(), asked(), where), where) == set()


def test_before_maintenance_a_job_that_backfill_may_shorten_is_left_to_slurm():
    kept = SlurmReservation("m", NOW + 400, NOW + 9000, frozenset({"n1"}), cpus=16)
    full = slurm_node("n2", used=(0, 1, 2, 3))
    for nodes in ([slurm_node("n1")], [slurm_node("n1"), full]):
        where = context_of(nodes, None, [kept])
        assert "n1" not in eligible(request_of(slurm_job(), asked(), where), where)
        with pytest.raises(CannotPlanError, match="--time-min") as caught:
            request_of(slurm_job(time_min_s=300.0), asked(), where)
        assert caught.value.leave


@pytest.mark.parametrize(("limit_s", "planned_s"), [(None, 60.0), (math.inf, math.inf)])
def test_a_job_without_end_does_not_get_the_default_limit(limit_s, planned_s) -> None:
    """Else ``-t UNLIMITED`` would start before what a first waiting job has reserved."""
    where = context_of([slurm_node("n1")])
    partition = replace(where.partitions["gpu"], default_time_s=60.0)
    where = replace(where, partitions={"gpu": partition})
    request = request_of(slurm_job(time_limit_s=limit_s), asked(), where)
    assert request.time_limit_s == planned_s


def test_a_job_without_end_waits_where_the_partition_has_a_longest_time() -> None:
    where = context_of([slurm_node("n1")])
    partition = replace(where.partitions["gpu"], max_time_s=3600.0)
    where = replace(where, partitions={"gpu": partition})
    with pytest.raises(CannotPlanError, match="longer than its partition allows"):
        request_of(slurm_job(time_limit_s=math.inf), asked(), where)


def test_with_time_min_a_job_is_planned_by_its_limit_where_that_fits():
    kept = SlurmReservation("m", NOW + 400, NOW + 9000, frozenset({"n1"}), cpus=16)
    where = context_of([slurm_node("n1"), slurm_node("n2")], None, [kept])
    request = request_of(slurm_job(time_min_s=300.0), asked(), where)
    assert eligible(request, where) == {"n2"}
    assert request.time_limit_s == 600
    where = context_of([slurm_node("n1")], None, [kept])
    waits = request_of(slurm_job(time_min_s=500.0), asked(), where)
    assert eligible(waits, where) == set()


# Where hints come from ---------------------------------------------------------------------------


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
    where = context_of([slurm_node("n1")])
    config = replace(where.config, site=replace(where.config.site, defaults=defaults))
    record = replace(slurm_job(), account="bio", qos="long", comment=comment)
    request = request_of(record, asked(environment=environment), replace(where, config=config))
    found = request.app_class, request.bandwidth_sensitive, request.pattern
    assert found == (app_class, bw, "tree")


def test_a_site_leaves_the_jobs_of_a_partition_to_slurm():
    where = context_of([slurm_node("n1")])
    settings = replace(where.config.site, defaults={"partition": {"gpu": "place=off"}})
    where = replace(where, config=replace(where.config, site=settings))
    with pytest.raises(CannotPlanError, match="place=off") as raised:
        request_of(slurm_job(), asked(), where)
    assert raised.value.leave
    chosen = replace(slurm_job(), comment="place=packed")
    assert request_of(chosen, asked(), where).policy.name == "packed"


def test_a_comment_may_name_the_sites_own_policy_though_it_is_not_in_the_list_for_users():
    where = context_of([slurm_node("n1")])
    settings = replace(where.config.placement, policy="packed", allowed=("pal",))
    where = replace(where, config=replace(where.config, placement=settings))
    asked_for = replace(slurm_job(), comment="class=A,place=packed")
    request = request_of(asked_for, asked(), where)
    assert (request.app_class, request.policy.name) == ("A", "packed")


# salloc, srun, tasks per GPU ----------------------------------------------------------------------


def test_only_known_clients_get_several_nodes_without_a_script():
    """The step of a direct srun asks in another way than those inside salloc."""
    where = context_of([slurm_node("n1"), slurm_node("n2")], {"gpu": ["n1", "n2"]})
    four = OriginalRequest(tres_per_job="gres/gpu:4", interactive=True)
    two_nodes = replace(four, nodes=(2, 2))
    for name in ("salloc", "srun"):
        assert request_of(slurm_job(submitted_with=name), four, where).max_nodes is None
        assert request_of(slurm_job(submitted_with=name), two_nodes, where).min_nodes == 2
    for unknown in (None, "flux"):
        assert request_of(slurm_job(submitted_with=unknown), four, where).max_nodes == 1
        with pytest.raises(CannotPlanError, match="Slurm does not say which"):
            request_of(slurm_job(submitted_with=unknown), two_nodes, where)


def test_a_direct_srun_with_cpus_per_gpu_gets_one_node():
    where = context_of([slurm_node("n1"), slurm_node("n2")], {"gpu": ["n1", "n2"]})
    direct = slurm_job(submitted_with="srun")
    four = OriginalRequest(tres_per_job="gres/gpu:4", cpus_per_tres="gres/gpu:2", interactive=True)
    assert request_of(direct, four, where).max_nodes == 1
    assert request_of(slurm_job(submitted_with="salloc"), four, where).max_nodes is None
    with pytest.raises(CannotPlanError, match="direct srun on several nodes"):
        request_of(direct, replace(four, nodes=(2, 2)), where)


def test_each_gpu_has_the_cpus_of_its_tasks():
    where = context_of([slurm_node("n1"), slurm_node("n2")], {"gpu": ["n1", "n2"]})
    request = request_of(slurm_job(), asked("gpu:2", ntasks_per_tres=2, cpus_per_task=3), where)
    assert (request.cpus.per_gpu, request.total_cpus) == (6, 12)
    with pytest.raises(CannotPlanError, match="more CPUs than a node has"):
        request_of(slurm_job(), asked("gpu:2", ntasks_per_tres=9), where)
