"""An error in a part of a round stays there: it is logged, and jobs are placed all the same."""

import logging
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from rounds_bench import RoundsBench, rounds_with
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.classes.live import KnownClasses
from slurm_gpu_aware.features.due_dates.live import DueDates
from slurm_gpu_aware.features.energy.accounts import EnergyComments
from slurm_gpu_aware.features.energy.live import ClockChecks
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.features.moves.live import Mover
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay
from slurm_gpu_aware.features.power.declared import PowerConfig
from slurm_gpu_aware.features.power.explorations import Explorations
from slurm_gpu_aware.features.power.job_tables import JobTables
from slurm_gpu_aware.features.power.live import ClockSpool
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.features.queue_order.live import FirstSubmissions
from slurm_gpu_aware.features.waiting.live import Postponements
from slurm_gpu_aware.selector import isolation as containment
from slurm_gpu_aware.selector import placer, site_reader
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.selector.head_guard import HeadGuard
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.job_comments import JobComments
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.leaver import Leaver
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.policy_options import PolicyInForce
from slurm_gpu_aware.selector.round_planner import Notes

PARTS: dict[type, tuple[str, ...]] = {
    DueDates: ("requests",),
    Estimates: ("know", "admit"),
    Explorations: ("renew", "keep"),
    HeadGuard: ("take_over", "drop", "keep"),
    HoldingPool: ("rescue", "free", "put", "tidy", "forget", "take"),
    JobComments: ("give_back", "remove", "tell", "_removed"),
    JobTracker: ("observe", "_parked", "_started", "_ended", "asked_for_none"),
    KnownClasses: ("renew",),
    Leaver: ("leave", "leave_orphans"),
    LedgerWriter: ("profile", "policy"),
    Mover: ("wants_round", "requests", "moving", "after"),
    MovesUnderWay: ("wants_round", "settle", "kept", "targets"),
    FirstSubmissions: ("inputs", "requests"),
    PolicyInForce: ("refresh",),
    Notes: ("write",),
    Postponements: ("requests", "planned", "waits", "forget"),
    ClockChecks: ("follow", "looks"),
    JobTables: ("noted",),
    SitePower: (
        *("wants_round", "state", "_limited", "_powered", "requests"),
        *("carry_out", "_order", "after"),
    ),
}
LIMITED = Config().put(PowerConfig(power_budget_watts=3000.0))


