"""A site that refuses the selector's changes: the gate is open, and says why."""

import json
import os
import re
import time

import pytest
from memory_slurm import job_record, reservation_record
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.trial import NAME, try_changes
from slurm_gpu_aware.selector.backoff import MOST, Refusals
from slurm_gpu_aware.selector.heartbeat import Heartbeat
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


class Gate:
    """A heartbeat with a clock of its own."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self.slurm, self.now = slurm, 1000.0
        client = slurm.client()
        self.heartbeat = Heartbeat(
            client, Config(), HoldingPool(client), timer=lambda: self.now, stall_s=1e9
        )

    def refused(self, job_id: str, user: str) -> None:
        self.heartbeat.refusals.refused(job_id, "Unspecified error", user)

    def beats(self, later_s: float = 0.0, claim: bool = False) -> bool:
        """Whether the gate is closed after a heartbeat, so much later."""
        self.now += later_s
        self.heartbeat.beat(claim=claim)
        return self.closed

    @property
    def closed(self) -> bool:
        return bool(self.slurm.get("reservations"))

    def events(self) -> list[str]:
        queue = self.heartbeat.events
        return [queue.get()[0] for _ in range(queue.qsize())]


def calls_of(slurm: SlurmFolder, name: str) -> int:
    return sum(call[0] == name for call in slurm.calls)


def test_an_open_gate_closes_after_a_test_job_was_changed(slurm: SlurmFolder) -> None:
    slurm.reserve()
    gate = Gate(slurm)
    assert gate.beats(claim=True)
    assert calls_of(slurm, "submit_held") == 1
    assert slurm.jobs == {}
    changed = {name for call in slurm.calls if call[0] == "update" for name in call[2]}
    assert {"AdminComment", "Extra", "Licenses", "ReqNodeList", "TresPerNode"} <= changed
    slurm.forget_calls()
    gate.beats()
    gate.beats(claim=True)
    assert calls_of(slurm, "submit_held") == 0  # once, not with each beat or takeover


def test_the_gate_stays_open_while_the_site_refuses_and_closes_when_it_does_not(
    slurm: SlurmFolder,
) -> None:
    slurm.reserve()
    slurm.set(site_refuses=True)
    gate = Gate(slurm)
    assert not gate.beats(claim=True)
    assert (gate.heartbeat.held_until, slurm.jobs) == (0.0, {})
    for later_s, test_jobs in ((20.0, 1), (100.0, 2)):  # with a pause between two of them
        gate.beats(later_s)
        assert calls_of(slurm, "submit_held") == test_jobs
    assert gate.events() == ["gate_lost"] * 2  # each tells when it is tried again
    slurm.set(site_refuses=False)
    assert not gate.beats(239.0)
    assert gate.beats(1.0)
    assert gate.events() == ["gate_created"]


def test_refusals_in_a_row_open_the_gate_for_longer_each_time(slurm: SlurmFolder) -> None:
    gate = Gate(slurm)
    for pause_s in (120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0):
        assert gate.beats()
        for _ in range(MOST if pause_s == 120.0 else 1):  # later, the first one opens it again
            gate.refused("7", "alice")
            gate.refused("9", "bob")
        gate.beats()
        gate.refused("8", "bob")  # of the round that was under way
        closed = [gate.beats(later_s) for later_s in (0.0, pause_s - 1.0, 1.0)]
        assert closed == [False, False, True]
    gate.heartbeat.refusals.accepted()  # a job got through: counted, and paused, from the beginning
    for _ in range(MOST - 1):
        gate.refused("7", "alice")
    assert gate.beats()
    gate.refused("9", "bob")
    assert [gate.beats(later_s) for later_s in (0.0, 120.0)] == [False, True]


@pytest.mark.parametrize("site_refuses", [True, False])
def test_no_user_alone_opens_the_gate_for_all(slurm: SlurmFolder, site_refuses: bool) -> None:
    """A form of a job that Slurm does not let us change concerns its user, a site's rule all."""
    gate = Gate(slurm)
    gate.beats()
    slurm.set(site_refuses=site_refuses)
    for number in range(MOST):
        gate.refused(str(number), "bob")
    assert gate.beats() is not site_refuses
    assert gate.heartbeat.refusals.count == (MOST if site_refuses else 0)


