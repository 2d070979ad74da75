"""``gpu-aware setup --roll``, ``--undo`` and ``--remove``: questions and texts."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

from slurm_gpu_aware import clock_conf
from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import paragraph, print_json, say, table
from slurm_gpu_aware.cli.run import signals_handled
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.job_requests import jobs_text, restore_all
from slurm_gpu_aware.deploy.owned_files import CLOCK_CONF, HOOKS, UNITS
from slurm_gpu_aware.deploy.reconfiguration import WANTED, Delivery, find_delivery
from slurm_gpu_aware.deploy.removal import Removal, Removed
from slurm_gpu_aware.deploy.rollout import Rollout, Summary
from slurm_gpu_aware.deploy.rollout_site import (
    LocalSite,
    RolloutNodes,
    begin_removal,
    forget_removal,
    nodes_in_scope,
    unfinished_run,
)
from slurm_gpu_aware.deploy.setup import own_files
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.files import InstanceLock
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient, open_client
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.files import ROLLOUT_STATE
from slurm_gpu_aware.time_text import counted

_FAILED = 1
_WAITS = 3
_LINKS = Path("/usr/local/bin")
_PAGES = Path("/var/lib/gpu-aware-page")  # Of ``gpu-aware-page.service``.
_SKIPPED = 3


def run_rollout(site: Site, given: Mapping[str, Any], *, table_on_stderr: bool = False) -> int:
    """Run a rollout by the options of setup; return the exit code."""
    undo, nodes, partition = given["undo"], given["nodes"], given["partition"]
    if nodes and partition:
        raise click.UsageError("--nodes and --partition exclude each other")
    config = site.config
    local = LocalSite(site, say)
    local.check_writable()
    client = open_client(config.selector.command_timeout_s)
    state_file = config.store.path.parent / ROLLOUT_STATE
    if not undo:
        forget_removal(config)
    with InstanceLock(state_file.with_name(f"{ROLLOUT_STATE}.lock"), "rollout"):
        found = local.read()
        last = unfinished_run(state_file)
        try:
            scope = nodes_in_scope(found, client, last, undo=undo, nodes=nodes, partition=partition)
        except RequestError as exc:
            raise click.UsageError(str(exc)) from None
        again = last is not None and (last.direction == "undo") == undo
        resumes = again and not (nodes or partition)
        if resumes:
            say(f"resuming the unfinished run: {hostlist(scope) or 'no nodes'}")
        _check_delivery(site, client, scope)
        if not _agreed(found, scope, given):
            say("nothing was changed")
            return _FAILED
        if undo:
            _restore_all(config)
        with _signals() as stopping:
            slurm_nodes = RolloutNodes(client, say, stopping, config.setup.register_timeout_s)
            strand = given["strand"]
            rollout = Rollout(
                slurm_nodes, local, state_file, undo=undo, config=config, strand=strand
            )
            summary = rollout.run(scope)
        others = _others(local.read(), scope, undo=undo) if resumes else []
    code, last_words = _ending(summary, others, removes=given["remove"])
    if summary.count("failed") and not config.setup.distribute:
        last_words += (
            " A node that has a folder of its own for slurm.conf did not get the change:"
            f" {WANTED.format(folder=site.slurm_dir)}."
        )
    if given["as_json"]:
        print_json(asdict(summary) | {"exit_code": code})
    else:
        rows = [(o.node, o.result, f"{o.waited_s:.0f}", o.why) for o in summary.nodes]
        text = table(["NODE", "RESULT", "WAITED_S", "WHY"], rows, right=["WAITED_S"])
        click.echo(text, err=table_on_stderr)
    say(paragraph(last_words))
    if undo:  # jobs of these nodes may have been requeued
        _restore_all(config)
    return code


def _check_delivery(site: Site, client: SlurmClient, scope: Sequence[str]) -> None:
    """Raise SourceError if the nodes do not get the files; say so if that is not known."""
    how = find_delivery(site.config.setup, client, site.slurm_dir, scope)
    cure = WANTED.format(folder=site.slurm_dir)
    if how.arrives is False:
        raise SourceError(f"{how.why}: no node would get the change. {cure[0].upper()}{cure[1:]}")
    if how.arrives is None:
        say(paragraph(f"note: {how.why}. If each host has its own folder: {cure}."))


def _restore_all(config: Config) -> None:
    """Restore placed jobs that wait, as their GPU types go. Raises SourceError if one cannot be."""
    restored = restore_all(open_client(config.selector.command_timeout_s), config)
    if restored.left:
        say(f"restored and left to Slurm: {', '.join(restored.left)}")
    for job_id, why in restored.wrong.items():
        raise SourceError(
            f"job {job_id} is bound to GPU types and its request could not be restored: {why}"
        )


def _agreed(found: SiteFiles, scope: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Show all changes of the rollout and ask for confirmation."""
    now, undo = found.indexed_by_us(), given["undo"]
    able = {n for n in scope if found.nodes[n].indices and not found.nodes[n].indexed}
    wanted, moved = (now - set(scope), now & set(scope)) if undo else (now | able, able)
    changes = found.texts(wanted, features=not undo or bool(wanted))
    for path, text in changes.items():
        click.echo(files.diff(files.Change(path, text)), nl=False, err=given["as_json"])
    if given["yes"] or not changes:
        return True
    form = "back to the plain form" if undo else "to one GRES type per GPU"
    return click.confirm(
        f"Move {counted(len(moved), 'node')} ({hostlist(moved) or '-'}) {form}, one by one, each"
        " drained until it is empty?",
        err=True,
    )


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Handlers: the first Ctrl-C ends the run at the next safe moment, the second at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            say("stopped at once; 'gpu-aware setup --roll' (or --undo) resumes")
            raise KeyboardInterrupt
        asked = True
        say("stopping; a node whose files are being changed is completed first (again: at once)")

    with signals_handled(handle):
        yield lambda: asked


