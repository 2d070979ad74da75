"""Clocks that save energy, checked by the marks of jobs on a whole site; agents are not real."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware, words
from idle_clock import IdleClock
from slurm_folder import SlurmFolder
from store_samples import fit_models, ingest_sweep
from test_site_power import (
    CLOCKS,
    NODES,
    answered,
    class_a,
    fitted,
    orders,
    powered,
    rounds_at,
    running_clock,
)

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.features.energy.live import (
    AtClock,
    ClockChecks,
    Watched,
    both_clocks,
    compared,
    measured,
)
from slurm_gpu_aware.features.energy.stage import EXACT
from slurm_gpu_aware.features.models.performance_model import NOT_LOCKED
from slurm_gpu_aware.features.models.store import application_samples
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.store.database import open_store

__all__ = ["fitted", "powered"]
ME = user_name(os.getuid())
BOUND = 0.1
HEAD = "application,batch_size,class,gpu_model,gpus,nodes,clock_mhz,time_s,power_w\n"
LIVE = "slurm_gpu_aware.features.energy.live"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look sees what is there, also where a busy machine takes its time to read it."""
    monkeypatch.setattr(f"{LIVE}._WAIT_S", 60.0)
    monkeypatch.setattr(f"{LIVE}._SHARE", 0.0)


class CheckedSite:
    """A site that checks clocks, one selector, and a job that measures itself."""

    def __init__(self, site: SlurmFolder, limited: Mapping[int, tuple[float, float]]) -> None:
        """``limited``: what the class takes under power limits, as of `ingest_sweep`."""
        self.site, self.folder = site, site.config.parent / "records"
        self.folder.mkdir()
        site.configure(f'[energy]\nslowdown = {BOUND}\nrecords = "{self.folder}"')
        site.store.unlink()
        with open_store(site.store) as store:
            for node in NODES:
                ingest_sweep(store, (*CLOCKS, 1470), node, dynamic_w=0.04, limited=limited)
        fit_models(site.store)
        self.now = time.time()
        self.first_mark = 0.0
        self.rounds = self.selector()

    def selector(self) -> Rounds:
        """A selector that knows what stands in ledger and orders."""
        return rounds_at(self.site, lambda: self.now)

    def submit(self, job_id: str, user: str = ME) -> None:
        """Add a job of class A."""
        self.site.add(class_a(job_id, user_name=user))

    def start(self) -> int:
        """Job 7 runs; return its clock."""
        answered(self.site, self.rounds, self.now)
        self.submit("7")
        self.turn(2)
        assert self.site.jobs["7"]["state"] == "RUNNING"
        clock = running_clock(self.site, "7")
        assert clock < max(CLOCKS)
        return clock

    def turn(self, times: int = 1) -> int:
        """Rounds of 5 s; return the clock that is ordered for job 7, -1: none is."""
        for _ in range(times):
            self.rounds.run()
            self.now += 5.0
        return answered(self.site, self.rounds, self.now)

    def record(self, times_s: dict[int, float], name: str = "gpu-aware-job-7-0123abcd.csv") -> Path:
        """Write what the job has measured: clock -> time of an iteration, at 500 or 400 W."""
        rows = [
            f"bert,1,A,v100,2,1,{mhz},{time_s},{500 if mhz == max(CLOCKS) else 400}\n"
            for mhz, time_s in times_s.items()
        ]
        path = self.folder / name
        path.write_text(HEAD + "".join(rows))
        return path

    def check(self, slower: float) -> list[int]:
        """Job 7 iterates, so much slower at its own clock; return its clocks until it is judged."""
        own = running_clock(self.site, "7")
        self.record({own: 1.0 + slower})
        self.first_mark, seen = self.now, []
        while "clock_checked" not in self.site.kinds():
            assert len(seen) < 40
            seen.append(self.turn())
            if seen[-4:] == [0, 0, 0, 0]:
                self.record({own: 1.0 + slower, max(CLOCKS): 1.0})
        return seen


@pytest.fixture
def checked(powered: SlurmFolder) -> CheckedSite:
    return CheckedSite(powered, {})


def explained(checked: CheckedSite) -> str:
    return words("explain", "7", config=checked.site.config)


