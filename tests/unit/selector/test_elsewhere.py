"""Jobs of whole nodes without GPUs: their gate is open for nodes without GPUs before their turn."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from memory_slurm import node_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked, run_by_slurm

from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.slurm.updates import JobUpdate

RECORD = f"gpuaware/1;ex=1;lf={quote(WHOLE_NODES)}"
OPEN = "on nodes without GPUs it may start at any time"


def whole(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """``--exclusive`` without GPUs."""
    usual = {
        "admin_comment": RECORD,
        "exclusive": 1,
        "stuck": True,
        "tres_per_node": "",
        "tres_req_str": "cpu=1,mem=500M,node=1,billing=1",
    }
    return parked(job_id, **{**usual, **fields})


def bench_of(
    slurm: SlurmFolder, jobs: list[dict[str, Any]], nodes: str = "n1,c1,c2"
) -> RoundsBench:
    """Nodes c1, c2 have no GPUs, the others four."""
    slurm.write(jobs, [])
    records = [
        node_record(name, **({"gres": "", "features": "cpu"} if name[0] == "c" else {}))
        for name in nodes.split(",")
    ]
    slurm.set(nodes=records)
    return RoundsBench(slurm)


def is_open(slurm: SlurmFolder, job_id: str = "7") -> bool:
    return bool(slurm.jobs[job_id]["licenses"] == "")


def excluded(slurm: SlurmFolder, job_id: str = "7") -> set[str]:
    (job,) = (one for one in slurm.client().jobs() if one.id == job_id)
    return set(job.exc_nodes)


def reason_of(outcome: Any, job_id: str = "7") -> str:
    (entry,) = (one for one in outcome.waiting if one["job_id"] == job_id)
    return str(entry["reason"])


@pytest.mark.parametrize("own", ["", "c2", "n9"])
def test_it_may_start_on_nodes_without_gpus_before_its_turn(slurm: SlurmFolder, own: str) -> None:
    record = RECORD.replace(";lf", f";xn={own};lf") if own else RECORD
    job = whole(admin_comment=record, exc_nodes=own)
    bench = bench_of(slurm, [run_by_slurm("6"), job])
    outcome = bench.run()
    assert outcome.placed == []
    assert is_open(slurm)
    assert excluded(slurm) == {"n1", *filter(None, [own])}
    assert "needs 1 wholly free node; of the 1 that it may use 0 are free" in reason_of(outcome)
    assert reason_of(outcome).count(OPEN) == 1
    told = len(bench.told)
    outcome = bench.run(5.0)
    assert reason_of(outcome).count(OPEN) == 1
    assert len(bench.told) == told  # nothing changes


def test_its_turn_on_nodes_with_gpus_comes_as_before(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole()])
    bench.run()
    slurm.change("6", state="COMPLETED")
    assert bench.run(5.0).placed == ["7"]
    assert (is_open(slurm), excluded(slurm)) == (True, set())
    assert "st=by-Slurm" in slurm.jobs["7"]["admin_comment"]


def test_a_job_before_it_gets_the_node_first(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole(), parked("8", 4, priority=900, stuck=True)])
    bench.run()
    slurm.change("6", state="COMPLETED")
    assert bench.run(5.0).placed == ["8"]
    assert (is_open(slurm), excluded(slurm)) == (True, {"n1"})


def test_none_behind_it_delays_it_on_nodes_with_gpus(slurm: SlurmFolder) -> None:
    """It is planned in its turn: a node is reserved for it."""
    jobs = [
        *(run_by_slurm("6", slots=[0, 1], end_time=1_790_000_600), whole(priority=900)),
        parked("8", 1, time_limit=600),
    ]
    bench = bench_of(slurm, jobs)
    assert bench.run().placed == []
    assert (is_open(slurm, "7"), is_open(slurm, "8")) == (True, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 0, "reason": "JobHeldUser"},
        {"dependency": "afterok:5(unfulfilled)", "reason": "Dependency"},
    ],
)
def test_one_that_its_owner_holds_waits_at_the_gate(
    slurm: SlurmFolder, fields: dict[str, Any]
) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole(**fields)])
    bench.run()
    assert (is_open(slurm), excluded(slurm)) == (False, set())
    slurm.change("7", priority=100, dependency="", reason="Licenses")
    bench.run(5.0)
    assert is_open(slurm)
    slurm.change("7", **fields)
    bench.run(5.0)
    assert (is_open(slurm), excluded(slurm)) == (False, set())
    assert slurm.jobs["7"]["admin_comment"] == RECORD


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"num_nodes": 3, "num_tasks": 3, "num_cpus": 3}, "n1,n2,n3,c1,c2"),
        ({"req_nodes": "n1"}, "n1,c1"),
        ({"features": "gpu_v100"}, "n1,c1"),
        ({"exc_nodes": "c1"}, "n1,c1"),
        ({}, "n1"),
    ],
)
def test_nodes_without_gpus_must_suffice(
    slurm: SlurmFolder, fields: dict[str, Any], nodes: str
) -> None:
    record = RECORD.replace(";lf", ";xn=c1;lf") if "exc_nodes" in fields else RECORD
    bench = bench_of(slurm, [run_by_slurm("6"), whole(admin_comment=record, **fields)], nodes)
    outcome = bench.run()
    assert not is_open(slurm)
    assert OPEN not in reason_of(outcome)


def test_one_that_asks_for_nodes_without_gpus_only_is_open_for_them(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole(req_nodes="c1")])
    outcome = bench.run()
    assert (is_open(slurm), excluded(slurm)) == (True, {"n1"})
    assert reason_of(outcome).endswith(OPEN)


def test_a_node_with_gpus_that_comes_is_not_for_it(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole()])
    bench.run()
    with slurm.state() as state:
        state["nodes"].append(node_record("n2"))
        state["jobs"] += [run_by_slurm("9", "n2")]
    bench.run(5.0)
    assert not is_open(slurm)
    bench.run(5.0)
    assert (is_open(slurm), excluded(slurm)) == (True, {"n1", "n2"})


def test_an_array_is_opened_as_one_record(slurm: SlurmFolder) -> None:
    array = {"array_job_id": 7, "array_task_str": "0-3"}
    bench = bench_of(slurm, [run_by_slurm("6"), whole(**array)])
    outcome = bench.run()
    assert is_open(slurm)
    assert all(OPEN in one["reason"] for one in outcome.waiting)
    assert len([one for _, one in bench.told if one.job_id.startswith("7")]) == 2


@pytest.mark.parametrize("name", ["ExcNodeList", "Licenses"])
def test_it_stays_at_the_gate_where_slurm_refuses_it(slurm: SlurmFolder, name: str) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole()])
    send, tried = bench.client.update_jobs, list[str]()

    def refuse(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if any(field == name for one in updates for field, _ in one.fields):
            tried.append(name)
            return {one.job_id: "no" for one in updates}
        return send(updates)

    bench.client.update_jobs = refuse  # type: ignore[method-assign]
    for _ in range(2):
        outcome = bench.run(5.0)
        assert not is_open(slurm)
        assert OPEN not in reason_of(outcome)
    assert len(tried) == 1
    bench.run(60.0)
    assert len(tried) == 2


def test_what_its_owner_changes_meanwhile_opens_no_gate(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole()])
    send = bench.client.update_jobs

    def meanwhile(updates: Sequence[JobUpdate]) -> dict[str, str]:
        refused = send(updates)
        if any(field == "ExcNodeList" for one in updates for field, _ in one.fields):
            slurm.change("7", licenses="gpuaware:2")
        return refused

    bench.client.update_jobs = meanwhile  # type: ignore[method-assign]
    bench.run()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:2"


def test_a_new_selector_knows_it(slurm: SlurmFolder) -> None:
    bench_of(slurm, [run_by_slurm("6"), whole()]).run()
    bench = RoundsBench(slurm)
    bench.run()
    bench.poll(100.0)
    assert (is_open(slurm), excluded(slurm)) == (True, {"n1"})
    assert bench.told == []
    slurm.change("7", state="RUNNING", nodes="c1")
    assert bench.run(5.0).waiting == []
    assert slurm.jobs["7"]["licenses"] == ""


def test_a_requeued_one_gets_its_own_request_back(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [run_by_slurm("6"), whole()])
    bench.run()
    slurm.change("7", restart_cnt=1)
    bench.run(5.0)
    bench.poll(1.0)
    assert (is_open(slurm), excluded(slurm)) == (False, set())
    bench.run(5.0)
    assert (is_open(slurm), excluded(slurm)) == (True, {"n1"})
