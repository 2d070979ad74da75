"""Installation: what ``gpu-aware setup`` writes, as a list of changes.

Nothing here changes the GRES types of a node that slurm.conf already knows with GPUs: Slurm would
kill or requeue the jobs that run on it. Such nodes get lines to apply by hand on a drained node.
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
"""Folder of a script of ours -> slurm.conf's key for it."""


@dataclass(frozen=True)
class Site:
    """What setup was told and found."""

    config: Config
    nodes: tuple[NodeGpus, ...]
    """From the profile."""
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
    """Files to write, and what is left to a person."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = field(default=())


def for_output(site: Site, folder: Path) -> Plan:
    """Everything as separate files for review, under ``folder``."""
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
    """The site's own files, changed as little as possible."""
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
            f"{site.slurm_dir}/slurm.conf is not there; run setup on the controller, or merge"
            " slurm.conf.lines of --output by hand"
        )
    else:
        # Last, so that everything that it refers to is there when Slurm reads it.
        changed = edit_settings(site.conf_text, settings.values)
        changes.append(Change(site.slurm_dir / "slurm.conf", changed))
    return Plan(tuple(changes), tuple(notes))


def _settings(site: Site) -> render.Settings:
    """Settings for slurm.conf, our scripts where they will be in place."""
    scripts = {
        key: str(site.slurm_dir / kind / source.name)
        for kind, key in SCRIPT_KEYS.items()
        for source in shipped(kind)
    }
    return render.slurm_settings(site.config, site.conf, scripts)


def _own_files(site: Site, folder: Path, unit_dir: Path) -> list[Change]:
    """Scripts, filter, the filter's configuration and units: files that are ours alone."""
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
    """Where setup puts the clocks' settings: beside the configuration."""
    return (config.source or DEFAULT_PATH).parent / CLOCK_CONF


def filter_files() -> list[Path]:
    """The filter's modules: neither job_submit.lua nor the configuration, which is generated."""
    own = (LUA_CONF, OWN_FILTER)
    return [p for p in shipped("lua") if p.suffix == ".lua" and p.name not in own]


def _own_filter() -> list[Path]:
    """The job_submit.lua for sites that have none."""
    return [p for p in shipped("lua") if p.name == OWN_FILTER]


def _filter(site: Site, notes: list[str]) -> list[Change]:
    """Our job_submit.lua where the site has none; lines to add where it has its own."""
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
    """gres.conf lines for nodes that slurm.conf already has with one type per GPU."""
    if not site.nodes:
        return []
    there = {name: node for name, node in site.conf_nodes.items() if node.has_gpus}
    ready = [n for n in site.nodes if n.name in there and there[n.name].indexed]
    plain = [n.name for n in site.nodes if n.name in there and not there[n.name].indexed]
    absent = [n for n in site.nodes if n.name not in there]
    if plain:
        notes.append(
            f"{hostlist(plain)} keep their GRES types: changing them under running jobs"
            " kills these. 'gpu-aware setup --roll' moves them one by one, each when it is empty."
            " Until then we choose only the node there"
        )
    if absent:
        lines = "; ".join(render.node_lines(absent))
        notes.append(f"slurm.conf has no GPUs for these nodes; add to their lines: {lines}")
    described = _described(outside_block(site.gres_text))
    ours = [n for n in ready if n.name not in described]
    text = replace_block(site.gres_text, render.gres_lines(ours))
    if text == site.gres_text:
        return []
    return [Change(site.slurm_dir / "gres.conf", text)]


def _described(lines: Iterable[str]) -> set[str]:
    """Nodes with GPUs that the site's own gres.conf lines describe."""
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
    """The largest; 0, unknown, if one is unknown or there is none."""
    known = list(values)
    return max(known) if known and all(known) else 0


def _unfeatured(site: Site) -> set[str]:
    """Models that stay GRES types in requests: some node has them plain, without the feature.

    ``gpu-aware setup --roll`` gives all nodes the feature before it tells the filter.
    """
    found: set[str] = set()
    for node in site.nodes:
        there = site.conf_nodes.get(node.name)
        if node.model is None or there is None or not there.has_gpus or there.indexed:
            continue
        if render.feature_of(node.model) not in there.features:
            found.add(node.model)
    return found


def operators(config: Config, slurm_user: str) -> list[int]:
    """User ids that pass all checks of the filter: root, SlurmUser, ``site.operators``.

    Without SlurmUser's the filter would refuse what the selector does. Raises ConfigError for a
    user that the host does not know.
    """
    found = {0}
    for key, name in (
        ("SlurmUser", slurm_user),
        *(("site.operators", name) for name in config.site.operators),
    ):
        try:
            number = name.isascii() and name.isdigit()
            found.add(int(name) if number else pwd.getpwnam(name).pw_uid)
        except KeyError:
            file = config.source or DEFAULT_PATH
            where = "slurm.conf" if key == "SlurmUser" else str(file)
            raise ConfigError(f"{where}: {key}: no such user on this host: {name!r}") from None
    return sorted(found)


def _units(site: Site, folder: Path) -> list[Change]:
    """Our systemd units with what differs at this site."""
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
    """Where this installation's commands are."""
    return Path(sys.prefix) / "bin"


def _copy(source: Path, target: Path, mode: int = 0o644) -> Change:
    return Change(target, source.read_text(encoding="utf-8"), mode)


def reload_filter(site: Site, written: Iterable[Change]) -> bool:
    """Touch job_submit.lua if another Lua file changed: slurmctld reads them when that one does."""
    names = {c.path.name for c in written if c.path.suffix == ".lua"}
    target = site.slurm_dir / OWN_FILTER
    if not names or OWN_FILTER in names or not target.exists():
        return False
    try:
        os.utime(target)
    except OSError as exc:
        raise SourceError(f"{target}: cannot be touched: {exc.strerror}") from None
    return True
