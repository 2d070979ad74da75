"""``gpu-aware setup --roll`` and ``--undo``: prompts and texts of a rollout."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any

import click

from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import paragraph, print_json, say, table
from slurm_gpu_aware.cli.run import signals_handled
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.job_requests import jobs_text, restore_all
from slurm_gpu_aware.deploy.reconfiguration import WANTED, find_delivery
from slurm_gpu_aware.deploy.rollout import Rollout, Summary
from slurm_gpu_aware.deploy.rollout_site import (
    LocalSite,
    RolloutNodes,
    forget_removal,
    nodes_in_scope,
    unfinished_run,
)
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.files import InstanceLock
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.files import ROLLOUT_STATE

_FAILED = 1
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
    words = [f"Done: {summary.count('changed')} nodes changed."]
    if skipped := summary.count("skipped"):
        words = [f"Done except for {skipped} nodes; '{again}' tries them again."]
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
