"""``gpu-aware-profile node``: the probe of this node."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware.cli.output import json_option, say, table

__all__ = ["node"]


@click.command()
@click.option("--backend", metavar="NAME", help="Timing backend. Default: one that works here.")
@click.option("--no-timings", is_flag=True, help="Report identity, links and clocks only.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Runs per GPU and class.",
)
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
    repeats: int,
    sysfs: Path,
    node_name: str | None,
    as_json: bool,
) -> None:
    """Probe the GPUs of this node and print the report; nothing is stored.

    Only fake GPUs are timed; times of real GPUs are imported.

    A GPU that cannot be read is listed under errors, and the others are reported (exit code 0).
    Exit code 1: no GPU could be read.

    \b
    Example:
      gpu-aware-profile node --json
    """
    from gpu_aware_profile.node import probe
    from gpu_aware_profile.timing import timing_backend

    # Slurm's name: that of slurmd inside a job, else the short host name.
    short = socket.gethostname().partition(".")[0]
    name = node_name or os.environ.get("SLURMD_NODENAME") or short
    timing = None if no_timings else timing_backend(backend)
    talk = say if sys.stderr.isatty() else (lambda text: None)
    report = probe(name, timing, classes=classes, repeats=repeats, progress=talk, sysfs=sysfs)
    if as_json:
        click.echo(json.dumps(report, separators=(",", ":")))
    else:
        _show(report)
        if report["backend"] is None and report["gpus"] and not no_timings:
            say("no times: the only timing backend is that of fake GPUs; import the times")
    if not report["gpus"]:
        say(f"{name}: no GPU could be read")
        click.get_current_context().exit(1)


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
