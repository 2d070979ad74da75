"""Clock records that nodes leave behind, read into the ledger: once each, and only good ones."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.clocks import records as clock_records
from slurm_gpu_aware.clocks.job import Record
from slurm_gpu_aware.clocks.notes import Notes
from slurm_gpu_aware.features.power import live
from slurm_gpu_aware.features.power.live import ClockSpool
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

GOOD = {"event": "clock_set", "at": 1.79e9, "job_id": 7, "node": "n1", "gpus": [0, 2], "mhz": 900}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "clocks"
    folder.mkdir()
    open_store(tmp_path / "store.db").close()
    return folder


def spooled(spool: Path, *records: object, node: str = "n1") -> None:
    """Records, and texts that are none."""
    with (spool / f"{node}.jsonl").open("a") as file:
        lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
        file.writelines(f"{line}\n" for line in lines)


def append(
    spool: Path, records: Sequence[Record], rotate_bytes: int = clock_records.ROTATE_BYTES
) -> None:
    """Write as a hook does."""
    notes = Notes(str(spool.parent / "locks"))
    clock_records.spool(str(spool), records, notes, rotate_bytes)


def collected(spool: Path) -> list[dict[str, object]]:
    """Read what is new with a fresh reader; return all that the ledger has of job 7."""
    writer = LedgerWriter(spool.parent / "store.db")
    ClockSpool(spool, spool.parent / "offsets").collect(writer, str, lambda *_: None)
    writer.close()
    with open_store(spool.parent / "store.db", readonly=True) as store:
        return [dict(event.detail) for event in Ledger(store).events("7")]


def test_each_record_is_written_once(spool: Path) -> None:
    spooled(spool, GOOD)
    assert collected(spool) == [{"node": "n1", "gpus": [0, 2], "mhz": 900}]
    assert len(collected(spool)) == 1
    spooled(spool, {**GOOD, "mhz": 1200}, node="n2")
    assert clocks_of(spool) == [900, 1200]


@pytest.mark.parametrize(
    "bad",
    [
        *({**GOOD, "at": at} for at in (float("nan"), float("inf"), -1, True)),
        json.dumps(GOOD).replace("1790000000.0", "1" + "0" * 400),
        {**GOOD, "event": "started"},
        {**GOOD, "job_id": "7; drop"},
        *("[" * 100_000, "{}", "\x00"),
    ],
)
def test_a_bad_line_harms_no_other(spool: Path, bad: object) -> None:
    spooled(spool, GOOD, bad, {**GOOD, "mhz": 1000})
    for _ in range(2):
        assert clocks_of(spool) == [900, 1000]


def test_values_are_kept_short_and_plain(spool: Path) -> None:
    odd = {"error": "x" * 9999, "call": {"a": 1}, "gpus": [1, -2, "3", 1e400], "mhz": 10**30}
    spooled(spool, {**GOOD, **odd, "other": 1})
    (found,) = collected(spool)
    assert found == {"node": "n1", "error": "x" * 200, "call": "dict", "gpus": [1], "mhz": "int"}


def test_a_file_speaks_for_its_node_alone(spool: Path) -> None:
    spooled(spool, *({**GOOD, "node": node} for node in ("n2", ["n2"], None)))
    assert [e["node"] for e in collected(spool)] == ["n1"] * 3


def test_the_energy_of_a_job_comes_into_the_ledger(spool: Path) -> None:
    account = {"node": "n1", "gpus": [0, 2], "restarts": 2, "seconds": 61.5, "energy_j": 1e4}
    spooled(spool, {"event": "energy", "at": 1.79e9, "job_id": 7, **account})
    assert collected(spool) == [account]


AGENT = {
    "event": "agent",
    "at": 1.79e9,
    "job_id": "0",
    "node": "n1",
    "seq": 1_790_000_000_123,
    "gpus": [0, 1],
    "power_w": [61.5, 40],
    "clock_gpus": [1],
    "clock_mhz": [900],
    "error": "",
}


def agents(spool: Path) -> dict[str, AgentReport]:
    writer = LedgerWriter(spool.parent / "store.db")
    reader = ClockSpool(spool, spool.parent / "offsets")
    reader.collect(writer, str, lambda *_: None)
    writer.close()
    return reader.agents


def test_the_newest_report_of_an_agent_is_kept_and_not_written_to_the_ledger(spool: Path) -> None:
    spooled(spool, {**AGENT, "seq": 1}, AGENT)
    power = {0: 61.5, 1: 40.0}
    assert agents(spool) == {"n1": AgentReport(1.79e9, 1_790_000_000_123, {1: 900}, power)}
    assert collected(spool) == []


@pytest.mark.parametrize(
    "odd",
    [
        *({"seq": -1}, {"seq": True}, {"seq": 10**16}, {"seq": "5"}, {"power_w": [1.0]}),
        *({"gpus": [0, -1]}, {"gpus": None}, {"power_w": [1e400, 2]}, {"power_w": ["a", 2]}),
        *({"power_w": [1e300, 2]}, {"power_w": [float("nan"), 2]}, {"clock_mhz": [10**6]}),
        *({"clock_gpus": [1] * 999, "clock_mhz": [1] * 999}, {"clock_mhz": [-5]}, {"at": None}),
        {"error": None},
    ],
)
def test_a_report_that_no_agent_writes_is_skipped(spool: Path, odd: dict[str, object]) -> None:
    spooled(spool, {**AGENT, **odd})
    assert agents(spool) == {}


def test_a_clock_that_was_ordered_keeps_the_number_of_its_orders(spool: Path) -> None:
    spooled(spool, {**GOOD, "seq": 1_790_000_000_123})
    assert collected(spool)[0]["seq"] == 1_790_000_000_123


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_read(spool: Path) -> None:
    spooled(spool, GOOD)
    os.chown(spool / "n1.jsonl", 1234, 1234)
    assert collected(spool) == []


def at_clocks(*clocks: int) -> list[dict[str, object]]:
    return [{**GOOD, "mhz": mhz} for mhz in clocks]


def clocks_of(spool: Path) -> list[object]:
    return [event["mhz"] for event in collected(spool)]


def test_a_file_that_was_moved_aside_is_read_to_its_end(spool: Path) -> None:
    append(spool, at_clocks(100))
    assert clocks_of(spool) == [100]
    append(spool, at_clocks(200))
    append(spool, at_clocks(300), rotate_bytes=10)
    assert sorted(p.name for p in spool.iterdir()) == ["n1.jsonl", "n1.jsonl.1"]
    assert clocks_of(spool) == [100, 200, 300]
    with (spool / "n1.jsonl.1").open("a") as late:  # of a hook that had opened it before
        late.write(json.dumps({**GOOD, "mhz": 400}) + "\n")
    append(spool, at_clocks(500))
    for _ in range(2):
        assert clocks_of(spool) == [100, 200, 300, 400, 500]


def test_a_second_file_moved_aside_replaces_the_first(spool: Path) -> None:
    for mhz in range(100, 600, 100):
        append(spool, at_clocks(mhz), rotate_bytes=10)
        assert clocks_of(spool) == list(range(100, mhz + 100, 100))
    assert sorted(p.name for p in spool.iterdir()) == ["n1.jsonl", "n1.jsonl.1"]


def test_the_new_file_waits_until_the_old_one_is_read(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(spool, at_clocks(*range(1, 30)))
    append(spool, at_clocks(30), rotate_bytes=10)
    monkeypatch.setattr(live, "_MOST", 1000)
    assert 0 < len(clocks_of(spool)) < 29
    for _ in range(5):
        found = clocks_of(spool)
    assert found == list(range(1, 31))


def test_hooks_that_rotate_at_the_same_time_lose_no_line(spool: Path) -> None:
    """The file is too large once, for all of them; each writes less than makes it so again."""
    append(spool, at_clocks(*range(1, 51)))
    full = (spool / "n1.jsonl").stat().st_size
    with ThreadPoolExecutor(8) as pool:
        for mhz in range(51, 75):
            pool.submit(append, spool, at_clocks(mhz), rotate_bytes=full - 1)
    assert (spool / "n1.jsonl.1").stat().st_size >= full
    assert sorted(int(str(mhz)) for mhz in clocks_of(spool)) == list(range(1, 75))


def test_a_file_that_cannot_be_moved_aside_is_written_on(spool: Path) -> None:
    (spool / "n1.jsonl.1").mkdir()
    for mhz in (100, 200, 300):
        append(spool, at_clocks(mhz), rotate_bytes=10)
    assert clocks_of(spool) == [100, 200, 300]


def test_a_new_process_knows_the_last_report_that_was_read(spool: Path) -> None:
    spooled(spool, AGENT, GOOD)
    assert not ClockSpool(spool, spool.parent / "offsets").agents
    known = agents(spool)
    assert known["n1"].seq == AGENT["seq"]
    assert ClockSpool(spool, spool.parent / "offsets").agents == known
    (spool / "n1.jsonl").unlink()
    assert not ClockSpool(spool, spool.parent / "offsets").agents


def test_a_node_that_writes_without_end_fills_no_ledger(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is heard, and other nodes' records are taken, all the same."""
    monkeypatch.setattr(live, "_BURST", 10.0)
    now = [0.0]
    writer = LedgerWriter(spool.parent / "store.db")
    reader = ClockSpool(spool, spool.parent / "offsets", lambda: now[0])
    taken: list[object] = []

    def read() -> int:
        before = len(taken)
        reader.collect(writer, str, lambda _job, _kind, detail: taken.append(detail["node"]))
        return len(taken) - before

    spooled(spool, *[GOOD] * 30, AGENT)
    spooled(spool, *[GOOD] * 3, node="n2")
    assert read() == 13
    assert reader.agents["n1"].seq == AGENT["seq"]
    now[0] = 1.0
    spooled(spool, *[GOOD] * 30)
    assert read() == 5
    writer.close()
