"""``gpu-aware-profile classify`` and ``fit-effbw``: what a site's own measurements say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from slurm_gpu_aware.bounds import MAX_GBPS, quoted
from slurm_gpu_aware.cli.output import json_option, pairs, print_json, say, table
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, Table, name_of, read_table, read_text

if TYPE_CHECKING:
    from slurm_gpu_aware.topology.bandwidth import Fit
    from slurm_gpu_aware.variability.classes import Classifier, Utilisation

__all__ = ["classify", "fit_effbw"]

T = TypeVar("T")

_MOST_LINKS = 10_000
_POLICIES = ("pal+mapa", "mapa-preserve")
"""Policies that go by EffBW."""


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
    """Say which class an application belongs to, from counters of its utilisation.

    FILE is the output of Nsight Compute or of DCGM for one application (- reads stdin):

    \b
      ncu --csv --metrics gpu__time_duration.sum,\\
        dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
        regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active APP > app.csv
      dcgmi dmon -e 1002,1004,1005,1006,1007,1008 -d 1000 > app.txt   # beside the running APP

    The class is that of the nearest centre in the plane of DRAM and busiest functional unit, both
    in percent of peak. The centres come from a CSV of measured applications, grouped by K-means
    (the most compute bound class first), or from a file of centres. Distances are in percentage
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
    found = [*known.items(), *((Path(name_of(f)).stem, _counters(f)) for f in files)]
    if save is not None:
        save.write("class,dram,peak_fu\n")
        for name, centre in zip(classifier.names, classifier.centroids.tolist(), strict=True):
            save.write(f"{name},{centre[0]:.4f},{centre[1]:.4f}\n")
    if as_json:
        print_json(_classes_record(classifier, found))
    else:
        click.echo(_classes_table(classifier, found))


@click.command("fit-effbw")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--machine",
    "machine_name",
    metavar="NAME",
    help="The rows name GPUs of this machine (columns gpus,gbps) instead of counting links.",
)
@json_option
def fit_effbw(file: BinaryIO, machine_name: str | None, as_json: bool) -> None:
    """Fit MAPA's effective bandwidth to measured all-reduce bandwidths.

    The model is its equation 2. FILE is a CSV with the columns x,y,z,gbps (- reads stdin): the
    double NVLinks, single NVLinks and other links of the ring that was measured, and its
    bandwidth. A ring of two GPUs counts its link twice. With --machine the columns are gpus,gbps,
    gpus such as "0 2 3", and the links of the ring with the best slowest link are counted, then
    with the largest sum. Decisions with the fitted model look at that ring, too.

    Prints the 14 coefficients, how far they are from the samples, and the lines for the
    configuration. Fourteen terms want many samples: the error on samples that were left out of
    their own fit says how far to trust the rest.

    \b
      gpu-aware-profile fit-effbw nccl.csv
      gpu-aware-profile fit-effbw --machine dgx-1-v100 nccl.csv --json
    """
    from slurm_gpu_aware.topology.bandwidth import EQ2_TERMS, PAPER, eq2, fit_eq2

    samples = _ring_samples(file, machine_name)
    try:
        fit = fit_eq2(samples)
    except ValueError as exc:
        raise SourceError(name_of(file)) from exc
    coefficients = [round(c, 6) for c in fit.model.coefficients or ()]
    x, y, z, measured = zip(*samples, strict=True)
    published = float(abs(eq2(x, y, z, PAPER) - measured).mean())
    if as_json:
        print_json(
            {
                "coefficients": dict(zip(EQ2_TERMS, coefficients, strict=True)),
                "effbw": coefficients,
                "samples": fit.samples,
                "rank": fit.rank,
                "mae_gbps": fit.mae,
                "rmse_gbps": fit.rmse,
                "left_out_rmse_gbps": fit.loo_rmse,
                "published_mae_gbps": published,
            }
        )
    else:
        click.echo(_fit_text(fit, coefficients, EQ2_TERMS, published))
    if fit.rank < len(coefficients):
        say(
            f"only {fit.rank} of {len(coefficients)} terms are independent in these samples: do"
            " not use the fit for other counts of links than those measured"
        )
    if fit.loo_rmse > 2.0 * max(fit.rmse, 0.1):
        say("the error on left-out samples is far above that of the fit: measure more rings")


