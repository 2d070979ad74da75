"""The start monitor: which released jobs it parks again, by itself and while a round plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from idle_clock import Stopwatch
from memory_slurm import MemorySlurm, reservation_record
from rounds_bench import RoundsBench, placed_and_stuck, reads, rounds_with
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.policies.eft import Eft
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.selector.round import Outcome
from slurm_gpu_aware.slurm.updates import JobUpdate

HELD = "QOSMaxGRESPerUser"
HIGHER = "jobs_in_higher_priority_partitions"
MONITOR = "slurm_gpu_aware.selector.start_monitor"


def one_is_held(slurm: SlurmFolder) -> RoundsBench:
    """A limit holds job 7 of `placed_and_stuck`; 8 waits for resources."""
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    slurm.change("8", reason="Resources")
    return bench


def is_parked(slurm: SlurmFolder, job_id: str = "7") -> bool:
    """Whether a job waits at the gate, and is bound to no node."""
    job = slurm.jobs[job_id]
    return (job["licenses"], job["req_nodes"]) == ("gpuaware:1", "")


def test_a_poll_parks_again_what_a_limit_holds(slurm: SlurmFolder) -> None:
    bench = one_is_held(slurm)
    assert bench.poll() == 1
    assert is_parked(slurm)
    assert slurm.jobs["8"]["licenses"] == ""
    assert bench.rounds.start_monitor.starting == ["8"]
    assert "jobs" not in reads(slurm)  # never all jobs for two


def test_a_job_stays_bound_while_a_rollout_lets_no_job_start(slurm: SlurmFolder) -> None:
    """It would wait a minute, and twice as long at the next node."""
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason="ReqNodeNotAvail,_Reserved_for_maintenance")
    gate = reservation_record("gpuaware_gate", licenses="gpuaware:100000")
    slurm.reserve(gate, reservation_record("gpuaware_rollout", node_list="n[1-2]"))
    assert bench.poll() == 0
    assert slurm.jobs["7"]["req_nodes"] != ""
    assert set(bench.rounds.start_monitor.starting) == {"7", "8"}
    slurm.reserve(gate)
    assert bench.poll() == 0  # Slurm has not tried it again
    slurm.change("7", last_sched_eval=int(time.time()) + 1)
    assert bench.poll() == 1
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_a_poll_forgets_jobs_that_have_started_or_are_gone(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", state="RUNNING", nodes="n1", slots=[0, 1])
    slurm.change("8", job_id=9)
    assert bench.poll() == 2
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

    monkeypatch.setattr("slurm_gpu_aware.selector.site_reader.build_cluster", build)
    bench.run()
    assert seen == {"7": {"5"}, "8": frozenset()}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site where reading all jobs takes so long that a poll takes only one of them."""
    monkeypatch.setattr(f"{MONITOR}.FEW", 1)
    monkeypatch.setattr(f"{MONITOR}._QUICK_S", -1.0)


