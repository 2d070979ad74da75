"""``gpu-aware-profile sweep``: the probe on all GPU nodes, and the resumption of a sweep."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_aware_profile.cli import PARTLY, links_options, store_options
from gpu_aware_profile.sweep import Outcome, Sweep, Target, gpu_nodes
from gpu_aware_profile.sweep_progress import SweepProgress
from slurm_gpu_aware.cli.options import Number
from slurm_gpu_aware.cli.output import json_option, print_json, say, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ingest import ingest_report

if TYPE_CHECKING:
    from slurm_gpu_aware.variability.outliers import Outlier

__all__ = ["sweep"]


@click.command()
@store_options
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node.")
@click.option("--resume", metavar="ID", help="Resume an unfinished sweep.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Nodes at a time."
)
@click.option(
    "--time-limit",
    type=Number(1, 10**7),
    default=900.0,
    show_default=True,
    metavar="S",
    help="Time limit of the probe of a node, in seconds.",
)
@click.option(
    "--wait",
    type=Number(1, 10**7),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for a busy node before it is skipped.",
)
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option("--backend", metavar="NAME", help="Timing backend. Default: one that works there.")
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs per GPU and class.",
)
@links_options
@click.option(
    "--srun-option", multiple=True, metavar="OPTION", help="Option for srun, such as --account=x."
)
@click.option(
    "--command",
    default="gpu-aware-profile",
    show_default=True,
    metavar="PATH",
    help="Path of this program on the nodes.",
)
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    /,
    path: Path,
    config: Config,
    nodes: tuple[str, ...],
    resume: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Probe every GPU node through Slurm; store the results and the new scores.

    A sweep stores GPUs, links and clocks. Only fake GPUs are timed; times of real GPUs come from
    your own benchmark, by 'gpu-aware-profile import'.

    The probe is one exclusive job per node. A node that fails, hangs or stays busy is reported and
    skipped; then the exit code is 3, and the sweep may be resumed for these nodes. --resume uses
    the nodes and options of the sweep, except for options that are given again.

    A GPU with a time below half or above twice the median of its model is reported, and its time is
    stored as measured.

    \b
    Examples:
      gpu-aware-profile sweep
      gpu-aware-profile sweep --jobs 32 --srun-option=--account=ops
      gpu-aware-profile sweep --resume 20260102T030405
    """
    progress = SweepProgress(path.parent / "sweeps", resume or time.strftime("%Y%m%dT%H%M%S"))
    unfinished = progress.unfinished()
    if resume is not None:
        if resume not in unfinished:
            listed = ", ".join(unfinished) or "none"
            raise SourceError(f"no unfinished sweep {resume!r}; unfinished: {listed}")
        given = _as_before(context, progress.scope()[1], given)
    whole, targets, outcomes = _plan(
        progress, nodes, given["time_limit"], resume=resume is not None
    )
    done = progress.done()
    pending = [target for target in targets if target.node not in done]
    outcomes = [outcome for outcome in outcomes if outcome.node not in done]
    already = f", {len(done)} done before" if done else ""
    plural = "" if len(pending) == 1 else "s"
    say(f"sweep {progress.sweep_id}: {len(pending)} node{plural} to probe{already}")
    if unfinished and resume is None:
        say(f"unfinished: {', '.join(unfinished)} (--resume ID resumes one)")
    again = _resume_command(progress.sweep_id, context.params)
    new, far = _probe(progress, path, config, whole, pending, given, again)
    complete = set(whole) <= progress.done()
    if complete:
        progress.finish()
    _print(progress.sweep_id, [*outcomes, *new], far, complete=complete, as_json=as_json)
    if not complete:
        say(f"for the other nodes: {again}")
        context.exit(PARTLY)


def _probe(
    progress: SweepProgress,
    path: Path,
    config: Config,
    whole: Sequence[str],
    pending: Sequence[Target],
    given: Mapping[str, Any],
    again: str,
) -> tuple[list[Outcome], list[Outlier]]:
    """Run the probes and store their reports; return the outcomes, and outliers of the nodes."""
    from gpu_aware_profile import store_writer  # imports NumPy

    outcomes = []
    with store_writer.writable_store(path, config) as store:
        running = _sweep(progress.sweep_id, store, given)
        progress.begin(whole, given)
        with _stopped_by_signals(running, again):
            try:
                for outcome in _shown(running, pending):
                    outcomes.append(outcome)
                    if outcome.state == "done":
                        progress.note(outcome.node)
            finally:
                if progress.done():
                    store_writer.recompute_scores(store, config.site.classes)
        far = store_writer.stored_outliers(store)
    return outcomes, [one for one in far if one.node in progress.done()]


@contextmanager
def _stopped_by_signals(running: Sweep, again: str) -> Iterator[None]:
    """SIGINT and SIGTERM, however many, stop the sweep; then raise KeyboardInterrupt.

    As an exception, a second one would end the cancelling of the probes that the first began.
    """
    numbers = []

    def stop(number: int, frame: object) -> None:
        numbers.append(number)
        running.stop()

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    if numbers:
        say(f"resume with: {again}")
        raise KeyboardInterrupt
    for number, handler in before.items():
        signal.signal(number, handler)


