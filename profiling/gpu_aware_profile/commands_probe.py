"""``gpu-aware-profile node`` and ``sweep``: the commands that touch hardware or Slurm."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_aware_profile.cli import store_options
from slurm_gpu_aware.cli.output import json_option, print_json, say, table
from slurm_gpu_aware.errors import SourceError

if TYPE_CHECKING:
    from gpu_aware_profile.sweep import Outcome

__all__ = ["node", "sweep"]

PARTLY = 3
"""Exit code of a sweep that left nodes out."""


def _node_name() -> str:
    """Slurm's name of this node: what slurmd says inside a job, else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


@click.command()
@click.option("--backend", metavar="NAME", help="Timing backend. Default: what works here.")
@click.option("--no-timings", is_flag=True, help="Report identity, links and clocks only.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Per GPU, class."
)
@click.option("--node-name", metavar="NAME", help="Default: Slurm's name of this node.")
@json_option
def node(
    backend: str | None,
    no_timings: bool,
    classes: tuple[str, ...],
    repeats: int,
    node_name: str | None,
    as_json: bool,
) -> None:
    """Probe this node's GPUs and print the report; nothing is stored.

    A GPU that cannot be read is listed under errors, the others are reported (exit code 0). Exit
    code 1: nothing could be read.

    \b
    Example:
      gpu-aware-profile node --json
    """
    name = node_name or _node_name()
    report = _probe(name, backend, no_timings, classes, repeats)
    if as_json:
        click.echo(json.dumps(report, separators=(",", ":")))
    else:
        _show(report)
    if not report["gpus"]:
        say(f"{name}: no GPU could be read")
        click.get_current_context().exit(1)


def _probe(
    name: str, backend: str | None, no_timings: bool, classes: tuple[str, ...], repeats: int
) -> dict[str, Any]:
    from gpu_aware_profile.node import SCHEMA, probe
    from gpu_aware_profile.timing import available_backend, make_backend
    from slurm_gpu_aware.nvml import Nvml, NvmlError

    chosen = None if no_timings else (backend or available_backend())
    timing = make_backend(chosen) if chosen else None
    talk = say if sys.stderr.isatty() else (lambda text: None)
    try:
        with Nvml() as nvml:
            report = probe(
                nvml,
                name,
                time.time(),
                timing,
                classes=classes or None,
                repeats=repeats,
                progress=talk,
            )
    except NvmlError as exc:
        error = {"index": None, "call": exc.call, "error": exc.reason}
        report = {
            "schema": SCHEMA,
            "node": name,
            "taken_at": time.time(),
            "driver": None,
            "backend": None,
            "gpus": [],
            "links": [],
            "timings": [],
            "errors": [error],
        }
    if timing is None and not no_timings and report["gpus"]:
        reason = "no timing backend works on this node; --no-timings leaves times out"
        report["errors"].append({"index": None, "call": "timing", "error": reason})
    return report


def _show(report: dict[str, Any]) -> None:
    names = sorted({t["class"] for t in report["timings"]})
    times = {(t["index"], t["class"]): f"{t['value_ms']:.1f}" for t in report["timings"]}
    rows = [
        [g["index"], g["name"], g["pci"], g["numa"], g["max_clock_mhz"], g["power_limit_w"]]
        + [times.get((g["index"], name)) for name in names]
        for g in report["gpus"]
    ]
    headers = ["GPU", "name", "PCI", "NUMA", "MHz", "W", *(f"{name} ms" for name in names)]
    click.echo(table(headers, rows, right=headers[3:]))
    if report["links"]:
        links = [[f"{k['a']} - {k['b']}", k["class"], k["gbps"]] for k in report["links"]]
        click.echo()
        click.echo(table(["link", "class", "GB/s"], links, right=["GB/s"]))
    for fault in report["errors"]:
        where = "" if fault["index"] is None else f"GPU {fault['index']}: "
        say(f"{where}{fault['call']}: {fault['error']}")


