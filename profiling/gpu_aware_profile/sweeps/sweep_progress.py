"""Progress of a sweep on disk, for resuming it.

A sweep has a folder with ``scope.json`` and one empty file per node that is done. Root may write
them where others can write, too (``--store``): it follows no link and uses no folder of others.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from slurm_gpu_aware import records
from slurm_gpu_aware.errors import SourceError

_SCOPE = "scope.json"
_FRESH = ".scope.new"
_DONE = ".done"
_KEPT = 20
"""Unfinished sweeps; an older one cannot be resumed."""


def new_id() -> str:
    """An id of a sweep, or of the jobs of a measurement, that no other process of this host has."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}"


class _Scope(Struct):
    """What ``scope.json`` holds."""

    nodes: tuple[str, ...]
    options: dict[str, bool | int | float | str | list[str] | None]


@dataclass
class SweepProgress:
    """Progress of one sweep."""

    root: Path
    sweep_id: str

    @property
    def folder(self) -> Path:
        """Folder of this sweep; absent before :meth:`begin` and after :meth:`finish`."""
        return self.root / self.sweep_id

    def scope(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """All nodes of the sweep, reachable or not, and its options by the command's parameters.

        The options name programs to run, so a file of another user (root excepted) is refused.
        Raises SourceError, also if the file is missing or damaged.
        """
        file = self.folder / _SCOPE
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with self._opened() as (_, folder):
                stream = open(os.open(_SCOPE, flags, dir_fd=folder), encoding="utf-8")  # noqa: SIM115
            with stream:
                if os.fstat(stream.fileno()).st_uid not in {0, os.geteuid()}:
                    raise SourceError(f"{file}: another user began this sweep, and must resume it")
                scope = records.read(json.load(stream), _Scope)
            return scope.nodes, scope.options
        except (OSError, ValueError, RecursionError):
            raise SourceError(
                f"{file}: cannot be read, so the sweep cannot be resumed; remove {self.folder} and"
                " begin a new one"
            ) from None

    def done(self) -> set[str]:
        """Nodes that are done."""
        return {file.name.removesuffix(_DONE) for file in self.folder.glob(f"*{_DONE}")}

    def begin(self, nodes: Sequence[str], options: Mapping[str, Any]) -> None:
        """Make the folder and write the scope; delete the notes of old sweeps. Raises SourceError.

        As root, the owner of the store's folder becomes the owner and may resume the sweep.
        """
        others = [name for name in self.unfinished() if name != self.sweep_id]
        try:
            for name in others[: -_KEPT + 1]:
                SweepProgress(self.root, name).finish()
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._opened() as (root, folder):
                with suppress(FileNotFoundError):
                    os.unlink(_FRESH, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(_FRESH, flags, 0o644, dir_fd=folder), "w") as stream:
                    stream.write(json.dumps({"nodes": nodes, "options": options}))
                    if os.geteuid() == 0:
                        owner = self.root.parent.stat()
                        for handle in (root, folder):
                            os.fchown(handle, owner.st_uid, owner.st_gid)
                os.rename(_FRESH, _SCOPE, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as exc:
            with suppress(OSError), self._opened() as (root, folder):
                os.unlink(_FRESH, dir_fd=folder)
                os.rmdir(self.sweep_id, dir_fd=root)  # unless it is resumed
            raise SourceError(f"{self.folder}: cannot be made: {exc.strerror}") from None

    def note(self, node: str) -> None:
        """Record a node as done, after the ingest of its report. Raises SourceError."""
        name = f"{node}{_DONE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with self._opened() as (_, folder):
                os.close(os.open(name, flags, 0o644, dir_fd=folder))
        except OSError as exc:
            raise SourceError(f"{self.folder / name}: cannot be made: {exc.strerror}") from None

    def finish(self) -> None:
        """Delete the folder of a complete sweep, unless another process has. Raises OSError."""
        with suppress(FileNotFoundError), self._opened() as (root, folder):
            for name in os.listdir(folder):
                if name.endswith(_DONE) or name in (_SCOPE, _FRESH):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(self.sweep_id, dir_fd=root)

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        """File descriptors of `root` and `folder`. Raises OSError, also for a folder of others."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        root = os.open(self.root, flags)
        try:
            folder = os.open(self.sweep_id, flags, dir_fd=root)
            try:
                trusted = {0, os.geteuid(), self.root.parent.stat().st_uid}
                if not trusted >= {os.fstat(root).st_uid, os.fstat(folder).st_uid}:
                    raise PermissionError(errno.EPERM, "it belongs to another user")
                yield root, folder
            finally:
                os.close(folder)
        finally:
            os.close(root)

    def unfinished(self) -> list[str]:
        """Ids of sweeps that can be resumed, oldest first."""
        begun: list[tuple[float, str]] = []
        for file in self.root.glob(f"*/{_SCOPE}"):
            with suppress(FileNotFoundError):  # another sweep has just ended
                begun.append((file.parent.stat().st_mtime, file.parent.name))
        return [name for _, name in sorted(begun)]
