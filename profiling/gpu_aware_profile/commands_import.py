"""``gpu-aware-profile import``: times from a site's own measurements."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO

import click

from gpu_aware_profile.cli import PARTLY, store_options
from slurm_gpu_aware.cli.options import SECONDS
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.text_file import read_table

__all__ = ["import_command"]


@click.command("import")
@store_options
@click.argument("file", type=click.File("rb"))
@click.option("--class", "app_class", metavar="NAME", help="For a file without a column class.")
@click.option("--skip-bad", is_flag=True, help="Store the good rows, report the bad ones.")
@click.option("--new-gpus", is_flag=True, help="Accept rows of GPUs that no sweep has seen.")
@click.option(
    "--accept-outliers", is_flag=True, help="Accept times far from the median as measured."
)
@click.option(
    "--taken-at", type=SECONDS, metavar="UNIX_S", help="Time of the measurement. Default: now."
)
def import_command(
    path: Path, config: Config, file: BinaryIO, taken_at: float | None, **options: Any
) -> None:
    """Import timings from a CSV with the columns gpu,node,class,value_ms (- reads stdin).

    gpu is Slurm's index on the node, or the UUID of a probed GPU. Several rows of one GPU and
    class are repeated runs: their median counts. If a row is bad, all bad rows are reported with
    their line numbers and nothing is imported, unless --skip-bad is given. Once a sweep has seen
    GPUs, rows of other GPUs are bad, unless --new-gpus is given: their times then wait for the
    sweep that sees them.

    A GPU with a time below half or above twice the median of its model is an outlier: it is
    reported, and nothing is imported, because such a file often mixes seconds and milliseconds. If
    the time is correct, give --accept-outliers; the next import accepts a similar time of this GPU.

    A file with the columns class,level,value_ms has times per locality level: one program on the
    same number of GPUs, once inside a node (nvlink, socket, node) and once at each looser level
    (switch, rack, row, cluster). L of a level is its median time over that of the innermost level.
    The optional column model is the GPU model. The stored level times of these classes are
    replaced.

    \b
      gpu-aware-profile import timings.csv
      gpu-aware-profile import resnet.csv --class A --skip-bad
      gpu-aware-profile import levels.csv
    """
    from gpu_aware_profile.importing import Import  # imports NumPy

    at = time.time() if taken_at is None else taken_at
    if not Import(read_table(file), path, config, at, **options).run():
        raise click.exceptions.Exit(PARTLY)