def _as_before(
    context: click.Context, before: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a resumed sweep; options on the command line replace them."""
    default = click.core.ParameterSource.DEFAULT
    return {
        name: before[name]
        if name in before and context.get_parameter_source(name) is default
        else value
        for name, value in given.items()
    }


def _sweep(sweep_id: str, store: Store, given: Mapping[str, Any]) -> Sweep:
    arguments = [f"--runs={given['runs']}"]
    arguments += [f"--class={name}" for name in given["classes"]]
    arguments += [f"--backend={given['backend']}"] if given["backend"] else []
    arguments += ["--links", f"--links-time={given['links_time']:g}"] if given["links"] else []
    try:
        return Sweep(
            sweep_id,
            lambda report: ingest_report(store, report),
            command=given["command"],
            arguments=arguments,
            concurrency=given["jobs"],
            probe_s=given["time_limit"],
            queue_s=given["wait"],
            srun_options=given["srun_option"],
        )
    except (TypeError, ValueError) as exc:  # from the notes of the sweep
        raise click.UsageError(str(exc)) from None


def _plan(
    progress: SweepProgress, nodes: tuple[str, ...], probe_s: float, *, resume: bool
) -> tuple[list[str], list[Target], list[Outcome]]:
    """The whole sweep, the nodes to probe, and the outcomes of those that cannot be probed."""
    targets, skipped = gpu_nodes(probe_s)
    known = [t.node for t in targets] + [o.node for o in skipped]
    if not known:
        raise SourceError("Slurm knows no node with GPUs; check GresTypes and Gres= in slurm.conf")
    names = progress.scope()[0] if resume else tuple(known)
    unknown = [name for name in nodes if name not in names]
    if unknown:
        listed = ", ".join(names[:20]) or "none"
        of = f"sweep {progress.sweep_id}; its nodes" if resume else "this cluster; GPU nodes"
        raise SourceError(f"{unknown[0]!r} is not a GPU node of {of}: {listed}")
    wanted = nodes or names
    gone = [Outcome(n, "skipped", "Slurm has no such GPU node") for n in wanted if n not in known]
    # With a node that Slurm no longer has the sweep would never be complete.
    whole = [n for n in (names if resume else wanted) if n in known]
    outcomes = [*gone, *(o for o in skipped if o.node in wanted)]
    return whole, [t for t in targets if t.node in wanted], outcomes


def _resume_command(sweep_id: str, given: Mapping[str, Any]) -> str:
    """The command that resumes a sweep."""
    words = ["gpu-aware-profile", "sweep", "--resume", sweep_id]
    for option in ("store", "config"):
        if given[f"{option}_path"] is not None:
            words += [f"--{option}", str(given[f"{option}_path"])]
    return shlex.join(words)


def _shown(running: Sweep, pending: Sequence[Target]) -> Iterator[Outcome]:
    """Run the probes, yield the outcomes; show progress as a bar on a terminal, else as lines."""
    total = len(pending)
    if not sys.stderr.isatty():
        running.busy = lambda nodes: say(_busy_text(nodes, running.queue_s)) if nodes else None
        for number, outcome in enumerate(running.run(pending), 1):
            say(f"[{number}/{total}] {_line(outcome)}")
            yield outcome
        return
    with click.progressbar(length=total, label="Probing", file=sys.stderr) as bar:

        def show(nodes: list[str]) -> None:
            bar.label = _busy_text(nodes, running.queue_s)
            bar.render_progress()

        running.busy = show
        for outcome in running.run(pending):
            bar.label = "Probing"
            bar.update(1)
            yield outcome


def _busy_text(nodes: list[str], wait_s: float) -> str:
    """What the sweep waits for."""
    if not nodes:
        return "Probing"
    busy = f"busy nodes are skipped after {wait_s:g} s"
    return f"waiting for Slurm to start the probes of {hostlist(nodes)} ({busy})"


def _line(outcome: Outcome) -> str:
    if outcome.state != "done":
        return f"{outcome.node}: {outcome.state}: {outcome.reason}"
    faults = f", {outcome.faults} calls failed" if outcome.faults else ""
    return (
        f"{outcome.node}: {outcome.gpus} GPUs, {outcome.timings} timings{faults},"
        f" {outcome.took_s:.1f} s"
    )


def _print(
    sweep_id: str, outcomes: list[Outcome], far: list[Outlier], *, complete: bool, as_json: bool
) -> None:
    from slurm_gpu_aware.variability.outliers import outlier_sentences

    outcomes = sorted(outcomes, key=lambda outcome: outcome.node)
    if as_json:
        rows = [vars(outcome) for outcome in outcomes]
        slow = [one._asdict() for one in far]
        print_json({"sweep": sweep_id, "complete": complete, "nodes": rows, "outliers": slow})
    else:
        headers = ["node", "state", "GPUs", "timings", "faults", "s", "reason"]
        cells = [
            [o.node, o.state, o.gpus, o.timings, o.faults, f"{o.took_s:.1f}", o.reason]
            for o in outcomes
        ]
        click.echo(table(headers, cells, right=headers[2:6]))
    done = [outcome for outcome in outcomes if outcome.state == "done"]
    if done and not any(outcome.timings for outcome in done):
        say("no times were measured: import them with 'gpu-aware-profile import FILE'")
    for sentence in outlier_sentences(far):
        say(f"stored as measured: {sentence}")
