"""The gate: opened by hand and for good, held by its reservation."""

from __future__ import annotations

from typing import Any

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.service.heartbeat import Heartbeat
from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.slurm.gate import release_by_hand

RUNNING = {
    "JobState": "RUNNING",
    "Reason": "None",
    "Licenses": "(null)",
    "NodeList": "n1",
    "ReqNodeList": "n1",
    "TresPerNode": "gres/gpu:g2:1,gres/gpu:g3:1",
    "AdminComment": "gpuaware/1;tn=gres/gpu:2;mc=1;sel=released:0:1",
    "StartTime": "1000",
    "slots": [2, 3],
}


def release(slurm: FakeSlurm, *job_ids: str) -> list[str]:
    return release_by_hand(CliGateway(scontrol=slurm.scontrol), Config(), list(job_ids) or None)


def array(task: str, number: str = "98", **fields: Any) -> dict[str, Any]:
    return parked(number, ArrayJobId="98", ArrayTaskId=task, **fields)


@pytest.mark.parametrize("named", [["98"], []], ids=["by id", "all"])
def test_releasing_an_array_does_not_touch_its_running_tasks(
    slurm: FakeSlurm, named: list[str]
) -> None:
    slurm.write([array("2,3"), array("1", "99", **RUNNING)], ["n1", "n2"])
    before = slurm.jobs["99"]
    release(slurm, *named)
    assert slurm.jobs["99"] == before
    assert not (slurm.home / "touched-running").exists()
    rest = [job for job in slurm.jobs.values() if job["JobId"] != "99"]
    assert sorted(job["ArrayTaskId"] for job in rest) == ["2", "3"]
    assert all(job["Licenses"] == "(null)" for job in rest)
    assert all(";sel=hand:" in job["AdminComment"] for job in rest)


def test_leaving_an_array_to_slurm_does_not_touch_its_running_tasks(slurm: FakeSlurm) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;feat=%5Bx%5D;mc=1"
    slurm.write([array("2,3", AdminComment=comment), array("1", "99", **RUNNING)], ["n1", "n2"])
    slurm.round()
    assert slurm.jobs["99"]["AdminComment"] == RUNNING["AdminComment"], slurm.said
    rest = [job for job in slurm.jobs.values() if job["JobId"] != "99"]
    assert sorted(job["ArrayTaskId"] for job in rest) == ["2", "3"]
    assert all(job["Licenses"] == "(null)" for job in rest)
    assert all(";sel=hand:" in job["AdminComment"] for job in rest)


def test_an_array_of_one_record_is_released_by_its_own_id(slurm: FakeSlurm) -> None:
    slurm.write([array("0,1,2", stuck="1")], ["n1"])
    assert release(slurm, "98") == ["98"]
    (job,) = slurm.jobs.values()
    assert job["Licenses"] == "(null)"


def test_releasing_takes_the_clock_away(slurm: FakeSlurm) -> None:
    pinned = parked(
        ReqNodeList="n1",
        TresPerNode="gres/gpu:g0:1,gres/gpu:g1:1",
        TresFreq="gpu:900",
        Extra="mine,freq=900@0+1",
        AdminComment="gpuaware/1;tn=gres/gpu:2;mc=1;sel=prepared:0:1",
        stuck="1",
    )
    slurm.write([pinned], ["n1"])
    release(slurm, "7")
    job = slurm.jobs["7"]
    assert job["Extra"] == "mine"
    assert job["ReqNodeList"] == "(null)"
    assert "TresFreq" not in job


def test_a_task_whose_gate_slurm_does_not_open_is_not_called_released(slurm: FakeSlurm) -> None:
    slurm.write([array("3", "101")], ["n1"])
    (slurm.home / "refuse").write_text("98_3")
    with pytest.raises(SourceError, match="98_3: Requested node configuration"):
        release(slurm, "98_3")


def test_a_task_whose_gate_slurm_does_not_open_is_held_back(slurm: FakeSlurm) -> None:
    slurm.write([array("3", "101")], ["n1"])
    (slurm.home / "refuse").write_text("98_3")
    slurm.round()
    assert slurm.ledger("98_3")[-1].state == "failed"


def gate_of(slurm: FakeSlurm, licences: str) -> Heartbeat:
    """A heartbeat over a gate's reservation that is there already."""
    (slurm.home / "reservations").write_text(
        f"ReservationName=gpuaware_gate StartTime=100 EndTime=99999999999 Nodes=(null)"
        f" Flags=ANY_NODES Licenses={licences} State=ACTIVE\n"
    )
    return Heartbeat(CliGateway(scontrol=slurm.scontrol), Config())


def held(slurm: FakeSlurm) -> list[str]:
    lines = (slurm.home / "reservations").read_text().splitlines()
    return [line.split("Licenses=")[1].split()[0] for line in lines]


@pytest.mark.parametrize("licences", ["gpuaware:10", "matlab:5", "(null)"])
def test_a_gate_that_holds_too_few_licences_is_made_anew(slurm: FakeSlurm, licences: str) -> None:
    heartbeat = gate_of(slurm, licences)
    heartbeat.beat()
    assert held(slurm) == ["gpuaware:100000"]
    assert heartbeat.created.qsize() == 1
    heartbeat.beat()
    assert heartbeat.created.qsize() == 1


def test_the_gate_is_looked_at_now_and_then(slurm: FakeSlurm) -> None:
    heartbeat = gate_of(slurm, "gpuaware:100000")
    heartbeat.beat()
    kept = (slurm.home / "reservations").read_text()
    (slurm.home / "reservations").write_text(kept.replace("100000", "10"))
    for _ in range(9):
        heartbeat.beat()
    assert held(slurm) == ["gpuaware:10"]
    heartbeat.beat()
    assert held(slurm) == ["gpuaware:100000"]


def test_a_gate_that_slurm_cannot_make_larger_stays(slurm: FakeSlurm) -> None:
    heartbeat = gate_of(slurm, "gpuaware:10")
    (slurm.home / "licence-total").write_text("50")
    heartbeat.beat()
    assert held(slurm) == ["gpuaware:10"]
    assert heartbeat.held_until > 0


def test_a_task_behind_a_parked_one_is_not_released_alone(slurm: FakeSlurm) -> None:
    slurm.write([array("1", "101"), array("2", "102"), array("4,5", "98")], ["n1", "n2"])
    before = slurm.jobs
    for named in (["98_2"], ["98_5"], ["98_1", "98_5"]):
        with pytest.raises(SourceError, match=r"release 98_[12] first"):
            release(slurm, *named)
    assert slurm.jobs == before
    assert release(slurm, "98_1") == ["98_1"]
    assert release(slurm, "98_2") == ["98_2"]


def test_tasks_of_an_array_may_be_released_together(slurm: FakeSlurm) -> None:
    slurm.write([array("1", "101"), array("2", "102"), array("4,5", "98")], ["n1", "n2"])
    assert release(slurm, "98_2", "98_1") == ["98_2", "98_1"]
    assert sorted(release(slurm, "98")) == ["98"]


def test_a_task_of_an_unsplit_array_may_be_released_before_others(slurm: FakeSlurm) -> None:
    slurm.write([array("1,2,3", "98")], ["n1"])
    assert release(slurm, "98_3") == ["98_3"]
