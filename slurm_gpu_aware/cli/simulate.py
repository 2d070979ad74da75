"""``gpu-aware simulate``: runs of a trace with several policies; ``report``: their pictures."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.cli.options import (
    NODES,
    PENALTY,
    SECONDS,
    SOME_SECONDS,
    Context,
    Number,
    options_with,
    pass_context,
)
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.cli.run_options import RunOptions
from slurm_gpu_aware.errors import RequestError, not_installed
from slurm_gpu_aware.features import found

_FILE = click.Path(dir_okay=False, path_type=Path)
_Command = TypeVar("_Command", bound=Callable[..., Any])
RUN_OPTIONS: tuple[type[RunOptions], ...] = tuple(found("simulate_options", "RUN_OPTIONS"))


_HELP = {
    "--policy": "Policy to simulate; repeatable. MODE is sticky, non-sticky or moves; with --eta "
    "also as-asked, zeus, powerflow, afs, sts or sts-preempt. With ':no-due' at the end due dates "
    "play no part. Ratios refer to the first. Default: slurm, as Slurm places, and the "
    "site's policy. --what-if always has slurm first.",
    "--order": "Order of the queue: fifo, las, srtf, priority, edf. Default: fifo; priority, as "
    "Slurm recorded it, for --what-if.",
    "--fairshare": "Order by Slurm's priority/multifactor: of this cluster, or of a file with the "
    "output of 'scontrol show config' and 'sshare --all --parsable2'. Usage is 0 at first.",
    "--round": "Plan at multiples of S seconds (PAL: 300). Default: at every arrival and end.",
    "--backfill/--no-backfill": "EASY backfill. Default: the site's.",
    "--locality-penalty": "Slowdown of a job that spans nodes, of any class. Default: the site's; "
    "on the store's cluster the measured one, unless the configuration sets it.",
    "--migration": "Time that a restart or a move costs jobs that do not say it themselves. "
    "Default: restart_s of the class, else of [moves].",
    "--overrun": "Jobs that reach their time limit: kill, as in Slurm, or extend: all limits are "
    "long enough for the slowest GPUs.",
    "--nodes": "Simulate N equal nodes, not the store's cluster.",
    "--gpus-per-node": "GPUs of each.",
    "--machine": "Kind of machine of each node, with its links.",
    "--any-indices": "A job may get different GPU indices on its nodes (not possible in Slurm).",
    "--variability": "Measured times of GPUs (columns gpu,node,value_ms) for a class; repeatable.",
    "--draw": "How GPUs are drawn from those files: gpus, nodes, repeat, runs.",
    "--seed": "Seed of all draws.",
    "--seeds": "Run N seeds from --seed on, with GPUs of --variability and jobs of --synthetic "
    "drawn anew. Numbers are means, with their range.",
    "--class-column": "Column of a CSV trace with the class.",
    "--sacct": "Jobs from sacct: a saved file, or this cluster's records.",
    "--days": "Last N days of the history. Default: 90 of a live one, all of a file.",
    "--synthetic": "Synthetic trace of this many jobs with Poisson arrivals.",
    "--jobs-per-hour": "Rate of arrivals.",
    "--profile": "Times of jobs alone and of pairs, for --interference; topo-aware and "
    "topo-aware-p place by it.",
    "--variability-effect/--no-variability-effect": "Jobs run at the pace of their slowest GPU.",
    "--locality-effect/--no-locality-effect": "L slows jobs that span nodes.",
    "--bandwidth-share": "Links slow bandwidth-sensitive jobs; C is the share of communication in "
    "their time at the best bandwidth, for applications (column model) that have no measured one.",
    "--interference": "Neighbours slow each other as in --profile.",
    "--interference-scope": "Neighbours, for topo-aware too: jobs on a socket or on a machine. "
    "Default: socket; for topo-aware the site's.",
    "--what-if": "Replay the live history (or --sacct) on the store's cluster, placed as Slurm "
    "does and by the policies, and compare it with Slurm's record.",
    "--processes": "Number of parallel runs. Default: one per CPU.",
    "--out": "Write one CSV of jobs per policy; 'gpu-aware report DIR' draws them.",
}
_option = options_with(_HELP)
_NEEDS = {
    "draw": ("variability",),
    "jobs_per_hour": ("synthetic",),
    "days": ("sacct", "what_if"),
    "class_column": ("trace",),
    **{name: others for each in RUN_OPTIONS for name, others in each.needs},
}
"""Option -> those of which one has to be given, too; otherwise it would have no effect."""


def _refuse_idle(given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that would have no effect."""
    source = click.get_current_context().get_parameter_source
    for name, needed in _NEEDS.items():
        if source(name) is click.core.ParameterSource.COMMANDLINE and not any(
            map(given.get, needed)
        ):
            others = " or ".join("TRACE" if n == "trace" else _typed(n) for n in needed)
            raise click.UsageError(f"{_typed(name)} needs {others}")


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def feature_options(command: _Command) -> _Command:
    """Add the options of features."""
    for add in reversed([option for each in RUN_OPTIONS for option in each.options]):
        command = add(command)
    return command


