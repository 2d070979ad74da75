"""``gpu-aware-profile import``: times that were measured elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

import click

from gpu_aware_profile.cli import store_options
from slurm_gpu_aware.cli.options import SECONDS

__all__ = ["import_command"]

SKIPPED = 3
"""Exit code of an import that left bad rows out."""


@click.command("import")
@store_options
@click.argument("file", type=click.File("rb"))
@click.option("--class", "app_class", metavar="NAME", help="For a file without a column class.")
@click.option("--skip-bad", is_flag=True, help="Store the good rows, report the bad ones.")
@click.option("--new-gpus", is_flag=True, help="Take rows of GPUs that no sweep has seen, too.")
@click.option(
    "--accept-outliers",
    is_flag=True,
    help="Take times far from the median, too: they were measured so.",
)
@click.option(
    "--taken-at",
    type=SECONDS,
    metavar="UNIX_S",
    help="When it was measured. Default: now.",
)
def import_command(
    store_path: Path | None,
    config_path: str | None,
    file: BinaryIO,
    app_class: str | None,
    skip_bad: bool,
    new_gpus: bool,
    accept_outliers: bool,
    taken_at: float | None,
) -> None:
    """Import timings from a CSV with the columns gpu,node,class,value_ms (- reads stdin).

    gpu is the index that Slurm uses on the node, or the UUID of a GPU that was probed. Several
    rows of one GPU and class are repeated runs: their median counts. If any row is bad, each is
    named with its line number and nothing is imported, unless --skip-bad is given. Once a sweep
    has seen GPUs, rows of others are bad, too, unless --new-gpus is given: their times are then
    kept for the sweep that will see them.

    A GPU whose time is less than half or more than twice the median of its model is named, and
    nothing is imported: often a file mixes seconds and milliseconds. If it was measured so, give
    --accept-outliers; the next import does not ask again for a GPU that is about as far off.

    A file with the columns class,level,value_ms has times per locality level: one program on the
    same number of GPUs, once inside a node (nvlink, socket, node) and once at each looser level
    (switch, rack, row, cluster). L of a level is the median time there over that at the innermost
    level. A column model (GPU model) keeps models apart. What was stored of these classes is
    replaced.

    \b
      gpu-aware-profile import timings.csv
      gpu-aware-profile import resnet.csv --class A --skip-bad
      gpu-aware-profile import levels.csv
    """
    from gpu_aware_profile.importing import Import
    from slurm_gpu_aware.config.load import load_config
    from slurm_gpu_aware.text_file import read_table

    config = load_config(config_path)
    work = Import(
        read_table(file),
        store_path or config.store.path,
        config,
        time.time() if taken_at is None else taken_at,
        app_class=app_class,
        skip_bad=skip_bad,
        new_gpus=new_gpus,
        accept_outliers=accept_outliers,
    )
    if not work.run():
        raise click.exceptions.Exit(SKIPPED)
