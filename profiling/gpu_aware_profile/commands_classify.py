"""``gpu-aware-profile classify``: the class of an application from its counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from slurm_gpu_aware.cli.output import json_option, print_json, table
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, name_of, read_table, read_text

if TYPE_CHECKING:
    from slurm_gpu_aware.variability.classes import Classifier, Utilisation

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
    if applications is not None:
        known = _points(applications, "application")
        classifier = _fitted(known, applications, config_path)
    else:
        assert centres is not None  # noqa: S101 - checked above
        known, classifier = {}, _read_centres(centres)
    uses = [*known.items(), *((Path(name_of(f)).stem, _counters(f)) for f in files)]
    if save is not None:
        save.write("class,dram,peak_fu\n")
        for name, centre in zip(classifier.names, classifier.centroids.tolist(), strict=True):
            save.write(f"{name},{centre[0]:.4f},{centre[1]:.4f}\n")
    if as_json:
        print_json(_classes_record(classifier, uses))
    else:
        click.echo(_classes_table(classifier, uses))


def _points(file: BinaryIO, kind: str) -> dict[str, Utilisation]:
    """Named points of a CSV with the columns ``kind``,dram,peak_fu; each name once."""
    from slurm_gpu_aware.variability.classes import Utilisation

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


def _fitted(
    known: Mapping[str, Utilisation], file: BinaryIO, config_path: str | None
) -> Classifier:
    from slurm_gpu_aware.config.load import load_config
    from slurm_gpu_aware.variability.classes import fit_classes

    try:
        return fit_classes(known, load_config(config_path).site.classes)[0]
    except ValueError as exc:
        raise SourceError(name_of(file)) from exc


def _read_centres(file: BinaryIO) -> Classifier:
    import numpy as np

    from slurm_gpu_aware.variability.classes import Classifier

    points = _points(file, "class")
    where = np.array([[centre.dram, centre.peak_fu] for centre in points.values()])
    return Classifier(tuple(points), where)


def _counters(file: BinaryIO) -> Utilisation:
    """Utilisation of an application from a file of Nsight Compute or DCGM."""
    from slurm_gpu_aware.variability.counters import is_dcgm, read_dcgm, read_ncu

    lines = read_text(file, errors="replace").splitlines()
    try:
        return read_dcgm(lines) if is_dcgm(lines) else read_ncu(lines)
    except SourceError as exc:
        raise SourceError(name_of(file)) from exc


def _classes_record(
    classifier: Classifier, uses: Sequence[tuple[str, Utilisation]]
) -> dict[str, Any]:
    return {
        "centres": [
            {"class": name, "dram": round(dram, 4), "peak_fu": round(peak_fu, 4)}
            for name, (dram, peak_fu) in zip(
                classifier.names, classifier.centroids.tolist(), strict=True
            )
        ],
        "applications": [
            {
                "application": name,
                "dram": round(use.dram, 4),
                "peak_fu": round(use.peak_fu, 4),
                "class": classifier.classify(use),
                "distance": {k: round(d, 4) for k, d in classifier.distances(use).items()},
            }
            for name, use in uses
        ],
    }


def _classes_table(classifier: Classifier, uses: Sequence[tuple[str, Utilisation]]) -> str:
    distances = [f"to {name}" for name in classifier.names]
    headers = ["application", "DRAM %", "unit %", *distances, "class"]
    centres = [
        [f"(centre of {name})", f"{dram:.1f}", f"{peak_fu:.1f}", *([""] * len(distances)), name]
        for name, (dram, peak_fu) in zip(
            classifier.names, classifier.centroids.tolist(), strict=True
        )
    ]
    rows = [
        [
            name,
            f"{use.dram:.1f}",
            f"{use.peak_fu:.1f}",
            *(f"{d:.1f}" for d in classifier.distances(use).values()),
            classifier.classify(use),
        ]
        for name, use in uses
    ]
    return table(headers, [*rows, *centres], right=headers[1:-1])
