"""``gpu-aware simulate``: runs of a trace with several policies; ``report``: their pictures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.cli.options import (
    NODES,
    PENALTY,
    SECONDS,
    SOME_SECONDS,
    Context,
    Number,
    pass_context,
)
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.errors import RequestError, not_installed

__all__ = ["report", "simulate"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("simulate")
@click.argument("trace", required=False, type=_FILE)
@click.option(
    "--policy",
    "-p",
    "policies",
    multiple=True,
    metavar="NAME[:sticky|:non-sticky]",
    help="Policy to simulate; repeatable. Ratios refer to the first. Default: lowest-index, which "
    "places as Slurm does, and the site's policy. --what-if always has lowest-index first.",
)
@click.option(
    "--order",
    metavar="ORDER",
    help="Order of the queue: fifo, las, srtf, priority, edf. Default: fifo; priority, as Slurm "
    "recorded it, for --what-if.",
)
@click.option(
    "--round",
    "round_s",
    type=SOME_SECONDS,
    metavar="S",
    help="Plan at multiples of S seconds (PAL: 300). Default: at every arrival and end.",
)
@click.option("--backfill/--no-backfill", default=None, help="EASY backfill. Default: the site's.")
@click.option(
    "--locality-penalty",
    type=PENALTY,
    metavar="L",
    help="Slowdown of a job that spans nodes, of any class. Default: the site's; on the store's"
    " cluster the measured one, unless the configuration sets it.",
)
@click.option(
    "--migration",
    "migration_s",
    type=SECONDS,
    default=60.0,
    metavar="S",
    help="Cost of a restart or a move.",
)
@click.option(
    "--nodes", type=NODES, metavar="N", help="Simulate N equal nodes, not the store's cluster."
)
@click.option(
    "--gpus-per-node", type=click.IntRange(1, MAX_GPUS_PER_NODE), metavar="G", help="GPUs of each."
)
@click.option("--machine", metavar="NAME", help="Kind of machine of each node, with its links.")
@click.option(
    "--any-indices",
    is_flag=True,
    help="A job may get different GPU indices on its nodes (not possible in Slurm).",
)
@click.option(
    "--variability",
    multiple=True,
    metavar="CLASS=FILE.csv",
    help="Measured times of GPUs (columns gpu,node,value_ms) for a class; repeatable.",
)
@click.option(
    "--draw",
    default="gpus",
    metavar="HOW",
    help="How GPUs are drawn from those files: gpus, nodes, repeat, runs.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of all draws.")
@click.option(
    "--class-column", default="class", metavar="NAME", help="Column of a CSV trace with the class."
)
@click.option(
    "--sacct", metavar="FILE|live", help="Jobs from sacct: a saved file, or this cluster's records."
)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    metavar="N",
    help="Last N days of the history. Default: 90 of a live one, all of a file.",
)
@click.option(
    "--synthetic",
    type=click.IntRange(1, 1_000_000),
    metavar="JOBS",
    help="Synthetic trace of this many jobs with Poisson arrivals.",
)
@click.option(
    "--jobs-per-hour", type=Number(0, 10**9, min_open=True), default=10.0, help="Rate of arrivals."
)
@click.option(
    "--profile",
    type=_FILE,
    metavar="FILE.json",
    help="Times of jobs alone and of pairs, for --interference; topo-aware and topo-aware-p place"
    " by it.",
)
@click.option(
    "--variability-effect/--no-variability-effect",
    default=True,
    help="Jobs run at the pace of their slowest GPU.",
)
@click.option(
    "--locality-effect/--no-locality-effect", default=True, help="L slows jobs that span nodes."
)
@click.option(
    "--bandwidth-share",
    type=Number(0, 1, max_open=True),
    metavar="C",
    help="Links slow bandwidth-sensitive jobs; C is the share of communication in their time "
    "at the best bandwidth (measured: 0.107).",
)
@click.option("--interference", is_flag=True, help="Neighbours slow each other as in --profile.")
@click.option(
    "--what-if",
    is_flag=True,
    help="Replay the live history (or --sacct) on the store's cluster, placed as Slurm does and "
    "by the policies, and compare it with Slurm's record.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of parallel runs. Default: one per CPU.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write one CSV of jobs per policy; 'gpu-aware report DIR' draws them.",
)
@json_option
@pass_context
def simulate(context: Context, /, **given: Any) -> None:
    """Run a trace through the live planner on a virtual clock, one run per policy.

    TRACE is a CSV (job_id, submit_s, gpus, duration_s; optional class, model, nodes,
    time_limit_s, deadline_s, bw, pattern, priority, user) or sacct output. The cluster is the
    store's unless --nodes is given. Bad rows are reported on stderr with their line numbers.

    \b
    Examples:
      gpu-aware simulate trace.csv --nodes 16 --gpus-per-node 4 --variability A=resnet.csv --json
      gpu-aware simulate trace.csv -p packed -p pal --round 300
      gpu-aware simulate --synthetic 1000 --jobs-per-hour 30 --nodes 8 --machine dgx-1-v100
      gpu-aware simulate --sacct live --out results
      gpu-aware simulate --what-if --days 90 --out results
    """
    from slurm_gpu_aware.cli import simulation
    from slurm_gpu_aware.simulator.files import save_results
    from slurm_gpu_aware.simulator.history import recorded_result
    from slurm_gpu_aware.simulator.parallel import run_all
    from slurm_gpu_aware.simulator.result import ended_in_all

    try:
        inputs = simulation.gather(context.config(check_policies=True), given)
    except ValueError as exc:
        raise RequestError(str(exc)) from None
    simulation.say_inputs(inputs, [entry.partition("=")[0] for entry in given["variability"]])
    if not inputs.trace.jobs:
        raise RequestError(f"{inputs.trace.name}: no usable job, nothing to simulate")
    bar = simulation.Progress([s.label for s in inputs.settings], len(inputs.trace.jobs))
    results = run_all(
        inputs.runs(), timer=time.perf_counter, processes=given["processes"], progress=bar.show
    )
    bar.done()
    if given["what_if"]:
        ended = ended_in_all(results)
        results = [recorded_result(inputs.trace, inputs.site.cluster, ended), *results]
    simulation.say_results(results)
    output = simulation.as_json(inputs, results)
    if given["out"] is not None:
        save_results(given["out"], output, results)
        say(f"wrote {given['out']}; pictures: gpu-aware report {given['out']}")
    if given["as_json"]:
        print_json(output)
    else:
        click.echo(simulation.table_text(output))


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def report(folder: Path, as_json: bool) -> None:
    """Draw the results of 'gpu-aware simulate --out DIR': a self-contained page and its pictures.

    Needs matplotlib (the extra 'plots': pip install '.[plots]' in the source folder).

    \b
    Examples:
      gpu-aware simulate --what-if --out results && gpu-aware report results
      gpu-aware report results --json
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError(not_installed("matplotlib", "plots")) from None
    from slurm_gpu_aware.simulator.report import write_report

    written, sentences = write_report(folder)
    if as_json:
        print_json({"files": [str(path) for path in written], "summary": sentences})
        return
    for sentence in sentences:
        click.echo(sentence)
    say(f"wrote {written[0]} and {len(written) - 1} pictures beside it")
