"""``gpu-aware-profile node``: the probe of this node."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gpu_aware_profile.cli import links_options
from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import json_option, say, table
from slurm_gpu_aware.model.profile import IDLE

__all__ = ["node"]

_BANDWIDTHS = {
    "ab_gbps": "a to b GB/s",
    "ba_gbps": "b to a GB/s",
    "both_gbps": "both GB/s",
    "latency_us": "latency us",
}


@click.command()
@click.option("--backend", metavar="NAME", help="Timing backend. Default: one that works here.")
@click.option("--no-timings", is_flag=True, help="Report identity, links and clocks only.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs per GPU and class.",
)
@click.option(
    "--loaded/--no-loaded",
    default=True,
    help="Measure all GPUs of the node at the same time, too (default), or not.",
)
@links_options
@click.option(
    "--sysfs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/sys"),
    show_default=True,
    metavar="DIR",
    help="The host's sysfs, for NICs and their paths; elsewhere in a container.",
)
@click.option("--node-name", metavar="NAME", help="Default: Slurm's name of this node.")
@json_option
def node(
    backend: str | None,
    no_timings: bool,
    classes: tuple[str, ...],
    runs: int,
    loaded: bool,
    links: bool,
    links_time: float,
    sysfs: Path,
    node_name: str | None,
    as_json: bool,
) -> None:
    """Probe the GPUs of this node and print the report; nothing is stored.

    Only fake GPUs are timed; times of real GPUs are imported.

    Each GPU is measured alone, and then all of them at the same time; both are stored, and scores
    are computed from the first.

    A GPU that cannot be read is listed under errors, and the others are reported (exit code 0).
    Exit code 1: no GPU could be read. SIGINT and SIGTERM end the measurement; what was measured
    until then is printed (exit code 130).

    \b
    Example:
      gpu-aware-profile node --json
    """
    from gpu_aware_profile.node import Wanted, probe
    from gpu_aware_profile.timing import timing_backend

    # Slurm's name: that of slurmd inside a job, else the short host name.
    short = socket.gethostname().partition(".")[0]
    name = node_name or os.environ.get("SLURMD_NODENAME") or short
    timing = None if no_timings else timing_backend(backend)
    talk = say if sys.stderr.isatty() else (lambda text: None)
    links_s = links_time if links else 0.0
    wanted = Wanted(classes, runs, loaded, sysfs=sysfs, links_s=links_s, progress=talk)
    with _stopped_by_signals(wanted.stopped):
        report = probe(name, timing, wanted)
    if as_json:
        click.echo(json.dumps(report, separators=(",", ":")))
    else:
        _show(report)
        if report["backend"] is None and report["gpus"] and not no_timings:
            say("no times: the only timing backend is that of fake GPUs; import the times")
    if not report["gpus"]:
        say(f"{name}: no GPU could be read")
        click.get_current_context().exit(1)
    if wanted.stopped.is_set():
        say("stopped by a signal")
        click.get_current_context().exit(INTERRUPTED)


@contextmanager
def _stopped_by_signals(stopped: threading.Event) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP, however many, end the measurement without an exception."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(report: dict[str, Any]) -> None:
    runs: dict[tuple[int, str], list[float]] = {}
    for timing in report["timings"]:
        if timing["neighbours"] == IDLE:
            runs.setdefault((timing["index"], timing["class"]), []).append(timing["value_ms"])
    names = sorted({name for _, name in runs})
    times = {key: f"{statistics.median(values):.1f}" for key, values in runs.items()}
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
    if report.get("bandwidths"):
        measured = [
            [f"{k['a']} - {k['b']}", *(k[name] for name in _BANDWIDTHS)]
            for k in report["bandwidths"]
        ]
        click.echo()
        click.echo(table(["measured", *_BANDWIDTHS.values()], measured, right=_BANDWIDTHS.values()))
    if report.get("collectives"):
        rings = [[" ".join(map(str, k["gpus"])), k["gbps"]] for k in report["collectives"]]
        click.echo()
        click.echo(table(["all-reduce of GPUs", "bus GB/s"], rings, right=["bus GB/s"]))
    for fault in report["errors"]:
        where = "" if fault["index"] is None else f"GPU {fault['index']}: "
        say(f"{where}{fault['call']}: {fault['error']}")
