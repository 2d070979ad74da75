"""Installation: the files that ``gpu-aware setup`` writes, as a list of changes.

Setup does not change the GRES types of a node with GPUs in slurm.conf, because Slurm would kill or
requeue its running jobs. A rollout changes such nodes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.clock_conf import ACCOUNTS, NO_ACCOUNTS
from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.files import (
    CLI_FILTER,
    LUA_CONF,
    OUR_CLI_FILTER,
    OWN_FILTER,
    Change,
    shipped,
    shipped_lua,
)
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.deploy.site_scripts import (
    LUA_PLACE,
    join_fault,
    join_lines,
    loads_cli_filter,
    loads_filter,
)
from slurm_gpu_aware.slurm.accounting import gaps_of
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import ConfFiles, Entry, edit_settings, setting_line
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist

SCRIPT_KEYS = {"prolog.d": "Prolog", "epilog.d": "Epilog", "resv.d": "ResvProlog"}
"""Folder of our scripts -> their key in slurm.conf."""
_COMMANDS = Path(sys.prefix) / "bin"
"""Folder of the commands of this installation."""


Plan = tuple[list[Change], list[str]]
"""Files to write, and notes for the administrator."""


def for_output(site: Site, folder: Path) -> Plan:
    """All files, separately for review, under ``folder``."""
    settings = _settings(site)
    lines = [setting_line(key, value) for key, value in settings.values.items()]
    text = "# Merge into slurm.conf.\n" + "\n".join(lines) + "\n"
    changes = []
    unknown: list[str] = []
    if site.nodes:
        text += "\n# Into the NodeName lines; on a node with GPUs only while it is drained.\n"
        text += "".join(f"# {line}\n" for line in render.node_lines(site.nodes))
        body = "\n".join(render.gres_lines(site.nodes)) + "\n"
        changes.append(Change(folder / "gres.conf", body))
    changes += [
        Change(folder / "slurm.conf.lines", text),
        Change(folder / "clock.conf", render.clock_conf(_COMMANDS / "gpu-aware-clock", site.user)),
        *_own_files(site, folder, folder / "systemd", unknown),
        Change(folder / OWN_FILTER, shipped_lua(OWN_FILTER)),
    ]
    if site.config.setup.cli_filter:
        changes.append(Change(folder / CLI_FILTER, shipped_lua(OUR_CLI_FILTER)))
    if unknown:
        settings.notes.append(
            f"{', '.join(unknown)}: no user of this host, so {LUA_CONF} lacks the uid among its"
            " operators; 'gpu-aware setup --install' on the controller writes it"
        )
    return changes, settings.notes


def in_place(site: Site) -> Plan:
    """Minimal changes of the site's files."""
    settings = _settings(site)
    notes = settings.notes
    changes = _own_files(site, site.slurm_dir, site.unit_dir)
    clock = clock_conf_path(site.config)
    if not clock.exists():  # settings of the site are kept
        changes.append(Change(clock, render.clock_conf(_COMMANDS / "gpu-aware-clock", site.user)))
    elif not re.search(r"^\s*accounts\s*=\s*/", clock.read_text(errors="replace"), re.M):
        notes.append(f"{clock} {NO_ACCOUNTS}; add accounts = {ACCOUNTS}")
    changes += _filter(site, notes)
    if site.config.setup.cli_filter:
        changes += _client_filter(site, notes)
    changes += _gres(site, notes)
    conf = site.slurm_dir / "slurm.conf"
    if not conf.exists():
        notes.append(
            f"{site.slurm_dir}/slurm.conf does not exist; run setup on the controller, or merge"
            " slurm.conf.lines of --output by hand"
        )
    else:
        # Last, because it refers to the other files.
        changed = edit_settings(ConfFiles(conf, checked=False), settings.values)
        changes += [Change(path, changed[path]) for path in sorted(changed, key=conf.__eq__)]
    return changes, notes


def _settings(site: Site) -> render.Settings:
    """Settings for slurm.conf, with the installed paths of our scripts; notes on the site."""
    scripts = {
        key: str(site.slurm_dir / kind / source.name)
        for kind, key in SCRIPT_KEYS.items()
        for source in shipped(kind)
    }
    settings = render.slurm_settings(site.config, site.conf, scripts)
    if site.text("slurm.conf") is not None:
        settings.notes.extend(map(str, gaps_of(site.conf.get)))
    if not site.nodes:
        settings.notes.append(
            "the store has no profile: no gres.conf lines and no GPU models; run"
            " 'gpu-aware-profile sweep', then setup again"
        )
    return settings


def _own_files(
    site: Site, folder: Path, unit_dir: Path, unknown: list[str] | None = None
) -> list[Change]:
    """Files that belong to slurm-gpu-aware: scripts, filter with its configuration, units."""
    return [
        *(_copy(file, folder / kind, 0o755) for kind in SCRIPT_KEYS for file in shipped(kind)),
        *(_copy(file, folder) for file in filter_files()),
        Change(folder / LUA_CONF, _lua_conf(site, unknown)),
        *_units(site, unit_dir),
    ]


