"""Installation: the files that ``gpu-aware setup`` writes, as a list of changes.

Setup does not change the GRES types of a node with GPUs in slurm.conf, because Slurm would kill or
requeue its running jobs. A rollout changes such nodes.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.conf_nodes import ConfNode, conf_nodes
from slurm_gpu_aware.deploy.files import Change, shipped
from slurm_gpu_aware.deploy.lua_files import lua_conf
from slurm_gpu_aware.deploy.render import NodeGpus
from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.slurm.confblocks import pairs_of
from slurm_gpu_aware.slurm.conffile import (
    SlurmConf,
    edit_settings,
    outside_block,
    replace_block,
)
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist

__all__ = [
    "LUA_CONF",
    "OWN_FILTER",
    "SCRIPT_KEYS",
    "Plan",
    "Site",
    "clock_conf_path",
    "filter_files",
    "for_output",
    "in_place",
    "operators",
    "reload_filter",
]

OWN_FILTER = "job_submit.lua"
LUA_CONF = "gpu_aware_conf.lua"
CLOCK_CONF = "clock.conf"
SCRIPT_KEYS = {"prolog.d": "Prolog", "epilog.d": "Epilog", "resv.d": "ResvProlog"}
"""Folder of our scripts -> their key in slurm.conf."""


@dataclass(frozen=True)
class Site:
    """Configuration, files and nodes of a site."""

    config: Config
    nodes: tuple[NodeGpus, ...]
    """Nodes of the profile."""
    slurm_dir: Path
    """Folder of slurm.conf."""
    conf: SlurmConf
    conf_text: str | None
    """Text of slurm.conf itself; None: there is none."""
    gres_text: str
    """Text of gres.conf; empty: there is none."""
    filter_text: str | None
    """Text of the site's job_submit.lua; None: there is none."""
    unit_dir: Path = Path("/etc/systemd/system")

    @cached_property
    def conf_nodes(self) -> Mapping[str, ConfNode]:
        """Nodes of slurm.conf."""
        return conf_nodes(self.conf)

    @property
    def user(self) -> str:
        """SlurmUser."""
        return self.conf.get("SlurmUser") or "root"


@dataclass(frozen=True)
class Plan:
    """Files to write, and notes for the administrator."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = field(default=())


def for_output(site: Site, folder: Path) -> Plan:
    """All files, separately for review, under ``folder``."""
    settings = _settings(site)
    lines = [f"{key}={value}" for key, value in settings.values.items()]
    nodes = render.node_lines(site.nodes)
    text = "# Merge into slurm.conf.\n" + "\n".join(lines) + "\n"
    if nodes:
        text += "\n# Into the NodeName lines; on a node with GPUs only while it is drained.\n"
        text += "".join(f"# {line}\n" for line in nodes)
    changes = [
        Change(folder / "slurm.conf.lines", text),
        Change(folder / CLOCK_CONF, render.clock_conf(_commands() / "gpu-aware-clock")),
        *_own_files(site, folder, folder / "systemd"),
        *(_copy(source, folder / source.name) for source in _own_filter()),
    ]
    if site.nodes:
        body = "\n".join(render.gres_lines(site.nodes)) + "\n"
        changes.insert(0, Change(folder / "gres.conf", body))
    return Plan(tuple(changes), (*settings.notes, *_profile_notes(site)))


def in_place(site: Site) -> Plan:
    """Minimal changes of the site's files."""
    settings = _settings(site)
    notes = [*settings.notes, *_profile_notes(site)]
    changes = _own_files(site, site.slurm_dir, site.unit_dir)
    clock = clock_conf_path(site.config)
    if not clock.exists():  # settings of the site are kept
        changes.append(Change(clock, render.clock_conf(_commands() / "gpu-aware-clock")))
    changes += _filter(site, notes)
    changes += _gres(site, notes)
    if site.conf_text is None:
        notes.append(
            f"{site.slurm_dir}/slurm.conf does not exist; run setup on the controller, or merge"
            " slurm.conf.lines of --output by hand"
        )
    else:
        # Last, because it refers to the other files.
        changed = edit_settings(site.conf_text, settings.values)
        changes.append(Change(site.slurm_dir / "slurm.conf", changed))
    return Plan(tuple(changes), tuple(notes))


