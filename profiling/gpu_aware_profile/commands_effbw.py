"""``gpu-aware-profile fit-effbw``: coefficients of a site for MAPA's equation 2."""

from __future__ import annotations

from typing import Any, BinaryIO

import click

from slurm_gpu_aware.bounds import MAX_GBPS, quoted
from slurm_gpu_aware.cli.output import json_option, pairs, print_json, say, table
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, name_of, read_table

__all__ = ["fit_effbw"]

_MOST_LINKS = 10_000
_POLICIES = ("pal+mapa", "mapa-preserve")
"""Policies that use EffBW."""


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

    The model is MAPA's equation 2. FILE is a CSV with the columns x,y,z,gbps (- reads stdin): the
    double NVLinks, single NVLinks and other links of the measured ring, and its bandwidth. A ring
    of 2 GPUs counts its link twice. With --machine the columns are gpus,gbps, where gpus is for
    example "0 2 3". Then the links are those of the ring with the best slowest link, and among
    such rings of the one with the largest sum. Placement with the fitted model uses the same ring.

    Prints the 14 coefficients, their error, and the lines for the configuration. Fourteen terms
    need many samples: the error on samples that are left out of the fit shows how reliable it is.

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
    answer = {
        "coefficients": dict(zip(EQ2_TERMS, coefficients, strict=True)),
        "effbw": coefficients,
        "samples": fit.samples,
        "rank": fit.rank,
        "mae_gbps": fit.mae,
        "rmse_gbps": fit.rmse,
        "left_out_rmse_gbps": fit.loo_rmse,
        "published_mae_gbps": published,
    }
    if as_json:
        print_json(answer)
    else:
        click.echo(_text(answer))
    if fit.rank < len(coefficients):
        say(
            f"only {fit.rank} of {len(coefficients)} terms are independent in these samples: use"
            " the fit for the measured counts of links only"
        )
    if fit.loo_rmse > 2.0 * max(fit.rmse, 0.1):
        say("the error on left-out samples is far above that of the fit: measure more rings")


def _text(fit: dict[str, Any]) -> str:
    rows = [[term, f"{value:.6g}"] for term, value in fit["coefficients"].items()]
    mean, published = f"{fit['mae_gbps']:.3g}", f"{fit['published_mae_gbps']:.3g}"
    left_out = f"{fit['left_out_rmse_gbps']:.3g}"
    errors = pairs(
        {
            "samples": f"{fit['samples']}, {fit['rank']} independent terms",
            "mean error": f"{mean} GB/s (published coefficients: {published})",
            "RMS error": f"{fit['rmse_gbps']:.3g} GB/s",
            "left out": f"{left_out} GB/s RMS on samples left out of their own fit",
        }.items()
    )
    option = f"effbw = [{', '.join(f'{c:g}' for c in fit['effbw'])}]"
    sections = "\n".join(f'[policies."{policy}"]\n{option}' for policy in _POLICIES)
    return f"{table(['term', 'GB/s'], rows, right=['GB/s'])}\n\n{errors}\n\n{sections}"


def _ring_samples(file: BinaryIO, machine_name: str | None) -> list[tuple[int, int, int, float]]:
    """(x, y, z, GB/s) of each row."""
    from slurm_gpu_aware.topology.machines import machine, machine_names
    from slurm_gpu_aware.topology.matching import fitted_ring

    samples = read_table(file)
    if machine_name is None:
        samples.require("x", "y", "z", "gbps")
        return samples.parse_all(
            lambda row: (_links(row, "x"), _links(row, "y"), _links(row, "z"), _gbps(row))
        )
    if machine_name not in machine_names():
        raise SourceError(
            f"machine {machine_name!r} is not known; known: {', '.join(machine_names())}"
        )
    graph = machine(machine_name)
    samples.require("gpus", "gbps")
    return samples.parse_all(lambda row: (*fitted_ring(graph, _gpus(row, graph.n)), _gbps(row)))


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