class Fits:
    """Fits of models, which wait until the test lets them go; a process of its own does them."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def run(self, *args: Any, **more: Any) -> tuple[str, str]:
        """Run it then."""
        assert self.may_go.wait(600.0)
        return run_command(*args, **more)

    def ended(self, checked: CheckedSite) -> Mapping[str, Any]:
        """Let them go; return what the next one came to."""
        self.may_go.set()
        clock = IdleClock()
        while not (found := checked.site.events("model_fitted")):
            assert clock.now() < 60.0
            checked.turn()
            time.sleep(0.05)
        return found[-1].detail


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fits]:
    found = Fits()
    monkeypatch.setattr("slurm_gpu_aware.features.energy.refits.run_command", found.run)
    yield found
    found.may_go.set()


def test_a_job_slower_than_allowed_has_its_default_clock_back(
    checked: CheckedSite, fits: Fits
) -> None:
    """Its curve is wrong by a tenth; so are others of its user, until its model is fitted anew."""
    clock = checked.start()
    assert checked.turn(3) == -1  # no order: it runs at the clock of its start
    seen = checked.check(slower=1.1 * (1 + BOUND) - 1)
    assert checked.now - checked.first_mark <= 120
    assert 0 in seen
    assert set(seen) <= {-1, 0}
    assert checked.turn(5) == 0
    (event,) = checked.site.events("clock_checked")
    assert event.detail["slow"] is True
    assert event.detail["slower"] == pytest.approx(0.21)
    assert event.detail["saves"] == pytest.approx(1 - 1.21 * 400 / 500)
    assert "21.0% slower by its own marks" in explained(checked)
    assert "more than the 10% allowed, so its default clock is back" in explained(checked)
    checked.rounds = checked.selector()  # as if killed: nothing is forgotten
    assert checked.turn(2) == 0
    checked.submit("8")
    checked.turn(2)
    assert running_clock(checked.site, "8") is None
    fit = fits.ended(checked)  # by the selector that came after
    assert fit["model"] == f"{ME}/class A"
    assert "(2 conditions)" in fit["says"]
    assert f"Model {ME}/class A was fitted anew to that: time not tested" in explained(checked)
    with open_store(checked.site.store, readonly=True) as store:
        kept = application_samples(store, f"{ME}/class A")
    assert [one.sample[:6] for one in kept] == [
        (2, 1, 1.0, NOT_LOCKED, 1.0, 500.0),
        (2, 1, 1.0, clock, pytest.approx(1.21), 400.0),
    ]
    checked.now += 10.0
    checked.rounds = checked.selector()  # it reads models when it starts, else every few seconds
    checked.submit("9", "someone")
    checked.submit("10")
    checked.turn(3)
    assert running_clock(checked.site, "9") == clock
    own = running_clock(checked.site, "10")
    slower = 0.21 * (1 / own - 1 / max(CLOCKS)) / (1 / clock - 1 / max(CLOCKS))
    assert 0 < slower <= BOUND + EXACT
    assert len(checked.site.events("model_fitted")) == 1


def test_a_model_that_cannot_be_fitted_is_not_chosen_by(checked: CheckedSite, fits: Fits) -> None:
    """Until all models are fitted by hand."""
    clock = checked.start()
    checked.check(slower=0.5)
    with open_store(checked.site.store) as store:
        store.execute("DELETE FROM model_samples")
    fit = fits.ended(checked)
    assert "none of its" in fit["error"]
    assert f"Its model was not fitted anew: {fit['error']}." in explained(checked)
    checked.rounds = checked.selector()
    checked.submit("8")
    checked.turn(3)
    assert running_clock(checked.site, "8") is None
    checked.now += 100.0
    with open_store(checked.site.store) as store, store.write():
        store.execute("UPDATE models SET fitted_at_unix = ?", (checked.now,))
    checked.rounds = checked.selector()
    checked.submit("9")
    checked.turn(3)
    assert running_clock(checked.site, "9") == clock
    assert len(checked.site.events("model_fitted")) == 1


@pytest.mark.parametrize(("at_1400_s", "slow"), [(1.2, True), (1.05, False)])
def test_the_power_limit_of_a_job_is_checked_with_its_clock(
    powered: SlurmFolder, fits: Fits, at_1400_s: float, slow: bool
) -> None:
    """The limit keeps the job at 1400 MHz; without it the job runs at 1530."""
    checked = CheckedSite(powered, {200: (1.01, 0.7)})
    answered(checked.site, checked.rounds, checked.now)
    checked.submit("7")
    checked.turn(2)
    assert checked.site.jobs["7"]["extra"].startswith("freq=1530:200@")
    checked.record({1350: at_1400_s + 0.3, 1400: at_1400_s})
    while checked.turn() != 0:
        assert "clock_checked" not in checked.site.kinds()
    of_job = lambda: [one for _, own in orders(checked.site).values() for one in own]  # noqa: E731
    assert [line.split()[1] for line in of_job()] == ["0:0"]
    checked.turn(3)  # two clocks, both of them under the limit
    assert "clock_checked" not in checked.site.kinds()
    checked.record({1400: at_1400_s, 1530: 1.0})
    checked.turn(3)
    (event,) = checked.site.events("clock_checked")
    assert (event.detail["slow"], event.detail["limit_w"]) == (slow, 200)
    assert event.detail["slower"] == pytest.approx(at_1400_s - 1.0)
    assert [line.split()[1] for line in of_job()] == (["0:0"] if slow else [])
    assert "At 1530 MHz and 200 W it is" in explained(checked)
    if slow:  # the next one gets a clock between those that were measured, without a limit
        assert "(2 conditions)" in fits.ended(checked)["says"]
        checked.now += 10.0
        checked.rounds = checked.selector()
        checked.submit("8")
        checked.turn(3)
        assert checked.site.jobs["8"]["extra"].startswith("freq=1470@")


def test_a_job_within_its_bound_keeps_its_clock(checked: CheckedSite) -> None:
    checked.start()
    seen = checked.check(slower=BOUND + 0.005)
    assert 0 in seen
    assert checked.turn(2) == -1
    (event,) = checked.site.events("clock_checked")
    assert event.detail["slow"] is False
    assert checked.turn(30) == -1
    assert checked.site.kinds().count("clock_checking") == 1


def test_a_job_that_marks_nothing_more_keeps_its_clock(checked: CheckedSite) -> None:
    own = checked.start()
    checked.record({own: 1.0})
    seen = [checked.turn() for _ in range(30)]
    assert 0 in seen
    assert seen[-1] == -1
    assert "Its clock was not checked: it marked no iteration" in explained(checked)


def test_a_new_selector_begins_a_check_anew(checked: CheckedSite) -> None:
    own = checked.start()
    checked.record({own: 1.5})
    while checked.turn() != 0:
        assert checked.now - checked.first_mark < 1e10
    checked.rounds = checked.selector()
    seen = checked.check(slower=0.5)
    assert seen[-1] == 0
    assert checked.turn(2) == 0


FAULTS: dict[str, Callable[[Path], object]] = {
    "owner": lambda record: None,
    "link": lambda record: record.symlink_to(record.rename(record.with_name("elsewhere"))),
    "twice": lambda record: os.link(record, record.with_name("elsewhere")),
    "large": lambda record: record.write_text(record.read_text() + "#" * (1 << 16)),
    "text": lambda record: record.write_bytes(b"\0\xff" + record.read_bytes()),
    "name": lambda record: record.rename(record.with_name("gpu-aware-job-7-0123abcg.csv")),
    "folder": lambda record: (record.unlink(), record.parent.rmdir()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_record_but_the_users_own_counts(
    checked: CheckedSite, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    own = checked.start()
    FAULTS[fault](checked.record({own: 2.0, max(CLOCKS): 1.0}))
    if fault == "owner":
        monkeypatch.setattr(f"{LIVE}.user_name", lambda uid: "eve")
    assert {checked.turn() for _ in range(20)} == {-1}
    assert "clock_checking" not in checked.site.kinds()


def test_a_verdict_ends_after_90_days(checked: CheckedSite, fits: Fits) -> None:
    """The selector runs all the time; models are not fitted anew."""
    clock = checked.start()
    checked.check(slower=0.5)
    checked.submit("8")
    checked.turn(2)
    assert running_clock(checked.site, "8") is None
    checked.now += 90 * 86_400.0
    checked.submit("9")
    checked.turn(3)
    assert running_clock(checked.site, "9") == clock


@pytest.fixture
def alone(tmp_path: Path) -> ClockChecks:
    """Checks of job 7 without a site."""
    checks = ClockChecks(tmp_path, LedgerWriter(tmp_path / "store.db"))
    checks.follow({"7": Watched(ME, "bert", "A", "v100", 900, BOUND)}, {"7"})
    return checks


def record_of(checks: ClockChecks, rows: str, job_id: str = "7", head: str = HEAD) -> None:
    """What a job has measured so far."""
    (checks.folder / f"gpu-aware-job-{job_id}-0123abcd.csv").write_text(head + rows)


def test_a_folder_that_hangs_holds_up_no_round(
    alone: ClockChecks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder may be of a file system whose server is away."""
    answers, scandir = threading.Event(), os.scandir

    def hangs(path: Path) -> Any:
        answers.wait(600.0)
        return scandir(path)

    record_of(alone, "bert,1,A,v100,2,1,900,1.5,200\n")
    monkeypatch.setattr(os, "scandir", hangs)
    monkeypatch.setattr(f"{LIVE}._HANGS_S", 0.1)
    monkeypatch.setattr(f"{LIVE}._WAIT_S", 0.5)
    assert [alone.looks(now) for now in (0.0, 5.0, 10.0, 40.0)] == [False] * 4
    assert [r.getMessage() for r in caplog.records] == [f"{alone.folder}: it does not answer"]
    answers.set()
    end = time.monotonic() + 60.0
    now = 50.0
    while not alone.looks(now):  # what has answered counts
        assert time.monotonic() < end
        now += 5.0
    assert alone.at_default("7")


