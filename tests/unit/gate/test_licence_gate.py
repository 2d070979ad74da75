"""The gate: opened by hand and for good, held by its reservation."""

from collections.abc import Callable
from typing import Any

import pytest
from memory_slurm import reservation_record
from slurm_folder import Interleaved, SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.licence_gate import is_silent
from slurm_gpu_aware.gate.restore import release_by_hand
from slurm_gpu_aware.selector.heartbeat import Heartbeat
from slurm_gpu_aware.selector.holding_pool import HoldingPool

RUNNING = {
    "state": "RUNNING",
    "reason": "None",
    "licenses": "",
    "nodes": "n1",
    "req_nodes": "n1",
    "tres_per_node": "gres/gpu:g2:1,gres/gpu:g3:1",
    "admin_comment": "gpuaware/1;tn=gres/gpu:2;mc=1;sel=released:0:1",
    "start_time": 1000,
    "slots": [2, 3],
}


def release(slurm: SlurmFolder, *job_ids: str) -> list[str]:
    return release_by_hand(slurm.client(), Config(), list(job_ids) or None)


def array(task: str, number: str = "98", **fields: Any) -> dict[str, Any]:
    """One task, or the unsplit rest of the array."""
    if task.isdigit():
        return parked(number, array_job_id=98, array_task_id=int(task), **fields)
    return parked(number, array_job_id=98, array_task_str=task, **fields)


def test_a_component_is_released_with_its_job(slurm: SlurmFolder) -> None:
    slurm.write([parked("7"), parked("9")], ["n1"])
    assert release(slurm, "7+1", "7+2") == ["7"]
    assert ";sel=opened:" in slurm.jobs["7"]["admin_comment"]


@pytest.mark.parametrize(
    ("act", "phase"),
    [
        (lambda slurm: release(slurm, "98"), "opened"),
        (lambda slurm: release(slurm), "opened"),
        (lambda slurm: slurm.round(), "released"),  # left to Slurm: its constraint is not read
    ],
    ids=["released by id", "all released", "left to Slurm"],
)
def test_opening_an_array_does_not_touch_its_running_tasks(
    slurm: SlurmFolder, act: Callable[[SlurmFolder], object], phase: str
) -> None:
    comment = f"gpuaware/1;tn=gres/gpu:2{';feat=%5Bx%5D' * (phase == 'released')};mc=1"
    slurm.write([array("2,3", admin_comment=comment), array("1", "99", **RUNNING)], ["n1", "n2"])
    before = slurm.jobs["99"]
    act(slurm)
    assert slurm.jobs["99"]["admin_comment"] == before["admin_comment"], slurm.said
    if phase == "opened":
        assert slurm.jobs["99"] == before
        assert slurm.get("touched_running") == []
    rest = [job for job in slurm.jobs.values() if job["job_id"] != 99]
    assert sorted(job["array_task_id"] for job in rest) == [2, 3]
    assert all(job["licenses"] == "" for job in rest)
    assert all(f";sel={phase}:" in job["admin_comment"] for job in rest)


def test_an_array_of_one_record_is_released_by_its_own_id(slurm: SlurmFolder) -> None:
    slurm.write([array("0,1,2", stuck=True)], ["n1"])
    assert release(slurm, "98") == ["98"]
    (job,) = slurm.jobs.values()
    assert job["licenses"] == ""


def test_releasing_takes_the_clock_away(slurm: SlurmFolder) -> None:
    pinned = parked(
        req_nodes="n1",
        tres_per_node="gres/gpu:g0:1,gres/gpu:g1:1",
        tres_freq="gpu:900",
        extra="mine,freq=900@0+1",
        admin_comment="gpuaware/1;tn=gres/gpu:2;mc=1;sel=prepared:0:1",
        stuck=True,
    )
    slurm.write([pinned], ["n1"])
    release(slurm, "7")
    job = slurm.jobs["7"]
    assert job["extra"] == "mine"
    assert job["req_nodes"] == ""
    assert job["tres_freq"] == ""


def test_a_task_whose_gate_slurm_does_not_open_is_held_back(slurm: SlurmFolder) -> None:
    """And is not called released."""
    slurm.write([array("3", "101")], ["n1"])
    slurm.set(refuse=["98_3"])
    with pytest.raises(SourceError, match="98_3: Requested node configuration"):
        release(slurm, "98_3")
    slurm.round()
    decision = slurm.ledger("98_3")[-1]
    assert decision.state == "waiting"
    assert "Requested node configuration" in decision.outcome["why"]


def gate_of(slurm: SlurmFolder, licences: str) -> Heartbeat:
    """A heartbeat over a gate's reservation that is there already."""
    slurm.reserve(reservation_record("gpuaware_gate", licenses=licences))
    return Heartbeat(slurm.client(), Config(), HoldingPool(slurm.client()))


