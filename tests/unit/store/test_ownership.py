"""Read access to the live store and its copy, and owners of files that root makes."""

import os
import pwd
import sqlite3
import stat
from pathlib import Path

import pytest
from needs import needs_root
from store_samples import ingest, profile_of, report

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store import files
from slurm_gpu_aware.store.database import open_store, publish, republish
from slurm_gpu_aware.store.files import give_folder, live_files, published_path
from slurm_gpu_aware.store.ledger import Ledger

USER = "nobody"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def uid(path: Path) -> int:
    return path.lstat().st_uid


def test_the_live_files_are_not_for_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.db"
    before = os.umask(0)
    try:
        with open_store(path) as store:
            ingest(store, report())
            assert [mode(p) for p in live_files(path)] == [0o640] * 3
    finally:
        os.umask(before)
    assert mode(path.parent) == 0o755  # the copy in it is for all


def test_a_store_that_everybody_could_read_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report())
        for file in live_files(path):
            file.chmod(0o664)
        with open_store(path):
            assert [mode(p) for p in live_files(path)] == [0o660] * 3


def test_the_copy_is_closed_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    connect = files.connect

    def look(file: Path, how: str) -> sqlite3.Connection:
        seen.extend(mode(p) for p in tmp_path.glob(".store.public.db.*"))
        return connect(file, how)

    with open_store(tmp_path / "store.db") as store:
        monkeypatch.setattr(files, "connect", look)
        publish(store)
    assert seen == [0o600]
    assert mode(published_path(tmp_path / "store.db")) == 0o644


def test_a_writer_beside_the_selector_keeps_the_copy_as_readable_as_it_was(tmp_path: Path) -> None:
    """It makes the first one only of a store without jobs, which a site may hide."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        republish(store)
        assert mode(published_path(path)) == 0o644
        published_path(path).unlink()
        Ledger(store).add_event("7", "parked", {}, 1.0)
        republish(store)
        assert not published_path(path).exists()
        publish(store, mode=0o640)
        ingest(store, report())
        republish(store)
    assert mode(published_path(path)) == 0o640
    assert len(profile_of(published_path(path)).gpus) == 4


def test_a_copy_made_before_there_were_jobs_shows_them_to_no_other_user(tmp_path: Path) -> None:
    """Only selector and shadow ask Slurm who may see jobs; their mode stays."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        republish(store)
        Ledger(store).add_event("7", "parked", {}, 1.0)
        republish(store)
        assert mode(published_path(path)) == 0o640
        republish(store)
        assert mode(published_path(path)) == 0o640
        publish(store)
        republish(store)
    assert mode(published_path(path)) == 0o644


def test_a_folder_that_cannot_be_made_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"as root: install -d -o .*lib/x"):
        open_store(tmp_path / "lib" / "x" / "store.db")


@needs_root
def test_what_a_sweep_of_root_left_goes_to_slurm_user(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    with open_store(folder / "store.db") as store:
        publish(store)
        names = {p.name for p in files.of_selector(folder / "store.db")}
        note = folder / "sweeps" / "s1" / "n1.done"
        note.parent.mkdir(parents=True)
        note.touch()
        (folder / "clock-locks").mkdir()
        (folder / "selectd.lock").symlink_to("/etc/passwd")
        changed = give_folder(folder, USER, names)
        number = pwd.getpwnam(USER).pw_uid
        for file in (folder, *live_files(folder / "store.db"), note, note.parent.parent):
            assert uid(file) == number
            assert file in changed
        assert uid(published_path(folder / "store.db")) == number
    assert uid(folder / "clock-locks") == 0
    assert uid(folder / "selectd.lock") == 0
    assert uid(Path("/etc/passwd")) == 0
    assert give_folder(folder, USER, names) == []


@needs_root
def test_a_missing_folder_is_made_for_its_user(tmp_path: Path) -> None:
    assert give_folder(tmp_path / "a" / "b", USER) == [tmp_path / "a" / "b"]
    assert uid(tmp_path / "a" / "b") == pwd.getpwnam(USER).pw_uid
    assert uid(tmp_path / "a") == 0


@needs_root
@pytest.mark.parametrize("owner", [0, 4711])
def test_a_folder_with_other_things_or_of_another_user_stays(tmp_path: Path, owner: int) -> None:
    (tmp_path / "store.db").touch()
    if owner == 0:
        (tmp_path / "log").mkdir()
    os.chown(tmp_path, owner, owner)
    assert give_folder(tmp_path, USER, ("store.db",)) == []
    assert (uid(tmp_path), uid(tmp_path / "store.db")) == (owner, 0)


def test_an_unknown_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no such user: nobody-here"):
        give_folder(tmp_path, "nobody-here")