@click.command()
@store_options
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node.")
@click.option("--resume", metavar="ID", help="Go on with a sweep that was interrupted.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Nodes at a time."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1.0),
    default=900.0,
    show_default=True,
    metavar="S",
    help="Seconds that one node's probe may take.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=1.0),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for a busy node; then it is left out.",
)
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option("--backend", metavar="NAME", help="Timing backend. Default: what works there.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option(
    "--srun-option", multiple=True, metavar="OPTION", help="Passed to srun, as --account=x."
)
@click.option(
    "--command",
    default="gpu-aware-profile",
    show_default=True,
    metavar="PATH",
    help="This program on the nodes.",
)
@json_option
def sweep(
    store_path: Path | None,
    config_path: str | None,
    nodes: tuple[str, ...],
    resume: str | None,
    jobs: int,
    time_limit: float,
    wait: float,
    classes: tuple[str, ...],
    backend: str | None,
    repeats: int,
    srun_option: tuple[str, ...],
    command: str,
    as_json: bool,
) -> None:
    """Probe every GPU node through Slurm and store the results and the new scores.

    One exclusive job per node. A node that fails, hangs or stays busy is reported and left out;
    then the exit code is 3 and the sweep can be resumed for these nodes.

    \b
    Examples:
      gpu-aware-profile sweep
      gpu-aware-profile sweep --jobs 32 --srun-option=--account=ops
      gpu-aware-profile sweep --resume 20260102T030405
    """
    from gpu_aware_profile.sweep import Sweep, SweepNotes, SweepSettings
    from slurm_gpu_aware.config import load_config
    from slurm_gpu_aware.store.database import open_store
    from slurm_gpu_aware.store.profiles import merge_report, recompute_scores

    config = load_config(config_path)
    path = store_path if store_path is not None else config.store.path
    sweep_id = resume or time.strftime("%Y%m%dT%H%M%S")
    arguments = [f"--repeats={repeats}", *(f"--class={name}" for name in classes)]
    arguments += [f"--backend={backend}"] if backend else []
    try:
        settings = SweepSettings(
            sweep_id,
            command=command,
            arguments=tuple(arguments),
            concurrency=jobs,
            probe_s=time_limit,
            queue_s=wait,
            srun_options=srun_option,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    notes = SweepNotes(path.parent / "sweeps", sweep_id)
    _check_resume(notes, resume)
    targets, outcomes = _targets(nodes)
    done = notes.done()
    left = [target for target in targets if target.node not in done]
    _announce(sweep_id, len(left), len(done), notes, resume)
    with open_store(path) as store:
        notes.begin()
        running = Sweep(settings, lambda report: merge_report(store, report))
        try:
            for outcome in _shown(running.run(left), len(left)):
                outcomes.append(outcome)
                if outcome.state == "done":
                    notes.note(outcome.node)
        except KeyboardInterrupt:
            say(f"go on with: gpu-aware-profile sweep --resume {sweep_id}")
            raise
        finally:
            if any(outcome.state == "done" for outcome in outcomes):
                recompute_scores(store, config.site.classes)
    _finish(outcomes, notes, as_json)


def _check_resume(notes: Any, resume: str | None) -> None:
    known = notes.unfinished()
    if resume is not None and resume not in known:
        listed = ", ".join(known) or "none"
        raise SourceError(f"no unfinished sweep {resume!r}; unfinished: {listed}")


def _targets(nodes: tuple[str, ...]) -> tuple[list[Any], list[Outcome]]:
    from gpu_aware_profile.sweep import gpu_nodes

    targets, skipped = gpu_nodes()
    known = [t.node for t in targets] + [o.node for o in skipped]
    unknown = [name for name in nodes if name not in known]
    if unknown:
        listed = ", ".join(known[:20]) or "none"
        raise SourceError(f"{unknown[0]!r} is not a GPU node of this cluster; GPU nodes: {listed}")
    if not known:
        raise SourceError("Slurm knows no node with GPUs; check GresTypes and Gres= in slurm.conf")
    if nodes:
        targets = [t for t in targets if t.node in nodes]
        skipped = [o for o in skipped if o.node in nodes]
    return targets, skipped


def _announce(sweep_id: str, left: int, done: int, notes: Any, resume: str | None) -> None:
    already = f", {done} done before" if done else ""
    say(f"sweep {sweep_id}: {left} nodes to probe{already}")
    others = [name for name in notes.unfinished() if name != sweep_id]
    if others and resume is None:
        say(f"unfinished: {', '.join(others)} (--resume ID goes on with one)")


def _shown(outcomes: Iterator[Outcome], total: int) -> Iterable[Outcome]:
    """Pass outcomes on, with a bar on a terminal and lines elsewhere."""
    if not sys.stderr.isatty():
        for number, outcome in enumerate(outcomes, 1):
            say(f"[{number}/{total}] {_line(outcome)}")
            yield outcome
        return
    with click.progressbar(length=total, label="Probing", file=sys.stderr) as bar:
        for outcome in outcomes:
            bar.update(1)
            yield outcome


def _line(outcome: Outcome) -> str:
    if outcome.state != "done":
        return f"{outcome.node}: {outcome.state}: {outcome.reason}"
    faults = f", {outcome.faults} calls failed" if outcome.faults else ""
    return (
        f"{outcome.node}: {outcome.gpus} GPUs, {outcome.timings} timings{faults},"
        f" {outcome.took_s:.1f} s"
    )


def _finish(outcomes: list[Outcome], notes: Any, as_json: bool) -> None:
    outcomes.sort(key=lambda outcome: outcome.node)
    complete = all(outcome.state == "done" for outcome in outcomes)
    if complete:
        notes.finish()
    if as_json:
        rows = [vars(outcome) for outcome in outcomes]
        print_json({"sweep": notes.sweep_id, "complete": complete, "nodes": rows})
    else:
        headers = ["node", "state", "GPUs", "timings", "faults", "s", "reason"]
        cells = [
            [o.node, o.state, o.gpus, o.timings, o.faults, f"{o.took_s:.1f}", o.reason]
            for o in outcomes
        ]
        click.echo(table(headers, cells, right=headers[2:6]))
    if not complete:
        say(f"for the nodes left out: gpu-aware-profile sweep --resume {notes.sweep_id}")
        click.get_current_context().exit(PARTLY)