def clock_conf_path(config: Config) -> Path:
    """Path of the settings of the clocks: beside the configuration."""
    return (config.source or DEFAULT_PATH).parent / "clock.conf"


def filter_files() -> list[Path]:
    """The modules of the filter, without job_submit.lua and the generated configuration."""
    return [
        p for p in shipped("lua") if p.suffix == ".lua" and p.name not in (LUA_CONF, OWN_FILTER)
    ]


def _filter(site: Site, notes: list[str]) -> list[Change]:
    """Our job_submit.lua if the site has none, else a note with the lines to add."""
    have, ours = site.text(OWN_FILTER), shipped_lua(OWN_FILTER)
    if have is None or have == ours:
        return [Change(site.slurm_dir / OWN_FILTER, ours)]
    if fault := join_fault(have):
        notes.append(f"{site.slurm_dir / OWN_FILTER} {fault}; the two lines belong {LUA_PLACE}")
    elif not loads_filter(have):
        first, second = join_lines(site.slurm_dir)
        notes.append(
            f"{site.slurm_dir / OWN_FILTER} is the site's own and stays; add {LUA_PLACE},"
            f" after slurmctld was restarted:\n{first}\n{second}"
        )
    return []


def _client_filter(site: Site, notes: list[str]) -> list[Change]:
    """Our cli_filter.lua if the site has none, else a note with the line to add.

    Ours is complete in itself, so it can be the site's.
    """
    path, have = site.slurm_dir / CLI_FILTER, site.text(CLI_FILTER)
    ours = shipped_lua(OUR_CLI_FILTER)
    notes.append(
        f"CliFilterPlugins=lua: copy {path} to every host with sbatch or srun before slurm.conf;"
        " without the file these commands fail there"
    )
    if have is None or have == ours:
        return [Change(path, ours)]
    if not loads_cli_filter(have):
        notes.append(
            f"{path} is the site's own and stays; add {LUA_PLACE}:"
            f' pcall(dofile, "{site.slurm_dir / OUR_CLI_FILTER}")'
        )
    return []


def _gres(site: Site, notes: list[str]) -> list[Change]:
    """gres.conf lines for nodes with one type per GPU in slurm.conf."""
    if not site.nodes:
        return []
    indexed = {name: node.indexed for name, node in site.conf_nodes.items() if node.has_gpus}
    plain = [n.name for n in site.nodes if indexed.get(n.name) is False]
    absent = [n for n in site.nodes if n.name not in indexed]
    if plain:
        notes.append(
            f"{hostlist(plain)} keep their GRES types, because a change kills running jobs."
            " 'gpu-aware setup --roll' moves them one by one, each while it is empty."
            " Until then the selector chooses only the node there"
        )
    if absent:
        lines = "; ".join(render.node_lines(absent))
        notes.append(f"slurm.conf has no GPUs on these nodes; add to their lines: {lines}")
    gres = ConfFiles(site.slurm_dir / "gres.conf", missing_ok=True, checked=False)
    of_site = (fields_of(record) for record, entry in gres.effective if not entry.in_block)
    described = {
        name
        for fields in of_site
        if fields.get("name", "").lower() == "gpu"
        for name in expand_hostlist(fields.get("nodename", ""))
    }
    ours = [n for n in site.nodes if indexed.get(n.name) and n.name not in described]
    block: dict[Entry, Sequence[str]] = dict.fromkeys(gres.block(), ())
    changed = gres.with_lines(block, render.gres_lines(ours))
    return [Change(path, text) for path, text in changed.items()]


def _lua_conf(site: Site, unknown: list[str] | None) -> str:
    models = {n.model for n in site.nodes if n.model} - _unfeatured(site)
    with_gpus = [node for node in site.conf_nodes.values() if node.has_gpus]
    cpus = [node.cpus for node in with_gpus] or [0]
    memory_mb = [node.memory_mb for node in with_gpus] or [0]
    return render.lua_conf(
        site.config,
        site.user,
        models,
        {
            "gpus": max((len(n.indices) for n in site.nodes), default=0),
            "cpus": max(cpus) if all(cpus) else 0,
            "memory_mb": max(memory_mb) if all(memory_mb) else 0,
            "shards": max((node.shards for node in with_gpus), default=0),
        },
        unknown,
    )


def _unfeatured(site: Site) -> set[str]:
    """Models that stay GRES types in requests, because a plain node lacks their feature.

    ``gpu-aware setup --roll`` adds the feature to all nodes before it adds the model to the filter.
    """
    plain = {n: c for n, c in site.conf_nodes.items() if c.has_gpus and not c.indexed}
    return {
        node.model
        for node in site.nodes
        if node.model is not None
        and node.name in plain
        and render.feature_of(node.model) not in plain[node.name].features
    }


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
        text = re.sub(r"^ExecStart=.*/", f"ExecStart={_COMMANDS}/", text, flags=re.M)
        changes.append(Change(folder / source.name, text))
    return changes


def _copy(source: Path, folder: Path, mode: int = 0o644) -> Change:
    return Change(folder / source.name, source.read_text(encoding="utf-8"), mode)
