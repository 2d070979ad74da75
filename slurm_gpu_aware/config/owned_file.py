"""Small JSON files of the admin beside the store: written whole, read only if they can be trusted.

A file must belong to root or to the owner of its folder (SlurmUser), and no other may write it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.text_file import decoded, open_plain, parse_json, replaced_file

T = TypeVar("T")

_MOST_BYTES = 4096


def write_owned(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically. Raises SourceError."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    try:
        with replaced_file(path) as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o644)  # also with a strict umask: every user may read it
    except OSError as exc:
        raise SourceError(f"{path}: cannot be written: {exc.strerror}") from None


def read_owned(path: Path, parse: Callable[[Any], T]) -> T | None:
    """What ``parse`` makes of the file's JSON value; None: there is no file.

    ``parse`` raises ValueError for a wrong value. Raises ConfigError for a file that is not to be
    trusted, damaged, or wrong.
    """
    try:
        return parse(_content(path))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    except SourceError as exc:
        raise ConfigError(str(exc)) from None
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def _content(path: Path) -> Any:
    """JSON value of the file. Raises OSError, SourceError, and ValueError if it is not safe."""
    stream, status = open_plain(path)
    with stream:
        if status.st_nlink != 1:
            raise ValueError("not a plain file with one name")
        if status.st_uid not in (0, path.parent.stat().st_uid):
            raise ValueError("belongs to neither root nor the owner of its folder")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others than its owner may write it")
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    return parse_json(decoded(data, path), path)


def identity_of(path: Path) -> tuple[int, ...] | None:
    """What changes with the file's content, owner or mode; None: there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_ctime_ns, status.st_size)
