"""What a round must know of a job that is left to Slurm, by counts of Slurm's record."""

import math
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from make import NOW, as_gated, context_of, eligible, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import CannotPlanError
from slurm_gpu_aware.admission.holds import as_running, hold_of
from slurm_gpu_aware.admission.left import hold_of_left, left_request, part_of
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.model.request import Part, Request
from slurm_gpu_aware.slurm.records import SlurmReservation

RECORD = "gpuaware/1;tn=gres/gpu:2;lf=place%3Doff"
NODES = [slurm_node("n1"), slurm_node("n2"), slurm_node("n3")]


def left_job(
    where=None, record: str = RECORD, components=(), reason: str = "place=off", **fields
) -> Request:
    waiting = slurm_job(
        **{
            "tres_per_node": "gres/gpu:2",
            "licenses": (("gpuaware", 1),),
            "admin_comment": record,
            **fields,
        }
    )
    return left_request(as_gated(waiting), where or context_of(NODES), reason, "B", components)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tres_per_node": "gres/gpu:2"}, Part(2, 2, cpus=1)),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": 3}, Part(6, 2, 3, cpus=1)),
        ({"tres_per_node": "gres/gpu:a100:1,gres/gpu:v100:2"}, Part(3, 3, cpus=1)),
        ({"tres_per_node": "gpu"}, Part(1, 1, cpus=1)),
        ({"tres_per_node": "gres/gpu=2,gres/tmp:1"}, Part(2, 2, cpus=1)),
        ({"tres_per_job": "gres/gpu:5", "min_nodes": 2}, Part(5, None, 2, cpus=1)),
        ({"tres_per_job": "gres/gpu:5", "max_nodes": 2}, Part(5, None, 1, 2, cpus=1)),
        ({"tres_per_task": "gres/gpu=1", "tasks": 3, "cpus": 6}, Part(3, cpus=6)),
        ({"tres_per_socket": "gres/gpu:1", "req_tres": {"gres/gpu": 2}}, Part(2, cpus=1)),
        ({"tres_per_node": "gres/gpu:1Kib"}, Part(1024, 1024, cpus=1)),
        ({"tres_per_job": "gres/gpu:2066035336255469781KB"}, Part(8, cpus=1)),
        ({"tres_per_node": "gres/shard:3"}, Part(1, 1, cpus=1, shards=3)),
        ({"tres_per_node": "gres/shard:a100:3", "min_nodes": 2}, Part(2, 1, 2, cpus=1, shards=3)),
        ({"tres_per_job": "gres/shard:3"}, Part(1, 1, cpus=1, shards=3)),
        ({"tres_per_task": "gres/shard=2", "tasks": 2}, Part(1, 1, cpus=1, shards=2)),
        ({"tres_per_node": "gres/mps:50"}, Part(1, 1, cpus=1, shards=1)),
        ({"tres_per_node": "gres/gpu:1,gres/shard:4"}, Part(1, 1, cpus=1)),
        (
            {"tres_per_node": "gres/gpu:1", "req_tres": {"mem": 900}},
            Part(1, 1, cpus=1, memory_mb=900),
        ),
        (
            {"tres_per_job": "gres/gpu:3", "req_tres": {"mem": 900}, "memory_mb_per_node": 450},
            Part(3, cpus=1, memory_mb=900, node_memory_mb=450),
        ),
        (
            {"tres_per_node": "gres/gpu:1", "memory_mb_per_node": 0, "req_tres": {"mem": 1 << 40}},
            Part(1, 1, cpus=1),
        ),
        ({"tres_per_node": "gres/tmp:4"}, Part(0, cpus=1)),
    ],
    ids=str,
)
def test_counts_of_each_form(fields, part: Part) -> None:
    """--mem=0 is all memory of whatever node it gets: it needs no certain amount."""
    assert part_of(slurm_job(**fields)) == part


def test_a_range_of_nodes_waits_for_its_least_number() -> None:
    """Slurm writes the most of them into the record once it has tried the job."""
    record = "gpuaware/1;tn=gres/gpu:2;nn=2-8;lf=place%3Doff"
    found = left_job(record=record, min_nodes=3)
    assert (found.min_nodes, found.gpus) == (2, 4)


@pytest.mark.parametrize("nodes", ["1", "1-1", "1-3"])
def test_more_nodes_than_the_record_allows_are_of_a_change_that_slurm_refused(nodes: str) -> None:
    """``numnodes=4 features=nosuch``: the job asks for four nodes, and its record for one."""
    found = left_job(record=f"gpuaware/1;tn=gres/gpu:2;nn={nodes};lf=x", min_nodes=4)
    assert (found.min_nodes, found.gpus) == (4, 8)