@pytest.mark.usefixtures("one_by_one")
def test_a_poll_takes_a_few_and_the_others_next(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    first, second = bench.rounds.start_monitor.starting
    for job_id in (first, second, first):
        bench.poll()
        assert reads(slurm)[-1] == f"job {job_id}"


def test_a_poll_at_many_reads_all_where_that_is_quick(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MONITOR}.FEW", 1)
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    slurm.change("8", reason=HELD)
    assert bench.poll() == 2
    assert reads(slurm)[0] == "jobs"


@pytest.mark.usefixtures("one_by_one")
def test_a_start_timeout_counts_from_the_opening_whichever_other_is_polled(
    slurm: SlurmFolder,
) -> None:
    bench = placed_and_stuck(slurm)
    for job_id in ("7", "8"):
        slurm.change(job_id, reason="Resources")
        bench.rounds.tracker.placed[job_id].released_s = None  # as after a restart
    bench.poll()
    bench.poll()
    assert bench.poll(31.0) == 1
    assert bench.poll() == 1


def test_polls_do_nothing_while_the_gate_is_not_held(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    bench.wall += 61.0
    bench.rounds._gate_held_until = lambda: bench.wall
    assert bench.poll() == 0
    assert slurm.jobs["7"]["licenses"] == ""


def test_what_a_user_types_into_a_comment_is_no_record(slurm: SlurmFolder) -> None:
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason="Resources", comment=f"x\nJobId=8 Reason={HELD} JobName=y")
    slurm.change("8", reason="Resources")
    assert bench.poll() == 0
    assert bench.rounds.start_monitor.starting == ["7", "8"]
    assert slurm.jobs["8"]["licenses"] == ""


def test_a_clock_that_is_set_back_keeps_no_job_bound(slurm: SlurmFolder) -> None:
    bench = rounds_with(slurm, parked(stuck=True))
    bench.run()
    slurm.change("7", reason="Resources")
    assert slurm.jobs["7"]["req_nodes"] == "n1"
    bench.wall -= 3600.0
    bench.run(31.0)
    assert bench.poll() == 1
    assert is_parked(slurm)
    slurm.change("7", reason="Licenses")
    assert bench.run(59.0).placed == []
    assert bench.run(2.0).placed == ["7"]


@pytest.mark.parametrize(
    ("reason", "placed"),
    [
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", ["7"]),
        (f"Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_{HIGHER}", ["7"]),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", []),
        ("Dependency", []),
    ],
)
def test_a_node_that_another_job_waits_for_holds_no_job(
    slurm: SlurmFolder, reason: str, placed: list[str]
) -> None:
    """Slurm gives the reason at submission and looks again only after a while."""
    slurm.write([parked(reason=reason)], ["n1"])
    assert RoundsBench(slurm).rounds.run().placed == placed


@pytest.mark.parametrize(
    ("reason", "left"),
    [("Resources", True), ("BadConstraints", True), ("QOSMaxGRESPerUser", False)],
)
def test_a_bound_job_is_slurms_only_if_its_place_kept_it(
    slurm: SlurmFolder, reason: str, left: bool
) -> None:
    """Slurm alone knows all of what it looks at for sockets; a limit says nothing about these."""
    bench = rounds_with(slurm, parked("7", 1, ";nt=1", bitflags=1 << 4, stuck=True))
    assert bench.run().placed == ["7"]
    slurm.change("7", reason=reason)
    bench.run(31.0)
    assert bench.poll() == 1
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    slurm.change("7", reason="Licenses")
    assert bench.run(61.0).placed == ["7"]
    assert (slurm.jobs["7"]["req_nodes"] == "") is left
    assert ("st=by-Slurm" in slurm.jobs["7"]["admin_comment"]) is left
    assert slurm.jobs["7"]["licenses"] == ""


@pytest.mark.parametrize(("seconds", "parked_again"), [(-30, 0), (0, 0), (1, 1)])
def test_a_licence_that_another_job_took_first(
    slurm: SlurmFolder, seconds: int, parked_again: int
) -> None:
    """The gate's own reason is shown until Slurm has looked; afterwards it means another licence.

    Slurm tells whole seconds: the one in which the gate was opened says nothing.
    """
    bench = rounds_with(slurm, parked(stuck=True))
    bench.wall += 0.4
    assert bench.run().placed == ["7"]
    slurm.change("7", reason="Licenses", last_sched_eval=int(bench.wall) + seconds)
    assert bench.poll(1.0) == parked_again
    if not parked_again:
        assert bench.poll(4.5) == 1


class Blocked:
    """A policy whose first decision waits until `go_on`, in a round of a thread of its own."""

    def __init__(self, bench: RoundsBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self.planning, self._go_on = threading.Event(), threading.Event()
        self.outcome: Outcome | None = None
        self._failed: list[BaseException] = []
        place = Eft.place

        def slow(policy: Eft, *arguments: Any) -> Any:
            self.planning.set()
            assert self._go_on.wait(300)
            return place(policy, *arguments)

        monkeypatch.setattr(Eft, "place", slow)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # The ledger is written by the thread that made it; here that is this one.
        self.bench.ledger._owner = threading.current_thread()
        try:
            self.outcome = self.bench.run()
        except BaseException as exc:
            self._failed.append(exc)

    def __enter__(self) -> Blocked:
        self.bench.ledger.close()  # its connection is of the thread that opened it
        self.bench.ledger._tried = -float("inf")
        self._thread.start()
        assert self.planning.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(60)
        self.bench.ledger.close()
        self.bench.ledger._tried = -float("inf")
        self.bench.ledger._owner = threading.current_thread()
        assert not self._failed


def wait_until(condition: Callable[[], bool]) -> None:
    watch = Stopwatch()
    while not condition():
        assert watch.idle_s < 60
        time.sleep(0.01)


@contextmanager
def polling(bench: RoundsBench) -> Iterator[list[str]]:
    """The monitor's thread; yields a list that gets an entry at each call of ``wake``."""
    woken: list[str] = []
    monitor = bench.rounds.start_monitor
    monitor.wake = lambda: woken.append(threading.current_thread().name)
    monitor.start()
    try:
        yield woken
    finally:
        monitor.stop()
        assert not monitor._thread.is_alive()


def stuck_and_others(slurm: SlurmFolder) -> RoundsBench:
    """7 is placed on n1 and cannot start; others wait, for more GPUs than are free."""
    bench = rounds_with(slurm, parked(stuck=True), nodes=["n1", "n2"])
    assert bench.run().placed == ["7"]
    # Of another account: a limit that holds 7 holds none of them.
    others = (parked(str(n), account="other") for n in range(20, 28))
    slurm.write([*slurm.jobs.values(), *others], ["n1", "n2"])
    slurm.change("7", reason="Resources")
    return bench


def test_a_job_is_parked_again_while_a_round_plans(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 is placed on n1. While others are planned Slurm shows that a limit holds it."""
    bench = stuck_and_others(slurm)
    mine = slurm.jobs["7"]["tres_per_node"]
    with polling(bench) as woken, Blocked(bench, monkeypatch) as blocked:
        slurm.change("7", reason=HELD)
        wait_until(lambda: bool(woken))
        assert is_parked(slurm)
        assert bench.rounds.start_monitor.outdated(0.0) == {"7"}
    assert woken == ["start monitor"]
    assert len(bench.closed("7")) == 1
    # This round has read 7 with its GPUs; only the next one gives them to another.
    outcome = blocked.outcome
    bound = [dict(u.fields) for _, u in bench.told if u.job_id in outcome.placed]
    assert not [b for b in bound if (b.get("ReqNodeList"), b.get("TresPerNode")) == ("n1", mine)]
    assert len(outcome.placed) == 3
    assert len(bench.run().placed) == 1
    assert bench.rounds.start_monitor.outdated(0.0) == frozenset()
    assert slurm.kinds() == ["parked", "prepared", "released", "parked"]
    (decision,) = slurm.ledger("7")
    assert (decision.state, decision.outcome["why"]) == ("waiting", f"held by {HELD}")


def test_a_round_that_read_a_job_as_parked_in_the_monitors_hands_leaves_it(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor has closed its gate and not restored it yet when a round reads all jobs."""
    bench = one_is_held(slurm)
    send, rounds = bench.client.update_jobs, []

    def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
        refused = send(updates)
        if not rounds and any(u.fields == (("Licenses", "gpuaware:1"),) for u in updates):
            rounds.append(None)
            bench.told.clear()
            rounds[0] = bench.run()
            told = [update.job_id for _, update in bench.told]
            assert told == []  # neither restored nor placed
            assert slurm.jobs["7"]["req_nodes"] == "n1"
        return refused

    monkeypatch.setattr(bench.client, "update_jobs", update_jobs)
    assert bench.poll() == 1
    (outcome,) = rounds
    assert (outcome.placed, outcome.queued) == ([], 0)
    assert slurm.jobs["7"]["req_nodes"] == ""
    assert bench.rounds.start_monitor.starting == ["8"]
    assert bench.run().queued == 1


def test_what_a_round_read_before_the_monitor_took_it_is_not_watched_again(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll comes between the reading of jobs, which shows the reason, too, and of nodes."""
    bench = placed_and_stuck(slurm)
    slurm.change("7", reason=HELD)
    nodes, again = MemorySlurm.nodes, []

    def slow(client: MemorySlurm) -> Any:
        again.append(bench.poll())
        return nodes(client)

    monkeypatch.setattr(MemorySlurm, "nodes", slow)
    outcome = bench.run()
    assert (again, outcome.placed) == ([1], [])
    assert bench.rounds.start_monitor.starting == ["8"]
    assert bench.poll() == 0
    assert len(bench.closed("7")) == 1


def test_no_job_is_parked_again_twice(slurm: SlurmFolder) -> None:
    """Rounds and the monitor's thread at the same time, both with the same reading."""
    jobs = [parked(str(n), 1, stuck=True) for n in range(7, 15)]
    bench = rounds_with(slurm, *jobs, nodes=["n1", "n2"])
    placed = bench.run().placed
    assert len(placed) == 8
    with polling(bench):
        for job_id in placed:
            slurm.change(job_id, reason=HELD)
            assert bench.run().placed == []
        wait_until(lambda: all(bench.closed(job_id) for job_id in placed))
        bench.run()
    assert [len(bench.closed(job_id)) for job_id in placed] == [1] * 8
    bench.ledger.flush()
    for job_id in placed:
        assert slurm.kinds(job_id).count("parked") == 2
        assert is_parked(slurm, job_id)


def test_what_was_just_opened_is_polled_while_others_are_opened(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.selector.placer._AT_ONCE", 1)
    slurm.write([parked("7", stuck=True, priority=900), *map(parked, "1234")], ["n1", "n2", "n3"])
    bench = RoundsBench(slurm)
    send, first = bench.client.update_jobs, []

    def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
        refused = send(updates)
        opened = [u.job_id for u in updates if dict(u.fields).get("Licenses") == ""]
        first.extend(opened)
        if opened == ["7"]:
            slurm.change("7", reason=HELD)
        elif opened:  # the second
            wait_until(lambda: bench.closed("7") != [])
        return refused

    monkeypatch.setattr(bench.client, "update_jobs", update_jobs)
    with polling(bench) as woken:
        outcome = bench.run()
        wait_until(lambda: bool(woken))
    assert sorted(outcome.placed) == ["1", "2", "3", "4", "7"]
    assert first[0] == "7"
    assert len(bench.closed("7")) == 1
    assert slurm.jobs["7"]["req_nodes"] == ""
    bench.ledger.flush()
    assert slurm.kinds() == ["parked", "prepared", "released", "parked"]
    assert [d.state for d in slurm.ledger("7")] == ["waiting"]


def test_a_round_that_sees_why_a_job_cannot_start_makes_the_monitor_poll_at_once(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MONITOR}._SOON_S", 1000.0)
    monkeypatch.setattr(f"{MONITOR}._POLL_S", 1000.0)
    bench = one_is_held(slurm)
    with polling(bench) as woken:
        bench.run()
        wait_until(lambda: bool(woken))
    assert len(bench.closed("7")) == 1
    assert bench.closed("8") == []


@pytest.mark.parametrize("error", [SourceError("no answer"), RuntimeError("a fault of ours")])
def test_the_thread_survives_a_poll_that_fails(
    slurm: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    monkeypatch.setattr(f"{MONITOR}._SOON_S", 0.01)
    bench = one_is_held(slurm)
    answers = chain([error, error], repeat(DEFAULT))
    read = Mock(side_effect=answers, wraps=bench.client.jobs_of)
    monkeypatch.setattr(bench.client, "jobs_of", read)
    with polling(bench) as woken:
        wait_until(lambda: bool(woken))
    assert slurm.jobs["7"]["req_nodes"] == ""
    assert caplog.text.count("released jobs are polled again later") == 2


def test_what_slurm_does_not_answer_about_is_polled_again(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm falls silent when the job's gate is to be closed."""
    bench = one_is_held(slurm)
    with monkeypatch.context() as patch:
        patch.setattr(bench.client, "update_jobs", Mock(side_effect=SourceError("no answer")))
        with pytest.raises(SourceError):
            bench.poll()
    assert bench.poll() == 1
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_a_job_that_starts_while_it_is_taken_back_keeps_its_place(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = one_is_held(slurm)
    send = bench.client.update_jobs

    def starts_first(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if slurm.jobs["7"]["state"] == "PENDING":
            slurm.change("7", state="RUNNING", nodes="n1", slots=[0, 1])
        return send(updates)

    monkeypatch.setattr(bench.client, "update_jobs", starts_first)
    assert bench.poll() == 1  # a round has to see that it runs
    assert (slurm.jobs["7"]["licenses"], slurm.jobs["7"]["req_nodes"]) == ("", "n1")
    assert slurm.get("touched_running") == []
    bench.run()
    assert bench.rounds.tracker.placed["7"].phase == "started"


def test_without_released_jobs_nothing_is_read(slurm: SlurmFolder) -> None:
    bench = RoundsBench(slurm)
    bench.run()
    slurm.forget_calls()
    assert bench.poll() == 0
    assert slurm.calls == []


class Due:
    """Waits of the monitor on a clock of their own."""

    def __init__(
        self, bench: RoundsBench, monkeypatch: pytest.MonkeyPatch, poll: Callable[[], int]
    ) -> None:
        self.monitor, self.now = bench.rounds.start_monitor, 100.0
        self.pauses: list[float] = []
        monkeypatch.setattr(self.monitor, "_asked", self)
        monkeypatch.setattr(self.monitor, "poll", poll)
        monkeypatch.setattr(f"{MONITOR}.time", SimpleNamespace(monotonic=lambda: self.now))

    def run(self, waits: int, during: Callable[[], bool] = lambda: False) -> None:
        """So many waits; ``during``: what happens in each, and whether a round asks."""
        self.waits, self.during = waits, during
        self.monitor._run()

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.monitor._stopping = len(self.pauses) >= self.waits
        return self.during()

    def clear(self) -> None:
        pass


@pytest.mark.parametrize(("took_s", "apart_s"), [(0.0, 0.5), (0.2, 0.6), (5.0, 1.0)])
def test_released_jobs_are_polled_every_second(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, took_s: float, apart_s: float
) -> None:
    """Quick polls more often; ``time.monotonic`` is the test's own."""

    def poll() -> int:
        due.now += took_s
        return 0

    due = Due(RoundsBench(slurm), monkeypatch, poll)
    due.run(5)
    assert due.pauses[1:] == pytest.approx([apart_s] * 4)


def test_what_a_round_has_just_read_is_polled_only_where_it_asks(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds before the first four waits end, of which the third asks; none later."""
    polls: list[int] = []
    due = Due(RoundsBench(slurm), monkeypatch, lambda: polls.append(len(due.pauses)))

    def round_comes() -> bool:
        due.now += due.pauses[-1]
        if len(due.pauses) <= 4:
            due.monitor.watch((), frozenset())
        return len(due.pauses) == 3

    due.run(7, round_comes)
    assert polls == [3, 5, 6]


def test_what_the_monitor_parks_again_starts_a_round(
    tmp_path: Path, slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the daemon: its wait for an event ends at once."""
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=slurm.store),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    )
    selector = Selector(config, slurm.client())
    try:
        monitor = selector._rounds.start_monitor
        monkeypatch.setattr(monitor, "poll", lambda: 1)
        monitor.start()
        assert selector._events.wait(60.0) == {"woken"}
    finally:
        selector.close()
    assert not monitor._thread.is_alive()