def held_licences(slurm: SlurmFolder) -> list[str]:
    return [found["licenses"] for found in slurm.get("reservations")]


@pytest.mark.parametrize(("quiet_s", "silent"), [(0.0, False), (29.0, False), (31.0, True)])
def test_a_selector_is_silent_ten_seconds_after_a_heartbeat_is_due(
    quiet_s: float, silent: bool
) -> None:
    assert is_silent(1000.0 + Config().gate.lease_s, Config(), 1000.0 + quiet_s) is silent


@pytest.mark.parametrize("licences", ["gpuaware:10", "matlab:5", ""])
def test_a_gate_that_holds_too_few_licences_is_made_anew(slurm: SlurmFolder, licences: str) -> None:
    heartbeat = gate_of(slurm, licences)
    heartbeat.beat()
    assert held_licences(slurm) == ["gpuaware:100000"]
    assert heartbeat.events.qsize() == 1
    heartbeat.beat()
    assert heartbeat.events.qsize() == 1


def test_each_heartbeat_looks_at_the_licences(slurm: SlurmFolder) -> None:
    heartbeat = gate_of(slurm, "gpuaware:100000")
    heartbeat.beat()
    slurm.reserve(reservation_record("gpuaware_gate", licenses="gpuaware:10"))
    heartbeat.beat()
    assert held_licences(slurm) == ["gpuaware:100000"]


def test_a_gate_that_holds_nothing_since_a_refused_update_is_made_anew(slurm: SlurmFolder) -> None:
    """Slurm still shows its licences (seen on 24.11 and 26.05)."""
    heartbeat = gate_of(slurm, "gpuaware:100000")
    heartbeat.beat()
    slurm.set(unheld=["gpuaware_gate"])
    heartbeat.beat()
    reserved = {one.name: one.reserved for one in slurm.client().licenses()}
    assert reserved["gpuaware"] == 100_000
    assert heartbeat.events.qsize() == 1


def test_a_gate_that_slurm_cannot_make_larger_stays(slurm: SlurmFolder) -> None:
    heartbeat = gate_of(slurm, "gpuaware:10")
    slurm.set(licences={"gpuaware": 50})
    heartbeat.beat()
    assert held_licences(slurm) == ["gpuaware:10"]
    assert heartbeat.held_until > 0


def test_a_task_behind_a_parked_one_is_not_released_alone(slurm: SlurmFolder) -> None:
    slurm.write([array("1", "101"), array("2", "102"), array("4,5", "98")], ["n1", "n2"])
    before = slurm.jobs
    for named in (["98_2"], ["98_5"], ["98_1", "98_5"]):
        with pytest.raises(SourceError, match=r"release 98_[12] first"):
            release(slurm, *named)
    assert slurm.jobs == before
    assert release(slurm, "98_1") == ["98_1"]
    assert release(slurm, "98_2") == ["98_2"]


def test_tasks_of_an_array_may_be_released_together(slurm: SlurmFolder) -> None:
    slurm.write([array("1", "101"), array("2", "102"), array("4,5", "98")], ["n1", "n2"])
    assert release(slurm, "98_2", "98_1") == ["98_2", "98_1"]
    assert sorted(release(slurm, "98")) == ["98"]


def test_a_task_of_an_unsplit_array_may_be_released_before_others(slurm: SlurmFolder) -> None:
    slurm.write([array("1,2,3", "98")], ["n1"])
    assert release(slurm, "98_3") == ["98_3"]


def test_a_task_has_one_id_however_its_number_is_typed(slurm: SlurmFolder) -> None:
    slurm.write([array("1,2,30", "98")], ["n1"])
    with pytest.raises(SourceError, match="not parked"):
        release(slurm, "98_3_0")
    assert release(slurm, "98_02") == ["98_2"]


def test_a_job_with_a_type_says_why_it_is_not_parked(slurm: SlurmFolder) -> None:
    typed = {"licenses": "", "admin_comment": "", "tres_per_node": "gres/gpu:v100:2"}
    slurm.write([parked("7", **typed)], ["n1"])
    with pytest.raises(SourceError, match=r"7 is not parked: it asks for GPU type v100, and the"):
        release(slurm, "7")


def test_a_job_that_the_selector_binds_meanwhile_is_released_without_its_binding(
    slurm: SlurmFolder,
) -> None:
    """No selector looks after it from then on, so it could wait for its nodes for ever."""
    slurm.write([parked(stuck=True)], ["n1", "n2"])
    client = Interleaved(slurm)
    assert release_by_hand(client, Config(), ["7"]) == ["7"]
    assert client.codes == [0], slurm.said
    assert "job 7 -> n1" in slurm.said
    job = slurm.jobs["7"]
    assert (job["req_nodes"], job["tres_per_node"], job["licenses"]) == ("", "gres/gpu:2", "")
    assert ";sel=opened:" in job["admin_comment"]
