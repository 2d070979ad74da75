"""``gpu-aware setup --roll`` and ``--undo``: prompts and texts of a rollout."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

import click

from slurm_gpu_aware.cli import INTERRUPTED
from slurm_gpu_aware.cli.output import paragraph, print_json, say, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.restore_all import restore_all
from slurm_gpu_aware.deploy.rollout import Rollout
from slurm_gpu_aware.deploy.rollout_nodes import RolloutNodes
from slurm_gpu_aware.deploy.rollout_site import LocalSite, nodes_in_scope
from slurm_gpu_aware.deploy.rollout_state import StateFile, Summary
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.lockfile import InstanceLock
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.hostlist import hostlist

__all__ = ["FAILED", "SKIPPED", "run_rollout"]

FAILED = 1
SKIPPED = 3
STATE_FILE = "rollout.json"


def run_rollout(
    site: Site,
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Run a rollout; return the exit code. Raises SourceError, click.UsageError."""
    if nodes and partition:
        raise click.UsageError("--nodes and --partition exclude each other")
    config = site.config
    local = LocalSite(site, say)
    local.check_writable()
    client = open_client(config.selector.command_timeout_s)
    state = StateFile(config.store.path.parent / STATE_FILE)
    with InstanceLock(state.path.with_name(f"{STATE_FILE}.lock"), "rollout"):
        found = local.read()
        last = state.load()
        try:
            scope = nodes_in_scope(found, client, last, undo=undo, nodes=nodes, partition=partition)
        except RequestError as exc:
            raise click.UsageError(str(exc)) from None
        if not (nodes or partition) and last is not None and (last.direction == "undo") == undo:
            say(f"resuming the unfinished run: {hostlist(scope) or 'no nodes'}")
        if not _agreed(found, scope, undo=undo, yes=yes, as_json=as_json):
            say("nothing was changed")
            return FAILED
        if undo:
            _restore_all(config)
        with _signals() as stopping:
            slurm_nodes = RolloutNodes(client, say, stopping, config.setup.register_timeout_s)
            summary = Rollout(slurm_nodes, local, state, undo=undo).run(scope)
    _report(summary, as_json)
    if undo:  # jobs of these nodes may have been requeued
        _restore_all(config)
    return _exit_code(summary)


def _restore_all(config: Config) -> None:
    """Restore placed jobs that wait. Raises SourceError if one cannot be restored.

    Such a job asks for types that are about to be removed, and would never start. A running
    selector restores these jobs itself.
    """
    restored = restore_all(open_client(config.selector.command_timeout_s), config)
    if restored.opened:
        say(f"restored and left to Slurm: {', '.join(restored.opened)}")
    for job_id, why in restored.wrong.items():
        raise SourceError(
            f"job {job_id} is bound to GPU types and its request could not be restored: {why}"
        )


def _agreed(found: SiteFiles, scope: list[str], *, undo: bool, yes: bool, as_json: bool) -> bool:
    """Show all changes of the rollout and ask for confirmation."""
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
    """Handlers: the first Ctrl-C ends the run at the next safe moment, the second at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            say("stopped at once; 'gpu-aware setup --roll' (or --undo) resumes")
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
        print_json(asdict(summary) | {"exit_code": _exit_code(summary)})
    else:
        rows = [(o.node, o.result, f"{o.waited_s:.0f}", o.why) for o in summary.nodes]
        click.echo(table(["NODE", "RESULT", "WAITED_S", "WHY"], rows, right=["WAITED_S"]))
    say(paragraph(_last_words(summary)))


def _last_words(summary: Summary) -> str:
    again = "gpu-aware setup --undo" if summary.direction == "undo" else "gpu-aware setup --roll"
    if summary.interrupted:
        return f"Interrupted; '{again}' resumes."
    if summary.count("failed"):
        return f"Stopped at the first node that failed; repair it, then resume with '{again}'."
    if summary.count("skipped"):
        return f"Done except for {summary.count('skipped')} nodes; '{again}' tries them again."
    return f"Done: {summary.count('changed')} nodes changed."


def _exit_code(summary: Summary) -> int:
    if summary.interrupted:
        return INTERRUPTED
    if summary.count("failed"):
        return FAILED
    return SKIPPED if summary.count("skipped") else 0
