"""``gpu-aware-profile show`` and ``export``: the measurements for users and programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from gpu_aware_profile import tables
from gpu_aware_profile.cli import store_options
from gpu_aware_profile.level_tables import (
    PenaltyRow,
    penalties_of,
    penalty_table,
    show_levels,
    write_levels_csv,
)
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import Fault, GpuScore
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.inventory import listed
from slurm_gpu_aware.store.profiles import load_profile, score_rows
from slurm_gpu_aware.store.times import level_times

__all__ = ["export", "show"]

Faults = Mapping[str, Sequence[Fault]]


@click.command()
@store_options
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node.")
@click.option(
    "--sort",
    type=click.Choice(["score", "node"]),
    default="score",
    show_default=True,
    help="Best GPU first, or by node and GPU.",
)
@click.option("--summary", "only_summary", is_flag=True, help="Only the spread per class.")
@click.option("--levels", "only_levels", is_flag=True, help="Only the locality penalties.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
def show(
    store_path: Path | None,
    config_path: str | None,
    classes: tuple[str, ...],
    nodes: tuple[str, ...],
    sort: str,
    only_summary: bool,
    only_levels: bool,
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

    \b
      gpu-aware-profile show
      gpu-aware-profile show --class A --node n1 --json
      gpu-aware-profile show --levels
    """
    if as_json and as_csv:
        raise click.UsageError("give one of --json and --csv, not both")
    if only_summary and as_csv:
        raise click.UsageError("--summary has no CSV form; use --json")
    if only_levels and (only_summary or nodes):
        raise click.UsageError("--levels goes with neither --summary nor --node")
    with _opened(store_path, config_path) as (store, config):
        penalties = penalties_of(store, config, classes if only_levels else ())
        if only_levels:
            show_levels(store.path, penalties, as_json=as_json, as_csv=as_csv)
            return
        rows = _selected(score_rows(store), classes, nodes)
        faults = load_profile(store).faults
        path = store.path
    faults = {node: found for node, found in faults.items() if not nodes or node in nodes}
    penalties = [row for row in penalties if not classes or row.app_class in classes]
    if sort == "node":
        rows = sorted(rows, key=lambda r: (r.node, r.slot, r.app_class))
    if as_json:
        scores = {} if only_summary else {"gpus": tables.score_records(rows)}
        print_json({"store": str(path), **_record(rows, penalties, faults), **scores})
    elif as_csv:
        tables.write_scores_csv(sys.stdout, rows)
    else:
        if not rows:
            say("no scores yet: 'gpu-aware-profile sweep', then 'gpu-aware-profile import FILE'")
        click.echo(_text(rows, penalties, faults, only_summary=only_summary))


def _record(
    rows: Sequence[GpuScore], penalties: Sequence[PenaltyRow], faults: Faults
) -> dict[str, Any]:
    return {
        "summary": tables.records(tables.summarise(rows)),
        "penalties": tables.records(penalties),
        "faults": [
            {"node": node, "gpu": f.slot, "call": f.call, "error": f.error}
            for node, found in faults.items()
            for f in found
        ],
    }


def _text(
    rows: Sequence[GpuScore],
    penalties: Sequence[PenaltyRow],
    faults: Faults,
    *,
    only_summary: bool,
) -> str:
    now = time.time()
    parts = [tables.summary_table(tables.summarise(rows), now)]
    timed = {row.app_class for row in penalties if row.runs}
    if timed:
        shown = [row for row in penalties if row.app_class in timed]
        parts.append("Locality penalties:\n" + penalty_table(shown))
    if not only_summary:
        parts.append(tables.score_table(rows, now))
    if faults:
        parts.append("Could not be read:\n" + tables.fault_table(faults))
    return "\n\n".join(parts)


@click.command()
@store_options
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@click.option("--levels", "only_levels", is_flag=True, help="Times per locality level instead.")
@json_option
def export(
    store_path: Path | None,
    config_path: str | None,
    file: IO[str],
    only_levels: bool,
    as_json: bool,
) -> None:
    """Export the newest timings as CSV for import (default: to stdout).

    --levels exports the times per locality level, also for import. --json exports the whole
    profile: GPUs, links, timings, scores and times per level.

    \b
      gpu-aware-profile export timings.csv
      gpu-aware-profile export --levels levels.csv
      gpu-aware-profile export --json > profile.json
    """
    if only_levels and as_json:
        raise click.UsageError("--json exports everything; leave --levels out")
    with _opened(store_path, config_path) as (store, _):
        if only_levels:
            write_levels_csv(file, level_times(store))
        elif as_json:
            whole = tables.everything(store)
            file.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
        else:
            from gpu_aware_profile.scoring import newest_timings  # imports NumPy

            tables.write_timings_csv(file, newest_timings(store))


@contextmanager
def _opened(store_path: Path | None, config_path: str | None) -> Iterator[tuple[Store, Config]]:
    """The store, opened read-only, and the configuration."""
    config = load_config(config_path)
    with open_store(store_path or config.store.path, readonly=True) as store:
        yield store, config


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
