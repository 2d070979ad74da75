"""The ledger as the daemon keeps it: read access to the copy, and its times."""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.config.settings import Config, EventsConfig, SelectorConfig, StoreConfig
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.read_cluster import config_of
from slurm_gpu_aware.store import database
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.ledger import Ledger


@pytest.mark.parametrize(
    ("setting", "private"),
    [("none", False), ("jobs", True), ("accounts,jobs,users", True), ("usage,nodes", False)],
)
def test_private_data_is_read(setting: str, private: bool) -> None:
    assert config_of({"SLURM_VERSION": "24.11.5", "PrivateData": setting}).private_jobs is private


def published_mode(path: Path) -> int:
    return published_path(path).stat().st_mode & 0o777


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LedgerWriter]:
    """A ledger in which an event of job 7 stands."""
    made = LedgerWriter(tmp_path / "store.db")
    made.event("7", "parked", {}, 1.0)
    yield made
    made.close()


@pytest.mark.parametrize(("setting", "bits"), [("none", 0o644), ("jobs,users", 0o640)])
def test_the_copy_is_as_private_as_slurm(slurm: SlurmFolder, setting: str, bits: int) -> None:
    slurm.write([parked()], ["n1"])
    slurm.set(settings={**slurm.get("settings"), "PrivateData": setting})
    slurm.round()
    assert published_mode(slurm.store) == bits


def test_before_slurm_has_answered_the_copy_is_private(writer: LedgerWriter) -> None:
    writer.publish()
    assert published_mode(writer.path) == 0o640


def test_the_copy_is_private_as_soon_as_slurm_is(slurm: SlurmFolder) -> None:
    """Without a restart, and although no job has changed."""
    bench, public = RoundsBench(slurm), slurm.get("settings")
    for setting, bits in (("none", 0o644), ("jobs", 0o640), ("none", 0o644)):
        slurm.set(settings={**public, "PrivateData": setting})
        bench.wait(6.0)
        bench.run()
        if setting == "jobs":
            assert published_mode(slurm.store) == bits  # before another copy is made
        bench.ledger.publish()
        assert published_mode(slurm.store) == bits