def _fit_text(
    fit: Fit, coefficients: Sequence[float], terms: Sequence[str], published: float
) -> str:
    rows = [[term, f"{value:.6g}"] for term, value in zip(terms, coefficients, strict=True)]
    errors = pairs(
        {
            "samples": f"{fit.samples}, {fit.rank} independent terms",
            "mean error": f"{fit.mae:.3g} GB/s (published coefficients: {published:.3g})",
            "RMS error": f"{fit.rmse:.3g} GB/s",
            "left out": f"{fit.loo_rmse:.3g} GB/s RMS on samples left out of their own fit",
        }
    )
    option = f"effbw = [{', '.join(f'{c:g}' for c in coefficients)}]"
    sections = "\n".join(f'[policies."{policy}"]\n{option}' for policy in _POLICIES)
    return f"{table(['term', 'GB/s'], rows, right=['GB/s'])}\n\n{errors}\n\n{sections}"


def _ring_samples(file: BinaryIO, machine_name: str | None) -> list[tuple[int, int, int, float]]:
    """(x, y, z, GB/s) of each row."""
    from slurm_gpu_aware.topology import machine, machine_names
    from slurm_gpu_aware.topology.matching import fitted_ring

    table = read_table(file)
    if machine_name is None:
        table.require("x", "y", "z", "gbps")
        return _all(
            table, lambda row: (_links(row, "x"), _links(row, "y"), _links(row, "z"), _gbps(row))
        )
    if machine_name not in machine_names():
        raise SourceError(
            f"machine {machine_name!r} is not known; known: {', '.join(machine_names())}"
        )
    graph = machine(machine_name)
    table.require("gpus", "gbps")
    return _all(table, lambda row: (*fitted_ring(graph, _gpus(row, graph.n)), _gbps(row)))


def _all(table: Table, make: Callable[[Row], T]) -> list[T]:
    """What ``make`` gives for the rows. Raises SourceError for the first bad one."""
    good, bad = table.parse(make)
    if bad:
        raise SourceError(f"{table.name}: line {bad[0].line}: {bad[0].reason}")
    if not good:
        raise SourceError(f"{table.name}: no row")
    return good


def _links(row: Row, column: str) -> int:
    count = row.count(column)
    if not 0 <= count <= _MOST_LINKS:
        raise ValueError(f"{column} is {count}: not a number of links")
    return count


def _gbps(row: Row) -> float:
    value = row.number("gbps")
    if not 0.0 < value <= MAX_GBPS:
        raise ValueError(f"gbps is {value:g}: not a bandwidth in GB/s")
    return value


def _gpus(row: Row, most: int) -> tuple[int, ...]:
    """GPUs of a machine of ``most``, separated by spaces or commas: two or more, each once."""
    text = row.text("gpus")
    words = text.replace(",", " ").split()
    chosen = sorted(int(word) if word.isdecimal() and len(word) < 3 else most for word in words)
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or chosen[-1] >= most:
        raise ValueError(
            f"{quoted(text)} is not two or more different GPUs below {most}, such as 0 2 3"
        )
    return tuple(chosen)


def _points(file: BinaryIO, kind: str) -> dict[str, Utilisation]:
    """Named points of a CSV with the columns ``kind``,dram,peak_fu; each name once."""
    from slurm_gpu_aware.variability.classes import Utilisation

    table = read_table(file)
    table.require(kind, "dram", "peak_fu")
    names: set[str] = set()

    def point(row: Row) -> tuple[str, Utilisation]:
        name = row.text(kind)
        if name in names:
            raise ValueError(f"{kind} {name!r} stands twice")
        names.add(name)
        return name, Utilisation(row.number("dram"), row.number("peak_fu"))

    return dict(_all(table, point))


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
    """Utilisation of an application, of whichever tool the file comes from."""
    from slurm_gpu_aware.variability.counters import is_dcgm, read_dcgm, read_ncu

    lines = read_text(file, errors="replace").splitlines()
    try:
        return read_dcgm(lines) if is_dcgm(lines) else read_ncu(lines)
    except SourceError as exc:
        raise SourceError(name_of(file)) from exc


def _classes_record(
    classifier: Classifier, found: Sequence[tuple[str, Utilisation]]
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
            for name, use in found
        ],
    }


def _classes_table(classifier: Classifier, found: Sequence[tuple[str, Utilisation]]) -> str:
    far = [f"to {name}" for name in classifier.names]
    headers = ["application", "DRAM %", "unit %", *far, "class"]
    centres = [
        [f"(centre of {name})", f"{dram:.1f}", f"{peak_fu:.1f}", *([""] * len(far)), name]
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
        for name, use in found
    ]
    return table(headers, [*rows, *centres], right=headers[1:-1])
