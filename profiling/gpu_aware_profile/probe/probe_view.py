"""Report of a probe as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import click

from slurm_gpu_aware.cli.output import say, table
from slurm_gpu_aware.model.profile import IDLE

_BANDWIDTHS = {
    "ab_gbps": "a to b GB/s",
    "ba_gbps": "b to a GB/s",
    "both_gbps": "both GB/s",
    "latency_us": "latency us",
}


def show_report(report: Mapping[str, Any]) -> None:
    """Print GPUs with the median of their runs, kernels, links, and errors on standard error."""
    runs: dict[tuple[int, str], list[float]] = {}
    for timing in report["timings"]:
        if timing["neighbours"] == IDLE and not timing["clock_mhz"]:
            runs.setdefault((timing["index"], timing["class"]), []).append(timing["value_ms"])
    names = sorted({name for _, name in runs})
    times = {key: f"{statistics.median(values):.4g}" for key, values in runs.items()}
    rows = [
        [g["index"], g["name"], g["pci"], g["numa"], g["max_clock_mhz"], g["power_limit_w"]]
        + [times.get((g["index"], name)) for name in names]
        for g in report["gpus"]
    ]
    headers = ["GPU", "name", "PCI", "NUMA", "MHz", "W", *(f"{name} ms" for name in names)]
    click.echo(table(headers, rows, right=headers[3:]))
    _show_kernels(report)
    _show_clocks(report)
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


def _show_clocks(report: Mapping[str, Any]) -> None:
    """Time, power and energy at each locked clock."""
    rows = [
        [
            *(timing["index"], timing["class"], timing["clock_mhz"], timing["sm_mhz"]),
            *(f"{timing['value_ms']:.4g}", timing["power_w"], timing["energy_j"]),
        ]
        for timing in report["timings"]
        if timing["clock_mhz"]
    ]
    if rows:
        headers = ["GPU", "class", "locked", "MHz", "ms", "W", "J"]
        click.echo()
        click.echo(table(headers, rows, right=headers[2:]))


def _show_kernels(report: Mapping[str, Any]) -> None:
    """Rates of each kernel in each run, and their shares of the vendor's peak."""
    rows = [
        [
            *(timing["index"], kernel["name"], timing["neighbours"], timing["clock_mhz"] or None),
            *(f"{kernel['value_ms']:.4g}", f"{kernel['rate']:.4g}", kernel["unit"]),
            None if kernel["share"] is None else f"{100 * kernel['share']:.1f}%",
            *(timing["sm_mhz"], timing["power_w"], timing["temperature_c"], timing["throttle"]),
        ]
        for timing in report["timings"]
        for kernel in timing.get("kernels", ())
    ]
    if rows:
        headers = ["GPU", "kernel", "neighbours", "locked", "ms", "rate", "unit", "of peak"]
        headers += ["MHz", "W", "C", "throttled by"]
        click.echo()
        click.echo(table(headers, rows, right=[*headers[3:6], *headers[7:11]]))