def _others(found: SiteFiles, scope: Sequence[str], *, undo: bool) -> list[str]:
    """Nodes outside the scope that a run without a scope would move."""
    outside = {name: node for name, node in found.nodes.items() if name not in scope}
    if undo:
        return [name for name, node in outside.items() if node.ours]
    return [name for name, node in outside.items() if node.indices and not node.indexed]


def _ending(summary: Summary, others: Sequence[str], *, removes: bool) -> tuple[int, str]:
    """Exit code and last words of a run.

    ``others``: nodes that a resumed run did not have. ``removes``: it is a step of a removal.
    """
    option = "--remove" if removes else "--undo" if summary.direction == "undo" else "--roll"
    again = f"gpu-aware setup {option}"
    if summary.interrupted:
        return INTERRUPTED, f"Interrupted; '{again}' resumes."
    if summary.count("failed"):
        stopped = "Stopped at the first node that failed"
        return _FAILED, f"{stopped}; repair it, then resume with '{again}'."
    words = [f"Done: {counted(summary.count('changed'), 'node')} changed."]
    if skipped := summary.count("skipped"):
        words = [f"Done except for {counted(skipped, 'node')}; '{again}' tries again."]
    if others:
        words.append(f"The unfinished run did not have {hostlist(others)}; '{again}' moves them.")
    if stranded := summary.stranded_jobs:
        words.append(
            "These jobs ask for a GPU type that the nodes no longer have, so they cannot start:"
            f" {', '.join(stranded)}. Their owners have to cancel them and submit them again."
        )
    if summary.features_needed_by and not removes:  # a removal names them itself
        words.append(
            f"Nodes keep the features of GPU models, which jobs ask for; '{again}' tries again:"
        )
        jobs: dict[str, list[str]] = {}
        for job_id, why in summary.features_needed_by.items():
            jobs.setdefault(why, []).append(job_id)
        words += [f"{jobs_text(ids)}: {why}." for why, ids in jobs.items()]
    return _SKIPPED if skipped or others or stranded else 0, " ".join(words)


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
    _removal_end(done, {} if given["as_json"] else remains)
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
        (own, f"delete {counted(len(own), 'file')} of ours on this host"),
    ]
    listed = [text for needed, text in steps if needed]
    for number, text in enumerate(listed, 1):
        say(paragraph(f"{number}. {text}."))
    for note in notes:
        say(paragraph(f"note: {note}."))


def _removal_end(done: Removed, remains: Mapping[str, Sequence[str]]) -> None:
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
