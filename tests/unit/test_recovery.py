"""Parking again, with clocks of the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.rounds import Rounds
from slurm_gpu_aware.service.selectd import Selector
from slurm_gpu_aware.slurm.cli_gateway import CliGateway


class Bench:
    """Rounds over the fake Slurm; ``wall`` may be set, ``steady`` runs on."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.wall, self.steady = 1_790_000_000.0, 5000.0
        self.rounds = Rounds(
            CliGateway(scontrol=slurm.scontrol),
            Config(),
            Books(slurm.store),
            gate_held_until=lambda: self.wall + 60.0,
            clock=lambda: self.wall,
            timer=lambda: self.steady,
        )


def test_a_clock_that_is_set_back_keeps_no_job_pinned(slurm: FakeSlurm) -> None:
    slurm.write([parked(stuck="1")], ["n1"])
    bench = Bench(slurm)
    bench.rounds.run()
    slurm.change("7", Reason="Resources")
    assert slurm.jobs["7"]["ReqNodeList"] == "n1"
    bench.wall -= 3600.0
    bench.steady += 31.0
    bench.rounds.run()
    assert slurm.jobs["7"]["Licenses"] == "gpuaware:1"
    assert slurm.jobs["7"]["ReqNodeList"] == "(null)"
    slurm.change("7", Reason="Licenses")
    bench.steady += 59.0
    assert bench.rounds.run().placed == []
    bench.steady += 2.0
    assert bench.rounds.run().placed == ["7"]


def placed_and_stuck(slurm: FakeSlurm) -> Bench:
    """Jobs 7 and 8 have been placed and cannot start yet."""
    slurm.write([parked(stuck="1"), parked("8", stuck="1")], ["n1"])
    bench = Bench(slurm)
    assert sorted(bench.rounds.run().placed) == ["7", "8"]
    (slurm.home / "log").unlink()
    return bench


def reads(slurm: FakeSlurm) -> list[str]:
    """What was shown since the last round, in order."""
    commands = [json.loads(text)[0] for text in (slurm.home / "log").read_text().splitlines()]
    return [" ".join(words) for words in commands if "show" in words]


def test_a_look_parks_again_what_a_limit_holds(slurm: FakeSlurm) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", Reason="QOSMaxGRESPerUser")
    slurm.change("8", Reason="Resources")
    assert bench.rounds.look() == 1
    job = slurm.jobs["7"]
    assert (job["Licenses"], job["ReqNodeList"]) == ("gpuaware:1", "(null)")
    assert slurm.jobs["8"]["Licenses"] == "(null)"
    assert bench.rounds.starting == ["8"]
    assert "-o -d show job" not in reads(slurm)  # never all jobs


def test_a_look_forgets_who_has_started_or_is_gone(slurm: FakeSlurm) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", JobState="RUNNING", NodeList="n1", slots=[0, 1])
    slurm.change("8", JobId="9")
    assert bench.rounds.look() == 0
    assert bench.rounds.starting == []


def test_a_look_takes_a_few_and_the_others_next(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.service.rounds.FEW", 1)
    bench = placed_and_stuck(slurm)
    first, second = bench.rounds.starting
    for job_id in (first, second, first):
        bench.rounds.look()
        assert reads(slurm)[-1] == f"-o -d show job {job_id}"


def test_a_start_timeout_counts_from_the_opening_whoever_else_is_looked_at(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.service.rounds.FEW", 1)
    bench = placed_and_stuck(slurm)
    for job_id in ("7", "8"):
        slurm.change(job_id, Reason="Resources")
        bench.rounds.watch.placed[job_id].opened = None  # as after a restart
    bench.rounds.look()
    bench.rounds.look()
    bench.steady += 31.0
    assert bench.rounds.look() == 1
    assert bench.rounds.look() == 1


def test_looks_do_nothing_while_the_gate_is_not_held(slurm: FakeSlurm) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", Reason="QOSMaxGRESPerUser")
    bench.wall += 61.0
    bench.rounds._gate_held_until = lambda: bench.wall
    assert bench.rounds.look() == 0
    assert slurm.jobs["7"]["Licenses"] == "(null)"


def test_a_forged_record_in_the_answer_is_not_believed(slurm: FakeSlurm) -> None:
    bench = placed_and_stuck(slurm)
    forged = "x\nJobId=8 JobName=y"
    slurm.change("7", Reason="QOSMaxGRESPerUser", Comment=forged)
    assert bench.rounds.look() == 0
    assert slurm.jobs["7"]["Licenses"] == "(null)"


class Clock:
    """Stands for the module ``time``; waiting is what makes it go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def selector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selector]:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    )
    found = Selector(config, CliGateway(scontrol="/bin/false"))
    yield found
    found.close()


@pytest.mark.parametrize(("took_s", "apart_s"), [(0.0, 0.5), (0.2, 0.6), (5.0, 1.0)])
def test_placed_jobs_are_looked_at_every_second_between_rounds(
    selector: Selector, monkeypatch: pytest.MonkeyPatch, took_s: float, apart_s: float
) -> None:
    clock, looks = Clock(), []
    monkeypatch.setattr("slurm_gpu_aware.service.selectd.time", clock)
    monkeypatch.setattr(selector._rounds, "look", lambda: looks.append(clock.now) or 0)
    selector._rounds.starting = ["7"]
    selector._look_took_s = took_s

    def wait(seconds: float) -> str:
        clock.sleep(seconds)
        return "timer"

    selector._pause(apart_s * 3.5, wait)
    assert looks[:1] == pytest.approx([100.0 + apart_s])
    assert clock.now == pytest.approx(100.0 + apart_s * 3.5)


def test_what_a_look_parks_again_starts_a_round(
    selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("slurm_gpu_aware.service.selectd.time", clock)
    monkeypatch.setattr(selector._rounds, "look", lambda: 1)
    selector._rounds.starting = ["7"]
    assert selector._pause(4.5, lambda s: (clock.sleep(s), "timer")[1]) == "timer"
    assert clock.now == 100.5


def test_without_placed_jobs_nobody_is_looked_at(
    selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("slurm_gpu_aware.service.selectd.time", clock)
    monkeypatch.setattr(selector._rounds, "look", lambda: pytest.fail("looked"))
    assert selector._pause(5.0, lambda s: (clock.sleep(s), "timer")[1]) == "timer"
    assert clock.now == 105.0