def test_a_copy_that_is_being_made_becomes_private_too(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.hide(False)
    publish = database.publish

    def slow(store: Store, *, mode: int) -> None:
        writer.hide(True)
        publish(store, mode=mode)

    monkeypatch.setattr(database, "publish", slow)
    writer.publish(force=True)
    assert published_mode(writer.path) == 0o640


def test_the_next_copy_is_due_when_the_last_ones_have_cost_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that took long counts with the next."""
    now, took_s = [100.0], iter([5.0, 0.2])

    def copy(store: Store, *, mode: int) -> None:
        now[0] += next(took_s)

    monkeypatch.setattr(database, "publish", copy)
    writer = LedgerWriter(tmp_path / "store.db", clock=lambda: now[0])
    assert writer.publish_in_s is None
    for due_s in (0.0, 50 * 0.2 - 0.2):
        writer.event("7", "parked", {}, 1.0)
        writer.publish(force=True)
        assert writer.publish_in_s is None
        writer.event("7", "planned", {}, 2.0)
        assert writer.publish_in_s == pytest.approx(due_s)
    now[0] += 4.0
    assert writer.publish_in_s == pytest.approx(5.8)
    writer.close(publish=False)


def test_no_round_is_run_for_a_copy_that_is_not_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
        selector=SelectorConfig(round_s=5.0),
    )
    selector = Selector(config, MemorySlurm(tmp_path))
    selector._ledger.event("7", "parked", {}, 1.0)
    selector._ledger.publish(force=True)
    selector._ledger.event("7", "planned", {}, 2.0)
    selector._ledger._publish_s = 1000.0
    assert selector._wait_s() == 5.0
    selector._ledger._publish_s = 0.0
    assert selector._wait_s() == 0.5
    selector.close()


Locked = tuple[LedgerWriter, list[float], sqlite3.Connection]


@pytest.fixture
def locked_writer(tmp_path: Path) -> Iterator[Locked]:
    """A writer, its clock, and another process's connection, which holds the write lock."""
    now = [100.0]
    writer = LedgerWriter(tmp_path / "store.db", clock=lambda: now[0])
    writer.event("7", "parked", {}, 1.0)
    writer._store.wait_at_most(0.0)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield writer, now, other
    other.close()
    writer.close()


def test_what_a_busy_store_does_not_take_is_written_later_in_its_order(
    locked_writer: Locked,
) -> None:
    writer, now, other = locked_writer
    entry = writer.decide(decision("7"))
    writer.outcome(entry, "released", 3.0)
    writer.event("7", "released", {}, 3.0)
    assert entry.number is None
    assert writer.decisions("7") == []
    other.execute("COMMIT")
    now[0] += 4.0
    writer.event("8", "parked", {}, 4.0)
    assert writer.decisions("7") == []  # not tried again so soon
    now[0] += 2.0
    writer.flush()
    assert [d.state for d in writer.decisions("7")] == ["released"]
    assert entry.number is not None
    assert writer.first_event("8", "parked")


def test_a_busy_store_is_waited_for_once_in_a_while(
    locked_writer: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, now, _ = locked_writer
    tries = []
    write = Store.write

    def counted(store: Store) -> AbstractContextManager[None]:
        tries.append(now[0])
        return write(store)

    monkeypatch.setattr(Store, "write", counted)
    for number in range(20):
        writer.event(str(number), "parked", {}, 1.0)
    assert tries == [100.0]
    now[0] += 6.0
    writer.flush()
    assert tries == [100.0, 106.0]


def test_what_cannot_be_written_keeps_nothing_behind_it(writer: LedgerWriter) -> None:
    entry = writer.decide(decision("7", score=float("nan")))
    assert entry.number is None
    writer.event("7", "parked", {("a", "b"): 1}, 1.0)
    writer.event("7", "no such kind", {}, 1.0)
    writer.event("7", "released", {}, 1.0)
    assert [event.kind for event in writer.events("7")] == ["parked", "released"]


def test_of_too_much_for_a_busy_store_the_oldest_is_lost_and_told(
    locked_writer: Locked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.selector.ledger_writer._MOST_QUEUED", 3)
    writer, now, other = locked_writer
    for number in range(5):
        writer.event(str(number), "parked", {}, 1.0)
    other.execute("COMMIT")
    now[0] += 6.0
    writer.publish()
    assert [n for n in range(5) if writer.first_event(str(n), "parked")] == [2, 3, 4]
    assert "2 entries were lost" in caplog.text
    with writer.later():  # nothing is lost while the store is merely not asked
        for number in range(10, 20):
            writer.event(str(number), "parked", {}, 1.0)
    assert writer.first_event("10", "parked")


@pytest.mark.parametrize("at_end", [False, True])
def test_what_was_kept_waits_for_no_other_event(locked_writer: Locked, at_end: bool) -> None:
    """Each round publishes; at the end a busy store is tried once more, at once."""
    writer, now, other = locked_writer
    writer.decide(decision("7"))
    other.execute("COMMIT")
    if at_end:
        writer.close()
    else:
        now[0] += 6.0
        writer.publish()
    with open_store(writer.path, readonly=True) as store:
        assert len(Ledger(store).decisions("7")) == 1


def test_what_is_written_later_is_one_transaction(writer: LedgerWriter) -> None:
    said: list[str] = []
    writer._store._connection.set_trace_callback(said.append)
    with writer.later():
        for number in range(20):
            writer.event(str(number), "released", {}, 1.0)
        writer.event("7", "no such kind", {}, 1.0)
        writer.event("7", "started", {}, 1.0)
        assert said == []
    assert said.count("COMMIT") == 1
    assert writer.first_event("19", "released")
    assert writer.first_event("7", "started")


def test_nothing_is_written_between_pinning_and_opening(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision is there before Slurm hears of it; the rest waits until the gate is open."""
    slurm.write([parked()], ["n1"])
    told: list[str] = []

    def noted(owner: type, name: str, words: Callable[..., Iterable[str]]) -> None:
        real = getattr(owner, name)

        def call(self: Any, *given: Any) -> Any:
            told.extend(words(*given))
            return real(self, *given)

        monkeypatch.setattr(owner, name, call)

    noted(Ledger, "add_event", lambda job_id, kind, *rest: [kind])
    noted(Ledger, "add_decision", lambda decision: ["decision"])
    opens = lambda update: "open" if "Licenses" in dict(update.fields) else "pin"  # noqa: E731
    noted(MemorySlurm, "update_jobs", lambda updates: map(opens, updates))
    RoundsBench(slurm).run()
    assert told == ["parked", "decision", "pin", "open", "prepared", "released"]


def test_a_copy_beside_is_made_once_at_a_time(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main loop goes on while a large store is copied; the last copy has everything."""
    started, go_on = threading.Event(), threading.Event()
    copies: list[str] = []

    def slow(store: Store, **_: Any) -> None:
        copies.append(threading.current_thread().name)
        started.set()
        assert go_on.wait(300)

    monkeypatch.setattr(database, "publish", slow)
    writer.publish(beside=True)
    assert started.wait(60)
    writer.event("8", "parked", {}, 1.0)
    writer._publish_s = -1.0
    writer.publish(beside=True)
    assert copies == ["publish"]
    go_on.set()
    writer.close()
    assert copies == ["publish", "MainThread"]
