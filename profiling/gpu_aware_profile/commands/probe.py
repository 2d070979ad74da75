"""``gpu-aware-profile node``: the probe of this node, and its report as tables."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_aware_profile.commands.options import (
    bench_options,
    bench_timing,
    check_clocks,
    classes_option,
    clock_options,
    links_options,
    runs_option,
    seconds,
    this_node,
)
from gpu_aware_profile.tables import View
from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import json_option, say, table
from slurm_gpu_aware.cli.run import signals_handled
from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.profile import IDLE

if TYPE_CHECKING:
    from gpu_aware_profile.backends.timing import Timing
    from gpu_aware_profile.probe.runs import Wanted

_KERNELS = View(
    "GPU=index, kernel=name, neighbours, >locked=clock_mhz, >ms=value_ms:.4g, >rate:.4g, unit,"
    " >of peak=share:.1%, >MHz=sm_mhz, >W=power_w, >C=temperature_c, throttled by=throttle"
)
_CLOCKS = View(
    "GPU=index, class, >locked=clock_mhz, >limit W=limit_w, >MHz=sm_mhz, >ms=value_ms:.4g,"
    " >W=power_w, >J=energy_j"
)
_LINKS = View("link, class, >GB/s=gbps")
_BANDWIDTHS = View(
    "measured, >a to b GB/s=ab_gbps, >b to a GB/s=ba_gbps, >both GB/s=both_gbps,"
    " >latency us=latency_us"
)
_RINGS = View("all-reduce of GPUs=gpus, >bus GB/s=gbps")


@click.command()
@click.option("--backend", metavar="NAME", help="Timing backend. Default: one that works here.")
@click.option("--no-timings", is_flag=True, help="Report identity, links and clocks only.")
@bench_options
@classes_option
@runs_option
@click.option(
    "--loaded/--no-loaded",
    default=True,
    help="Measure all GPUs of the node at the same time, too (default), or not.",
)
@links_options
@clock_options
@seconds(
    "--warm-up",
    default=30.0,
    least=0,
    most=120,
    text="Limit of the warm-up of a run with kernels, in seconds; it ends before if the"
    " temperature is steady.",
)
@seconds("--time-limit", least=0, text="Begin no run later than this many seconds after the start.")
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
    backend: str | None, no_timings: bool, node_name: str | None, as_json: bool, **given: Any
) -> None:
    """Probe the GPUs of this node and print the report; nothing is stored.

    Real GPUs are measured with kernels of the classes A, B and C (backend 'kernels', needs the
    extra 'gpu'), or with a program of your own (--bench).

    Each GPU is measured alone, and then all of them at the same time; both are stored, and scores
    are computed from the first.

    A GPU that cannot be read is listed under errors, and the others are reported (exit code 0).
    Exit code 1: no GPU could be read. SIGINT and SIGTERM end the measurement; what was measured
    until then is printed (exit code 130).

    \b
    Example:
      gpu-aware-profile node --json
    """
    from gpu_aware_profile.probe.node import probe
    from gpu_aware_profile.probe.runs import fault

    name = node_name or this_node()
    _check_usage(backend, no_timings, given)
    timing, unusable = None, None
    if not no_timings:
        timing, unusable = _timing(bench_timing(given), backend)
    wanted = _wanted(given)
    with signals_handled(lambda *_: wanted.stopped.set()):  # no exception ends it in between
        report = probe(name, timing, wanted)
    if unusable is not None:
        report["errors"].append(fault(None, unusable))
    if as_json:
        click.echo(json.dumps(report, separators=(",", ":")))
    else:
        show_report(report)
        if report["gpus"] and timing is None and unusable is None and not no_timings:
            say(f"no times: {not_installed('CuPy', 'gpu')}; or use --bench, or import times")
    if not report["gpus"]:
        say(f"{name}: no GPU could be read")
        click.get_current_context().exit(1)
    if wanted.stopped.is_set():
        say("stopped by a signal")
        click.get_current_context().exit(INTERRUPTED)


def _wanted(given: Mapping[str, Any]) -> Wanted:
    """What the options ask."""
    from gpu_aware_profile.probe.runs import Wanted

    return Wanted(
        given["classes"],
        given["runs"],
        given["loaded"],
        warm_up_s=given["warm_up"],
        limit_s=math.inf if given["time_limit"] is None else given["time_limit"],
        clock_steps=given["clocks"],
        limit_steps=given["power_limits"],
        sysfs=given["sysfs"],
        links_s=given["links_time"] if given["links"] else 0.0,
        progress=say if sys.stderr.isatty() else (lambda text: None),
    )


def _check_usage(backend: str | None, no_timings: bool, given: Mapping[str, Any]) -> None:
    """Raise UsageError for options that exclude or need each other."""
    if given["bench"] is not None and (no_timings or given["classes"] or backend is not None):
        raise click.UsageError("--bench excludes --backend, --class and --no-timings")
    check_clocks(given)
    if given["clocks"] and no_timings:
        raise click.UsageError("--clocks excludes --no-timings")


def _timing(
    program: Timing | None, backend: str | None
) -> tuple[Timing | None, SourceError | None]:
    """The backend if there is one, and why it cannot work. Raises SourceError if it is named."""
    from gpu_aware_profile.backends.timing import timing_backend

    if program is not None:
        return program, None
    try:
        return timing_backend(backend), None
    except SourceError as exc:
        if backend is not None:
            raise
        return None, exc


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
    of_kernels = [
        timing | kernel | {"clock_mhz": timing["clock_mhz"] or None}
        for timing in report["timings"]
        for kernel in timing.get("kernels", ())
    ]
    _KERNELS.show(of_kernels)
    locked = [timing for timing in report["timings"] if timing["clock_mhz"]]
    _CLOCKS.show([timing | {"limit_w": timing.get("limit_w") or None} for timing in locked])
    _LINKS.show([k | {"link": f"{k['a']} - {k['b']}"} for k in report["links"]])
    pairs = [k | {"measured": f"{k['a']} - {k['b']}"} for k in report.get("bandwidths", ())]
    _BANDWIDTHS.show(pairs)
    sets = [k | {"gpus": " ".join(map(str, k["gpus"]))} for k in report.get("collectives", ())]
    _RINGS.show(sets)
    for fault in report["errors"]:
        where = "" if fault["index"] is None else f"GPU {fault['index']}: "
        say(f"{where}{fault['call']}: {fault['error']}")
