"""The shared copy: written by a child, for hosts that have no store."""

import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from idle_clock import Stopwatch

from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store import shared_copy
from slurm_gpu_aware.store.database import open_copy, open_store, publish
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.store.shared_copy import SharedCopy, copy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with open_store(tmp_path / "own" / "store.db") as store:
        Ledger(store).add_event("7", "parked", {}, 1.0)
        publish(store, mode=0o640)
        return published_path(store.path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    return folder / "state.db"


def event_count(file: Path) -> int:
    with open_copy(file) as store:
        return len(Ledger(store).events("7"))


def soon(holds: Callable[[], bool]) -> None:
    watch = Stopwatch()
    while not holds():
        assert watch.idle_s < 60
        time.sleep(0.05)


def test_a_copy_has_the_mode_and_the_time_of_its_source(source: Path, target: Path) -> None:
    os.utime(source, (1000, 1000))
    copy(source, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_mtime == 1000
    assert event_count(target) == 1
    assert [file.name for file in target.parent.iterdir()] == ["state.db"]


def test_a_reader_of_the_former_copy_is_not_disturbed(source: Path, target: Path) -> None:
    copy(source, target)
    with open_copy(target) as reader:
        inode = target.stat().st_ino
        copy(source, target)
        assert target.stat().st_ino != inode
        # On NFS the name is what keeps the old file alive for another host.
        assert (target.parent / ".state.db.before").stat().st_ino == inode
        assert len(Ledger(reader).events("7")) == 1
    copy(source, target)
    assert sorted(f.name for f in target.parent.iterdir()) == [".state.db.before", "state.db"]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(
    source: Path, target: Path, mode: int
) -> None:
    target.parent.chmod(mode)
    with pytest.raises(PermissionError, match=r"must belong to .* install -d -o"):
        copy(source, target)
    assert not target.exists()


def test_no_link_is_followed(source: Path, target: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("state.db", ".state.db.new", ".state.db.before"):
        (target.parent / name).symlink_to(precious)
    copy(source, target)
    copy(source, target)
    assert precious.read_text() == "mine"
    assert not target.is_symlink()
    (tmp_path / "link").symlink_to(target.parent)
    with pytest.raises(OSError, match=r"."):
        copy(source, tmp_path / "link" / "state.db")


@pytest.fixture
def child(source: Path, target: Path) -> Iterator[SharedCopy]:
    shared = SharedCopy(source, target)
    shared.ensure()
    yield shared
    if shared._child is not None:
        shared._child.kill()
        shared._child.wait()


def test_the_child_follows_the_source_and_ends_with_its_parent(
    source: Path, target: Path, child: SharedCopy
) -> None:
    soon(target.exists)
    with open_store(source.parent / "store.db") as store:
        Ledger(store).add_event("7", "planned", {}, 2.0)
        publish(store)
    soon(lambda: event_count(target) == 2)
    inode = target.stat().st_ino
    os.utime(source, (2000, 2000))
    soon(lambda: target.stat().st_mtime == 2000)
    assert target.stat().st_ino == inode  # not copied again
    with open_store(source.parent / "store.db") as store:
        Ledger(store).add_event("7", "prepared", {}, 3.0)
        publish(store)
    child.close()
    assert child._child is not None
    assert child._child.wait(300) == 0
    assert event_count(target) == 3


def test_a_child_that_hangs_holds_up_nothing(source: Path, child: SharedCopy) -> None:
    """A stopped process, as on a network file system that does not answer."""
    assert child._child is not None
    child._child.send_signal(signal.SIGSTOP)
    watch = Stopwatch()
    child.ensure()
    child.close()
    assert watch.idle_s < 20.0
    assert child._child.poll() is None


def test_a_bad_folder_is_named_once(
    source: Path, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target.parent.chmod(0o777)
    shared = SharedCopy(source, target)
    shared.ensure()
    assert shared._child is not None
    told, watch = "", Stopwatch()
    while "cannot be written" not in told and watch.idle_s < 60:
        time.sleep(0.05)
        told += capfd.readouterr().err
    shared.close()
    shared._child.wait(300)
    assert f"{target} (store.published) cannot be written: {target.parent} must belong" in told


def old_copy(folder: Path) -> tuple[LedgerWriter, Path, list[float]]:
    """A writer that has published, its copy, which looks old, and the writer's clock."""
    now = [100.0]
    writer = LedgerWriter(folder / "store.db", clock=lambda: now[0])
    writer.event("7", "parked", {}, 1.0)
    writer.publish()
    file = published_path(folder / "store.db")
    os.utime(file, (1000, 1000))
    return writer, file, now


def test_the_selector_notes_that_an_unchanged_copy_is_still_valid(tmp_path: Path) -> None:
    writer, file, now = old_copy(tmp_path)
    now[0] += 20.0
    writer.publish()
    assert file.stat().st_mtime == 1000
    now[0] += 20.0
    writer.publish()
    assert file.stat().st_mtime > 1000
    writer.close()


def test_a_copy_that_cannot_be_renewed_stays_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, file, now = old_copy(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurm_gpu_aware.store.database.publish", full)
    for _ in range(3):
        now[0] += 60.0
        writer.event("7", "parked", {}, 1.0) if _ == 0 else None
        writer.publish()
    assert file.stat().st_mtime == 1000
    writer.close()


def test_a_copy_is_a_whole_file_without_wal(source: Path, target: Path) -> None:
    copy(source, target)
    with sqlite3.connect(target) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"


def test_the_former_copy_is_as_private_as_the_new_one(source: Path, target: Path) -> None:
    """A site may hide jobs later, and the former copy stays beside the new one."""
    source.chmod(0o644)
    copy(source, target)
    source.chmod(0o640)
    copy(source, target)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in target.parent.iterdir()}
    assert modes == {".state.db.before": 0o640, "state.db": 0o640}


def test_a_copy_that_is_held_up_once_puts_off_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, fresh = tmp_path / "store.db", tmp_path / "fresh"
    now, pauses, took_s = [100.0], list[float](), iter([1.0, 0.2, 0.3, 0.3])

    def wait(read: list[int], *rest: Any) -> tuple[list[int], list[int], list[int]]:
        pauses.append(rest[-1])
        fresh.write_text("renewed")
        fresh.replace(source)
        return read if len(pauses) == 4 else [], [], []

    def copied(*_: Path) -> None:
        now[0] += next(took_s)

    monkeypatch.setattr(shared_copy, "select", SimpleNamespace(select=wait))
    monkeypatch.setattr(shared_copy, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(shared_copy, "copy", copied)
    shared_copy._run(source, tmp_path / "shared.db")
    assert pauses == pytest.approx([0.0, 2.0, 10.0, 10.0])
