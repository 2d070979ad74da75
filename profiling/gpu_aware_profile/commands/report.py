"""``gpu-aware-profile report``: page and pictures of the cluster's GPUs."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_aware_profile.cli import store_options
from gpu_aware_profile.commands.drift import since_option
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.store.database import open_for_reading

if TYPE_CHECKING:
    from gpu_aware_profile.report.report_data import ClusterReport


@click.command()
@store_options
@since_option
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a page."
)
@click.option(
    "--png",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the pictures.",
)
@click.option(
    "--worst",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="GPUs of each class in the table of the worst ones.",
)
def report(
    path: Path,
    config: Config,
    since_s: float,
    html: Path | None,
    folder: Path | None,
    worst: int,
) -> None:
    """Write a page or pictures of how the GPUs differ, where, and what changed.

    The page is one file that needs no other. It shows the distribution of the scores per class and
    model, the worst GPUs, the racks, GPUs that became slower, medians against single runs, idle
    against loaded neighbours, and scores from finished jobs. Racks are the leaf switches of Slurm's
    topology, else what the node names tell.

    Pictures need matplotlib (the extra 'plots'); without it the page has the tables.

    \b
    Examples:
      gpu-aware-profile report --html gpus.html
      gpu-aware-profile report --png pictures --since 90d
    """
    from gpu_aware_profile.report.report_data import read_report  # imports NumPy
    from gpu_aware_profile.report.report_page import page
    from gpu_aware_profile.tables import summarise
    from slurm_gpu_aware.store.profiles import score_rows

    if html is None and folder is None:
        raise click.UsageError("give --html FILE, --png DIR, or both")
    now = time.time()
    with open_for_reading(replace(config.store, path=path)) as store:
        found = read_report(store, config, _switches(config), now - since_s, now)
        summary = summarise(score_rows(store))
    if not found.rows:
        raise SourceError("no scores yet: 'gpu-aware-profile sweep' or 'import' first")
    pictures, without = {}, ""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            files = _drawn(found, folder or Path(temporary))
            pictures = {file.stem: file.read_bytes() for file in files}
        except SourceError as exc:
            if folder is not None:
                raise
            without = str(exc)
    if folder is not None:
        say(f"wrote {len(pictures)} pictures to {folder}")
    if html is None:
        return
    text = page(found, summary, pictures, now, worst, without=without)
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{html}: cannot be written: {exc.strerror}") from None
    say(f"wrote {html}" + (f"; no pictures: {without}" if without else ""))


def _drawn(found: ClusterReport, folder: Path) -> list[Path]:
    """Draw all pictures that have something to show; return their files. Raises SourceError."""
    from gpu_aware_profile.report.report_plots import PICTURES, draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SourceError(f"{folder}: cannot be made: {exc.strerror}") from None
    files = [(picture, folder / f"{picture.name}.png") for picture in PICTURES]
    return [file for picture, file in files if draw(file, picture, found)]


def _switches(config: Config) -> list[SlurmSwitch]:
    """Slurm's topology; empty: there is none, or Slurm does not answer."""
    try:
        return open_client(config.selector.command_timeout_s).topology()
    except SourceError:
        return []
