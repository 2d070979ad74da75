"""Timer rounds that ask Slurm nothing, because nothing there is ours and nothing happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_slurm import MemorySlurm
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.service import selectd
from slurm_gpu_aware.service.rest import Rest
from slurm_gpu_aware.service.rounds import Outcome
from slurm_gpu_aware.service.selectd import Selector

OURS = "gpuaware/1;tn=gres/gpu:2;mc=1"
ELSEWHERE = {"state": "RUNNING", "licenses": "", "nodes": "n1", "slots": [0]}


@pytest.mark.parametrize(
    ("change", "quiet"),
    [
        ({"state": "COMPLETED", "licenses": ""}, True),
        ({**ELSEWHERE, "admin_comment": "site"}, True),
        ({"admin_comment": "site", "licenses": "matlab:1"}, True),
        ({"reason": "BeginTime"}, False),
        ({"reason": "Dependency"}, False),
        ({**ELSEWHERE, "admin_comment": f"{OURS};sel=released:0:1"}, False),
        ({"admin_comment": f"{OURS};sel=hand:0:1", "licenses": ""}, False),
        ({"admin_comment": "overwritten"}, False),
    ],
    ids=["ended", "foreign runs", "foreign waits", "begin", "after", "runs", "by hand", "stray"],
)
def test_a_reading_is_quiet_if_nothing_in_it_is_ours(
    slurm: SlurmFolder, change: dict[str, str], quiet: bool
) -> None:
    slurm.write([parked()], ["n1"])
    slurm.change("7", stuck=True, **change)
    bench = RoundsBench(slurm)
    bench.rounds.run()
    assert bench.rounds.quiet is quiet


def test_a_job_that_cannot_be_read_is_not_quiet(slurm: SlurmFolder) -> None:
    slurm.write([parked(tres_req_str="mem=odd")], ["n1"])
    bench = RoundsBench(slurm)
    bench.rounds.run()
    assert bench.rounds.quiet is False


class Day:
    """A selector whose rounds are counted, and its clock."""

    def __init__(self, selector: Selector, monkeypatch: pytest.MonkeyPatch) -> None:
        self.selector, self.now, self.asked = selector, 0.0, []
        selector._rest = Rest(lambda: self.now)
        selector._rest.told()
        monkeypatch.setattr(selector._rounds, "run", self._run)
        self.quiet = True
        self.cost_s, self.spent_s = 1.0, 0.0
        monkeypatch.setattr(selectd, "spent_s", lambda: self.spent_s)
        selector._events.wait(0.0)

    def _run(self) -> Outcome:
        self.asked.append(self.now)
        self.spent_s += self.cost_s
        self.selector._rounds.quiet = self.quiet
        return Outcome()

    def pass_by(self, seconds: float, step_s: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            self.selector._round("timer")

    def rests_again(self) -> bool:
        """Whether half a minute later Slurm is asked twice a minute."""
        self.quiet = True
        self.pass_by(35)
        self.asked.clear()
        self.pass_by(300)
        return len(self.asked) == 10


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    )
    (tmp_path / "submitted").touch()
    selector = Selector(config, MemorySlurm(tmp_path))
    yield Day(selector, monkeypatch)
    selector.close()


def test_an_idle_selector_that_asks_dearly_asks_every_half_minute(day: Day) -> None:
    day.pass_by(30)
    day.asked.clear()
    day.pass_by(300)
    assert len(day.asked) == 10


@pytest.mark.parametrize(("cost_s", "times"), [(0.03, 60), (0.1, 20), (0.19, 12), (9.0, 10)])
def test_an_idle_selector_asks_as_often_as_a_per_cent_of_a_core_allows(
    day: Day, cost_s: float, times: int
) -> None:
    day.cost_s = cost_s
    day.pass_by(90)
    day.asked.clear()
    day.pass_by(300)
    assert len(day.asked) == times
    assert len(day.asked) * cost_s / 300 < 0.01 or times == 10


def test_as_long_as_something_is_ours_every_round_asks(day: Day) -> None:
    day.quiet = False
    day.pass_by(300)
    assert len(day.asked) == 60


def test_after_an_event_every_round_asks_for_a_while(day: Day) -> None:
    """The filter speaks before the job exists: the rounds at the event may not see it yet."""
    day.pass_by(100)
    day.asked.clear()
    day.selector._round("submit")
    day.pass_by(25)
    assert len(day.asked) == 6


def test_an_event_is_no_surprise_however_long_its_round_takes(day: Day) -> None:
    day.pass_by(100)
    run = day.selector._rounds.run

    def slow() -> Outcome:
        day.quiet = False
        day.now += 60.0
        return run()

    day.selector._rounds.run = slow  # type: ignore[method-assign]
    day.selector._round("submit")
    day.selector._rounds.run = run  # type: ignore[method-assign]
    assert day.rests_again()


def test_a_file_that_cannot_be_watched_leaves_no_round_out(day: Day, tmp_path: Path) -> None:
    day.pass_by(60)
    (tmp_path / "submitted").unlink()
    day.selector._events.wait(0.0)
    day.asked.clear()
    day.pass_by(60)
    assert len(day.asked) == 12


def test_a_job_that_no_event_told_of_ends_the_rest_for_minutes(day: Day) -> None:
    """The filter may not be able to write: then the timer is all there is."""
    day.pass_by(60)
    day.quiet = False
    day.pass_by(30)
    day.quiet = True
    day.asked.clear()
    day.pass_by(300)
    assert len(day.asked) == 60
    day.pass_by(600)
    day.asked.clear()
    day.pass_by(300)
    assert len(day.asked) == 10


def test_a_job_whose_event_is_on_its_way_is_no_surprise(day: Day, tmp_path: Path) -> None:
    day.pass_by(60)
    (tmp_path / "submitted").write_text(".")
    day.quiet = False
    day.pass_by(30)
    day.selector._events.drain()
    assert day.rests_again()


def test_after_a_failure_the_next_round_asks(day: Day) -> None:
    day.pass_by(61)
    day.selector._slept_badly = True
    day.asked.clear()
    day.selector._round("timer")
    assert len(day.asked) == 1


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.05, 0.2), (1.0, 4.0), (3.0, 5.0)])
def test_in_a_storm_rounds_take_a_fifth_of_the_time(
    day: Day, took_s: float, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectd.time, "monotonic", lambda: 100.0)
    day.selector._outcome = Outcome(took_s=took_s)
    day.selector._finished = 100.0
    assert day.selector._rest_s() == pytest.approx(rest_s)
