"""MIG devices of gres.conf that their GRES type does not show to be MIG.

With AutoDetect slurmd names a MIG device after its profile, which `is_mig` recognises. For
``Name=gpu Type=small MultipleFiles=...`` scontrol shows ``gpu:small``, so the file is read.
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

__all__ = ["MigNodes"]

log = logging.getLogger(__name__)

_USUAL = "/etc/slurm/slurm.conf"


class MigNodes:
    """Nodes with MIG by the gres.conf beside the slurm.conf in use; read again when it changes.

    A missing or unreadable file names no node.
    """

    def __init__(self, gres_conf: Path | None = None) -> None:
        beside = Path(os.environ.get("SLURM_CONF") or _USUAL)
        self._path = gres_conf or beside.with_name("gres.conf")
        self._state: object = None
        self._files = [self._path]
        self._records: list[tuple[frozenset[str] | None, str | None]] = []
        """(nodes, None: all; GRES type, None: any) of each record with MultipleFiles."""

    def beside(self, slurm_conf: Path) -> None:
        """Set the slurm.conf in use."""
        path = slurm_conf.with_name("gres.conf")
        if path != self._path:
            self._path, self._files, self._state = path, [path], None

    def mark(self, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
        """The nodes; those with MIG are marked as having shared GPUs."""
        state = [_state(path) for path in self._files]
        if state != self._state:
            self._read()
            self._state = [_state(path) for path in self._files]
        return [
            replace(node, shared_gres=True) if self._records and self._has_mig(node) else node
            for node in nodes
        ]

    def _has_mig(self, node: SlurmNode) -> bool:
        kinds = {kind for kind, _ in node.gpus}
        return bool(kinds) and any(
            (names is None or node.name in names) and (kind is None or kind in kinds)
            for names, kind in self._records
        )

    def _read(self) -> None:
        self._records = []
        try:
            conf = ConfFiles(self._path, missing_ok=True)
            self._files = list(conf.texts)
            for entry in conf.records():
                values = {key.lower(): value.strip('"') for key, value in pairs_of(entry.text)}
                if "multiplefiles" not in values or values.get("name", "gpu").lower() != "gpu":
                    continue
                names = values.get("nodename")
                inside = None if names is None else frozenset(expand_hostlist(names))
                self._records.append((inside, values.get("type")))
        except SourceError as exc:
            log.warning("MIG is recognised by GRES types only: %s", exc)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
