"""What setup has put on this host: settings of slurm.conf, and files; what of it may go."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
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
from slurm_gpu_aware.slurm.conf_grammar import read_text
from slurm_gpu_aware.slurm.conffile import ConfFiles, SlurmConf, content_of, take_back_settings
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
    named = {*site.conf.settings.values(), *chain(*site.conf.repeated.values())}
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
    folders |= {path.resolve().parent for path in site.conf.files}
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


def conf_without_settings(
    site: Site, plain: Mapping[Path, str]
) -> tuple[dict[Path, str], list[str]]:
    """Changed files without the settings that setup has added, and notes on what stays.

    ``plain``: texts of files with plain nodes. The first versions (``NAME.before-gpu-aware``) say
    what the site had. Without them only what is certainly ours goes.
    """
    conf = ConfFiles(site.slurm_dir / "slurm.conf", checked=False, texts=plain)
    first = {path: Path(f"{path.resolve()}{BACKUP}") for path in conf.texts}
    old = {path: read_text(str(backup)) for path, backup in first.items() if backup.is_file()}
    before, had = None, None
    if conf.path in old or (old and not conf.block()):
        before = ConfFiles(conf.path, checked=False, texts={**conf.texts, **old})
        had = content_of(before)
    changed = take_back_settings(conf, _value_of_site(site, had), before)
    notes = []
    if before is None and changed:
        notes.append(
            f"{first[conf.path]} is gone, so it is not known what slurm.conf had before: the"
            " plugins, SchedulerParameters and JobCompType stay"
        )
    return changed, notes


def _value_of_site(site: Site, had: SlurmConf | None) -> Callable[[str, str], str | None]:
    """(key in lower case, value) -> the value as the site would have it; None: no such setting."""
    config, conf = site.config, site.conf
    ours = {"licenses": {config.gate.licence: "", LICENCE: ""}}
    whole: dict[tuple[str, str], str | None] = {
        (key.lower(), str(site.slurm_dir / kind / source.name)): None
        for kind, key in SCRIPT_KEYS.items()
        for source in shipped(kind)
    }
    if had is not None:
        ours |= {key: {"lua": "lua"} for key in ("jobsubmitplugins", "clifilterplugins")}
        ours["schedulerparameters"] = {n: f"{n}={v}" for n, (v, _) in render.SCHEDULER.items()}
        if not any(node.has_gpus for node in site.conf_nodes.values()):
            ours["grestypes"] = {"gpu": "gpu"}
        written = ("jobcomp/filetxt", str(config.events.jobcomp_file))
        keys = ("jobcomptype", "jobcomploc")
        if tuple(map(conf.get, keys)) == written and had.get("JobCompType") != written[0]:
            whole |= {both: had.get(both[0]) for both in zip(keys, written, strict=True)}

    def value_of_site(key: str, value: str) -> str | None:
        before = {_name(word) for word in ((had and had.get(key)) or "").split(",")}
        words = [word for word in value.split(",") if word]
        kept = [
            word
            for word in words
            if not _is_added(word, ours.get(key, {}), before if key != "licenses" else set())
        ]
        own = value if kept == words else ",".join(kept) or None
        return whole.get((key, value), own)

    return value_of_site


def _is_added(word: str, ours: dict[str, str], before: set[str]) -> bool:
    """Whether setup added this entry of a list; an entry that was changed since is the site's."""
    name = _name(word)
    return name in ours and name not in before and ours[name] in ("", word)


def _name(word: str) -> str:
    return re.split(r"[:*=]", word)[0].rpartition("/")[2]  # job_submit/lua is lua
