"""Models that are fitted anew by a process of its own: what ends it, and what is told of it."""

import json
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from idle_clock import IdleClock

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.declared import CHECKED, FITTED, sentences
from slurm_gpu_aware.features.energy.live import AtClock, ClockChecks, Watched
from slurm_gpu_aware.features.energy.refits import Key, Refits
from slurm_gpu_aware.features.models import refit
from slurm_gpu_aware.features.models.live import put_measured
from slurm_gpu_aware.features.models.performance_model import NamedSample, PerformanceSample
from slurm_gpu_aware.features.models.store import put_samples
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Event

REFITS = "slurm_gpu_aware.features.energy.refits"
OF = Watched("ada", None, "C", "v100", 1110, 0.03)
SLOW = {"slow": True, "slower": 0.21, "saves": None, "clock_mhz": 1110, "allowed": 0.03}


class OneUser:
    """The selector of a site where a job of one user was slower than allowed, at 100."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = LedgerWriter(folder / "store.db")
        self.checks = ClockChecks(folder, self.ledger)
        samples = OF.samples(AtClock(1110, 1.21, 200.0), AtClock(1530, 1.0, 300.0), 90.0)
        put_measured(self.ledger, samples)
        self.verdict("1", 100.0)
        self.restart(110.0)

    def verdict(self, job_id: str, at: float) -> None:
        """Another selector finds that a job is too slow."""
        self.ledger.event(job_id, CHECKED, {**SLOW, "key": list(OF.key)}, at)

    def restart(self, now: float) -> None:
        """A selector that was killed comes back."""
        self.ledger.close(publish=False)
        self.ledger = LedgerWriter(self.folder / "store.db")
        self.checks = ClockChecks(self.folder, self.ledger)
        self.checks.load(now)

    def fits(self) -> list[Event]:
        """What was told of fits."""
        return self.ledger.events_since((FITTED,), 0.0)

    def until(self, is_so: Callable[[], object], now: float) -> None:
        """Rounds until something is so."""
        clock = IdleClock()
        while not is_so():
            assert clock.now() < 60.0
            self.checks.looks(now)
            time.sleep(0.05)


@pytest.fixture
def user(tmp_path: Path) -> OneUser:
    return OneUser(tmp_path)


def killed(*_: object, **__: object) -> tuple[str, str]:
    """A process that the kernel ends, as memory is short."""
    return run_command(["sh", "-c", f"kill -{signal.SIGKILL} $$"], 60.0)


FAULTS = {
    "killed": (f"{REFITS}.run_command", killed),
    "time": (f"{REFITS}._TIMEOUT_S", 0.01),
    "program": (f"{REFITS}._PROGRAM", "no_such_program"),
    "processes": (f"{REFITS}.run_command", Mock(side_effect=SourceError("nice: cannot be run"))),
    "threads": ("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread"))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fit_that_was_ended_is_tried_again(
    user: OneUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """It says nothing of the model."""
    monkeypatch.setattr(f"{REFITS}._AGAIN_S", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(*FAULTS[fault])
        if fault == "threads":
            user.checks.looks(120.0)
        else:
            user.until(lambda: caplog.records, 120.0)
    assert "v100 failed, tried again in 0 s: " in caplog.text
    assert not user.fits()
    user.until(user.fits, 130.0)
    (fit,) = user.fits()
    assert "says" in fit.detail


def test_a_fit_that_is_ended_again_and_again_waits_for_the_next_selector(
    user: OneUser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{REFITS}._AGAIN_S", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(f"{REFITS}.run_command", killed)
        user.until(lambda: "tried again when the selector starts" in caplog.text, 120.0)
        assert len(caplog.records) == 4
        for _ in range(10):
            user.checks.looks(125.0)
            time.sleep(0.02)
    assert len(caplog.records) == 4
    user.restart(130.0)
    user.until(user.fits, 140.0)
    assert "says" in user.fits()[0].detail


def test_a_fit_that_was_ended_pauses_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def ended(argv: list[str], *_: object, **__: object) -> tuple[str, str]:
        begun.append(argv[-3])
        raise SourceError("it was killed")

    monkeypatch.setattr(f"{REFITS}.run_command", ended)
    refits = Refits(LedgerWriter(tmp_path / "store.db"))
    for user in ("ada", "eve"):
        key: Key = (user, "net", "", "v100")
        refits.want(key, "1")
    clock = IdleClock()
    while len(begun) < 2:
        assert clock.now() < 60.0
        refits.step(1.0)
    for _ in range(10):
        refits.step(2.0)
        time.sleep(0.02)
    assert begun == ["ada/net", "eve/net"]


def test_a_fit_waits_longer_for_the_store_than_other_writers(
    user: OneUser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep, a backup; nothing is said of the model where even that is too short."""
    monkeypatch.setattr("slurm_gpu_aware.store.files.BUSY_TIMEOUT_S", 0.1)
    argv = ["refit", str(user.ledger.path), "ada/class C", "v100", "120.0"]
    monkeypatch.setattr("sys.argv", argv)
    held = sqlite3.connect(user.ledger.path, isolation_level=None, check_same_thread=False)
    held.execute("BEGIN IMMEDIATE")
    with monkeypatch.context() as short:
        short.setattr(refit, "_BUSY_S", 0.1)
        assert refit.main() == 1
        said = capsys.readouterr()
        assert (said.out, "another process is writing" in said.err) == ("", True)
    end = threading.Timer(1.0, held.execute, ["ROLLBACK"])
    end.start()
    assert refit.main() == 0
    assert "says" in json.loads(capsys.readouterr().out)
    end.join()
    held.close()


