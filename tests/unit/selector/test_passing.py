"""Ways in which a user passed others, one by one: job 7 of bob stands behind job 6 of alice."""

from typing import Any

import pytest
from memory_slurm import node_record, partition_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from test_left_jobs import LEFT

from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET
from slurm_gpu_aware.slurm.read_cluster import partition_of


def bob(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """Of low priority, and long."""
    usual = {"priority": 1, "user_name": "bob", "user_id": 2002, "time_limit": 60_000}
    return parked(job_id, **{**usual, "stuck": True, **fields})


def whole_node(job_id: str = "6", **fields: Any) -> dict[str, Any]:
    """Four GPUs of one node."""
    usual = {
        "priority": 900,
        "admin_comment": "gpuaware/1;tn=gres/gpu:4;mc=1",
        "tres_per_node": "gres/gpu:4",
        "tres_req_str": "cpu=1,mem=500M,node=1,billing=1,gres/gpu=4",
    }
    return parked(job_id, **{**usual, **fields})


def one_hour(job_id: str, node: str, slots: list[int], **fields: Any) -> dict[str, Any]:
    """For one more hour."""
    usual = {
        "state": "RUNNING",
        "nodes": node,
        "slots": slots,
        "licenses": "",
        "admin_comment": "",
        "start_time": 1_789_999_000,
        "end_time": 1_790_003_600,
        "user_name": "carol",
    }
    return parked(job_id, **{**usual, **fields})


def bench_with(slurm: SlurmFolder, *partitions: dict[str, Any]) -> RoundsBench:
    bench = RoundsBench(slurm)
    bench.client.partitions = lambda: [partition_of(one) for one in partitions]  # type: ignore[method-assign]
    return bench


@pytest.mark.parametrize("record", [LEFT, "gpuaware/1;tn=gres/gpu:2;mc=1"])
def test_a_partition_of_a_higher_tier_lends_no_rank_to_the_other(
    slurm: SlurmFolder, record: str
) -> None:
    slurm.write(
        [
            *(one_hour("4", "n1", [0]), one_hour("5", "n2", [0, 1, 2, 3])),
            *(whole_node(), bob(partition="gpu,express", admin_comment=record)),
        ],
        ["n1", "n2"],
    )
    high = partition_record("express", "n2", priority_tier=10)
    assert bench_with(slurm, partition_record("gpu", "n1"), high).rounds.run().placed == []


@pytest.mark.parametrize("leader", ["gpu", "express"])
def test_a_heterogeneous_job_stands_as_its_lowest_component(
    slurm: SlurmFolder, leader: str
) -> None:
    het = "gpuaware/1;tn=gres/gpu:1;mc=1;lf=a%20heterogeneous%20job"
    one = {
        "tres_per_node": "gres/gpu:1",
        "tres_req_str": "cpu=1,mem=500M,node=1,billing=1,gres/gpu=1",
    }
    slurm.write(
        [
            *(one_hour("4", "n1", [0]), one_hour("5", "n2", [0, 1, 2]), whole_node()),
            bob(het_job_id=7, admin_comment=het, partition=leader, **one),
            bob("8", het_job_id=7, licenses="", admin_comment="", partition="gpu"),
        ],
        ["n1", "n2"],
    )
    high = partition_record("express", "n2", priority_tier=10)
    assert bench_with(slurm, partition_record("gpu", "n1"), high).rounds.run().placed == []


@pytest.mark.parametrize("long", [False, True])
def test_a_short_first_component_lends_no_time_to_the_others(
    slurm: SlurmFolder, long: bool
) -> None:
    """Job 6 starts in an hour."""
    one = {"tres_per_node": "gres/gpu:1", "tres_req_str": "gres/gpu=1", "het_job_id": 7}
    first = {"admin_comment": LEFT.replace("gpu:2", "gpu:1"), "time_limit": 1, **one}
    other = {"licenses": "", "admin_comment": "", "time_limit": 600 if long else 2, **one}
    running = one_hour("4", "n1", [0]), one_hour("5", "n2", [0])
    slurm.write([*running, whole_node(), bob(**first), bob("8", **other)], ["n1", "n2"])
    assert RoundsBench(slurm).rounds.run().placed == ([] if long else ["7"])


def test_the_default_time_of_a_short_partition_counts_for_no_other(slurm: SlurmFolder) -> None:
    asked = {"partition": "short,gpu", "time_limit": NOT_SET, "admin_comment": LEFT}
    slurm.write([one_hour("4", "n1", [0]), whole_node(), bob(**asked)], ["n1", "n2"])
    slurm.set(nodes=[node_record("n1"), node_record("n2", state="IDLE+DRAIN")])
    long = partition_record("gpu", "n1", default_time=7 * 24 * 60)
    short = partition_record("short", "n2", default_time=10, max_time=30)
    assert bench_with(slurm, long, short).rounds.run().placed == []


@pytest.mark.parametrize("alone", [False, True])
def test_a_host_list_that_is_not_expanded_waits_for_its_turn(
    slurm: SlurmFolder, alone: bool
) -> None:
    names = "n[" + ",".join(f"{i}-999" for i in range(1, 80)) + "]"
    record = f"gpuaware/1;tn=gres/gpu:2;mc=1;xn={names.replace('[', '%5B').replace(']', '%5D')}"
    job = bob(exc_nodes="n[2-999]", admin_comment=record)
    others = [] if alone else [one_hour("4", "n1", [0]), whole_node()]
    slurm.write([*others, job], ["n1"])
    RoundsBench(slurm).rounds.run()
    assert (slurm.jobs["7"]["licenses"] == "") is alone


def test_during_a_long_epilog_the_first_in_line_keeps_its_reservation(slurm: SlurmFolder) -> None:
    two_nodes = {
        "admin_comment": "gpuaware/1;tn=gres/gpu:4;nn=2-2;mc=1",
        "tres_req_str": "cpu=2,mem=500M,node=2,billing=1,gres/gpu=8",
        "num_nodes": 2,
        "num_cpus": 2,
        "num_tasks": 2,
    }
    done = one_hour("5", "n1", []) | {"state": "COMPLETING", "end_time": 1_789_999_990}
    slurm.write([one_hour("4", "n2", [0]), done, whole_node(**two_nodes), bob()], ["n1", "n2"])
    bench = RoundsBench(slurm)
    for _ in range(4):
        assert bench.rounds.run().placed == []
        bench.steady += 2
        bench.wall += 2


def test_a_job_that_was_just_opened_counts_as_its_users(slurm: SlurmFolder) -> None:
    """Else its run time would count against its user only after its start."""
    slurm.write([bob()], ["n1"])
    bench = RoundsBench(slurm)
    assert bench.rounds.run().placed == ["7"]
    with slurm.state() as state:
        state["jobs"].append(bob("9"))
    planned = bench.rounds.run().planned
    jobs = bench.client.jobs()
    assert planned is not None
    assert next(job for job in jobs if job.id == "7").user == "bob"
    assert planned()["asked"]["cluster"]["running"][0]["user"] == "bob"


@pytest.mark.parametrize("record", ["", ";lf=left"])
def test_what_slurm_did_not_start_keeps_its_gpus_while_it_is_held_back(
    slurm: SlurmFolder, record: str
) -> None:
    """Three times: a job that can never start would leave GPUs unused for ever."""
    alice = whole_node(admin_comment=f"gpuaware/1;tn=gres/gpu:4;mc=1{record}", stuck=True)
    slurm.write([alice], ["n1"])
    bench = RoundsBench(slurm)
    for tries in range(1, 5):
        assert bench.rounds.run().placed == ["6"]
        if tries == 4:
            break
        slurm.change("6", reason="Resources", last_sched_eval=int(bench.wall) + 7)
        bench.steady, bench.wall = bench.steady + 7.0, bench.wall + 7.0
        assert bench.rounds.start_monitor.poll() == 1
        slurm.change("6", reason="Licenses")
        if tries == 1:
            with slurm.state() as state:
                state["jobs"].append(bob())
        result = bench.rounds.run()
        assert result.placed == []
        why = next(one for one in result.waiting if one["job_id"] == "6")["reason"]
        assert why.startswith("no room is left on its nodes; tried again in ")
        assert not slurm.jobs["6"]["req_nodes"]
        bench.steady, bench.wall = bench.steady + 16.0, bench.wall + 16.0
    slurm.change("6", reason="Resources", last_sched_eval=int(bench.wall) + 7)
    bench.steady, bench.wall = bench.steady + 7.0, bench.wall + 7.0
    if not record:  # else its gate stays open
        assert bench.rounds.start_monitor.poll() == 1
        slurm.change("6", reason="Licenses")
    assert bench.rounds.run().placed == ["7"]


@pytest.mark.parametrize("shown", ["Licenses", "Priority", "Resources"])
def test_what_found_no_room_is_tried_again_whatever_it_shows(
    slurm: SlurmFolder, shown: str
) -> None:
    """At the gate it shows how things are for the first of the queue, and not for itself."""
    bench = parked_again(slurm)
    slurm.change("7", reason=shown)
    assert bench.rounds.run().placed == []
    bench.steady += 2.0
    assert bench.rounds.run().placed == ["7"]


@pytest.mark.parametrize(("node", "placed"), [("n1", ["7"]), ("n2", [])])
def test_what_found_no_room_is_tried_again_when_a_job_ends_there(
    slurm: SlurmFolder, node: str, placed: list[str]
) -> None:
    bench = parked_again(slurm, one_hour("4", node, []))
    assert bench.rounds.run().placed == []
    slurm.change("4", state="COMPLETED")
    assert bench.rounds.run().placed == placed


def parked_again(slurm: SlurmFolder, *others: dict[str, Any]) -> RoundsBench:
    """Job 7 of bob has just been parked again, as Slurm found no room for it on n1."""
    slurm.write([*others, bob(stuck=True)], ["n1", "n2"])
    bench = RoundsBench(slurm)
    assert bench.rounds.run().placed == ["7"]
    slurm.change("7", reason="Resources", last_sched_eval=int(bench.wall) + 7)
    bench.steady, bench.wall = bench.steady + 7.0, bench.wall + 7.0
    assert bench.rounds.start_monitor.poll() == 1
    return bench