def cluster_options(command: _Command) -> _Command:
    """Add the options of a cluster that is not the store's."""
    for add in reversed(
        (
            _option("--nodes", type=NODES, metavar="N"),
            _option("--gpus-per-node", type=click.IntRange(1, MAX_GPUS_PER_NODE), metavar="G"),
            _option("--machine", metavar="NAME"),
            _option("--variability", multiple=True, metavar="CLASS=FILE.csv"),
        )
    ):
        command = add(command)
    return command


@click.command("simulate")
@click.argument("trace", required=False, type=_FILE)
@_option("--policy", "-p", "policies", multiple=True, metavar="NAME[:MODE]")
@_option("--order", metavar="ORDER")
@_option("--fairshare", metavar="FILE|live")
@_option("--round", "round_s", type=SOME_SECONDS, metavar="S")
@_option("--backfill/--no-backfill", default=None)
@_option("--locality-penalty", type=PENALTY, metavar="L")
@_option("--migration", "migration_s", type=SECONDS, metavar="S")
@_option("--overrun", default="kill", metavar="RULE")
@feature_options
@cluster_options
@_option("--any-indices", is_flag=True)
@_option("--draw", default="gpus", metavar="HOW")
@_option("--seed", type=click.IntRange(0), default=0)
@_option("--seeds", type=click.IntRange(1, 1000), default=1, metavar="N")
@_option("--class-column", default="class", metavar="NAME")
@_option("--sacct", metavar="FILE|live")
@_option("--days", type=click.IntRange(1, 36_500), metavar="N")
@_option("--synthetic", type=click.IntRange(1, 1_000_000), metavar="JOBS")
@_option("--jobs-per-hour", type=Number(0, 10**9, min_open=True), default=10.0)
@_option("--profile", type=_FILE, metavar="FILE.json")
@_option("--variability-effect/--no-variability-effect", default=True)
@_option("--locality-effect/--no-locality-effect", default=True)
@_option("--bandwidth-share", type=Number(0, 1, max_open=True), metavar="C")
@_option("--interference", is_flag=True)
@_option("--interference-scope", metavar="socket|machine")
@_option("--what-if", is_flag=True)
@_option("--processes", type=click.IntRange(1, 1024), metavar="N")
@_option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@json_option
@pass_context
def simulate(context: Context, /, **given: Any) -> None:
    """Run a trace through the live planner on a virtual clock, one run per policy.

    TRACE is a CSV (job_id, submit_s, gpus, duration_s; optional class, model, nodes,
    time_limit_s, deadline_s, weight, bw, pattern, priority, sizes, move, slower, user, name,
    account) or sacct output (- reads stdin). The cluster is the store's unless --nodes is given.
    Bad rows are reported on stderr with their line numbers.

    \b
    Examples:
      gpu-aware simulate trace.csv --nodes 16 --gpus-per-node 4 --variability A=resnet.csv --json
      gpu-aware simulate trace.csv -p packed -p pal --round 300
      gpu-aware simulate --synthetic 1000 --jobs-per-hour 30 --nodes 8 --machine dgx-1-v100
      gpu-aware simulate --sacct live --out results
      gpu-aware simulate --what-if --days 90 --out results
    """
    from slurm_gpu_aware.cli import simulation_text
    from slurm_gpu_aware.cli.simulation import gather_seeds
    from slurm_gpu_aware.selector.policy_options import config_in_force
    from slurm_gpu_aware.simulator.files import save_results
    from slurm_gpu_aware.simulator.history import recorded_result
    from slurm_gpu_aware.simulator.parallel import run_all
    from slurm_gpu_aware.simulator.result import ended_in_all

    _refuse_idle(given)
    try:
        config = config_in_force(context.config(check_policies=True))
        seeds = gather_seeds(config, given)
    except ValueError as exc:
        raise RequestError(str(exc)) from None
    inputs = seeds[0]
    simulation_text.say_inputs(inputs, [entry.partition("=")[0] for entry in given["variability"]])
    if not inputs.trace.jobs:
        raise RequestError(f"{inputs.trace.name}: no usable job, nothing to simulate")
    bar = simulation_text.Progress(
        [s.label for s in inputs.settings], sum(len(each.trace.jobs) for each in seeds)
    )
    done = iter(
        run_all(
            [run for each in seeds for run in each.runs()],
            timer=time.perf_counter,
            processes=given["processes"],
            progress=bar.show,
        )
    )
    found = [[next(done) for _ in inputs.settings] for _ in seeds]
    bar.done()
    if given["what_if"]:
        found = [
            [recorded_result(each.trace, each.site.cluster, ended_in_all(results)), *results]
            for each, results in zip(seeds, found, strict=True)
        ]
    results = found[0]
    simulation_text.say_results(results)
    output = simulation_text.as_json(inputs, found)
    if given["out"] is not None:
        save_results(given["out"], output, results)
        say(f"wrote {given['out']}; pictures: gpu-aware report {given['out']}")
    if given["as_json"]:
        print_json(output)
    else:
        click.echo(simulation_text.table_text(output))