class Error(Exception):
    """One that no code of ours expects."""


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No error was logged before."""
    monkeypatch.setattr(containment, "_told", {})


def breaks(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> list[str]:
    """A function that fails from now on; each call is in the list."""
    assert callable(getattr(owner, name))
    called: list[str] = []

    def wrong(*given: Any, **more: Any) -> Any:
        called.append(name)
        raise error

    monkeypatch.setattr(owner, name, wrong)
    return called


ALL_PARTS = [
    pytest.param(owner, name, id=f"{owner.__name__}.{name}")
    for owner, names in PARTS.items()
    for name in names
]


def two_run(slurm: SlurmFolder, config: Config | None = None) -> RoundsBench:
    """Jobs 1 and 2 are placed in a round."""
    slurm.write([parked("1"), parked("2")], ["n1", "n2"])
    bench = RoundsBench(slurm, config)
    assert sorted(bench.run().placed) == ["1", "2"]
    return bench


def next_one(slurm: SlurmFolder, number: int) -> None:
    """Another job comes, and the first that runs ends."""
    slurm.add(parked(str(number)))
    slurm.change(str(number - 2), state="COMPLETED")


@pytest.mark.parametrize(("owner", "name"), ALL_PARTS)
def test_jobs_are_placed_whatever_part_fails(
    slurm: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    name: str,
) -> None:
    """Jobs that run, that start, that wait: in each of three rounds all that can start does."""
    bench = two_run(slurm, LIMITED)
    called = breaks(monkeypatch, owner, name, Error("a part is broken"))
    for number in range(3, 6):
        bench.wait(10.0)
        next_one(slurm, number)
        assert bench.run().placed == [str(number)]
        assert slurm.jobs[str(number)]["state"] == "RUNNING"
    wrong = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert bool(wrong) is bool(called)
    assert all(one.exc_info for one in wrong)


def test_most_parts_are_asked_in_such_a_round(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above would say nothing of them."""
    bench = two_run(slurm, LIMITED)
    asked: set[str] = set()
    for owner, names in PARTS.items():
        for name in names:
            real = getattr(owner, name)

            def noted(*given: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
                asked.add(_name)
                return _real(*given, **more)

            monkeypatch.setattr(owner, name, noted)
    for number in (3, 4):
        next_one(slurm, number)
        bench.run(10.0)
    every = {name for names in PARTS.values() for name in names}
    # Nothing waits, moves, changes, or lies in a pool here.
    unasked = {"take", "targets", "waits", "wants_round", "asked_for_none", "policy"}
    assert every - asked <= unasked


@pytest.mark.parametrize("name", ["_parked", "_started", "_ended", "_pending"])
def test_only_the_job_with_the_error_is_not_followed(
    slurm: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    bench = rounds_with(slurm, parked("1"), parked("2"), nodes=["n1", "n2"])
    real = getattr(JobTracker, name)

    def wrong(self: JobTracker, job: Any, *given: Any) -> Any:
        if getattr(job, "id", job) == "1":
            raise Error("its record is odd")
        return real(self, job, *given)

    monkeypatch.setattr(JobTracker, name, wrong)
    bench.run()
    bench.run()
    for job in slurm.jobs:
        slurm.change(job, state="COMPLETED")
    bench.run()
    kinds = [[event.kind for event in bench.ledger.events(job)] for job in "12"]
    missing = {"_parked": ["parked"], "_started": ["started", "ended"], "_ended": ["ended"]}
    lost = missing.get(name, [])
    assert [kind for kind in kinds[1] if kind not in kinds[0]] == lost
    logged = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    known = ["job tracker, job 1: failed; the round goes on without it"]
    assert logged == (known if lost else [])


def test_a_requeued_job_with_an_error_is_not_left_to_slurm(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record was freed while it ran; who cannot look it up does not know whose job it is."""
    bench = rounds_with(slurm, parked("1"))
    for _ in range(3):
        bench.run()
    assert slurm.jobs["1"]["admin_comment"] == ""
    slurm.change("1", state="PENDING", restart_cnt=1, nodes="")
    with monkeypatch.context() as patch:
        patch.setattr(JobComments, "_removed", lambda *given: 1 / 0)
        bench.run()
    assert not any("left_to_slurm" in event.detail for event in bench.ledger.events("1"))
    bench.run()
    assert ";sel=" in slurm.jobs["1"]["admin_comment"]


@pytest.mark.parametrize("broken", [(site_reader, "hold_of"), (placer, "_decision")])
def test_a_job_that_cannot_be_counted_or_placed_stops_no_other(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, broken: tuple[Any, str]
) -> None:
    bench = rounds_with(slurm, parked("1", stuck=True), nodes=["n1", "n2"])
    bench.run()
    real = getattr(*broken)

    def wrong(job: Any, *given: Any, **more: Any) -> Any:
        if job.id in ("1", "3"):
            raise Error("its record is odd")
        return real(job, *given, **more)

    monkeypatch.setattr(*broken, wrong)
    slurm.add(parked("2"), parked("3"))
    assert "2" in bench.run().placed


def test_without_slurm_there_is_no_round(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = rounds_with(slurm, parked("1"))
    breaks(monkeypatch, HoldingPool, "rescue", SourceError("Slurm is silent"))
    with pytest.raises(SourceError, match="silent"):
        bench.run()
    assert slurm.jobs["1"]["state"] == "PENDING"


def test_a_limit_that_cannot_be_reckoned_changes_no_clock(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write([parked("1")], ["n1"])
    bench = RoundsBench(slurm, LIMITED)
    bench.run()
    ordered = breaks(monkeypatch, SitePower, "_order", Error("not asked"))
    breaks(monkeypatch, SitePower, "state", Error("no model"))
    slurm.add(parked("2"))
    assert bench.run().placed == ["2"]
    assert ordered == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [(ClockSpool, "collect"), (EnergyComments, "hand_over"), (SitePower, "reading")],
)
def test_a_round_is_recorded_whatever_else_fails(
    slurm: SlurmFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    store, events = StoreConfig(path=slurm.store), EventsConfig(submit_file=tmp_path / "submitted")
    slurm.write([parked("1")], ["n1"])
    selector = Selector(Config(store=store, events=events), MemorySlurm(slurm.home))
    called = breaks(monkeypatch, owner, name, Error("a part is broken"))
    try:
        assert selector.once() == 0
    finally:
        selector.close()
    assert called
    assert [decision.state for decision in slurm.ledger("1")] == ["released"]


def test_the_same_error_is_not_logged_again_and_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(containment.time, "monotonic", lambda: now[0])

    def fail(part: str, job_id: str = "") -> None:
        with contained(part, job_id):
            raise Error

    for _ in range(3):
        fail("job tracker", "1")
    fail("job tracker", "2")
    fail("moves")
    assert len(caplog.records) == 3
    for number in range(1000):
        fail("job tracker", str(number))
    assert len(caplog.records) == 50
    now[0] += 61.0
    fail("job tracker", "1")
    assert len(caplog.records) == 51
