"""``gpu-aware setup --roll`` and ``--undo``: what a person sees of moving nodes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import paragraph, print_json, say, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.install import LUA_CONF, OWN_FILTER
from slurm_gpu_aware.deploy.lua_files import lua_value
from slurm_gpu_aware.deploy.node_control import NodeControl
from slurm_gpu_aware.deploy.render import NodeGpus
from slurm_gpu_aware.deploy.restore_all import restore_all
from slurm_gpu_aware.deploy.rollout import Rolling
from slurm_gpu_aware.deploy.rollout_state import RollState, StateFile, Summary
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.instance_lock import hold_lock
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist

__all__ = ["FAILED", "SKIPPED", "roll"]

FAILED = 1
SKIPPED = 3
STATE_FILE = "roll.json"
_LUA_MODELS = re.compile(r"^(\s*models\s*=\s*)\{[^}]*\}", re.MULTILINE)


class _Site:
    """The site's files on this host."""

    def __init__(self, config: Config, slurm_dir: Path, profile: Mapping[str, NodeGpus]) -> None:
        self._config = config
        self._dir = slurm_dir
        self._profile = profile

    def read(self) -> SiteFiles:
        return read_site(self._dir / "slurm.conf", self._dir / "gres.conf", self._profile)

    def write(self, path: Path, text: str) -> None:
        files.write(files.Change(path, text))

    def distribute(self) -> None:
        command = self._config.setup.distribute
        if command:
            say(f"distributing: {' '.join(command)}")
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
        say(f"{path}: models = {listed}")
        files.write(files.Change(path, changed))
        filter_file = self._dir / OWN_FILTER
        if filter_file.exists():  # slurmctld reads all again when this one is later, by seconds
            later = max(time.time(), filter_file.stat().st_mtime + 1)
            os.utime(filter_file, (later, later))


def roll(
    config: Config,
    slurm_dir: Path,
    profile: Mapping[str, NodeGpus],
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Do it; return the exit code. Raises SourceError, click.UsageError."""
    if nodes and partition:
        raise click.UsageError("--nodes and --partition exclude each other")
    _check_writable(slurm_dir)
    control = NodeControl(open_client(config.selector.command_timeout_s))
    site = _Site(config, slurm_dir, profile)
    state = StateFile(config.store.path.parent / STATE_FILE)
    with hold_lock(state.path.with_name(f"{STATE_FILE}.lock"), "rollout"):
        found = site.read()
        scope = _scope(found, control, state.load(), undo=undo, nodes=nodes, partition=partition)
        if not _agreed(found, scope, undo=undo, yes=yes, as_json=as_json):
            say("nothing was changed")
            return FAILED
        if undo:
            _restore_all(config)
        with _signals() as stopping:
            register_s = config.setup.register_timeout_s
            work = Rolling(
                control, site, state, undo=undo, say=say, stopping=stopping, register_s=register_s
            )
            summary = work.run(scope)
    _report(summary, as_json)
    if undo:  # what ran on these nodes may have been requeued
        _restore_all(config)
    return _exit_code(summary)


def _restore_all(config: Config) -> None:
    """Give placed jobs that wait their plain GPUs back. Raises SourceError if one keeps its types.

    Such a job asks for types that are about to go, and would never start. A selector that runs
    looks after them itself.
    """
    back = restore_all(open_client(config.selector.command_timeout_s), config)
    if back.opened:
        say(f"given back what they asked for, to be started by Slurm: {', '.join(back.opened)}")
    for job_id, why in back.wrong.items():
        raise SourceError(
            f"job {job_id} is bound to GPU types and could not be given back its request: {why}"
        )


def _scope(
    found: SiteFiles,
    control: NodeControl,
    last: RollState | None,
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
) -> list[str]:
    """Nodes to look at, in slurm.conf's order."""
    if nodes is not None:
        chosen = set(expand_hostlist(nodes))
        strange = chosen - set(found.nodes)
        if strange:
            raise click.UsageError(
                f"--nodes: {hostlist(strange)}: not a node with GPUs in slurm.conf; there are:"
                f" {hostlist(found.nodes) or 'none'}"
            )
    elif partition is not None:
        chosen = set(control.partition(partition)) & set(found.nodes)
    elif last is not None and (last.direction == "undo") == undo:
        chosen = set(last.scope) & set(found.nodes)
        say(f"going on with the run that did not end: {hostlist(chosen) or 'no nodes'}")
    elif undo:
        chosen = set(found.indexed_by_us())
    else:
        chosen = set(found.nodes)
    return [name for name in found.nodes if name in chosen]


def _agreed(found: SiteFiles, scope: list[str], *, undo: bool, yes: bool, as_json: bool) -> bool:
    """Show what will have changed at the end; ask."""
    now = found.indexed_by_us()
    able = {n for n in scope if found.nodes[n].indices and not found.nodes[n].indexed}
    wanted = now - set(scope) if undo else now | able
    changes = found.texts(wanted, features=not undo or bool(wanted))
    for path, text in changes.items():
        click.echo(files.diff(files.Change(path, text)), nl=False, err=as_json)
    if yes or not changes:
        return True
    moved = now & set(scope) if undo else able
    form = "back to the plain form" if undo else "to one GRES type per GPU"
    return click.confirm(
        f"Move {len(moved)} nodes ({hostlist(moved) or '-'}) {form}, one by one, each drained"
        " until it is empty?",
        err=True,
    )


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C ends the run at the next safe moment, the second at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            say("stopped at once; 'gpu-aware setup --roll' (or --undo) again goes on")
            raise KeyboardInterrupt
        asked = True
        say("stopping; a node whose files are being changed is completed first (again: at once)")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(summary.as_json() | {"exit_code": _exit_code(summary)})
    else:
        rows = [(o.node, o.result, f"{o.waited_s:.0f}", o.why) for o in summary.nodes]
        click.echo(table(["NODE", "RESULT", "WAITED_S", "WHY"], rows, right=["WAITED_S"]))
    say(paragraph(_last_words(summary)))


def _last_words(summary: Summary) -> str:
    again = "gpu-aware setup --undo" if summary.direction == "undo" else "gpu-aware setup --roll"
    if summary.interrupted:
        return f"Interrupted; '{again}' goes on."
    if summary.count("failed"):
        return f"Stopped at the first node that failed; '{again}' goes on when it is mended."
    if summary.count("skipped"):
        return f"Done but for {summary.count('skipped')} nodes; '{again}' tries them again."
    return f"Done: {summary.count('changed')} nodes changed."


def _exit_code(summary: Summary) -> int:
    if summary.interrupted:
        return INTERRUPTED
    if summary.count("failed"):
        return FAILED
    return SKIPPED if summary.count("skipped") else 0


def _check_writable(slurm_dir: Path) -> None:
    """Raises SourceError where the files cannot be changed, before any node is drained."""
    for name in ("slurm.conf", "gres.conf"):
        path = (slurm_dir / name).resolve()
        target = path if path.exists() else path.parent
        if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise SourceError(f"{path} cannot be written; run this as root on the controller")
