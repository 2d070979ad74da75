"""Reading side of the store: on every host, the store itself or one of its copies."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress
from pathlib import Path

from slurm_gpu_aware.config.settings import StoreConfig
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import Store, open_copy, open_store
from slurm_gpu_aware.store.ownership import published_path


def open_for_reading(settings: StoreConfig) -> Store:
    """Open the store, or the copy beside it, or the copy on a shared folder (``published``).

    A shared copy that is newer than the copy beside the store comes first: the selector of another
    host works and writes it. Raises StoreError that says what to do, and who does it.
    """
    copies = [published_path(settings.path)]
    if settings.published is not None:
        copies.append(settings.published)
        if _renewed_ns(copies[1]) > _renewed_ns(copies[0]):
            with suppress(StoreError):
                return open_copy(copies[1])
    try:
        return open_store(settings.path, readonly=True)
    except StoreError as exc:
        damaged = _readable(settings.path) and settings.path.stat().st_size > 0
        failure = str(exc)
    for copy in copies:
        if _readable(copy):
            return open_copy(copy)
    closed = next((copy for copy in copies if _exists(copy)), None)
    if damaged:
        raise StoreError(failure)
    if closed is not None:
        why = "where the site hides jobs (PrivateData) that is meant so"
        raise StoreError(f"{closed}: only {_readers(closed)} may read it; {why}")
    raise StoreError(_what_to_do(settings))


def _what_to_do(settings: StoreConfig) -> str:
    path, shared = settings.path, settings.published
    if shared is not None:
        return (
            f"there is no {shared} on this host: the selector writes it, so its folder must be the"
            " same on all hosts; on the controller 'gpu-aware doctor' says what is wrong with it"
        )
    return (
        f"no store on this host: neither {path} nor {published_path(path).name} can be read. On the"
        " controller, an administrator starts the selector (systemctl enable --now"
        " gpu-aware-selectd), or makes the store with 'gpu-aware-profile sweep'. For other hosts,"
        " an administrator sets store.published in config.toml to a file on a shared folder; until"
        " then use this command on the controller"
    )


def _renewed_ns(copy: Path) -> int:
    """Time at which its selector last said that it is valid; 0: there is none."""
    try:
        return copy.stat().st_mtime_ns
    except OSError:
        return 0


def _readable(file: Path) -> bool:
    return os.access(file, os.R_OK)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # its folder is closed to this user
        return True


def _readers(file: Path) -> str:
    """Who may read a file, by its folder if that is closed."""
    try:
        status = file.stat()
    except OSError:
        return f"those who may enter {file.parent}"
    try:
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        user, group = str(status.st_uid), str(status.st_gid)
    return f"user {user} and group {group}"