def test_a_request_of_one_job() -> None:
    found = left_job(cpus=8, req_nodes=("n2",), exc_nodes=("n3",))
    assert (found.job_id, found.gpus, found.cpus.total) == ("7", 2, 8)
    assert (found.left.reason, found.left.fixed, found.left.again) == ("place=off", False, False)
    assert found.nodes.required == (1,)
    assert found.time_limit_s == 600.0


def test_the_parts_of_a_heterogeneous_job_count_together() -> None:
    other = slurm_job(8, tres_per_node="gres/gpu:3", cpus=4)
    none = slurm_job(9, cpus=2)
    found = left_job(components=(other, none))
    assert [part.gpus for part in found.left.parts] == [2, 3, 0]
    assert (found.gpus, found.cpus.total) == (5, 7)


@pytest.mark.parametrize(("limit_s", "longest_s"), [(6000.0, 6000.0), (None, math.inf)])
def test_a_heterogeneous_job_ends_with_its_longest_component(limit_s, longest_s: float) -> None:
    other = slurm_job(8, tres_per_node="gres/gpu:1", time_limit_s=limit_s)
    assert left_job(components=(other,)).time_limit_s == longest_s
    where = context_of(NODES)
    first = as_gated(slurm_job(tres_per_node="gres/gpu:2", admin_comment=RECORD))
    given = where.nodes, where.partitions, (), "B", NOW, (other,)
    assert hold_of_left(first, *given).end_s == NOW + longest_s


@pytest.mark.parametrize("fields", [{"exclusive_user": True}, {"partitions": ("own",)}], ids=str)
def test_a_component_that_shares_no_node_with_other_users_counts_for_all(fields) -> None:
    other = slurm_job(8, tres_per_node="gres/gpu:1", **fields)
    parts = dict.fromkeys(("gpu", "own"), ("n1", "n2", "n3"))
    where = context_of(NODES, parts, told={"own": {"exclusive_user": True}})
    assert left_job(where, components=(other,)).nodes.alone
    first = as_gated(slurm_job(tres_per_node="gres/gpu:2", admin_comment=RECORD))
    assert hold_of_left(first, where.nodes, where.partitions, (), "B", NOW, (other,)).alone
    assert not left_job(where).nodes.alone


def test_a_component_that_shares_cpus_counts_for_all() -> None:
    other = slurm_job(8, tres_per_node="gres/gpu:1", partitions=("shared",))
    parts = dict.fromkeys(("gpu", "shared"), ("n1", "n2", "n3"))
    where = context_of(NODES, parts, told={"shared": {"jobs_on_cpu": 4, "oversubscribes": True}})
    first = as_gated(slurm_job(tres_per_node="gres/gpu:2", admin_comment=RECORD))
    hold = hold_of_left(first, where.nodes, where.partitions, (), "B", NOW, (other,))
    for sharing in (left_job(where, components=(other,)).nodes.sharing, hold.sharing):
        assert sharing.shares


@pytest.mark.parametrize(
    ("marker", "before_s"),
    [("released:0", 40.0), ("released:1", 0.0), ("parked:0", 0.0)],  # 1: before a requeue
)
def test_the_limit_of_a_released_job_counts_from_when_its_gate_opened(marker, before_s) -> None:
    """The end of one that did not start moved, and the promised start of others with it."""
    where = context_of(NODES)
    for nodes in ((), ("n1",)):
        record = f"{RECORD};sel={marker}:{NOW - 40:.0f}"
        job = as_gated(slurm_job(tres_per_node="gres/gpu:2", admin_comment=record, req_nodes=nodes))
        if nodes:
            hold = hold_of(job, where.slurm, where.partitions, "B", NOW, victims=frozenset())
        else:
            hold = hold_of_left(job, where.nodes, where.partitions, (), "B", NOW)
        assert hold.end_s == NOW - before_s + 600.0


def test_a_first_component_without_gpus_is_planned_with_those_that_have_some() -> None:
    first = {"tres_per_node": None, "record": "gpuaware/1;mc=1;lf=x"}
    assert left_job(components=(slurm_job(8, tres_per_node="gres/gpu:1"),), **first).gpus == 1
    with pytest.raises(CannotPlanError, match="it asks for no GPUs"):
        left_job(components=(slurm_job(8),), **first)


