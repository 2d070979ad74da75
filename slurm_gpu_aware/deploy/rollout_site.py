"""Files of rollout and removal on this host: those that both change, and their states."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.filter_conf import lua_value
from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.names import is_node_name
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist
from slurm_gpu_aware.store.ownership import REMOVAL_STATE

_LUA_MODELS = re.compile(r"^(\s*models\s*=\s*)\{[^}]*\}", re.MULTILINE)


class LocalSite:
    """The site's files on this host. Methods raise SourceError."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self._setup = site.config.setup
        self._dir = site.slurm_dir
        self._profile = {node.name: node for node in site.nodes}
        self._say = say

    def read(self) -> SiteFiles:
        """Read slurm.conf and gres.conf."""
        return read_site(self._dir / "slurm.conf", self._dir / "gres.conf", self._profile)

    def apply(self, changes: Mapping[Path, str]) -> None:
        """Replace files in this order, each atomically; then run ``setup.distribute``."""
        for path, text in changes.items():
            files.write(files.Change(path, text))
        if changes:
            self.distribute()

    def distribute(self) -> None:
        """Run ``setup.distribute``, if it is set."""
        command = self._setup.distribute
        if command:
            self._say(f"distributing: {' '.join(command)}")
            run_command(command, self._setup.distribute_timeout_s)

    def filter_models(self, models: frozenset[str]) -> None:
        """Rewrite ``models`` in the filter's configuration, if the filter is installed."""
        path = self._dir / files.LUA_CONF
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        listed = lua_value(sorted(models))
        changed = _LUA_MODELS.sub(lambda m: m[1] + listed, text, count=1)
        if changed != text:
            self._say(f"{path}: models = {listed}")
            files.write(files.Change(path, changed))
            files.reload_filter(self._dir, [path])

    def check_writable(self) -> None:
        """Raise SourceError if the files cannot be changed, before a node is drained."""
        found = self.read()
        for path in (name.resolve() for name in (*found.slurm.texts, *found.gres.texts)):
            target = path if path.exists() else path.parent
            if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
                raise SourceError(f"{path} cannot be written; run this as root on the controller")


@dataclass(frozen=True)
class RolloutState:
    """An unfinished run."""

    direction: str
    """``rollout`` or ``undo``."""
    scope: tuple[str, ...]
    """Nodes."""
    in_hand: str | None
    """The node that was drained last."""

    def save(self, path: Path) -> None:
        """Replace the state file. Raises SourceError."""
        files.write(files.Change(path, json.dumps(asdict(self))), backup=False)


def unfinished_run(path: Path) -> RolloutState | None:
    """The content of the state file; None: there is none, or it is invalid."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        state = RolloutState(raw["direction"], tuple(raw["scope"]), raw["in_hand"])
        names = [*state.scope, *([] if state.in_hand is None else [state.in_hand])]
        valid = state.direction in ("rollout", "undo") and all(map(is_node_name, names))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return state if valid else None


def nodes_in_scope(
    found: SiteFiles,
    client: SlurmClient,
    last: RolloutState | None,
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
) -> list[str]:
    """Nodes of a rollout, in the order of slurm.conf: ``nodes`` or ``partition`` if given.

    Otherwise a run in the direction of ``last``, the unfinished run, resumes with its nodes. Raises
    RequestError for a node without GPUs, SourceError for an unknown partition.
    """
    chosen: Collection[str]
    if nodes is not None:
        chosen = expand_hostlist(nodes)
        strange = set(chosen) - set(found.nodes)
        if strange:
            raise RequestError(
                f"--nodes: {hostlist(strange)}: not a node with GPUs in slurm.conf; known:"
                f" {hostlist(found.nodes) or 'none'}"
            )
    elif partition is not None:
        known = {p.name: p.nodes for p in client.partitions()}
        if partition not in known:
            listed = ", ".join(sorted(known))
            raise SourceError(f"no partition {partition!r}; there are: {listed}")
        chosen = known[partition]
    elif last is not None and (last.direction == "undo") == undo:
        chosen = last.scope
    else:
        chosen = found.indexed_by_us() if undo else found.nodes
    return [name for name in found.nodes if name in set(chosen)]


# -- state of a removal ------------------------------------------------------------------------


def _removal_file(config: Config) -> Path:
    return config.store.path.with_name(REMOVAL_STATE)


def begin_removal(config: Config, waits: Sequence[str] = ()) -> None:
    """Note that a removal is under way, and what it waits for. Raises SourceError."""
    path = _removal_file(config)
    if path.parent.is_dir():  # the last run may have been followed by rm
        files.write(files.Change(path, json.dumps({"waits": list(waits)})), backup=False)


def forget_removal(config: Config) -> None:
    """The site keeps slurm-gpu-aware: it is set up again."""
    _removal_file(config).unlink(missing_ok=True)


def removal_waits(config: Config) -> list[str] | None:
    """What a removal waits for, as far as it is known; None: no removal is under way."""
    try:
        return [str(text) for text in json.loads(_removal_file(config).read_text("utf-8"))["waits"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return []