def _settings(site: Site) -> render.Settings:
    """Settings for slurm.conf, with the installed paths of our scripts."""
    scripts = {
        key: str(site.slurm_dir / kind / source.name)
        for kind, key in SCRIPT_KEYS.items()
        for source in shipped(kind)
    }
    return render.slurm_settings(site.config, site.conf, scripts)


def _own_files(site: Site, folder: Path, unit_dir: Path) -> list[Change]:
    """Files that belong to slurm-gpu-aware: scripts, filter with its configuration, units."""
    return [
        *(
            _copy(source, folder / kind / source.name, 0o755)
            for kind in SCRIPT_KEYS
            for source in shipped(kind)
        ),
        *(_copy(source, folder / source.name) for source in filter_files()),
        Change(folder / LUA_CONF, _lua_conf(site)),
        *_units(site, unit_dir),
    ]


def clock_conf_path(config: Config) -> Path:
    """Path of the settings of the clocks: beside the configuration."""
    return (config.source or DEFAULT_PATH).parent / CLOCK_CONF


def filter_files() -> list[Path]:
    """The modules of the filter, without job_submit.lua and the generated configuration."""
    own = (LUA_CONF, OWN_FILTER)
    return [p for p in shipped("lua") if p.suffix == ".lua" and p.name not in own]


def _own_filter() -> list[Path]:
    """The job_submit.lua for sites without one."""
    return [p for p in shipped("lua") if p.name == OWN_FILTER]


def _filter(site: Site, notes: list[str]) -> list[Change]:
    """Our job_submit.lua if the site has none, else a note with the lines to add."""
    target = site.slurm_dir / OWN_FILTER
    ours = _own_filter()
    if site.filter_text is None or (ours and site.filter_text == ours[0].read_text()):
        return [_copy(p, target) for p in ours]
    if "gpu_aware" not in site.filter_text:
        notes.append(
            f"{target} is the site's own and stays; add the lines that load gpu_aware.lua"
            " (see 'A site's own job_submit.lua' in the administrator's guide)"
        )
    return []


def _gres(site: Site, notes: list[str]) -> list[Change]:
    """gres.conf lines for nodes with one type per GPU in slurm.conf."""
    if not site.nodes:
        return []
    there = {name: node for name, node in site.conf_nodes.items() if node.has_gpus}
    ready = [n for n in site.nodes if n.name in there and there[n.name].indexed]
    plain = [n.name for n in site.nodes if n.name in there and not there[n.name].indexed]
    absent = [n for n in site.nodes if n.name not in there]
    if plain:
        notes.append(
            f"{hostlist(plain)} keep their GRES types, because a change kills running jobs."
            " 'gpu-aware setup --roll' moves them one by one, each while it is empty."
            " Until then the selector chooses only the node there"
        )
    if absent:
        lines = "; ".join(render.node_lines(absent))
        notes.append(f"slurm.conf has no GPUs on these nodes; add to their lines: {lines}")
    described = _described(outside_block(site.gres_text))
    ours = [n for n in ready if n.name not in described]
    text = replace_block(site.gres_text, render.gres_lines(ours))
    if text == site.gres_text:
        return []
    return [Change(site.slurm_dir / "gres.conf", text)]


def _described(lines: Iterable[str]) -> set[str]:
    """Nodes with GPUs in the site's own lines of gres.conf."""
    out: set[str] = set()
    for line in lines:
        fields = {key.lower(): value for key, value in pairs_of(line.split("#", 1)[0])}
        if fields.get("name", "").lower() == "gpu" and "nodename" in fields:
            out.update(expand_hostlist(fields["nodename"]))
    return out


