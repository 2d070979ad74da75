"""``gpu-aware-profile report`` and ``drift``: how the GPUs differ, and which became slower."""

import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.report.report_data import (
    ClusterReport,
    drift_sentences,
    drift_table,
    read_report,
    stored_drift,
)
from gpu_aware_profile.report.report_page import page
from gpu_aware_profile.report.report_plots import PICTURES, draw
from gpu_aware_profile.tables import CHANGE, SHIFT, records, summarise
from slurm_gpu_aware.cli.options import options_with
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import score_rows

_AGE = re.compile(r"([0-9]{1,5})([dhm])\Z")
_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0}


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Callback: ``30d`` -> seconds."""
    match = _AGE.match(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h or 90m.")
    return int(match[1]) * _UNITS_S[match[2]]


_HELP = {
    "--since": "Compare with measurements of this age: 30d, 12h, 90m.",
    "--html": "Write a page.",
    "--png": "Write the pictures.",
    "--worst": "GPUs of each class in the table of the worst ones.",
}
_option = options_with(_HELP)


since_option = _option(
    "--since", "since_s", callback=_seconds, default="30d", show_default=True, metavar="AGE"
)


@click.command()
@store_options
@since_option
@json_option
@click.pass_context
def drift(
    context: click.Context, /, path: Path, config: Config, since_s: float, as_json: bool
) -> None:
    """Name the GPUs that became slower since then, worst first; exit code 3 if there are any.

    Compared are the newest measurement of each GPU and class, and the newest one of that time or
    before it (else the oldest one since). A GPU is slower if its PM score, from the median of its
    runs, rose by more than the spread explains. A single slow run therefore does not count, and
    fewer than 3 runs are not enough. A change of all GPUs alike changes no score: it is said in a
    line of its own.

    \b
    Examples:
      gpu-aware-profile drift
      gpu-aware-profile drift --since 7d --json
    """
    now = time.time()
    with open_for_reading(replace(config.store, path=path)) as store:
        found = stored_drift(store, config, now - since_s)
        path = store.path
    compared = len(found.changes)
    if as_json:
        answer = {
            "store": str(path),
            "since_at": now - since_s,
            "compared": compared,
            "slower": records(found.slower, CHANGE),
            "unconfirmed": records(found.unconfirmed, CHANGE),
            "unjudged": len(found.unjudged),
            "shifts": records(found.shifts, SHIFT),
        }
        print_json(answer)
    elif found.slower:
        click.echo(drift_table(found.slower, now))
    for sentence in drift_sentences(found):
        say(sentence)
    if not compared:
        say("nothing to compare: no GPU was measured twice, and at least once since then")
    elif not found.slower:
        say(f"no GPU became slower ({compared} pairs of GPU and class compared)")
    if found.slower:
        context.exit(PARTLY)


@click.command()
@store_options
@since_option
@_option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_option("--png", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@_option("--worst", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N")
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
    with FileFault(html, "written"):
        html.write_text(text, encoding="utf-8")
    say(f"wrote {html}" + (f"; no pictures: {without}" if without else ""))


def _drawn(found: ClusterReport, folder: Path) -> list[Path]:
    """Draw all pictures that have something to show; return their files. Raises SourceError."""
    with FileFault(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    files = [(picture, folder / f"{picture.name}.png") for picture in PICTURES]
    return [file for picture, file in files if draw(file, picture, found)]


def _switches(config: Config) -> list[SlurmSwitch]:
    """Slurm's topology; empty: there is none, or Slurm does not answer."""
    try:
        return open_client(config.selector.command_timeout_s).topology()
    except SourceError:
        return []
