"""The selector against a small Slurm of ours: an executable named scontrol, first on PATH.

The daemon runs as a process of its own and is killed with SIGKILL at every command it gives.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.heartbeat import Heartbeat
from slurm_gpu_aware.service.rounds import Outcome, Rounds
from slurm_gpu_aware.service.selectd import Selector
from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def test_a_parked_job_is_placed_and_starts(slurm: FakeSlurm) -> None:
    slurm.write([parked()], ["n1", "n2"])
    assert slurm.round() == 0, slurm.said
    job = slurm.jobs["7"]
    assert job["JobState"] == "RUNNING"
    assert job["Licenses"] == "(null)"
    assert slurm.round() == 0
    (decision,) = slurm.ledger("7")
    assert decision.state == "started"
    assert decision.outcome["as_planned"] is True
    assert [list(decision.nodes), list(decision.slots)] == [[job["NodeList"]], [job["slots"]]]


def test_own_licences_survive(slurm: FakeSlurm) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;lic=matlab:2;mc=1"
    slurm.write([parked(Licenses="matlab:2,gpuaware:1", AdminComment=comment)], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["Licenses"] == "matlab:2"


def test_licences_that_its_own_reservation_holds_are_there(slurm: FakeSlurm) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;lic=matlab:20;mc=1"
    job = parked(Licenses="matlab:20,gpuaware:1", AdminComment=comment)
    slurm.write([job, parked("8", Licenses="matlab:20,gpuaware:1", AdminComment=comment)], ["n1"])
    slurm.change("7", Reservation="course")
    (slurm.home / "reservations").write_text(
        "ReservationName=course StartTime=100 EndTime=99999999999 Nodes=n1 Flags=(null)"
        " Licenses=matlab:20 State=ACTIVE\n"
    )
    slurm.round()
    assert slurm.jobs["7"]["JobState"] == "RUNNING", slurm.said
    assert slurm.jobs["8"]["Licenses"] == "matlab:20,gpuaware:1"


def test_the_gate_is_held_at_once_after_a_long_wait_for_slurm() -> None:
    now = [1000.0]
    heartbeat = Heartbeat(CliGateway(scontrol="/bin/true"), Config(), clock=lambda: now[0])
    now[0] += 3600.0
    heartbeat.start()
    heartbeat.stop()
    assert heartbeat.held_until == now[0] + Config().gate.lease_s


@pytest.mark.parametrize("reason", ["Dependency", "QOSMaxGRESPerUser", "JobHeldUser", "BeginTime"])
def test_what_something_else_holds_is_left_alone(slurm: FakeSlurm, reason: str) -> None:
    slurm.write([parked(Reason=reason)], ["n1"])
    before = slurm.jobs
    slurm.round()
    assert slurm.jobs == before
    assert slurm.ledger("7") == []


def test_what_is_not_ours_is_left_alone(slurm: FakeSlurm) -> None:
    foreign = parked(AdminComment="site note", Licenses="gpuaware:1")
    by_hand = parked(
        "8", Licenses="(null)", AdminComment="gpuaware/1;tn=gres/gpu:2;sel=hand:0:1", stuck="1"
    )
    slurm.write([foreign, by_hand], ["n1"])
    before = slurm.jobs
    slurm.round()
    assert slurm.jobs == before


def test_nodes_typed_with_blanks_are_understood(slurm: FakeSlurm) -> None:
    comment = "gpuaware/1;tn=gres/gpu:1;rn=n2%20;xn=n3%20n4;mc=1"
    slurm.write([parked(ReqNodeList="n2", AdminComment=comment)], ["n1", "n2"])
    slurm.round()
    assert slurm.jobs["7"]["JobState"] == "RUNNING", slurm.said
    assert slurm.jobs["7"]["NodeList"] == "n2"


@pytest.mark.parametrize("key", ["rn", "xn"])
def test_a_job_that_cannot_be_understood_stops_no_other(slurm: FakeSlurm, key: str) -> None:
    odd = parked(stuck="1", AdminComment=f"gpuaware/1;tn=gres/gpu:1;{key}=n%5B1%3A2;mc=1")
    opened = parked(
        "9", Licenses="(null)", stuck="1", AdminComment="gpuaware/1;tn=gres/gpu:1;rn=n%5B1%3A2"
    )
    slurm.write([odd, opened, parked("8")], ["n1", "n2"])
    assert slurm.round() == 0, slurm.said
    assert slurm.jobs["8"]["JobState"] == "RUNNING", slurm.said
    assert slurm.jobs["7"]["Licenses"] == "(null)"
    assert ";sel=hand:" in slurm.jobs["7"]["AdminComment"]
    assert slurm.round() == 0, slurm.said


def test_a_forged_record_without_json_stops_no_other(slurm: FakeSlurm) -> None:
    """The fake gives no JSON, so that the doubtful job cannot be read in any way."""
    slurm.write([parked("8"), parked("7", JobName="x JobState=RUNNING")], ["n1"])
    slurm.round()
    assert slurm.jobs["8"]["JobState"] == "RUNNING", slurm.said
    assert slurm.jobs["7"]["Licenses"] == "gpuaware:1"
    assert "job 7 is passed over" in slurm.said


def test_a_ledger_that_fails_oddly_does_not_end_the_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    )
    selector = Selector(config, CliGateway(scontrol="/bin/false"))

    def no_disk(*_: object) -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(selector._rounds, "run", Outcome)
    monkeypatch.setattr(selector, "_write_down", no_disk)
    selector._round("timer")
    selector.close()


def test_nothing_is_pinned_if_the_gate_may_open_during_a_command(tmp_path: Path) -> None:
    config = Config()
    rounds = Rounds(
        CliGateway(scontrol="/bin/false"),
        config,
        Books(tmp_path / "store.db"),
        gate_held_until=lambda: 1000.0,
    )
    assert rounds._gate_held(1000.0 - config.gate.lease_s * 2 / 3)
    assert not rounds._gate_held(1000.0 - config.selector.command_timeout_s)


def test_a_job_whose_record_was_overwritten_is_left_to_slurm(slurm: FakeSlurm) -> None:
    slurm.write([parked(Reason="Dependency")], ["n1"])
    slurm.round()
    slurm.change("7", AdminComment="ticket-4711", Licenses="matlab:2,gpuaware:1")
    slurm.round()
    assert slurm.jobs["7"]["Licenses"] == "matlab:2"
    assert slurm.jobs["7"]["AdminComment"] == "ticket-4711"


def test_what_is_left_to_slurm_is_not_touched_again(slurm: FakeSlurm) -> None:
    """Its pins were made by a selector that was killed; once its gate is open it may run."""
    pinned = parked(
        ReqNodeList="n1",
        TresPerNode="gres/gpu:g0:1,gres/gpu:g1:1",
        AdminComment="gpuaware/1;tn=gres/gpu:2;feat=%5Bx%5D;mc=1;sel=prepared:0:1",
    )
    slurm.write([pinned], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["JobState"] == "RUNNING"
    assert not (slurm.home / "touched-running").exists()
    assert ";sel=hand:" in slurm.jobs["7"]["AdminComment"]


def test_array_tasks_are_split_and_bounded(slurm: FakeSlurm) -> None:
    array = parked("98", ArrayJobId="98", ArrayTaskId="0,1,2,3%2", ArrayTaskThrottle="2")
    slurm.write([array], ["n1", "n2"])
    slurm.round()
    running = [job for job in slurm.jobs.values() if job["JobState"] == "RUNNING"]
    assert sorted(job["ArrayTaskId"] for job in running) == ["0", "1"]
    slurm.round()
    assert sum(job["JobState"] == "RUNNING" for job in slurm.jobs.values()) == 2
    assert slurm.ledger("98_0")[0].state == "started"


def test_a_requeued_job_is_parked_with_its_original_request(slurm: FakeSlurm) -> None:
    slurm.write([parked()], ["n1", "n2"])
    slurm.round()
    slurm.change("7", JobState="PENDING", Reason="BeginTime", Restarts="1", NodeList="")
    slurm.round()
    job = slurm.jobs["7"]
    assert job["Licenses"] == "gpuaware:1"
    assert (job["ReqNodeList"], job["TresPerNode"]) == ("(null)", "gres/gpu:2")
    assert "TresFreq" not in job
    assert job["AdminComment"] == "gpuaware/1;tn=gres/gpu:2;mc=1"
    slurm.change("7", Reason="Licenses")
    slurm.round()
    assert slurm.jobs["7"]["JobState"] == "RUNNING"
    assert [d.state for d in slurm.ledger("7")] == ["reparked", "released"]


def test_a_placed_job_that_a_limit_holds_is_parked_again(slurm: FakeSlurm) -> None:
    slurm.write([parked(stuck="1")], ["n1"])
    slurm.round()
    slurm.change("7", Reason="QOSMaxGRESPerUser")
    slurm.round()
    job = slurm.jobs["7"]
    assert (job["Licenses"], job["ReqNodeList"]) == ("gpuaware:1", "(null)")


def test_a_refused_update_leaves_the_job_parked(slurm: FakeSlurm) -> None:
    slurm.write([parked(), parked("8")], ["n1"])
    (slurm.home / "refuse").write_text("7")
    slurm.round()
    assert slurm.jobs["7"]["Licenses"] == "gpuaware:1"
    assert slurm.jobs["8"]["JobState"] == "RUNNING"
    assert slurm.ledger("7")[-1].state == "failed"


def test_a_lost_gate_is_created_again(slurm: FakeSlurm) -> None:
    (slurm.home / "no-reservation").touch()
    slurm.round()
    assert not (slurm.home / "no-reservation").exists()
    with open_store(slurm.store, readonly=True) as store:
        assert [e.kind for e in Ledger(store).events("")] == ["gate_created"]


def test_a_damaged_store_stops_nothing(slurm: FakeSlurm) -> None:
    slurm.store.write_bytes(b"this is no database" * 500)
    slurm.write([parked()], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["JobState"] == "RUNNING"
    assert "the store cannot be used" in slurm.said


def test_slurm_commands_get_a_clean_environment(slurm: FakeSlurm) -> None:
    slurm.environment |= {"SLURM_CONF": "/x", "SLURM_CLUSTERS": "other", "SQUEUE_FORMAT": "%i"}
    slurm.round()
    for text in (slurm.home / "log").read_text().splitlines():
        environment = json.loads(text)[2]
        assert environment["SLURM_CONF"] == "/x"
        assert environment["SLURM_TIME_FORMAT"] == "%s"
        assert not {"SLURM_CLUSTERS", "SQUEUE_FORMAT"} & set(environment)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_every_command(tmp_path: Path, before: bool) -> None:
    """Whatever command it dies at: the job starts once, on free GPUs, and the ledger knows."""
    count = 1
    while True:
        folder = tmp_path / str(count)
        folder.mkdir()
        slurm = FakeSlurm(folder)
        array = parked("98", ArrayJobId="98", ArrayTaskId="0,1")
        slurm.write([parked(), parked("8"), array], ["n1", "n2"])
        code = slurm.round(kill_at=count, before=before)
        if code == 0:
            break  # it gave fewer commands than that
        slurm.round(4)
        assert not (slurm.home / "touched-running").exists()
        held: list[tuple[str, int]] = []
        for job in slurm.jobs.values():
            assert job["JobState"] == "RUNNING", (count, job, slurm.said)
            assert job["starts"] == 1
            held += [(node, slot) for node in job["NodeList"].split(",") for slot in job["slots"]]
            job_id = job["JobId"]
            if "ArrayTaskId" in job:
                job_id = f"{job['ArrayJobId']}_{job['ArrayTaskId']}"
            decision = slurm.ledger(job_id)[-1]
            assert decision.state == "started", (count, decision)
            assert decision.outcome["as_planned"] is True
        assert len(held) == len(set(held)) == 8
        count += 1
    assert count > 8
