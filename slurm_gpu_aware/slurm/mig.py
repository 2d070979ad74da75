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
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import ConfFiles
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import SlurmNode

log = logging.getLogger(__name__)


class MigNodes:
    """Nodes with MIG by gres.conf; a missing or unreadable file names no node."""

    def __init__(self) -> None:
        slurm_conf = os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
        self.gres_conf = Path(slurm_conf).with_name("gres.conf")
        """The file; read again when it or one of its includes has changed."""
        self._states: dict[Path, tuple[int, int] | None] = {}
        """Files as last read -> time of change and size; None: missing."""
        self._records: list[tuple[frozenset[str] | None, str | None]] = []
        """(nodes, None: all; GRES type, None: any) of each record with MultipleFiles."""

    def mark(self, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
        """The nodes; those with MIG are marked as having shared GPUs."""
        if self.gres_conf not in self._states or any(
            _state(path) != before for path, before in self._states.items()
        ):
            self._read()
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
        files = [self.gres_conf, *self._states]
        try:
            conf = ConfFiles(self.gres_conf, missing_ok=True)
            files = list(conf.texts)
            for entry in conf.records():
                values = fields_of(entry.text)
                if "multiplefiles" not in values or values.get("name", "gpu").lower() != "gpu":
                    continue
                names = values.get("nodename")
                inside = None if names is None else frozenset(expand_hostlist(names))
                self._records.append((inside, values.get("type")))
        except SourceError as exc:
            log.warning("MIG is recognised by GRES types only: %s", exc)
        self._states = {path: _state(path) for path in files}


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
