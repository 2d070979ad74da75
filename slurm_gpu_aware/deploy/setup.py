"""The list of all owned things, and its walks: what setup writes, what a removal takes away.

Doctor walks it by `checks_of`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from slurm_gpu_aware.deploy.doctor import Check, DoctorContext
from slurm_gpu_aware.deploy.files import BACKUP, Change
from slurm_gpu_aware.deploy.filter import COMMAND_SCRIPT, FILTER
from slurm_gpu_aware.deploy.filter_conf import FILTER_CONF
from slurm_gpu_aware.deploy.owned import (
    GpuTypes,
    GresTypes,
    JobEnds,
    Licences,
    Owned,
    SchedulerWords,
)
from slurm_gpu_aware.deploy.owned_files import CLOCK_CONF, EVENTS, HOOKS, STORE, UNITS
from slurm_gpu_aware.deploy.site import Site, node_lines
from slurm_gpu_aware.slurm.accounting import gaps_of
from slurm_gpu_aware.slurm.conf_grammar import read_text
from slurm_gpu_aware.slurm.conffile import (
    ConfFiles,
    edit_settings,
    setting_line,
    take_back_settings,
)

OWNED: tuple[Owned, ...] = (
    GresTypes(),
    GpuTypes(),
    Licences(),
    FILTER_CONF,  # before the script that reads it
    FILTER,
    SchedulerWords(),
    COMMAND_SCRIPT,
    *HOOKS,
    EVENTS,
    JobEnds(),
    CLOCK_CONF,
    UNITS,
    STORE,
)
"""All that we bring to a site."""


def checks_of(group: str) -> Callable[[DoctorContext], Iterator[Check]]:
    """The check of doctor on the owned things of a group."""
    things = [thing for thing in OWNED if thing.group == group]
    return lambda g: chain.from_iterable(thing.check(g) for thing in things)


def settings_of(site: Site) -> tuple[dict[str, str], list[str]]:
    """Settings of slurm.conf other than node lines (key -> value), and notes on the site."""
    notes: list[str] = []
    values: dict[str, str] = {}
    for thing in OWNED:
        values |= thing.settings(site, notes)
    if site.text("slurm.conf") is not None:
        notes.extend(map(str, gaps_of(site.conf.get)))
    if not site.nodes:
        notes.append(
            "the store has no profile: no gres.conf lines and no GPU models; run"
            " 'gpu-aware-profile sweep', then setup again"
        )
    return values, notes


def for_output(site: Site, folder: Path) -> tuple[list[Change], list[str]]:
    """All files, separately for review, under ``folder``; notes for the administrator."""
    values, notes = settings_of(site)
    text = "# Merge into slurm.conf.\n"
    text += "".join(f"{setting_line(key, value)}\n" for key, value in values.items())
    if site.nodes and site.config.placement.gpus == "exact":
        text += "\n# Into the NodeName lines; on a node with GPUs only while it is drained.\n"
        text += "".join(f"# {line}\n" for line in node_lines(site.nodes))
    review = replace(site, slurm_dir=folder, unit_dir=folder / "systemd", for_review=True)
    changes = [change for thing in OWNED for change in thing.install(review, notes)]
    return [*changes, Change(folder / "slurm.conf.lines", text)], notes


def in_place(site: Site) -> tuple[list[Change], list[str]]:
    """Minimal changes of the site's files; notes for the administrator."""
    values, notes = settings_of(site)
    changes = [change for thing in OWNED for change in thing.install(site, notes)]
    conf = site.slurm_dir / "slurm.conf"
    if not conf.exists():
        notes.append(
            f"{site.slurm_dir}/slurm.conf does not exist; run setup on the controller, or merge"
            " slurm.conf.lines of --output by hand"
        )
    else:
        # Last, because it refers to the other files.
        changed = edit_settings(ConfFiles(conf, checked=False), values)
        changes += [Change(path, changed[path]) for path in sorted(changed, key=conf.__eq__)]
    return changes, notes


def own_files(site: Site) -> dict[Path, Owned]:
    """Files on this host that setup has installed, or that are worth nothing without us."""
    return {path: thing for thing in OWNED for path in thing.files(site) if path.is_file()}


def kept_backups(site: Site) -> dict[Path, bool]:
    """First versions that setup has kept -> whether the file is the same again, or ours."""
    installed = [change.path.parent for thing in OWNED for change in thing.contents(site)]
    folders = {site.slurm_dir, *installed}
    folders |= {path.resolve().parent for path in site.conf.texts}
    ours = own_files(site)
    found = {}
    for backup in (
        path for folder in sorted(folders) for path in sorted(folder.glob(f"*{BACKUP}"))
    ):
        present = backup.with_name(backup.name.removesuffix(BACKUP))
        same = present.is_file() and present.read_bytes() == backup.read_bytes()
        found[backup] = present in ours or same
    return found


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
    before = None
    if conf.path in old or (old and not conf.block()):
        before = ConfFiles(conf.path, checked=False, texts={**conf.texts, **old})

    def of_site(key: str, value: str) -> str | None:
        kept = (thing.of_site(site, before, key, value) for thing in OWNED)
        return next((text for text in kept if text != value), value)

    changed = take_back_settings(conf, of_site, before)
    notes = []
    if before is None and changed:
        notes.append(
            f"{first[conf.path]} is gone, so it is not known what slurm.conf had before: the"
            " plugins, SchedulerParameters and JobCompType stay"
        )
    return changed, notes
