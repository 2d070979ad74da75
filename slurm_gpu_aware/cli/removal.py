"""``gpu-aware setup --remove``: preview, question, and what remains to be typed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware import clock_conf
from slurm_gpu_aware.cli.output import paragraph, print_json, say
from slurm_gpu_aware.cli.rollout import run_rollout
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.owned_files import CLOCK_CONF, HOOKS, UNITS
from slurm_gpu_aware.deploy.reconfiguration import Delivery, find_delivery
from slurm_gpu_aware.deploy.removal import Removal, Removed
from slurm_gpu_aware.deploy.rollout_site import LocalSite, begin_removal
from slurm_gpu_aware.deploy.setup import own_files
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.controllers import Controllers
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.files import ROLLOUT_STATE

_FAILED = 1
_WAITS = 3
_LINKS = Path("/usr/local/bin")
_PAGES = Path("/var/lib/gpu-aware-page")
"""Of ``gpu-aware-page.service``."""


def run_remove(read_site: Callable[[], Site], given: Mapping[str, Any]) -> int:
    """Remove slurm-gpu-aware by the options of setup; return the exit code.

    ``read_site`` reads the site's files anew.
    """
    site = read_site()
    config = site.config
    local = LocalSite(site, say)
    local.check_writable()
    client = open_client(config.selector.command_timeout_s)
    removal = Removal(site, client, local, say)
    found = local.read()
    delivery = find_delivery(config.setup, client, site.slurm_dir)
    folders = _node_folders(site)
    _preview(site, removal, found, delivery, given)
    if not given["yes"] and not click.confirm("Remove slurm-gpu-aware?", err=True):
        say("nothing was changed")
        return _FAILED
    begin_removal(config)
    unfinished = (config.store.path.parent / ROLLOUT_STATE).exists()
    if found.texts((), features=False) or unfinished:
        undo = {**given, "undo": True, "yes": True, "as_json": False}
        code = run_rollout(site, undo, table_on_stderr=given["as_json"])
        if code:
            return code
    site = read_site()
    found = local.read()
    left = found.models() if found.texts((), features=False) else frozenset()
    removal = Removal(site, client, LocalSite(site, say), say)
    done = removal.run(left, delivery)
    code = _WAITS if done.waits else 0
    remains = {} if done.waits else _remains(site, folders, Controllers(client.settings()).others)
    if given["as_json"]:
        print_json(asdict(done) | {"commands": remains, "exit_code": code})
    _end(done, {} if given["as_json"] else remains)
    return code


def _preview(
    site: Site,
    removal: Removal,
    found: SiteFiles,
    delivery: Delivery,
    given: Mapping[str, Any],
) -> None:
    """Show all changes of files, and the steps."""
    plain = found.texts((), features=False)
    in_filter = removal.filter_change()
    of_conf, notes = removal.conf_changes(plain)
    changes = [*([in_filter] if in_filter else []), *of_conf]
    for change in changes:
        click.echo(files.diff(change), nl=False, err=given["as_json"])
    nodes = found.indexed_by_us()
    own = own_files(site)
    steps = [
        (
            nodes,
            f"move {hostlist(nodes)} back to the site's GRES types, one by one, each drained"
            " until it is empty",
        ),
        (in_filter, f"take our lines out of {site.slurm_dir / files.OWN_FILTER}"),
        (True, "stop the selector"),
        (plain, "let pending jobs that ask for a GPU model by its feature ask for its type again"),
        (True, "give all waiting jobs back to Slurm with their own requests"),
        (
            of_conf,
            "as soon as no job needs us: take our settings, and the features of GPU models,"
            " out of slurm.conf, and our calls"
            f" out of the site's scripts; {delivery.why}; 'scontrol reconfigure'",
        ),
        (own, f"delete {len(own)} files of ours on this host"),
    ]
    listed = [text for needed, text in steps if needed]
    for number, text in enumerate(listed, 1):
        say(paragraph(f"{number}. {text}."))
    for note in notes:
        say(paragraph(f"note: {note}."))


def _end(done: Removed, remains: Mapping[str, Sequence[str]]) -> None:
    if done.waits:
        say("Not finished:")
        for text in done.waits:
            say(paragraph(f"- {text}"))
        say("Run 'gpu-aware setup --remove' again then; it goes on where it stopped.")
        return
    for text in done.kept:
        say(paragraph(f"kept {text}"))
    say("slurm-gpu-aware is removed from Slurm. What remains, and what deletes it:")
    for where, commands in remains.items():
        click.echo(f"# {where}")
        for command in commands:
            click.echo(command)


def _node_folders(site: Site) -> list[Path]:
    """Folders of prolog and epilog on the compute nodes, as far as this host knows."""
    conf = clock_conf.read_clock_conf()
    usual = (clock_conf.SPOOL, clock_conf.LOCKS, clock_conf.ACCOUNTS)
    folders = dict.fromkeys(filter(None, (conf.spool, conf.locks, conf.accounts, conf.orders)))
    named = [Path(folder).parent if folder in usual else Path(folder) for folder in folders]
    return [CLOCK_CONF.path(site.config).parent, *named]


def _remains(
    site: Site, folders: Sequence[Path], controllers: Sequence[str]
) -> dict[str, list[str]]:
    """Where -> commands that delete what setup does not."""
    prefix = Path(sys.prefix)
    links = [
        link
        for link in sorted(_LINKS.glob("gpu-aware*"))
        if link.is_symlink() and link.readlink().is_relative_to(prefix)
    ]
    in_venv = sys.prefix != sys.base_prefix
    program = f"rm -rf {prefix}" if in_venv else f"{prefix}/bin/pip uninstall slurm-gpu-aware"
    commands = [*([f"rm -f {' '.join(map(str, links))}"] if links else []), program]
    own = list(dict.fromkeys([*folders, site.config.store.path.parent]))
    drop_ins = [site.unit_dir / f"{name}.d" for name in UNITS.names]
    own += [folder for folder in (_PAGES, *drop_ins) if folder.is_dir()]
    slurm_dir = site.slurm_dir
    copies = [str(slurm_dir / hook.folder / "50-gpu-aware*") for hook in HOOKS]
    copies += [str(slurm_dir / "gpu_aware*.lua"), str(slurm_dir / f"*{files.BACKUP}")]
    published = site.config.store.published
    if published is not None and published.parent.is_dir() and not any(published.parent.iterdir()):
        commands.append(f"rmdir {published.parent}")
    units = " ".join(str(site.unit_dir / name) for name in UNITS.names)
    first = {
        f"first on {host}": ["systemctl disable --now gpu-aware-selectd", f"rm -f {units}"]
        for host in controllers
    }
    return first | {
        "on this host, with your measurements and settings": [
            f"rm -rf {' '.join(map(str, own))}",
            *commands,
        ],
        f"on each other host (the second line where {slurm_dir} is its own)": [
            f"rm -rf {' '.join(map(str, folders))}",
            f"rm -f {' '.join(copies)}",
            *commands,
        ],
    }
