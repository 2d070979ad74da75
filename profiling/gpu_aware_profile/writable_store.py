"""The store, opened for writing beside the selector, or before it and as root.

What root makes must be SlurmUser's, or the selector could not write it; and what readers see must
be renewed, because the selector publishes only what it writes itself.
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
from slurm_gpu_aware.slurm.connect import open_client
from slurm_gpu_aware.store.database import Store, open_store, republish
from slurm_gpu_aware.store.ownership import give_folder, of_selector

__all__ = ["writable_store"]

_SLURM_USER = re.compile(r"([^\s(]+)")


@contextmanager
def writable_store(path: Path, config: Config) -> Iterator[Store]:
    """Open a store for writing; the published copy, if there is one, is renewed at the end.

    Root gives the folder of the site's own store to SlurmUser. Raises StoreError.
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
                say(f"the copy for all users was not renewed: {exc}")


def _is_roots(folder: Path) -> bool:
    return not folder.is_dir() or folder.stat().st_uid == 0


def _give(path: Path, config: Config) -> None:
    """Without Slurm's answer nothing is given; ``gpu-aware setup --install`` makes up for it."""
    try:
        settings = open_client(config.selector.command_timeout_s).settings()
    except SourceError:
        return
    found = _SLURM_USER.match(settings.get("SlurmUser", ""))
    if found:
        try:
            give_folder(path.parent, found[1], [file.name for file in of_selector(path)])
        except (OSError, LookupError) as exc:
            raise StoreError(f"{path.parent}: cannot be given to {found[1]}: {exc}") from None
