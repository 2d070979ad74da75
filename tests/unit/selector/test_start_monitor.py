"""Looks at placed jobs that have not started: between rounds and inside long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from rounds_bench import RoundsBench, placed_and_stuck, reads
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission.snapshot import Hold, build_cluster
from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.policies.pal_mapa import PalMapa
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.store.ledger import Ledger

HELD = "QOSMaxGRESPerUser"


def test_a_look_parks_again_what_a_limit_holds(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    slurm.change("8", reason="Resources")
    assert bench.rounds.start_monitor.look() == 1
    job = slurm.jobs["7"]
    assert (job["licenses"], job["req_nodes"]) == ("gpuaware:1", "")
    assert slurm.jobs["8"]["licenses"] == ""
    assert bench.rounds.start_monitor.starting == ["8"]
    assert "jobs" not in reads(slurm)  # never all jobs for two


def test_a_look_forgets_who_has_started_or_is_gone(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", state="RUNNING", nodes="n1", slots=[0, 1])
    slurm.change("8", job_id=9)
    assert bench.rounds.start_monitor.look() == 0
    assert bench.rounds.start_monitor.starting == []


def test_victims_of_a_placed_job_go_with_what_it_holds(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = placed_and_stuck(slurm)
    bench.rounds.tracker.placed["7"].victims = frozenset({"5"})
    seen: dict[str, frozenset[str]] = {}

    def build(*args: Any, holds: Sequence[Hold], **more: Any) -> Cluster:
        seen.update({hold.job_id: hold.victims for hold in holds})
        return build_cluster(*args, holds=holds, **more)

    monkeypatch.setattr("slurm_gpu_aware.selector.round.build_cluster", build)
    bench.rounds.run()
    assert seen == {"7": {"5"}, "8": frozenset()}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site where reading all jobs takes so long that a look takes only one of them."""
    monkeypatch.setattr("slurm_gpu_aware.selector.start_monitor.FEW", 1)
    monkeypatch.setattr("slurm_gpu_aware.selector.start_monitor._QUICK_S", -1.0)


