"""Selectors on two hosts over one Slurm: one works, the other stands by and takes over."""

import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from idle_clock import Stopwatch
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.deploy.job_requests import restore_all
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.licence_gate import gate_reservation, holder_of
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.selector.heartbeat import Heartbeat, Standby
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.store.database import open_for_reading, open_store, publish
from slurm_gpu_aware.store.files import published_path

LEASE_S = Config().gate.lease_s
SILENT_S = 31.0


class TwoHosts:
    """Two hosts, ``ctl1`` and ``ctl2``, each with a standby and a heartbeat; one clock."""

    def __init__(self, slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm, self._monkeypatch = slurm, monkeypatch
        self.now = time.time()
        slurm.reserve()
        self.state = slurm.home / "state"
        self.state.mkdir()
        hosts = {"SlurmctldHost[0]": "ctl1(10.0.0.1)", "SlurmctldHost[1]": "ctl2.site.org"}
        with slurm.state() as state:
            state["settings"] |= {**hosts, "StateSaveLocation": str(self.state)}
        self.on("ctl1")
        self.first, self.second = self._selector(), self._selector()

    def _selector(self) -> tuple[Standby, Heartbeat]:
        client = self.slurm.client()
        standby = Standby(client, Config(), clock=lambda: self.now, timer=lambda: self.now)
        pool = HoldingPool(client)
        return standby, Heartbeat(client, Config(), pool, clock=lambda: self.now)

    def on(self, host: str) -> None:
        """All that follows happens on this host."""
        self._monkeypatch.setattr(socket, "gethostname", lambda: host)

    def control(self, number: int | None) -> None:
        """That slurmctld is in control; None: its heartbeat file cannot be read."""
        file = self.state / "heartbeat"
        if number is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(struct.pack("!QQ", int(self.now), number))

    def turn(self, host: str) -> bool:
        """Whether the selector of the host may work; if it may, it claims the gate."""
        self.on(host)
        standby, heartbeat = self.first if host == "ctl1" else self.second
        may = standby.may_work()
        if may:
            heartbeat.beat(claim=True)
        return may

    @property
    def holder(self) -> str | None:
        held = holder_of(gate_reservation(self.slurm.client(), Config().gate), None)
        return held.host if held else None


@pytest.fixture
def pair(slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> TwoHosts:
    return TwoHosts(slurm, monkeypatch)


def test_the_selector_beside_slurmctld_works(pair: TwoHosts) -> None:
    pair.control(0)
    assert pair.turn("ctl1")
    assert not pair.turn("ctl2")
    assert pair.holder == "ctl1"


def test_it_takes_over_at_once_with_slurmctld(pair: TwoHosts) -> None:
    pair.control(0)
    assert pair.turn("ctl1")
    pair.now += 1.0
    pair.control(1)
    assert pair.turn("ctl2")
    assert pair.holder == "ctl2"
    pair.on("ctl1")
    assert not pair.first[1].is_ours()
    assert pair.first[1].held_until == 0.0
    assert not pair.turn("ctl1")
    pair.now += 1.0
    pair.control(0)
    assert pair.turn("ctl1")
    pair.on("ctl2")
    assert not pair.second[1].is_ours()


def test_a_silent_one_is_replaced_wherever_slurmctld_is(pair: TwoHosts) -> None:
    pair.control(0)
    assert pair.turn("ctl1")
    pair.now += SILENT_S - 2
    assert not pair.turn("ctl2")
    pair.now += 6.0
    assert pair.turn("ctl2")
    assert pair.holder == "ctl2"
    assert pair.turn("ctl1"), "restarted beside slurmctld, it works again"
    assert pair.holder == "ctl1"


@pytest.mark.parametrize("number", [None, 2])
def test_where_control_is_not_known_the_first_keeps_the_gate(
    pair: TwoHosts, number: int | None
) -> None:
    pair.control(number)
    assert pair.turn("ctl2")
    for _ in range(4):
        pair.now += 20.0
        assert not pair.turn("ctl1")
        pair.on("ctl2")
        pair.second[1].beat()
    pair.now += SILENT_S
    assert pair.turn("ctl1")


def test_a_superseded_one_does_not_extend_the_gate(pair: TwoHosts) -> None:
    """It was stopped meanwhile (SIGSTOP), so that it does not know yet."""
    pair.control(0)
    assert pair.turn("ctl1")
    pair.control(1)
    assert pair.turn("ctl2")
    end = pair.slurm.get("reservations")[0]["end_time"]
    pair.now += 5.0
    pair.on("ctl1")
    pair.first[1].beat()
    assert pair.slurm.get("reservations")[0]["end_time"] == end
    assert pair.first[1].other.host == "ctl2"


def test_a_round_that_was_overtaken_while_it_read_changes_nothing(
    pair: TwoHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld answers after its takeover: the other selector works by then."""
    pair.slurm.write([parked()], ["n1", "n2"])
    pair.control(0)
    assert pair.turn("ctl1")
    client, (_, heartbeat) = pair.slurm.client(), pair.first
    read = client.jobs

    def jobs() -> list[SlurmJob]:
        found = read()
        pair.control(1)
        assert pair.turn("ctl2")
        pair.on("ctl1")
        return found

    monkeypatch.setattr(client, "jobs", jobs)
    gate = {"gate_held_until": lambda: heartbeat.held_until, "check_holder": heartbeat.check}
    rounds = Rounds(client, Config(), LedgerWriter(tmp_path / "first.db"), **gate)
    before = pair.slurm.jobs
    with pytest.raises(SourceError, match="ctl2 works"):
        rounds.run()
    assert pair.slurm.jobs == before


def test_another_comment_is_no_holder(pair: TwoHosts) -> None:
    pair.control(0)
    pair.turn("ctl1")
    for comment in ("", "weekend", "gpu-aware: host a b, process 1", "gpu-aware: host x, process"):
        with pair.slurm.state() as state:
            state["reservations"][0]["comment"] = comment
        assert pair.holder is None
        assert pair.second[1].is_ours()


def test_the_gate_of_an_only_controller_has_no_comment(pair: TwoHosts) -> None:
    """With one, slurmctld adds a row to slurmdbd's reservations at each heartbeat."""

    def comment() -> str:
        return gate_reservation(pair.slurm.client(), Config().gate).comment

    with pair.slurm.state() as state:
        del state["settings"]["SlurmctldHost[1]"]
    assert pair.turn("ctl1")
    assert comment() == ""
    with pair.slurm.state() as state:  # as an earlier release left it
        state["reservations"][0]["comment"] = "gpu-aware: host ctl1.site.org, process 7"
    assert pair.first[1].is_ours()
    assert pair.turn("ctl1")
    assert comment() == ""
    assert not pair.turn("ctl2"), "a selector on a host without slurmctld stands by"
    pair.now += LEASE_S
    assert pair.turn("ctl2")
    assert pair.holder == "ctl2"
    pair.on("ctl1")
    assert not pair.first[1].is_ours()
    assert pair.turn("ctl1")
    pair.on("ctl2")
    assert not pair.second[1].is_ours()
    assert comment() == ""


def test_requests_are_not_restored_under_a_working_selector(pair: TwoHosts) -> None:
    bound = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1", "licenses": "", "stuck": True}
    pair.slurm.write([parked("7", 1, ";sel=released:0:1", **bound)], ["n1"])
    pair.turn("ctl1")
    pair.on("ctl2")
    config = Config(store=StoreConfig(path=pair.slurm.store))
    restored = restore_all(pair.slurm.client(), config)
    assert (restored.kept, restored.left) == (["7"], [])
    assert "ctl1" in restored.kept_why


@contextmanager
def looping(selector: Selector, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The selector's loop in a thread, stopped at the end."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    thread = threading.Thread(target=selector.loop)
    thread.start()
    try:
        yield
    finally:
        selector._on_signal(signal.SIGTERM, None)
        thread.join(60)
        selector.close()
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    watch = Stopwatch()
    while not condition():
        assert watch.idle_s < 60
        time.sleep(0.05)


def test_the_daemon_stands_by_works_and_stands_by_again(
    pair: TwoHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    pair.slurm.write([parked()], ["n1", "n2"])
    pair.now += 300.0  # so that on a busy machine ctl1 is not silent meanwhile
    pair.control(0)
    assert pair.turn("ctl1")
    pair.on("ctl2")
    config = Config(
        store=StoreConfig(path=tmp_path / "second.db"),
        events=EventsConfig(submit_file=tmp_path / "second"),
    )
    client = pair.slurm.client()
    selector = Selector(config, client, Standby(client, config))
    with looping(selector, monkeypatch):
        time.sleep(2.5)
        assert pair.holder == "ctl1"
        assert pair.slurm.jobs["7"]["state"] == "PENDING"
        assert not (tmp_path / "second.db").exists(), "it writes nothing"
        pair.control(1)
        until(lambda: pair.slurm.jobs["7"]["state"] == "RUNNING")
        assert pair.holder == "ctl2"
        pair.control(0)
        with pair.slurm.state() as state:  # ctl1 is back
            state["reservations"][0]["comment"] = "gpu-aware: host ctl1, process 7"
            state["reservations"][0]["end_time"] += 300
        until(lambda: selector._heartbeat.other is None and not selector._heartbeat.held_until)
        pair.slurm.write([parked("8")], ["n1", "n2"])
        time.sleep(2.5)
        assert pair.slurm.jobs["8"]["state"] == "PENDING"


def test_a_host_that_stands_by_reads_what_the_other_publishes(tmp_path: Path) -> None:
    """Its own store and copy are from a time when it worked itself."""
    shared = tmp_path / "shared.db"
    settings = StoreConfig(path=tmp_path / "store.db", published=shared)
    with open_store(settings.path) as store:
        publish(store)
    shutil.copy2(published_path(settings.path), shared)
    with open_for_reading(settings) as store:
        assert store.path == settings.path, "the same age: this host works"
    os.utime(shared, (time.time() + 30, time.time() + 30))
    with open_for_reading(settings) as store:
        assert store.path == shared
    shared.write_bytes(b"no store")
    with open_for_reading(settings) as store:
        assert store.path == settings.path
