"""Locks that ordinary users cannot hold, because they cannot open the lock files."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import NOBODY, needs_root

from slurm_gpu_aware.clocks.notes import Note, Notes
from slurm_gpu_aware.clocks.records import spool
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import InstanceLock, hold_selector_lock, open_lock

RECORD: dict[str, object] = {"event": "clock_set", "node": "n1"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user may enter; no umask hides a wrong mode."""
    for passed in (tmp_path, *tmp_path.parents):
        if passed == Path(tempfile.gettempdir()):
            break
        passed.chmod(0o755)
    before = os.umask(0)
    yield tmp_path / "lib"
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def start_selector(lib: Path) -> None:
    with hold_selector_lock(lib / "store.db"):
        pass


def roll(lib: Path) -> None:
    with InstanceLock(lib / "rollout.json.lock", "rollout"):
        pass


def hook(lib: Path) -> None:
    with Notes(str(lib / "clock-locks")).alone(0.0) as got:
        assert got


LOCKS: dict[str, Callable[[Path], None]] = {
    "selectd.lock": start_selector,
    "rollout.json.lock": roll,
    "clock-locks/.lock": hook,
}


@needs_root
@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("before", ["absent", "open to all"])
def test_ordinary_users_cannot_hold_our_locks(folder: Path, name: str, before: str) -> None:
    lock = folder / name
    if before == "open to all":
        lock.parent.mkdir(parents=True)
        lock.touch(0o644)
    LOCKS[name](folder)
    assert mode(lock) == 0o600
    done = subprocess.run(["flock", "-n", "-s", lock, "true"], user=NOBODY, capture_output=True)
    assert b"Permission denied" in done.stderr
    LOCKS[name](folder)


@needs_root
def test_a_lock_on_the_folder_of_notes_holds_no_hook_up(folder: Path) -> None:
    """Regression: the folder was 0755 and the lock on it; a hook waited for 7 s, in vain."""
    locks = folder / "clock-locks"
    locks.mkdir(parents=True, mode=0o755)
    with subprocess.Popen(["flock", "-s", locks, "sleep", "60"], user=NOBODY) as attacker:
        while str(locks.stat().st_ino) not in Path("/proc/locks").read_text():
            assert attacker.poll() is None
        hook(folder)
        attacker.kill()
    assert mode(locks) == 0o700


@needs_root
def test_a_lock_on_the_spool_file_does_not_stop_its_rotation(folder: Path) -> None:
    notes = Notes(str(folder / "clock-locks"))
    spool(str(folder), [RECORD], notes)
    file = folder / "n1.jsonl"
    with subprocess.Popen(["flock", "-s", file, "sleep", "60"], user=NOBODY) as attacker:
        while str(file.stat().st_ino) not in Path("/proc/locks").read_text():
            assert attacker.poll() is None
        spool(str(folder), [RECORD], notes, rotate_bytes=1)
        attacker.kill()
    assert (folder / "n1.jsonl.1").exists()


@needs_root
def test_a_folder_of_notes_that_another_user_owns_is_taken_over(folder: Path) -> None:
    locks = folder / "clock-locks"
    locks.mkdir(parents=True)
    notes = Notes(str(locks))
    notes.write(1, Note("17", "locked"))
    os.chown(locks, NOBODY, NOBODY)
    os.chown(locks / ".lock", NOBODY, NOBODY)
    notes = Notes(str(locks))
    assert [(file.stat().st_uid, mode(file)) for file in (locks, locks / ".lock")] == [
        (0, 0o700),
        (0, 0o600),
    ]
    assert notes.all()[1].job_id == "17"


def test_a_folder_with_files_of_others_is_not_closed_to_them(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "store.public.db").touch()
    with pytest.raises(OSError, match="files of others"):
        Notes(str(folder)).write(1, Note("17"))
    assert mode(folder) == 0o755
    assert Notes(str(folder)).all() == {}


@needs_root
def test_root_makes_the_selectors_lock_for_the_owner_of_the_folder(folder: Path) -> None:
    """'gpu-aware release --all' runs as root, the selector as SlurmUser."""
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    start_selector(folder)
    roll(folder)
    assert (folder / "selectd.lock").stat().st_uid == NOBODY
    assert (folder / "rollout.json.lock").stat().st_uid == 0


@pytest.mark.parametrize("trick", ["link", "dangling link", "second name", "fifo", "folder"])
def test_only_a_plain_file_is_a_lock(folder: Path, trick: str) -> None:
    folder.mkdir()
    lock, victim = folder / "selectd.lock", folder / "victim"
    victim.touch(0o644)
    if trick == "second name":
        lock.hardlink_to(victim)
    elif trick == "fifo":
        os.mkfifo(lock)
    elif trick == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(victim if trick == "link" else folder / "nowhere")
    with pytest.raises(OSError, match=r".+"):
        open_lock(str(lock))
    with pytest.raises(SourceError, match=r"selectd\.lock: cannot be opened"):
        start_selector(folder)
    assert (mode(victim), victim.read_text()) == (0o644, "")
    assert not (folder / "nowhere").exists()


def test_a_second_selector_is_told_of_the_first(folder: Path) -> None:
    with (
        hold_selector_lock(folder / "store.db"),
        pytest.raises(SourceError, match=rf"process {os.getpid()}.*fuser"),
        hold_selector_lock(folder / "store.db"),
    ):
        pass
