"""What setup has put on this host: settings of slurm.conf, and files; what of it may go."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.config.tuned import tuned_path
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.files import (
    CLI_FILTER,
    LUA_CONF,
    OUR_CLI_FILTER,
    OWN_FILTER,
    shipped,
    shipped_lua,
)
from slurm_gpu_aware.deploy.install import SCRIPT_KEYS, clock_conf_path, filter_files
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.deploy.site_scripts import without_join
from slurm_gpu_aware.gate.holding_pool import LICENCE
from slurm_gpu_aware.slurm.conffile import SlurmConf, outside_block, read_conf, take_back_settings
from slurm_gpu_aware.store.ownership import REMOVAL_STATE, ROLLOUT_STATE

BACKUP = ".before-gpu-aware"
"""End of the name of a file's first version, which setup keeps."""
_LINKS = Path("/usr/local/bin")


@dataclass(frozen=True)
class OwnFiles:
    """What setup has put on this host, as far as it exists."""

    files: list[Path]
    """Installed by setup, or state that is worth nothing without us."""
    folders: list[Path]
    """Made by setup, or of the site: removed if they are empty."""
    data: list[Path]
    """Folder of the store, the configuration: they stay."""


def own_files(site: Site) -> OwnFiles:
    """What setup has put on this host."""
    config, slurm_dir = site.config, site.slurm_dir
    store, events = config.store.path, config.events
    hooks = [slurm_dir / kind / source.name for kind in SCRIPT_KEYS for source in shipped(kind)]
    files = [
        *hooks,
        *(slurm_dir / source.name for source in filter_files()),
        slurm_dir / LUA_CONF,
        *(site.unit_dir / name for name in unit_names()),
        clock_conf_path(config),
        events.submit_file,
        events.defer_file,
        *events.runs_folder.glob("*"),
        *(
            store.with_name(name)
            for name in (ROLLOUT_STATE, f"{ROLLOUT_STATE}.lock", REMOVAL_STATE)
        ),
        tuned_path(config),
        *filter(None, [config.store.published]),  # a copy
    ]
    if is_own_filter(site.text(OWN_FILTER)):
        files.append(slurm_dir / OWN_FILTER)
    if site.text(CLI_FILTER) == shipped_lua(OUR_CLI_FILTER):
        files.append(slurm_dir / CLI_FILTER)
    named = " ".join(site.conf.settings.values())
    hook_folders = [slurm_dir / kind for kind in SCRIPT_KEYS]
    folders = [
        *(f for f in hook_folders if f"{f}/*" not in named),
        events.runs_folder,
        events.submit_file.parent,
    ]
    data = [store.parent, *filter(None, [config.source])]
    return OwnFiles(
        [path for path in dict.fromkeys(files) if path.is_file()],
        [folder for folder in dict.fromkeys(folders) if folder.is_dir()],
        [path for path in data if path.exists()],
    )


def unit_names() -> list[str]:
    """Names of our systemd units."""
    return [source.name for source in shipped("systemd")]


def is_own_filter(text: str | None) -> bool:
    """Whether this job_submit.lua is ours, with or without the lines that load the filter."""
    ours = shipped_lua(OWN_FILTER)
    return text in (ours, without_join(ours))


def kept_backups(site: Site) -> dict[Path, bool]:
    """First versions that setup has kept -> whether the file is the same again, or ours."""
    folders = {site.slurm_dir, site.unit_dir, clock_conf_path(site.config).parent}
    folders |= {site.slurm_dir / kind for kind in SCRIPT_KEYS}
    ours = set(own_files(site).files)
    found = {}
    for backup in (
        path for folder in sorted(folders) for path in sorted(folder.glob(f"*{BACKUP}"))
    ):
        present = backup.with_name(backup.name.removesuffix(BACKUP))
        same = present.is_file() and present.read_bytes() == backup.read_bytes()
        found[backup] = present in ours or same
    return found


def commands_here() -> tuple[Path, list[Path]]:
    """(folder of this installation, links to its commands)."""
    prefix = Path(sys.prefix)
    found = sorted(_LINKS.glob("gpu-aware*")) if _LINKS.is_dir() else []
    links = (link for link in found if link.is_symlink())
    return prefix, [link for link in links if link.readlink().is_relative_to(prefix)]


def conf_without_settings(site: Site, text: str) -> tuple[str, list[str]]:
    """slurm.conf without the settings that setup has added, and notes on what stays.

    The first version (``slurm.conf.before-gpu-aware``) says what the site had. Without it only what
    is certainly ours goes.
    """
    first = site.slurm_dir / f"slurm.conf{BACKUP}"
    had = read_conf(first) if first.is_file() else None
    old = first.read_text(encoding="utf-8", errors="surrogateescape") if had else ""
    in_place = {line.partition("=")[0].strip().lower() for line in outside_block(text)}
    wanted: dict[str, str | None] = {}
    for key, value in _settings_of_site(site, had).items():
        inherited = had is not None and value is not None and had.get(key) == value
        wanted[key] = None if inherited and key.lower() not in in_place else value
    changed = take_back_settings(text, wanted, old)
    notes = []
    if had is None and changed != text:
        notes.append(
            f"{first} is gone, so it is not known what slurm.conf had before: the plugins,"
            " SchedulerParameters and JobCompType stay"
        )
    return changed, notes


def _settings_of_site(site: Site, had: SlurmConf | None) -> dict[str, str | None]:
    """Settings that setup changes, as the site would have them now; None: no such setting."""
    config, conf = site.config, site.conf
    ours = {"Licenses": {config.gate.licence: "", LICENCE: ""}}
    if had is not None:
        ours |= {key: {"lua": "lua"} for key in ("JobSubmitPlugins", "CliFilterPlugins")}
        ours["SchedulerParameters"] = {n: f"{n}={v}" for n, (v, _) in render.SCHEDULER.items()}
        if not any(node.has_gpus for node in site.conf_nodes.values()):
            ours["GresTypes"] = {"gpu": "gpu"}
    wanted: dict[str, str | None] = {}
    for key, words in ours.items():
        value = conf.get(key)
        if value is None:
            continue
        before = {_name(word) for word in ((had and had.get(key)) or "").split(",")}
        kept = [
            word
            for word in value.split(",")
            if word and not _is_added(word, words, before if key != "Licenses" else set())
        ]
        wanted[key] = ",".join(kept) or None
    for kind, key in SCRIPT_KEYS.items():
        if conf.get(key) in {str(site.slurm_dir / kind / source.name) for source in shipped(kind)}:
            wanted[key] = None
    log = str(config.events.jobcomp_file)
    mine = (conf.get("JobCompType"), conf.get("JobCompLoc")) == ("jobcomp/filetxt", log)
    if had is not None and mine and had.get("JobCompType") != "jobcomp/filetxt":
        wanted |= {key: had.get(key) for key in ("JobCompType", "JobCompLoc")}
    return wanted


def _is_added(word: str, ours: dict[str, str], before: set[str]) -> bool:
    """Whether setup added this entry of a list; an entry that was changed since is the site's."""
    name = _name(word)
    return name in ours and name not in before and ours[name] in ("", word)


def _name(word: str) -> str:
    return re.split(r"[:*=]", word)[0].rpartition("/")[2]  # job_submit/lua is lua