def _profile_notes(site: Site) -> list[str]:
    if site.nodes:
        return []
    return [
        "the store has no profile: no gres.conf lines and no GPU models; run"
        " 'gpu-aware-profile sweep', then setup again"
    ]


def _lua_conf(site: Site) -> str:
    allowed = dict.fromkeys([site.config.placement.policy, *site.config.placement.allowed])
    models = {n.model for n in site.nodes if n.model} - _unfeatured(site)
    with_gpus = [node for node in site.conf_nodes.values() if node.has_gpus]
    return lua_conf(
        site.config,
        policies=list(allowed),
        models=sorted(models),
        max_gpus_per_node=max((len(n.indices) for n in site.nodes), default=0),
        max_cpus_per_node=_most(node.cpus for node in with_gpus),
        max_memory_mb_per_node=_most(node.memory_mb for node in with_gpus),
        operators=operators(site.config, site.user),
    )


def _most(values: Iterable[int]) -> int:
    """The largest value; 0 (unknown) if one is unknown or there is none."""
    known = list(values)
    return max(known) if known and all(known) else 0


def _unfeatured(site: Site) -> set[str]:
    """Models that stay GRES types in requests, because a plain node lacks their feature.

    ``gpu-aware setup --roll`` adds the feature to all nodes before it adds the model to the filter.
    """
    models: set[str] = set()
    for node in site.nodes:
        there = site.conf_nodes.get(node.name)
        if node.model is None or there is None or not there.has_gpus or there.indexed:
            continue
        if render.feature_of(node.model) not in there.features:
            models.add(node.model)
    return models


def operators(config: Config, slurm_user: str) -> list[int]:
    """User ids that pass all checks of the filter: root, SlurmUser, ``site.operators``.

    The selector runs as SlurmUser. Raises ConfigError for an unknown user.
    """
    uids = {0}
    for key, name in (
        ("SlurmUser", slurm_user),
        *(("site.operators", name) for name in config.site.operators),
    ):
        try:
            number = name.isascii() and name.isdigit()
            uids.add(int(name) if number else pwd.getpwnam(name).pw_uid)
        except KeyError:
            file = config.source or DEFAULT_PATH
            where = "slurm.conf" if key == "SlurmUser" else str(file)
            raise ConfigError(f"{where}: {key}: no such user on this host: {name!r}") from None
    return sorted(uids)


def _units(site: Site, folder: Path) -> list[Change]:
    """Our systemd units with the site's values."""
    values = {
        "User": site.user,
        "Environment": f"GPU_AWARE_CONFIG={site.config.source or DEFAULT_PATH}",
        "ReadWritePaths": str(site.config.store.path.parent),
    }
    changes = []
    for source in shipped("systemd"):
        text = source.read_text(encoding="utf-8")
        for key, value in values.items():
            line = f"{key}={value}".replace("\\", r"\\")
            text = re.sub(rf"^{key}=.*", line, text, flags=re.M)
        text = re.sub(r"^ExecStart=.*/", f"ExecStart={_commands()}/", text, flags=re.M)
        changes.append(Change(folder / source.name, text))
    return changes


def _commands() -> Path:
    """Folder of the commands of this installation."""
    return Path(sys.prefix) / "bin"


def _copy(source: Path, target: Path, mode: int = 0o644) -> Change:
    return Change(target, source.read_text(encoding="utf-8"), mode)


def reload_filter(site: Site, written: Iterable[Change]) -> bool:
    """Touch job_submit.lua if only another Lua file changed; slurmctld then reloads all of them."""
    names = {c.path.name for c in written if c.path.suffix == ".lua"}
    target = site.slurm_dir / OWN_FILTER
    if not names or OWN_FILTER in names or not target.exists():
        return False
    try:
        os.utime(target)
    except OSError as exc:
        raise SourceError(f"{target}: cannot be touched: {exc.strerror}") from None
    return True
