"""``gpu-aware-profile show`` and ``export``: the measurements for users and programs."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import click

from gpu_aware_profile.cli import store_options
from gpu_aware_profile.commands.options import classes_option, nodes_option
from gpu_aware_profile.imports.import_rows import TIMING_COLUMNS
from gpu_aware_profile.tables import (
    LEVEL_TIME,
    SCORE,
    SUMMARY,
    Record,
    View,
    everything,
    fault_records,
    penalties_of,
    penalty_table,
    records,
    score_table,
    summarise,
    timing_records,
    write_csv,
)
from slurm_gpu_aware.cli.output import json_option, json_text, print_json, say
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import Gpu, GpuRecord, GpuScore
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.measurements import level_times, listed
from slurm_gpu_aware.store.profiles import load_profile, score_rows

_JOBS = View("class, node, >GPU=gpu, >PM score=pm_score:.4f, >from jobs=job_score:.4f, >jobs")
_FAULTS = View("node, >GPU=gpu, call, error")
_PROFILES = View("node, >GPU=gpu, requested, offered")


@click.command()
@store_options
@classes_option
@nodes_option
@click.option(
    "--sort",
    type=click.Choice(["score", "node"]),
    default="score",
    show_default=True,
    help="Best GPU first, or by node and GPU.",
)
@click.option(
    "--worst",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Only the N slowest GPUs of each class.",
)
@click.option("--summary", "only_summary", is_flag=True, help="Only the spread per class.")
@click.option("--levels", "only_levels", is_flag=True, help="Only the locality penalties.")
@click.option("--topology", is_flag=True, help="Only links and NICs of each node.")
@click.option("--jobs", "only_jobs", is_flag=True, help="Only scores from finished jobs.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
def show(
    path: Path,
    config: Config,
    classes: tuple[str, ...],
    nodes: tuple[str, ...],
    sort: str,
    worst: int | None,
    only_summary: bool,
    only_levels: bool,
    topology: bool,
    only_jobs: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show the PM score of every GPU for every class, and the spread of the classes.

    PM score: time divided by that of the median GPU of the model; 1.1 = 10% slower. Score: the
    PM score after binning; placement uses it. The spread is the geometric mean of time over best
    time, minus 1.

    Locality penalties are shown for measured classes; --levels shows those of all classes. L is the
    penalty that placement uses, "from" its origin: a value of the configuration takes precedence
    over a measured one, and that over the default.

    --topology prints what 'nvidia-smi topo -m' prints of each node, and measured bandwidths.

    --jobs shows, beside the PM score, the run time of finished jobs on each GPU over the median of
    jobs of the same user, name and size (3 jobs or more of each). Placement does not use it.

    \b
      gpu-aware-profile show
      gpu-aware-profile show --class A --node n1 --json
      gpu-aware-profile show --worst 10
      gpu-aware-profile show --levels
      gpu-aware-profile show --topology --node n1
      gpu-aware-profile show --jobs
    """
    if as_json and as_csv:
        raise click.UsageError("give one of --json and --csv, not both")
    if only_summary and as_csv:
        raise click.UsageError("--summary has no CSV form; use --json")
    if only_levels and (only_summary or nodes):
        raise click.UsageError("--levels goes with neither --summary nor --node")
    if topology:
        if as_csv or only_levels or only_summary or classes or worst:
            raise click.UsageError("--topology goes with --node and --json only")
        _show_topology(replace(config.store, path=path), nodes, as_json=as_json)
        return
    if only_jobs:
        if as_csv or only_levels or only_summary or classes or nodes or worst:
            raise click.UsageError("--jobs goes with --json only")
        _show_jobs(replace(config.store, path=path), as_json=as_json)
        return
    with open_for_reading(replace(config.store, path=path)) as store:
        penalties = penalties_of(store, config, classes if only_levels else ())
        rows = [] if only_levels else _selected(score_rows(store), classes, nodes)
        profile = load_profile(store)
    summary = summarise(rows)
    rows = rows if worst is None else _worst(rows, worst)
    if sort == "node":
        rows.sort(key=lambda r: (r.node, r.slot, r.app_class))
    answer = {
        "summary": summary,
        "penalties": [row for row in penalties if not classes or row["class"] in classes],
        "faults": [f for f in fault_records(profile.faults) if not nodes or f["node"] in nodes],
        "power_profiles": _profiles(profile.gpus, nodes),
        "gpus": records(rows, SCORE),
    }
    if only_levels:
        answer = {"penalties": penalties}
    elif only_summary:
        del answer["gpus"]
    if as_json:
        print_json({"store": str(store.path), **answer})
    elif as_csv:
        flat = answer["penalties" if only_levels else "gpus"]
        write_csv(sys.stdout, flat, list(flat[0]) if flat else TIMING_COLUMNS)
    elif only_levels:
        click.echo(penalty_table(penalties))
    else:
        if not rows:
            say("no scores yet: 'gpu-aware-profile sweep', then 'gpu-aware-profile import FILE'")
        click.echo(_text(rows, answer))