@pytest.mark.parametrize("shown", [None, "gres/gpu:0", "gres/tmp:1"])
def test_gpus_that_slurm_hides_count_as_in_our_record(shown: str | None) -> None:
    """Slurm loses them in an update that it refuses, and gives them to the job nevertheless."""
    fields = {"tres_per_node": shown, "min_nodes": 3, "tasks": 3}
    found = left_job(**fields)
    assert (found.gpus, found.min_nodes) == (6, 3)
    assert found.left.parts == (Part(6, 2, 3, cpus=1),)
    assert left_job(record="gpuaware/1;tt=gres/gpu=1;lf=x", **fields).gpus == 3
    # After an update of the first component the others show its record, too.
    other = slurm_job(8, admin_comment=RECORD)
    assert left_job(components=(other,), **fields).gpus == 6
    where = context_of(NODES)
    hidden = as_gated(slurm_job(admin_comment=RECORD, **fields))
    assert hold_of_left(hidden, where.nodes, where.partitions, (), "B", NOW).gpus == 6


def test_a_job_of_which_no_record_has_the_gpus_waits_for_one() -> None:
    record = "gpuaware/1;lf=a%20request%20too%20long%20to%20be%20recorded;pt=1"
    assert left_job(record=record, tres_per_node="gres/gpu:0").gpus == 1


def test_a_job_of_more_gpus_than_we_count_waits_as_there_are_not_so_many() -> None:
    """Left to Slurm, it would keep what Slurm reserves for jobs before it."""
    with pytest.raises(CannotPlanError, match="more than") as caught:
        left_job(tres_per_node=None, tres_per_job=f"gres/gpu:{MAX_GPUS + 1}")
    assert not caught.value.leave


def test_a_record_of_a_part_leaves_the_nodes_as_they_are() -> None:
    found = left_job(record="gpuaware/1;lf=a%20request%20too%20long%20to%20be%20recorded;pt=1")
    assert found.left.fixed


def test_a_constraint_that_only_slurm_understands_allows_all_nodes_of_the_partition() -> None:
    record = "gpuaware/1;tn=gres/gpu:2;feat=%5Ba%2A2%26b%5D;lf=x"
    found = left_job(record=record, features="[a*2&b]")
    assert eligible(found, context_of(NODES)) == {"n1", "n2", "n3"}


@pytest.mark.parametrize("shards", [0, 2])
def test_a_released_job_holds_what_slurm_may_give_it(shards: int) -> None:
    what = f"gres/shard:{shards}" if shards else "gres/gpu:2"
    released = slurm_job(
        tres_per_node=what, exc_nodes=("n3",), admin_comment=f"gpuaware/1;tn={what};lf=x"
    )
    where = context_of(NODES)
    hold = hold_of_left(as_gated(released), where.nodes, where.partitions, (), "B", NOW)
    assert (hold.nodes, hold.slots, hold.gpus) == (("n1", "n2"), (), 1 if shards else 2)
    assert hold.shards == shards
    assert hold.end_s == NOW + 600.0


@pytest.mark.parametrize(
    ("own", "flags", "more", "nodes"),
    [
        ("course", (), {}, ["n2"]),
        ("course,gone", (), {}, ["n2"]),
        ("gone", (), {}, ["n1", "n2", "n3"]),
        ("course", ("FLEX",), {}, ["n1", "n2", "n3"]),
        (None, (), {}, ["n1", "n3"]),
        (None, ("MAGNETIC",), {}, ["n1", "n2", "n3"]),
        (None, (), {"gpus": 2}, ["n1", "n2", "n3"]),
        (None, (), {"start_s": NOW + 1.0}, ["n1", "n2", "n3"]),
    ],
)
def test_a_released_job_holds_no_gpu_that_a_reservation_keeps_from_it(own, flags, more, nodes):
    times = {"start_s": NOW - 1.0, "end_s": NOW + 9e3}
    course = SlurmReservation(
        **{"name": "course", "nodes": frozenset({"n2"}), "flags": frozenset(flags), **times, **more}
    )
    where = context_of(NODES)
    released = slurm_job(tres_per_node="gres/gpu:2", reservation=own, admin_comment=RECORD)
    given = where.nodes, where.partitions, [course], "B", NOW
    assert [*hold_of_left(as_gated(released), *given).nodes] == nodes
    het = hold_of_left(as_gated(released), *given, [slurm_job(8, tres_per_node="gres/gpu:1")])
    assert [*het.nodes] == ["n1", "n2", "n3"]


