"""Records that measured jobs left in a folder: each user's rows, under the user's name.

The folder is shared by all users (mode 1733), so a file in it is trusted for one thing only: who
owns it. Rows of ada's files for ``resnet50`` are stored as ``ada/resnet50``, which only ada's jobs
look up, so that no user changes what another one's jobs get. No number of files of one user keeps
those of another from being read.
"""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_aware_profile.imports.import_rows import Given, read_samples
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.features.models.declared import NAME
from slurm_gpu_aware.features.models.performance_model import NamedSample, own_name
from slurm_gpu_aware.features.models.store import put_samples
from slurm_gpu_aware.files import open_plain, user_name
from slurm_gpu_aware.filter_rules import MAX_NAME
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.text_file import decoded, read_table

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.csv\Z")
_NAME = re.compile(rf"{NAME.pattern}\Z")
_MOST_BYTES = 1 << 16
_MOST_FILES = 1000  # Of one user in one call; the others are for the next one.
_SETTLED_S = 300.0
"""A job that runs writes its file anew; one that has not changed for this long is complete."""


class Collected(NamedTuple):
    """What became of the files."""

    stored: int  # Rows.
    refused: tuple[str, ...]
    """A sentence for each file that was deleted unread or in part, or that may not be read."""


def collect(store: Store, folder: Path, classes: Sequence[str], now: float) -> Collected:
    """Store the rows of all files, and delete these. ``now``: Unix time.

    Raises SourceError if this user may not read the folder or delete files of others there, so that
    no row is stored twice; StoreError if the store refuses.
    """
    _check_rights(folder)
    stored, refused = 0, []
    for name in _names(folder, now):
        file = folder / name
        try:
            owner, text, at = _opened(file)
            samples = _samples(name, owner, text, classes, min(at, now), now)
            put_samples(store, samples, source="job")
            stored += len(samples)
        except FileNotFoundError:
            continue
        except PermissionError as exc:  # it stays for a user who may read it
            refused.append(f"{_label(file)}: this user may not read it: {exc.strerror}")
            continue
        except SourceError as exc:
            refused.append(f"{_label(file)}: {str(exc).removeprefix(f'{name}: ')}")
        with suppress(OSError):
            file.unlink()
    return Collected(stored, tuple(refused))


def _check_rights(folder: Path) -> None:
    with FileFault(folder):
        known = folder.stat()
    mine = os.geteuid() in (0, known.st_uid)
    may = os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    if not may or not (mine or not known.st_mode & stat.S_ISVTX):
        as_whom = " or ".join(dict.fromkeys(("root", user_name(known.st_uid))))
        raise SourceError(
            f"{folder}: user {user_name(os.geteuid())} may not read and delete the files of others"
            f" there; run this as {as_whom}"
        )


def _label(file: Path) -> str:
    """``gpu-aware-job-7.csv of ada``."""
    try:
        return f"{file.name} of {user_name(file.lstat().st_uid)}"
    except OSError:
        return file.name


def _names(folder: Path, now: float) -> list[str]:
    """Names of complete records, at most ``_MOST_FILES`` of each owner.

    Folders, files of other names, and those that still change, count for nothing, so that they
    displace none.
    """
    names, taken = [], Counter[int]()
    with FileFault(folder), os.scandir(folder) as entries:
        for entry in entries:
            if not _FILE.match(entry.name) or entry.is_dir(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):  # a job may replace it meanwhile
                known = entry.stat(follow_symlinks=False)
                settled = not 0.0 <= now - known.st_mtime < _SETTLED_S
                if settled and taken[known.st_uid] < _MOST_FILES:
                    taken[known.st_uid] += 1
                    names.append(entry.name)
    return sorted(names)


def _opened(file: Path) -> tuple[str, str, float]:
    """(owner, text, time of the last change) of a file that a user wrote.

    Raises SourceError, PermissionError if this user may not read it, FileNotFoundError.
    """
    try:
        stream, known = open_plain(file)
        with stream:
            if known.st_nlink != 1:
                raise SourceError(f"{file.name}: not a plain file with one name")
            data = stream.read(_MOST_BYTES + 1)
    except OSError as exc:
        if exc.errno in (errno.EACCES, errno.ENOENT):
            raise
        raise SourceError(f"{file.name}: cannot be read: {exc.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise SourceError(f"{file.name}: larger than {_MOST_BYTES >> 10} KiB")
    return user_name(known.st_uid), decoded(data, file.name), known.st_mtime


def _samples(
    name: str, owner: str, text: str, classes: Sequence[str], at: float, now: float
) -> list[NamedSample]:
    """The rows under the owner's names. Raises SourceError if one is wrong."""
    if not _NAME.match(owner):
        raise SourceError(f"{name}: its owner {owner[:MAX_NAME]!r} is not a valid name")
    samples, bad = read_samples(read_table(name, text), Given(classes, now, at))
    if bad:
        raise SourceError(f"{name}: line {bad[0].line}: {bad[0].reason}")
    found = [one._replace(name=own_name(owner, one.name)) for one in samples]
    for one in found:
        if len(one.name) > MAX_NAME:
            raise SourceError(f"{name}: {one.name[:MAX_NAME]!r} is not a valid name")
    return found
