"""Ways in which a user passed others, one by one: job 7 of bob stands behind job 6 of alice."""

from typing import Any

import pytest
from memory_slurm import node_record, partition_record
from rounds_bench import RoundsBench, reasons_of, rounds_with
from slurm_folder import SlurmFolder, parked, run_by_slurm
from test_left_jobs import LEFT

from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET
from slurm_gpu_aware.slurm.read_cluster import partition_of


def bob(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """Of low priority, and long."""
    usual = {"priority": 1, "user_name": "bob", "user_id": 2002, "time_limit": 60_000}
    return parked(job_id, **{**usual, "stuck": True, **fields})


def whole_node(job_id: str = "6", **fields: Any) -> dict[str, Any]:
    """Four GPUs of one node."""
    return parked(job_id, 4, priority=900, **fields)


def one_hour(job_id: str, node: str, slots: list[int], **fields: Any) -> dict[str, Any]:
    """For one more hour."""
    times = {"start_time": 1_789_999_000, "end_time": 1_790_003_600}
    return run_by_slurm(job_id, node, slots, user_name="carol", **{**times, **fields})


def bench_with(slurm: SlurmFolder, *partitions: dict[str, Any]) -> RoundsBench:
    bench = RoundsBench(slurm)
    bench.client.partitions = lambda: [partition_of(one) for one in partitions]  # type: ignore[method-assign]
    return bench


@pytest.mark.parametrize("record", [LEFT, "gpuaware/1;tn=gres/gpu:2;mc=1"])
def test_a_partition_of_a_higher_tier_lends_no_rank_to_the_other(
    slurm: SlurmFolder, record: str
) -> None:
    first = one_hour("4", "n1", [0]), one_hour("5", "n2", [0, 1, 2, 3]), whole_node()
    slurm.write([*first, bob(partition="gpu,express", admin_comment=record)], ["n1", "n2"])
    high = partition_record("express", "n2", priority_tier=10)
    assert bench_with(slurm, partition_record("gpu", "n1"), high).rounds.run().placed == []


@pytest.mark.parametrize("leader", ["gpu", "express"])
def test_a_heterogeneous_job_stands_as_its_lowest_component(
    slurm: SlurmFolder, leader: str
) -> None:
    het = {"gpus": 1, "record": ";lf=a%20heterogeneous%20job", "het_job_id": 7}
    other = bob("8", het_job_id=7, licenses="", admin_comment="", partition="gpu")
    first = one_hour("4", "n1", [0]), one_hour("5", "n2", [0, 1, 2]), whole_node()
    slurm.write([*first, bob(partition=leader, **het), other], ["n1", "n2"])
    high = partition_record("express", "n2", priority_tier=10)
    assert bench_with(slurm, partition_record("gpu", "n1"), high).rounds.run().placed == []


def test_no_heterogeneous_job_starts_on_the_nodes_of_the_first(slurm: SlurmFolder) -> None:
    """Slurm starts it seconds after its gate is open, or not at all, and meanwhile others there."""
    one = {"tres_per_node": "gres/gpu:1", "tres_req_str": "gres/gpu=1", "het_job_id": 7}
    first = {"admin_comment": LEFT.replace("gpu:2", "gpu:1"), "time_limit": 1, **one}
    other = {"licenses": "", "admin_comment": "", "time_limit": 2, **one}
    running = one_hour("4", "n1", [0]), one_hour("5", "n2", [0])
    slurm.write([*running, whole_node(), bob(**first), bob("8", **other)], ["n1", "n2"])
    assert RoundsBench(slurm).rounds.run().placed == []
    slurm.write([*running, bob(**first), bob("8", **other)], ["n1", "n2"])
    assert RoundsBench(slurm).rounds.run().placed == ["7"]


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
    record = f";xn={names.replace('[', '%5B').replace(']', '%5D')}"
    job = bob(exc_nodes="n[2-999]", record=record)
    others = [] if alone else [one_hour("4", "n1", [0]), whole_node()]
    slurm.write([*others, job], ["n1"])
    RoundsBench(slurm).rounds.run()
    assert (slurm.jobs["7"]["licenses"] == "") is alone


def test_during_a_long_epilog_the_first_in_line_keeps_its_reservation(slurm: SlurmFolder) -> None:
    tres = "cpu=2,mem=500M,node=2,billing=1,gres/gpu=8"
    two_nodes = {"record": ";nn=2-2", "tres_req_str": tres} | dict.fromkeys(
        ("num_nodes", "num_cpus", "num_tasks"), 2
    )
    done = one_hour("5", "n1", []) | {"state": "COMPLETING", "end_time": 1_789_999_990}
    slurm.write([one_hour("4", "n2", [0]), done, whole_node(**two_nodes), bob()], ["n1", "n2"])
    bench = RoundsBench(slurm)
    for _ in range(4):
        assert bench.run().placed == []
        bench.wait(2)


def test_a_job_that_was_just_opened_counts_as_its_users(slurm: SlurmFolder) -> None:
    """Else its run time would count against its user only after its start."""
    bench = rounds_with(slurm, bob())
    assert bench.run().placed == ["7"]
    slurm.add(bob("9"))
    planned = bench.run().planned
    jobs = bench.client.jobs()
    assert planned is not None
    assert next(job for job in jobs if job.id == "7").user == "bob"
    assert planned()["asked"]["cluster"]["running"][0]["user"] == "bob"


@pytest.mark.parametrize("record", ["", ";lf=left"])
def test_what_slurm_did_not_start_keeps_its_gpus_while_it_is_held_back(
    slurm: SlurmFolder, record: str
) -> None:
    """Three times: a job that can never start would leave GPUs unused for ever."""
    alice = whole_node(record=record, stuck=True)
    bench = rounds_with(slurm, alice)
    for tries in range(1, 5):
        assert bench.run().placed == ["6"]
        if tries == 4:
            break
        slurm.change("6", reason="Resources", last_sched_eval=int(bench.wall) + 7)
        bench.wait(7.0)
        assert bench.poll() == 1
        slurm.change("6", reason="Licenses")
        if tries == 1:
            slurm.add(bob())
        result = bench.run()
        assert result.placed == []
        assert reasons_of(result)["6"].startswith("no room is left on its nodes; tried again in ")
        assert not slurm.jobs["6"]["req_nodes"]
        bench.wait(16.0)
    slurm.change("6", reason="Resources", last_sched_eval=int(bench.wall) + 7)
    bench.wait(7.0)
    if not record:  # else its gate stays open
        assert bench.poll() == 1
        slurm.change("6", reason="Licenses")
    assert bench.run().placed == ["7"]


@pytest.mark.parametrize("shown", ["Licenses", "Priority", "Resources"])
def test_what_found_no_room_is_tried_again_whatever_it_shows(
    slurm: SlurmFolder, shown: str
) -> None:
    """At the gate it shows how things are for the first of the queue, and not for itself."""
    bench = parked_again(slurm)
    slurm.change("7", reason=shown)
    assert bench.run().placed == []
    assert bench.run(2.0).placed == ["7"]


@pytest.mark.parametrize(("node", "placed"), [("n1", ["7"]), ("n2", [])])
def test_what_found_no_room_is_tried_again_when_a_job_ends_there(
    slurm: SlurmFolder, node: str, placed: list[str]
) -> None:
    bench = parked_again(slurm, one_hour("4", node, []))
    assert bench.run().placed == []
    slurm.change("4", state="COMPLETED")
    assert bench.run().placed == placed


def parked_again(slurm: SlurmFolder, *others: dict[str, Any]) -> RoundsBench:
    """Job 7 of bob has just been parked again, as Slurm found no room for it on n1."""
    bench = rounds_with(slurm, *others, bob(stuck=True), nodes=["n1", "n2"])
    assert bench.run().placed == ["7"]
    slurm.change("7", reason="Resources", last_sched_eval=int(bench.wall) + 7)
    bench.wait(7.0)
    assert bench.poll() == 1
    return bench