RECORD_OF_A_PART = "gpuaware/1;lf=x;pt=1"
WHOLE = {"tres_per_node": None, "record": f"gpuaware/1;ex=1;lf={quote(WHOLE_NODES)}"}


def test_whole_nodes_without_gpus_are_planned_with_all_their_gpus() -> None:
    nodes = [slurm_node("n1"), slurm_node("n2")]
    given = {**WHOLE, "reason": WHOLE_NODES, "min_nodes": 2, "tasks": 2, "cpus": 2}
    found = left_job(context_of(nodes), exclusive=True, **given)
    assert found.left.parts == (Part(0, min_nodes=2, cpus=2, tasks=2, whole=True),)
    assert (found.nodes.whole, found.gpus) == (True, 8)
    every = context_of(nodes)
    gpu = replace(every.partitions["gpu"], exclusive=True)
    assert left_job(replace(every, partitions={"gpu": gpu}), **given).nodes.whole
    with pytest.raises(CannotPlanError, match="it asks for no GPUs"):  # no longer exclusive
        left_job(context_of(nodes), **given)


@pytest.mark.parametrize(
    ("fields", "elsewhere"),
    [
        ({}, True),
        ({"req_nodes": ("n1",)}, False),
        ({"req_nodes": ("c1",)}, True),
        ({"req_nodes": ("n1",), "min_nodes": 2}, True),
        ({"exc_nodes": ("c1",)}, False),
        ({"features": "gpu"}, False),
        ({"features": "[gpu*1&x*1]"}, True),
    ],
)
def test_nodes_without_gpus_may_have_room(fields, elsewhere: bool) -> None:
    """A component without GPUs counts as having it; a job of whole nodes is not planned."""
    nodes = [slurm_node("n1", features=frozenset({"gpu"})), slurm_node("c1", gpus=())]
    where = context_of(nodes)
    other = slurm_job(8, cpus=9, **fields)
    found = left_job(where, components=(other,))
    assert [part.elsewhere for part in found.left.parts] == [False, elsewhere]
    if fields == {"req_nodes": ("c1",)}:
        with pytest.raises(CannotPlanError, match="nodes without GPUs may have room") as left:
            left_job(where, exclusive=True, reason=WHOLE_NODES, **WHOLE, **fields)
        assert not left.value.leave
    else:  # it may get one with them
        alone = left_job(where, exclusive=True, reason=WHOLE_NODES, **WHOLE, **fields)
        assert not alone.left.parts[0].elsewhere
    found = left_job(where, exclusive=True, tres_per_node=None, record=RECORD_OF_A_PART, **fields)
    assert [(part.whole, part.elsewhere) for part in found.left.parts] == [(True, False)]


LARGE = {"cpus": 64, "memory_mb": 200_000}


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        *(({}, (1, 9)), ({"min_nodes": 3, "tasks": 3}, (1, 3)), ({"req_nodes": ("c1",)}, None)),
        *(({"memory_mb_per_node": 70_000}, None), ({"memory_mb_per_node": 60_000}, (1, 9))),
        *(({"memory_mb_per_cpu": 8_000, "max_nodes": 1}, None), ({"min_cpus_node": 17}, None)),
        *(({"cpus": 17, "max_nodes": 1}, None), ({"cpus": 17, "max_nodes": 2}, (1, 17))),
    ],
)
def test_whole_nodes_wait_for_those_with_gpus(
    fields: dict[str, Any], nodes: tuple[int, int] | None
) -> None:
    """Slurm may give them a node with GPUs, past the jobs that wait for it, also beside others."""
    where = context_of(
        [slurm_node("n1"), *(slurm_node(f"c{i}", gpus=(), **LARGE) for i in range(3))]
    )
    other = slurm_job(8, **{"cpus": 9, "exclusive": True, **fields})
    (_, part) = left_job(where, components=(other,)).left.parts
    assert part.whole
    assert (None if part.elsewhere else (part.min_nodes, part.cpus)) == nodes


def test_a_released_job_of_whole_nodes_holds_the_emptiest() -> None:
    nodes = [slurm_node("n1", used=[0]), slurm_node("n2"), slurm_node("n3", used=[1, 2])]
    where = context_of(nodes)
    released = as_gated(slurm_job(exclusive=True, admin_comment=WHOLE["record"]))
    hold = hold_of_left(released, where.nodes, where.partitions, (), "B", NOW)
    assert hold.gpus == 4
    places = {name: i for i, name in enumerate(where.cluster.nodes)}
    assert as_running(hold, places, where.cluster.free, NOW).gpus == ((1, (0, 1, 2, 3)),)
