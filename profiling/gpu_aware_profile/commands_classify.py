"""``gpu-aware-profile classify``: the class of an application from its counters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import click

from slurm_gpu_aware.cli.output import json_option, print_json, table
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, name_of, read_table, read_text
from slurm_gpu_aware.variability import classes
from slurm_gpu_aware.variability.classes import Centres, Utilisation
from slurm_gpu_aware.variability.counters import is_dcgm, read_dcgm, read_ncu

__all__ = ["classify"]


@click.command()
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option(
    "--applications",
    type=click.File("rb"),
    metavar="CSV",
    help="Applications to group into classes by K-means: application,dram,peak_fu, in percent.",
)
@click.option(
    "--centres",
    type=click.File("rb"),
    metavar="CSV",
    help="Class centres that an earlier --save wrote: class,dram,peak_fu.",
)
@click.option(
    "--save",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="CSV",
    help="Write the class centres, for --centres.",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="Configuration file, for the names of the classes (site.classes).",
)
@json_option
def classify(
    files: tuple[BinaryIO, ...],
    applications: BinaryIO | None,
    centres: BinaryIO | None,
    save: IO[str] | None,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Determine the class of an application from counters of its utilisation.

    FILE is the output of Nsight Compute or of DCGM for one application (- reads stdin):

    \b
      ncu --csv --metrics gpu__time_duration.sum,\\
        dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
        regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active APP > app.csv
      dcgmi dmon -e 1002,1004,1005,1006,1007,1008 -d 1000 > app.txt   # beside the running APP

    The class is that of the nearest centre in the plane of DRAM and busiest functional unit, both
    in percent of peak. The centres come from a CSV of measured applications, which K-means groups
    (the most compute-bound class first), or from a file of centres. Distances are in percentage
    points.

    \b
      gpu-aware-profile classify --applications known.csv --save centres.csv
      gpu-aware-profile classify --centres centres.csv app.csv
    """
    if (applications is None) == (centres is None):
        raise click.UsageError("give one of --applications and --centres")
    if centres is not None and not files:
        raise click.UsageError("name a FILE with the counters of an application")
    known: dict[str, Utilisation] = {}
    if applications is not None:
        known = _points(applications, "application")
        try:
            found = classes.fit_classes(known, load_config(config_path).site.classes)
        except ValueError as exc:
            raise SourceError(name_of(applications)) from exc
    else:
        assert centres is not None  # noqa: S101 - checked above
        found = _points(centres, "class")
    uses = [*known.items(), *((Path(name_of(f)).stem, _counters(f)) for f in files)]
    if save is not None:
        save.write("class,dram,peak_fu\n")
        for name, centre in found.items():
            save.write(f"{name},{centre.dram:.4f},{centre.peak_fu:.4f}\n")
    if as_json:
        print_json(_classes_record(found, uses))
    else:
        click.echo(_classes_table(found, uses))


def _points(file: BinaryIO, kind: str) -> dict[str, Utilisation]:
    """Named points of a CSV with the columns ``kind``,dram,peak_fu; each name once."""
    points = read_table(file)
    points.require(kind, "dram", "peak_fu")
    names: set[str] = set()

    def point(row: Row) -> tuple[str, Utilisation]:
        name = row.text(kind)
        if name in names:
            raise ValueError(f"{kind} {name!r} occurs twice")
        names.add(name)
        return name, Utilisation(row.number("dram"), row.number("peak_fu"))

    return dict(points.parse_all(point))


def _counters(file: BinaryIO) -> Utilisation:
    """Utilisation of an application from a file of Nsight Compute or DCGM."""
    lines = read_text(file, errors="replace").splitlines()
    try:
        return read_dcgm(lines) if is_dcgm(lines) else read_ncu(lines)
    except SourceError as exc:
        raise SourceError(name_of(file)) from exc


def _classes_record(centres: Centres, uses: Sequence[tuple[str, Utilisation]]) -> dict[str, Any]:
    return {
        "centres": [{"class": name, **_rounded(vars(c))} for name, c in centres.items()],
        "applications": [
            {
                "application": name,
                **_rounded(vars(use)),
                "class": classes.classify(centres, use),
                "distance": _rounded(classes.distances(centres, use)),
            }
            for name, use in uses
        ],
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _classes_table(centres: Centres, uses: Sequence[tuple[str, Utilisation]]) -> str:
    headers = ["application", "DRAM %", "unit %", *(f"to {name}" for name in centres), "class"]
    rows = []
    for name, use in uses:
        far = classes.distances(centres, use).values()
        numbers = [f"{value:.1f}" for value in (use.dram, use.peak_fu, *far)]
        rows.append([name, *numbers, classes.classify(centres, use)])
    for name, centre in centres.items():
        numbers = [f"{centre.dram:.1f}", f"{centre.peak_fu:.1f}"]
        rows.append([f"(centre of {name})", *numbers, *[""] * len(centres), name])
    return table(headers, rows, right=headers[1:-1])