_REPORT_HELP = {
    "--days": "Without DIR: jobs that ended then.",
    "--power": "Without DIR: draw planned and measured power over these days into FILE (.png, "
    ".svg).",
    "--shadow": "Without DIR: what Slurm's choices cost (selectd --shadow).",
    "--orders": "With --shadow: propose an order of the queue from sacct, and say who pays (as "
    "tune).",
    "--energy": "Without DIR: the energy of jobs alone.",
}
_report_option = options_with(_REPORT_HELP)


@click.command("report")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@_report_option("--days", type=click.IntRange(1, 36_500), default=30)
@_report_option("--power", "power_file", type=_FILE, metavar="FILE")
@_report_option("--shadow", is_flag=True)
@_report_option("--orders", is_flag=True)
@_report_option("--energy", is_flag=True)
@json_option
@pass_context
def report(
    context: Context,
    folder: Path | None,
    days: int,
    power_file: Path | None,
    shadow: bool,
    orders: bool,
    energy: bool,
    as_json: bool,
) -> None:
    """Draw the results of 'gpu-aware simulate --out DIR'; without DIR, report on this site's jobs.

    With DIR: a self-contained page and its pictures. Needs matplotlib (the extra 'plots': pip
    install '.[plots]' in the source folder).

    Without DIR: how long this site's jobs ran, against the time that was expected from earlier runs
    when they were placed; and the energy of their GPUs by user and class, where prolog and epilog
    keep accounts of it. With --energy: that alone, and what clocks that save energy cost and saved.

    With --shadow: by week and partition, the jobs on GPUs without a direct link, on slower GPUs,
    and on nodes that they broke up without need, as 'gpu-aware selectd --shadow' has seen them.
    With --orders, too: what other orders of the queue bring, as 'gpu-aware tune' compares them.

    \b
    Examples:
      gpu-aware report --days 90
      gpu-aware report --energy
      gpu-aware report --shadow --orders
      gpu-aware report --days 2 --power power.png
      gpu-aware simulate --what-if --out results && gpu-aware report results
      gpu-aware report results --json
    """
    if energy and (shadow or folder is not None or power_file is not None):
        raise click.UsageError("--energy takes neither DIR nor --power nor --shadow")
    if orders and not shadow:
        raise click.UsageError("--orders needs --shadow")
    if shadow:
        if folder is not None or power_file is not None:
            raise click.UsageError("--shadow takes neither DIR nor --power")
        from slurm_gpu_aware.features.shadow.view import report_shadow

        report_shadow(context, days, orders=orders, as_json=as_json)
        return
    if power_file is not None:
        if folder is not None:
            raise RequestError("--power: draws the site's power, not that of a simulation in DIR")
        from slurm_gpu_aware.features.power.commands import report_power

        report_power(context, days, power_file, as_json=as_json)
        return
    if folder is None:
        from slurm_gpu_aware.features.estimates.view import report_site

        report_site(context, days, energy_alone=energy, as_json=as_json)
        return
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
