"""Owner and mode of the store's files. Standard library only.

The live files hold the ledger, which a site may hide from its users: only their owner and group
can read them; other users read the published copy. The selector runs as SlurmUser and must be able
to write files that root has made.
"""

from __future__ import annotations

import glob
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

from slurm_gpu_aware.errors import StoreError

LIVE_MODE = 0o640
_ENDS = ("", "-wal", "-shm")
ROLLOUT_STATE = "rollout.json"
"""State of ``setup --roll``, beside the store; its lock is named ``.lock``."""
REMOVAL_STATE = "removal.json"
"""State of ``setup --remove``, beside the store."""
OF_SETUP = (ROLLOUT_STATE, f"{ROLLOUT_STATE}.lock", REMOVAL_STATE)
_STAYS = frozenset({*OF_SETUP, "tuned.json", "clock-locks", "clocks"})
"""Files that may stay root's: that state, what ``tune`` has set, and notes and records of the
prolog on a host that is also a compute node."""


def published_path(path: Path) -> Path:
    """Path of the published copy of a store: ``store.db`` -> ``store.public.db``."""
    return path.with_name(f"{path.stem}.public{path.suffix}")


def kept_path(path: Path, version: int, number: int = 1) -> Path:
    """Path of the copy that a migration keeps: ``store.db`` of schema 8 -> ``store.schema8.db``.

    ``number``: counts copies of the same schema, ``store.schema8.2.db``.
    """
    more = "" if number == 1 else f".{number}"
    return path.with_name(f"{path.stem}.schema{version}{more}{path.suffix}")


def live_files(path: Path) -> list[Path]:
    """The live file and the files that SQLite keeps beside it while it is open."""
    return [path.with_name(path.name + end) for end in _ENDS]


def of_selector(path: Path) -> list[Path]:
    """Files in the store's folder that the selector writes, copies of earlier schemas included."""
    beside = [path.with_name(name) for name in ("selectd.lock", "clocks.offsets")]
    kept = sorted(path.parent.glob(f"{glob.escape(path.stem)}.schema*{glob.escape(path.suffix)}"))
    return [*live_files(path), published_path(path), *beside, *kept]


def make_file(path: Path) -> None:
    """Make an empty live file with its folder, or revoke other users' access to an existing one.

    A file that root makes gets the owner of the folder. SQLite gives ``-wal`` and ``-shm`` the mode
    of the file and, as root, its owner. Raises StoreError that names the remedy.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)  # independent of the umask: all users read the published copy
        if path.exists():
            for file in live_files(path):
                _revoke_others(file)
            return
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, LIVE_MODE))
        if os.geteuid() == 0:
            owner = folder.stat()
            os.chown(path, owner.st_uid, owner.st_gid)
    except OSError as exc:
        raise StoreError(f"{path}: cannot be created: {exc.strerror}; {_cure(folder)}") from None


def _revoke_others(file: Path) -> None:
    """Revoke other users' access to a file, if this user may change its mode."""
    try:
        status = file.stat()
        if status.st_mode & 0o007 and os.geteuid() in (0, status.st_uid):
            file.chmod(stat.S_IMODE(status.st_mode) & ~0o007)
    except FileNotFoundError:
        pass  # -wal and -shm come and go


def _cure(folder: Path) -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    if folder.is_dir():
        return f"{folder} must be writable for {user}"
    return f"as root: install -d -o {user} {folder}"


def give_folder(folder: Path, user: str, names: Collection[str] = ()) -> list[Path]:
    """As root: make a folder for ``user``, or change its owner from root; return the changed paths.

    ``names``: files of root in it that also change, as do the notes of sweeps. A folder of another
    user stays unchanged. So does a folder with any other files, because a site may keep its store
    in ``/var/lib`` itself. Raises LookupError for an unknown user, OSError.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        raise LookupError(f"no such user: {user}") from None
    made = not folder.is_dir()
    if made:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    if os.geteuid() != 0 or entry.pw_uid == 0:
        return [folder] if made else []
    inside = {file.name: file for file in folder.iterdir() if not file.name.startswith(".")}
    if inside.keys() - {*names, *_STAYS, "sweeps"} or folder.stat().st_uid not in (0, entry.pw_uid):
        return []
    given = [folder, *(file for name, file in sorted(inside.items()) if name not in _STAYS)]
    if "sweeps" in inside and not inside["sweeps"].is_symlink():
        given += sorted(inside["sweeps"].rglob("*"))
    return [file for file in given if _give(file, entry)]


def _give(path: Path, entry: pwd.struct_passwd) -> bool:
    """Change the owner of a path of root; a link or a file with several names stays unchanged."""
    status = path.lstat()
    plain = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    if not plain or status.st_uid == entry.pw_uid or status.st_uid != 0:
        return False
    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    return True