def _profiles(gpus: Mapping[Gpu, GpuRecord], nodes: Collection[str]) -> list[Record]:
    """Power profiles of the GPUs that have some; ``nodes``: empty: of all."""
    return [
        {"node": node, "gpu": slot, "offered": gpu.power_profiles, "requested": words}
        for (node, slot), gpu in sorted(gpus.items())
        if (words := gpu.requested_profiles) is not None and (not nodes or node in nodes)
    ]


def _worst(rows: Sequence[GpuScore], count: int) -> list[GpuScore]:
    """The slowest of each class, slowest first."""
    of_class: dict[str, list[GpuScore]] = {}
    for row in reversed(rows):  # the best ones come first
        own = of_class.setdefault(row.app_class, [])
        if len(own) < count:
            own.append(row)
    return [row for _, own in sorted(of_class.items()) for row in own]


def _text(rows: Sequence[GpuScore], answer: Record) -> str:
    now = time.time()
    parts = [SUMMARY.text(answer["summary"], now)]
    timed = {row["class"] for row in answer["penalties"] if row["runs"]}
    if timed:
        shown = [row for row in answer["penalties"] if row["class"] in timed]
        parts.append("Locality penalties:\n" + penalty_table(shown))
    if "gpus" in answer:
        parts.append(score_table(rows, now))
    if answer["faults"]:
        parts.append(f"Could not be read:\n{_FAULTS.text(answer['faults'])}")
    if answer["power_profiles"]:
        parts.append(f"Power profiles:\n{_PROFILES.text(answer['power_profiles'])}")
    return "\n\n".join(parts)


def _show_jobs(settings: StoreConfig, *, as_json: bool) -> None:
    from gpu_aware_profile.report.report_data import stored_job_scores  # imports NumPy

    with open_for_reading(settings) as store:
        found = stored_job_scores(store, time.time())
        scores = {(row.node, row.slot, row.app_class): row.raw for row in score_rows(store)}
    found.sort(key=lambda job: (job.app_class, -job.score))
    rows = [
        {
            "class": job.app_class,
            "node": job.node,
            "gpu": job.slot,
            "pm_score": scores.get(job[:3]),
            "job_score": job.score,
            "jobs": job.jobs,
        }
        for job in found
    ]
    if as_json:
        print_json({"jobs": rows})
        return
    if not rows:
        say("no GPU has finished 3 jobs of a kind of which there are 3")
    click.echo(_JOBS.text(rows))


def _show_topology(settings: StoreConfig, nodes: Sequence[str], *, as_json: bool) -> None:
    from gpu_aware_profile.links.stored_links import topologies

    with open_for_reading(settings) as store:
        found = topologies(store, nodes)
    if as_json:
        print_json({"nodes": [one.record() for one in found]})
    elif found:
        click.echo("\n\n".join(one.text() for one in found))
    else:
        say("no node in the store: 'gpu-aware-profile sweep'")


@click.command()
@store_options
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@click.option("--levels", "only_levels", is_flag=True, help="Times per locality level instead.")
@json_option
def export(path: Path, config: Config, file: IO[str], only_levels: bool, as_json: bool) -> None:
    """Export the newest timings as CSV for import (default: to stdout).

    --levels exports the times per locality level, also for import. --json exports the whole
    profile: GPUs, NICs, links, bandwidths, timings, the runs with clocks, power and temperature,
    scores and times per level.

    \b
      gpu-aware-profile export timings.csv
      gpu-aware-profile export --levels levels.csv
      gpu-aware-profile export --json > profile.json
    """
    if only_levels and as_json:
        raise click.UsageError("--json exports everything; leave --levels out")
    with open_for_reading(replace(config.store, path=path)) as store:
        if only_levels:
            write_csv(file, records(level_times(store), LEVEL_TIME), LEVEL_TIME)
        elif as_json:
            file.write(json_text(everything(store)) + "\n")
        else:
            write_csv(file, timing_records(store), TIMING_COLUMNS)


def _selected(
    rows: Sequence[GpuScore], classes: Sequence[str], nodes: Sequence[str]
) -> list[GpuScore]:
    """Rows of these classes and nodes. Raises StoreError for an unknown name."""
    for what, wanted, known in (
        ("class", classes, sorted({r.app_class for r in rows})),
        ("node", nodes, sorted({r.node for r in rows})),
    ):
        for name in wanted:
            if name not in known:
                raise StoreError(f"no scores of {what} {name!r}; known: {listed(known, 20)}")
    return [
        r
        for r in rows
        if (not classes or r.app_class in classes) and (not nodes or r.node in nodes)
    ]
