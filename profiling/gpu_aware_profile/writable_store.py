"""Writable store: the store for writers other than the selector.

Files that root makes must belong to SlurmUser, because the selector writes them. The published copy
must be renewed, because the selector publishes its own writes only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.store.database import Store, open_store, republish
from slurm_gpu_aware.store.ownership import give_folder, of_selector

__all__ = ["writable_store"]

_SLURM_USER = re.compile(r"([^\s(]+)")


@contextmanager
def writable_store(path: Path, config: Config) -> Iterator[Store]:
    """Open a store for writing; renew an existing published copy at the end.

    As root, the folder of the configured store is given to SlurmUser. Raises StoreError.
    """
    if os.geteuid() == 0 and path == config.store.path and _is_roots(path.parent):
        _give(path, config)
    with open_store(path) as store:
        try:
            yield store
        finally:
            try:
                republish(store)
            except StoreError as exc:
                say(f"the published copy was not renewed: {exc}")


def _is_roots(folder: Path) -> bool:
    return not folder.is_dir() or folder.stat().st_uid == 0


def _give(path: Path, config: Config) -> None:
    """Give the folder to SlurmUser. Without Slurm's answer ``gpu-aware setup --install`` does."""
    try:
        settings = open_client(config.selector.command_timeout_s).settings()
    except SourceError:
        return
    user = _SLURM_USER.match(settings.get("SlurmUser", ""))
    if user:
        try:
            give_folder(path.parent, user[1], [file.name for file in of_selector(path)])
        except (OSError, LookupError) as exc:
            raise StoreError(f"{path.parent}: cannot be given to {user[1]}: {exc}") from None
