"""Nodes whose gres.conf cuts GPUs in slices under a type that does not say so.

With AutoDetect slurmd names a slice after its MIG profile, which `is_slice` knows. Where an admin
writes ``Name=gpu Type=small MultipleFiles=...``, only the file tells: scontrol shows ``gpu:small``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.confblocks import ConfFiles, pairs_of
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import SlurmNode

__all__ = ["SlicedNodes"]

log = logging.getLogger(__name__)

_USUAL = "/etc/slurm/slurm.conf"


class SlicedNodes:
    """What gres.conf, beside the slurm.conf in use, says of slices; read again when it changes.

    A file that is not there or cannot be read says nothing.
    """

    def __init__(self, gres_conf: Path | None = None) -> None:
        beside = Path(os.environ.get("SLURM_CONF") or _USUAL)
        self._path = gres_conf or beside.with_name("gres.conf")
        self._state: object = None
        self._files = [self._path]
        self._found: list[tuple[frozenset[str] | None, str | None]] = []
        """(nodes, None: all; GRES type, None: any) of each record with MultipleFiles."""

    def beside(self, slurm_conf: Path) -> None:
        """Slurm itself has told which slurm.conf is in use."""
        path = slurm_conf.with_name("gres.conf")
        if path != self._path:
            self._path, self._files, self._state = path, [path], None

    def mark(self, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
        """The nodes, those with slices marked as having shared GPUs."""
        state = [_state(path) for path in self._files]
        if state != self._state:
            self._read()
            self._state = [_state(path) for path in self._files]
        return [
            replace(node, shared_gres=True) if self._found and self._cuts(node) else node
            for node in nodes
        ]

    def _cuts(self, node: SlurmNode) -> bool:
        kinds = {kind for kind, _ in node.gpus}
        return bool(kinds) and any(
            (names is None or node.name in names) and (kind is None or kind in kinds)
            for names, kind in self._found
        )

    def _read(self) -> None:
        self._found = []
        try:
            conf = ConfFiles(self._path, missing_ok=True)
            self._files = list(conf.texts)
            for entry in conf.records():
                values = {key.lower(): value.strip('"') for key, value in pairs_of(entry.text)}
                if "multiplefiles" not in values or values.get("name", "gpu").lower() != "gpu":
                    continue
                names = values.get("nodename")
                inside = None if names is None else frozenset(expand_hostlist(names))
                self._found.append((inside, values.get("type")))
        except SourceError as exc:
            log.warning("slices of GPUs are known by their types alone: %s", exc)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