def test_jobs_that_are_judged_in_one_round_keep_their_own_times(alone: ClockChecks) -> None:
    """Regression: they shared a moment, so the later one replaced the other's default time."""
    of = Watched(ME, None, "A", "v100", 1000, BOUND)
    alone.follow({"8": of, "9": of}, {"8", "9"})
    for now, clocks in ((5.0, 1), (30.0, 1), (35.0, 2)):
        for job_id, mhz, time_s in (("8", 1000, 0.1), ("9", 1005, 10.0)):
            rows = [f"{mhz},{1.3 * time_s},200\n", f"1530,{time_s},300\n"]
            record_of(alone, "".join(rows[:clocks]), job_id, "clock_mhz,time_s,power_w\n")
        alone.looks(now)
    with open_store(alone.folder / "store.db") as store:
        samples = application_samples(store)
    of_job: dict[float, list[float]] = {}
    for one in samples:
        of_job.setdefault(one.taken_at, []).append(one.sample.time_s)
    assert sorted(of_job.values()) == [[0.1, 0.13], [10.0, 13.0]]


def test_a_record_is_complained_of_once(
    alone: ClockChecks, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who writes another wrong record every few seconds does not fill the log."""
    for turn in range(8):
        record_of(alone, f"bert,1,A,v100,2,1,900,x{turn},200\n")
        assert not alone.looks(5.0 * turn)
    assert len(caplog.records) == 1
    assert "the record of job 7 is not used" in caplog.text


def test_many_names_of_one_user_hide_no_record(alone: ClockChecks) -> None:
    for number in range(60_000):
        os.close(os.open(alone.folder / f"x{number}", os.O_CREAT | os.O_WRONLY))
    record_of(alone, "bert,1,A,v100,2,1,900,1.5,200\n")
    for now in range(0, 60, 5):
        alone.looks(float(now))
    assert alone.at_default("7")


def test_a_large_folder_is_read_less_often(
    alone: ClockChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read every five seconds it would take a core."""
    monkeypatch.setattr(f"{LIVE}._SHARE", 1e9)
    alone.looks(5.0)
    monkeypatch.setattr(f"{LIVE}._Reading", None)  # none begins
    assert not alone.looks(20.0)


def test_a_folder_with_too_many_names_is_told(
    alone: ClockChecks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{LIVE}._MOST_FILES", 3)
    for number in range(4):
        (alone.folder / f"x{number}").touch()
    assert [alone.looks(now) for now in (0.0, 5.0)] == [False] * 2
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "above 3 files" in caplog.text


def test_the_folder_of_records_is_absolute(tmp_path: Path) -> None:
    """A relative one would depend on where the selector starts."""
    config = tmp_path / "config.toml"
    config.write_text('[energy]\nrecords = "records"\n')
    with pytest.raises(ConfigError, match=r"energy\.records"):
        load_config(config)


def test_under_a_power_limit_nothing_is_checked(checked: CheckedSite) -> None:
    own = checked.start()
    checked.record({own: 1.0})
    assert gpu_aware("power", "set", "5000", config=checked.site.config).exit_code == 0
    assert 0 not in {checked.turn() for _ in range(12)}
    assert "clock_checking" not in checked.site.kinds()


@pytest.mark.parametrize(
    "row",
    ["x,1,1", "nan,1,1", "900,-1,1", "900,1e99,1", "900,1,0", "900,1,1e99", "900,1", "-1,1,1"],
)
def test_a_damaged_record_is_refused(row: str) -> None:
    with pytest.raises(SourceError):
        measured(f"clock_mhz,time_s,power_w\n1530,1,100\n{row}\n")


SLOW, FAST = (900, 1.2, 80.0), (1530, 1.0, 120.0)
LIMITED = [(1530, 1.0, 120.0), (1400, 1.3, 90.0), (1395, 1.1, 90.0)]
"""Under a power limit the median below the highest clock counts."""


@pytest.mark.parametrize(
    ("rows", "own", "found"),
    [
        ([SLOW, FAST], (900,), (0.2, 0.2)),
        ([(900, 1.2, None), FAST], (900,), (0.2, None)),
        ([SLOW], (900,), None),
        ([(1200, 1.1, 80.0), FAST], (900,), None),
        ([SLOW, (915, 1.0, 120.0)], (900,), None),
        ([], (900,), None),
        (LIMITED, (1530, 200), (0.1, 1 - 1.1 * 90 / 120)),
        (LIMITED[:1], (1530, 200), None),
    ],
)
def test_two_clocks_are_compared(rows: list[Any], own: tuple[int, ...], found: Any) -> None:
    both = both_clocks([AtClock(*row) for row in rows], *own)
    said = None if both is None else compared(*both)
    assert said == (None if found is None else pytest.approx(found, nan_ok=False))