def test_what_has_ended_or_got_through_in_between_is_no_row() -> None:
    refusals = Refusals(lambda: {"Job has finished"})
    for _ in range(MOST):
        refusals.refused("7", "Job has finished", "alice")
    assert not refusals.too_many
    for _ in range(MOST):
        assert not refusals.too_many
        refusals.refused("7", "Unspecified error", "alice")
    assert refusals.too_many
    assert refusals.why == "job 7: Unspecified error"
    refusals.accepted()
    assert not refusals.too_many


def test_the_test_job_of_a_killed_selector_is_cancelled_and_others_are_not(
    slurm: SlurmFolder,
) -> None:
    mine = job_record(job_id=5, name=NAME, user_name="root", licenses="gpuaware:1")
    of_a_user = parked("6", name=NAME, stuck=True)
    slurm.write([mine, of_a_user], ["n1"])
    heartbeat = Gate(slurm).heartbeat
    heartbeat.start()
    heartbeat.stop()
    assert list(slurm.jobs) == ["6"]
    slurm.write([mine, of_a_user], ["n1"])
    assert try_changes(slurm.client(), Config()).passed
    assert list(slurm.jobs) == ["6"]


@pytest.mark.parametrize("users", [[os.geteuid()], [os.geteuid(), 0]])
def test_a_user_without_an_account(slurm: SlurmFolder, users: list[int]) -> None:
    """Root has one wherever there is accounting; without either, the gate closes untested."""
    slurm.set(no_account=users)
    trial = try_changes(slurm.client(), Config())
    if os.geteuid() != 0 and users == [os.geteuid()]:
        assert trial.passed
        return
    assert trial.passed is None
    assert "Invalid account" in trial.why
    slurm.reserve()
    assert Gate(slurm).beats(claim=True)


def test_the_refusal_names_fields_and_cure(slurm: SlurmFolder) -> None:
    slurm.set(site_refuses=True)
    trial = try_changes(slurm.client(), Config())
    assert trial.passed is False
    assert "Unspecified error" in trial.why
    assert "AdminComment" in trial.why
    assert f"if modify_uid == {os.geteuid()} then return slurm.SUCCESS end" in trial.cure


def test_jobs_that_cannot_be_placed_count_and_rounds_ignore_test_jobs(slurm: SlurmFolder) -> None:
    trial = parked("5", 1, name=NAME, user_name="root", state="RUNNING")
    slurm.write([trial, parked("7"), parked("8"), parked("9")], ["n1", "n2"])
    slurm.set(site_refuses=True)
    slurm.round()
    slurm.round()
    assert any("error" in slurm.kinds(job_id) for job_id in ("7", "8", "9"))
    assert slurm.kinds("5") == []


def test_the_ledger_says_why_the_gate_is_open(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    slurm.reserve()
    slurm.set(site_refuses=True)
    slurm.round()
    assert slurm.get("reservations") == []
    with open_store(slurm.store, readonly=True) as store:
        why = Ledger(store).why_open
        assert "Unspecified error" in why
        assert re.search(r"; the selector tries again at \d\d:\d\d", why)
        with monkeypatch.context() as later:
            later.setattr("time.time", lambda: now + 400.0)
            assert Ledger(store).why_open == ""  # it has not tried: it does not run
    slurm.set(site_refuses=False)
    slurm.round()
    with open_store(slurm.store, readonly=True) as store:
        assert Ledger(store).why_open == ""


def test_a_new_reservation_is_not_needed_to_open(slurm: SlurmFolder) -> None:
    slurm.reserve(reservation_record("other"))
    gate = Gate(slurm)
    for _ in range(MOST):
        gate.refused("7", "alice")
        gate.refused("8", "bob")
    gate.beats()
    assert [one["name"] for one in slurm.get("reservations")] == ["other"]


def test_the_commands_say_why_the_gate_is_open(slurm: SlurmFolder) -> None:
    slurm.write([parked("7")], ["n1"])
    slurm.reserve()
    slurm.set(site_refuses=True)
    slurm.round()

    def said(*argv: str) -> str:
        done = slurm.run("gpu-aware", "--config", str(slurm.config), *argv)
        return " ".join(done.stdout.split())

    shown = said("status")
    assert "open: a change of a job (" in shown
    assert "leaves all jobs to Slurm" in shown
    assert "Unspecified error" in json.loads(said("status", "--json"))["gate"]["why_open"]
    opened = "The gate is open, and Slurm starts this job by itself: a change of a job ("
    assert opened in said("explain", "7")