def test_a_verdict_that_came_during_a_fit_is_fitted_too(user: OneUser) -> None:
    """By the selector after one that was killed: two tasks of an array were too slow."""
    user.checks.looks(120.0)
    user.verdict("2", 125.0)
    user.until(user.fits, 130.0)
    assert user.fits()[0].detail["began"] == 120.0
    user.restart(140.0)
    assert user.checks.is_wrong(OF, 120.0, 140.0)
    user.until(lambda: len(user.fits()) == 2, 150.0)
    assert [(one.job_id, one.detail["began"]) for one in user.fits()] == [
        ("1", 120.0),
        ("2", 150.0),
    ]
    user.restart(160.0)
    user.checks.looks(170.0)
    assert user.checks._refits._fit is None


def test_explain_tells_no_fit_of_an_earlier_run() -> None:
    check = {"kind": CHECKED, "at": 100.0, "detail": SLOW}
    fitted = {"model": "ada/class C", "says": "time within 1%", "began": 110.0}
    fit = {"kind": FITTED, "at": 115.0, "detail": fitted}
    (_, told) = sentences({"events": [check, fit]})
    assert told == "Model ada/class C was fitted anew to that: time within 1%."
    again = {**check, "at": 112.0}  # the second run ends before the fit of the first one is told
    assert len(sentences({"events": [check, again, fit]})) == 1
    again = {**check, "at": 120.0}
    assert len(sentences({"events": [check, fit, again]})) == 1


@pytest.mark.parametrize("busy", [False, True])
def test_fits_take_a_tenth_of_the_cpu_not_of_the_clock(
    user: OneUser, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """At lowest priority on a busy machine they wait far longer than they compute."""
    program = "import time\nwhile time.process_time() < 0.5: pass" if busy else ""
    wait = "" if busy else "import time; time.sleep(3)"

    def computes(*_: object, **__: object) -> tuple[str, str]:
        said = 'print(\'{"says": "good"}\')'
        return run_command([sys.executable, "-S", "-c", f"{program}\n{wait}\n{said}"], 60.0)

    monkeypatch.setattr(f"{REFITS}.run_command", computes)
    began = time.monotonic()
    user.until(user.fits, 120.0)
    next_at = user.checks._refits._next
    assert next_at - began >= 9 * 0.5 if busy else next_at - time.monotonic() < 9 * 1.5


def samples_of(folder: Path, samples: Sequence[NamedSample]) -> Path:
    """The store of a site with a v100 and these samples."""
    path = folder / "store.db"
    with open_store(path) as store:
        store.execute("INSERT INTO nodes (node, taken_at_unix) VALUES ('n1', 1.0)")
        store.execute(
            "INSERT INTO gpus (node, slot, model, clocks_mhz, max_clock_mhz)"
            " VALUES ('n1', 0, 'v100', '[1530, 1380, 1110]', 1530)"
        )
        put_samples(store, samples, source="file")
    return path


@pytest.mark.parametrize("name", ["ada/net", "ada/class C"])
def test_a_model_that_still_allows_the_slow_clock_is_not_taken(tmp_path: Path, name: str) -> None:
    """The median of five earlier runs hides the job that was 21% slower."""
    seen = [(1110.0, 1.02, 200.0), (1380.0, 1.005, 260.0), (0.0, 1.0, 300.0)]
    samples = [
        NamedSample(name, "v100", float(at), PerformanceSample(1, 1, 1.0, *one), "C")
        for at in range(5)
        for one in seen
    ]
    path = samples_of(tmp_path, samples)
    assert refit.refit(path, name, "v100", 6.0)
    slow = [
        NamedSample(name, "v100", 10.0, PerformanceSample(1, 1, 1.0, *one), "C")
        for one in ((1110.0, 1.21, 200.0), (0.0, 1.0, 300.0))
    ]
    with open_store(path) as store:
        put_samples(store, slow, source="job")
    with pytest.raises(SourceError, match="contradict this job"):
        refit.refit(path, name, "v100", 11.0)


def test_unnamed_jobs_on_other_numbers_of_gpus_do_not_contradict_each_other(tmp_path: Path) -> None:
    """Regression: the model was asked for the GPUs of the newest one, which it does not know."""
    one = OF.samples(AtClock(1110, 1.38, 200.0), AtClock(1530, 1.0, 300.0), 90.0)
    eight = OF._replace(gpus=8).samples(AtClock(1110, 2.76, None), AtClock(1530, 2.0, None), 95.0)
    path = samples_of(tmp_path, [*one, *eight])
    assert refit.refit(path, "ada/class C", "v100", 100.0)