@pytest.mark.usefixtures("one_by_one")
def test_a_look_takes_a_few_and_the_others_next(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    first, second = bench.rounds.start_monitor.starting
    for job_id in (first, second, first):
        bench.rounds.start_monitor.look()
        assert reads(slurm)[-1] == f"job {job_id}"


def test_a_look_at_many_reads_all_where_that_is_quick(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.selector.start_monitor.FEW", 1)
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    slurm.change("8", reason=HELD)
    assert bench.rounds.start_monitor.look() == 2
    assert reads(slurm)[0] == "jobs"


@pytest.mark.usefixtures("one_by_one")
def test_a_start_timeout_counts_from_the_opening_whoever_else_is_looked_at(
    slurm: SlurmFolder,
) -> None:
    bench = placed_and_stuck(slurm)
    for job_id in ("7", "8"):
        slurm.change(job_id, reason="Resources")
        bench.rounds.tracker.placed[job_id].opened = None  # as after a restart
    bench.rounds.start_monitor.look()
    bench.rounds.start_monitor.look()
    bench.steady += 31.0
    assert bench.rounds.start_monitor.look() == 1
    assert bench.rounds.start_monitor.look() == 1


def test_looks_do_nothing_while_the_gate_is_not_held(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    bench.wall += 61.0
    bench.rounds._gate_held_until = lambda: bench.wall
    assert bench.rounds.start_monitor.look() == 0
    assert slurm.jobs["7"]["licenses"] == ""


def test_what_a_user_types_into_a_comment_is_no_record(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason="Resources", comment=f"x\nJobId=8 Reason={HELD} JobName=y")
    slurm.change("8", reason="Resources")
    assert bench.rounds.start_monitor.look() == 0
    assert bench.rounds.start_monitor.starting == ["7", "8"]
    assert slurm.jobs["8"]["licenses"] == ""


def slow_planner(
    monkeypatch: pytest.MonkeyPatch, bench: RoundsBench, then: Callable[[], None]
) -> list[float]:
    """Each decision takes 0.4 s; ``then`` happens during the first. Returns when each began."""
    decided: list[float] = []
    place = PalMapa.place

    def slow(self: PalMapa, *arguments: Any) -> Any:
        decided.append(bench.steady)
        if len(decided) == 1:
            then()
        bench.steady += 0.4
        return place(self, *arguments)

    monkeypatch.setattr(PalMapa, "place", slow)
    return decided


def test_a_long_planning_is_interrupted_by_a_look_each_second(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 is placed on n1. While others are planned Slurm shows that a limit holds it."""
    slurm.write([parked(stuck=True)], ["n1", "n2"])
    bench = RoundsBench(slurm)
    assert bench.rounds.run().placed == ["7"]
    state = list(slurm.jobs.values())
    slurm.write([*state, *(parked(str(n)) for n in range(20, 28))], ["n1", "n2"])
    slurm.change("7", reason="Resources")
    decided = slow_planner(monkeypatch, bench, lambda: slurm.change("7", reason=HELD))
    outcome = bench.rounds.run()
    assert decided[-1] - decided[0] > 2.0
    (closed,) = bench.closed("7")
    assert closed - decided[0] <= 1.0 + 0.4
    assert slurm.jobs["7"]["req_nodes"] == ""
    assert outcome.parked_again == 1
    # This round has read 7 with its GPUs; only the next one gives them to another.
    pins = [dict(u.fields) for _, u in bench.told if u.job_id in outcome.placed]
    mine = state[0]["tres_per_node"]
    assert not [p for p in pins if (p.get("ReqNodeList"), p.get("TresPerNode")) == ("n1", mine)]
    assert len(outcome.placed) == 3
    assert bench.rounds.start_monitor.freed == 1
    assert len(bench.rounds.run().placed) == 1


def test_nobody_is_parked_again_twice_by_what_a_round_read_before_a_look(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look comes between the reading of jobs, which shows the reason, too, and of nodes."""
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    nodes = MemorySlurm.nodes

    def slow(client: MemorySlurm) -> Any:
        bench.steady += 1.1
        bench.rounds.start_monitor.if_due()
        return nodes(client)

    monkeypatch.setattr(MemorySlurm, "nodes", slow)
    assert bench.rounds.run().parked_again == 1
    assert len(bench.closed("7")) == 1


def test_what_was_just_opened_is_looked_at_while_others_are_opened(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.selector.recovery._AT_ONCE", 1)
    slurm.write([parked("7", stuck=True, priority=900), *map(parked, "1234")], ["n1", "n2", "n3"])
    bench = RoundsBench(slurm)
    bench.update_s = 0.6
    opened = bench.rounds.start_monitor.opened

    def told(job_ids: list[str]) -> None:
        opened(job_ids)
        if "7" in job_ids:
            slurm.change("7", reason=HELD)

    monkeypatch.setattr(bench.rounds.start_monitor, "opened", told)
    outcome = bench.rounds.run()
    assert sorted(outcome.placed) == ["1", "2", "3", "4", "7"]
    times = {u.job_id: at for at, u in bench.told if dict(u.fields).get("Licenses") == ""}
    (closed,) = bench.closed("7")
    assert times["7"] < closed <= times["7"] + 1.0 + 2 * 0.6
    assert closed < max(times.values())
    bench.ledger.flush()
    ledger = bench.ledger._open()
    assert isinstance(ledger, Ledger)
    kinds = [event.kind for event in ledger.events("7")]
    assert kinds == ["parked", "prepared", "released", "reparked"]
    assert [d.state for d in ledger.decisions("7")] == ["reparked"]


def test_a_look_that_fails_does_not_end_the_round(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write([parked(stuck=True)], ["n1", "n2"])
    bench = RoundsBench(slurm)
    bench.rounds.run()
    slurm.write([*slurm.jobs.values(), *map(parked, "123")], ["n1", "n2"])
    slow_planner(monkeypatch, bench, lambda: None)
    tries = []

    def silent(client: MemorySlurm, ids: list[str]) -> Any:
        tries.append(bench.steady)
        raise SourceError("no answer")

    monkeypatch.setattr(MemorySlurm, "jobs_of", silent)
    assert len(bench.rounds.run().placed) == 3
    assert len(tries) == 1


class Clock:
    """Stands for the module ``time``; waiting is what makes it go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, seconds: float) -> str:
        self.sleep(seconds)
        return "timer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("slurm_gpu_aware.selector.daemon.time", clock)
    return clock


@pytest.fixture
def selector(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selector]:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    )
    found = Selector(config, MemorySlurm(tmp_path))
    found._rounds.start_monitor._timer = clock.monotonic
    yield found
    found.close()


@pytest.mark.parametrize(("took_s", "apart_s"), [(0.0, 0.5), (0.2, 0.6), (5.0, 1.0)])
def test_placed_jobs_are_looked_at_every_second_between_rounds(
    selector: Selector, clock: Clock, monkeypatch: pytest.MonkeyPatch, took_s: float, apart_s: float
) -> None:
    looks = []
    found = selector._rounds.start_monitor

    def look() -> int:
        looks.append(clock.now)
        clock.sleep(took_s)
        return 0

    monkeypatch.setattr(found, "_look", look)
    found.seen(["7"])
    found.look()
    selector._pause(3.5 * (apart_s + took_s), clock.wait)
    gaps = [after - before - took_s for before, after in pairwise(looks)]
    assert gaps[:3] == pytest.approx([apart_s] * 3)


def test_a_look_is_due_at_once_after_a_long_round(
    selector: Selector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(
        selector._rounds.start_monitor, "_look", lambda: looks.append(clock.now) or 0
    )
    selector._rounds.start_monitor.seen(["7"])
    clock.sleep(4.0)  # writing it all down
    selector._pause(0.1, clock.wait)
    assert looks == [104.0]


def test_what_a_look_parks_again_starts_a_round(
    selector: Selector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector._rounds.start_monitor, "_look", lambda: 1)
    selector._rounds.start_monitor.seen(["7"])
    assert selector._pause(4.5, clock.wait) == "timer"
    assert clock.now == 100.5


def test_what_a_look_inside_a_round_parked_again_starts_a_round_at_once(
    selector: Selector,
) -> None:
    assert selector._wait_s() > 1.0
    selector._rounds.start_monitor.freed = 1
    assert selector._wait_s() == 0.0


def test_without_placed_jobs_nobody_is_looked_at(
    selector: Selector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector._rounds.start_monitor, "_look", lambda: pytest.fail("looked"))
    assert selector._pause(5.0, clock.wait) == "timer"
    assert clock.now == 105.0
