"""Files on this host that a rollout changes, and the nodes in its scope."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.install import LUA_CONF, OWN_FILTER
from slurm_gpu_aware.deploy.lua_files import lua_value
from slurm_gpu_aware.deploy.node_control import NodeControl
from slurm_gpu_aware.deploy.render import NodeGpus
from slurm_gpu_aware.deploy.rollout_state import RolloutState
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist

__all__ = ["LocalSite", "nodes_in_scope"]

_LUA_MODELS = re.compile(r"^(\s*models\s*=\s*)\{[^}]*\}", re.MULTILINE)


class LocalSite:
    """The site's files on this host. Methods raise SourceError.

    Parameters
    ----------
    slurm_dir : folder of slurm.conf.
    profile : measured nodes; used for nodes on which Slurm detects the GPUs (AutoDetect).
    say : takes a line of progress.
    """

    def __init__(
        self,
        config: Config,
        slurm_dir: Path,
        profile: Mapping[str, NodeGpus],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._dir = slurm_dir
        self._profile = profile
        self._say = say

    def read(self) -> SiteFiles:
        """Read slurm.conf and gres.conf."""
        return read_site(self._dir / "slurm.conf", self._dir / "gres.conf", self._profile)

    def write(self, path: Path, text: str) -> None:
        """Replace a file atomically."""
        files.write(files.Change(path, text))

    def distribute(self) -> None:
        """Run ``setup.distribute``, if it is configured."""
        command = self._config.setup.distribute
        if command:
            self._say(f"distributing: {' '.join(command)}")
            run_command(command, self._config.setup.distribute_timeout_s)

    def filter_models(self, models: frozenset[str]) -> None:
        """Rewrite ``models`` in the filter's configuration, if the filter is installed."""
        path = self._dir / LUA_CONF
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        listed = lua_value(sorted(models))
        changed = _LUA_MODELS.sub(lambda m: m[1] + listed, text, count=1)
        if changed == text:
            return
        self._say(f"{path}: models = {listed}")
        files.write(files.Change(path, changed))
        filter_file = self._dir / OWN_FILTER
        if filter_file.exists():  # slurmctld reloads all if this file is newer, in whole seconds
            later = max(time.time(), filter_file.stat().st_mtime + 1)
            os.utime(filter_file, (later, later))

    def check_writable(self) -> None:
        """Raise SourceError if the files cannot be changed, before a node is drained."""
        for name in ("slurm.conf", "gres.conf"):
            path = (self._dir / name).resolve()
            target = path if path.exists() else path.parent
            if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
                raise SourceError(f"{path} cannot be written; run this as root on the controller")


def nodes_in_scope(
    found: SiteFiles,
    control: NodeControl,
    last: RolloutState | None,
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
) -> list[str]:
    """Nodes of a rollout, in the order of slurm.conf.

    Parameters
    ----------
    last : the unfinished run, if any; a run in the same direction resumes with its nodes.
    nodes, partition : choice of the user; at most one of them.

    Raises RequestError for a node without GPUs, SourceError for an unknown partition.
    """
    if nodes is not None:
        chosen = set(expand_hostlist(nodes))
        strange = chosen - set(found.nodes)
        if strange:
            raise RequestError(
                f"--nodes: {hostlist(strange)}: not a node with GPUs in slurm.conf; known:"
                f" {hostlist(found.nodes) or 'none'}"
            )
    elif partition is not None:
        chosen = set(control.partition(partition)) & set(found.nodes)
    elif last is not None and (last.direction == "undo") == undo:
        chosen = set(last.scope) & set(found.nodes)
    elif undo:
        chosen = set(found.indexed_by_us())
    else:
        chosen = set(found.nodes)
    return [name for name in found.nodes if name in chosen]
