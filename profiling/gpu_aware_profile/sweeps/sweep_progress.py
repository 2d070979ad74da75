"""Progress of a sweep on disk, for resuming it.

A sweep has a folder with ``scope.json`` and one empty file per node that is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import SourceError

__all__ = ["SweepProgress"]

_SCOPE = "scope.json"
_KEPT = 20
"""Unfinished sweeps; an older one cannot be resumed."""


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

        Raises SourceError if the file is missing or damaged.
        """
        file = self.folder / _SCOPE
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            nodes, options = raw["nodes"], raw["options"]
            if not all(isinstance(node, str) for node in nodes):
                raise TypeError
            return tuple(nodes), {str(k): _option(v) for k, v in options.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise SourceError(
                f"{file}: cannot be read, so the sweep cannot be resumed; remove {self.folder} and"
                " begin a new one"
            ) from None

    def done(self) -> set[str]:
        """Nodes that are done."""
        return {file.name.removesuffix(".done") for file in self.folder.glob("*.done")}

    def begin(self, nodes: Sequence[str], options: Mapping[str, Any]) -> None:
        """Make the folder and write the scope; delete the notes of old sweeps. Raises SourceError.

        As root, the owner of the store's folder becomes the owner and may resume the sweep.
        """
        file = self.folder / _SCOPE
        others = [name for name in self.unfinished() if name != self.sweep_id]
        try:
            for name in others[: -_KEPT + 1]:
                SweepProgress(self.root, name).finish()
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(".scope.new")
            fresh.write_text(json.dumps({"nodes": nodes, "options": options}), encoding="utf-8")
            fresh.replace(file)
            if os.geteuid() == 0:
                owner = self.root.parent.stat()
                for path in (self.root, self.folder, file):
                    os.chown(path, owner.st_uid, owner.st_gid)
        except OSError as exc:
            raise SourceError(f"{self.folder}: cannot be made: {exc.strerror}") from None

    def note(self, node: str) -> None:
        """Record a node as done, after the ingest of its report. Raises SourceError."""
        file = self.folder / f"{node}.done"
        try:
            file.touch()
        except OSError as exc:
            raise SourceError(f"{file}: cannot be made: {exc.strerror}") from None

    def finish(self) -> None:
        """Delete the folder of a complete sweep."""
        for file in (*self.folder.glob("*.done"), self.folder / _SCOPE):
            file.unlink(missing_ok=True)
        self.folder.rmdir()

    def unfinished(self) -> list[str]:
        """Ids of sweeps that can be resumed, oldest first."""
        folders = [file.parent for file in self.root.glob(f"*/{_SCOPE}")]
        return [f.name for f in sorted(folders, key=lambda f: f.stat().st_mtime)]


def _option(value: object) -> object:
    """The value, if it may be that of an option. Raises TypeError."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    if not isinstance(value, bool | int | float | str | None):
        raise TypeError
    return value
