"""``gpu-aware-profile fit-effbw``: MAPA's effective bandwidth fitted to measured all-reduces."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from gpu_aware_profile.cli import store_options
from gpu_aware_profile.links.stored_links import MeasuredRing, measured_rings
from gpu_aware_profile.store_writer import writable_store
from slurm_gpu_aware.bounds import MAX_GBPS, MIN_GBPS, quoted
from slurm_gpu_aware.cli.output import json_option, pairs, paragraph, print_json, say, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import put_effbw
from slurm_gpu_aware.text_file import Row, name_of, read_table
from slurm_gpu_aware.topology.bandwidth import (
    EQ2_TERMS,
    PAPER,
    Fit,
    eq2,
    fit_bottleneck,
    fit_eq2,
    share_of_best,
)
from slurm_gpu_aware.topology.machines import machine, machine_names
from slurm_gpu_aware.topology.matching import fitted_ring

_LINKS = (0, 10_000)
_GBPS = (MIN_GBPS, MAX_GBPS)
_POLICIES = ("pal+mapa", "mapa-preserve")  # Policies that use EffBW.
_OVERFITTED = 2.0
"""A fit whose error on left-out samples is this many times that on its own is not to be trusted."""


class _Sample(NamedTuple):
    x: int
    y: int
    z: int
    gbps: float


@click.command("fit-effbw")
@store_options
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--measured", is_flag=True, help="Use the all-reduces of the store, not a file.")
@click.option("--model", metavar="NAME", help="With --measured: only GPUs of this model.")
@click.option(
    "--machine",
    "machine_name",
    metavar="NAME",
    help="The rows name GPUs of this machine (columns gpus,gbps) instead of counting links.",
)
@click.option(
    "--save",
    is_flag=True,
    help="With --measured: store the fit if it is the better model, else remove an earlier one.",
)
@json_option
def fit_effbw(
    path: Path,
    config: Config,
    file: BinaryIO | None,
    measured: bool,
    model: str | None,
    machine_name: str | None,
    save: bool,
    as_json: bool,
) -> None:
    """Fit MAPA's effective bandwidth to measured all-reduce bandwidths.

    The model is MAPA's equation 2. With --measured the samples are the newest all-reduces that
    'sweep --links' measured or 'import' stored, each on the links of its own node; then the
    bottleneck model is fitted, too, and the better one is named. With --save the selector uses the
    fit on nodes with GPUs of this model, whatever the configuration says.

    FILE is a CSV with the columns x,y,z,gbps (- reads stdin): the double, single and
    other direct links (NVLink, xGMI) of the measured ring, and its bandwidth. A ring of 2 GPUs
    counts its link twice.
    With --machine the columns are gpus,gbps, where gpus is for example "0 2 3". Then the links are
    those of the ring with the best slowest link, and among such rings of the one with the largest
    sum. Placement with the fitted model uses the same ring.

    Prints the 14 coefficients, their error, and the lines for the configuration. Fourteen terms
    need many samples: the error on samples that are left out of the fit shows how reliable it is.

    \b
      gpu-aware-profile fit-effbw --measured --model a100 --save
      gpu-aware-profile fit-effbw nccl.csv
      gpu-aware-profile fit-effbw --machine dgx-1-v100 nccl.csv --json
    """
    if measured == (file is not None):
        raise click.UsageError("give one of FILE and --measured")
    if ((model is not None or save) and not measured) or (machine_name is not None and measured):
        raise click.UsageError("--model and --save go with --measured, --machine with FILE")
    if file is not None:
        samples, rings = _ring_samples(file, machine_name), None
    else:
        with open_for_reading(replace(config.store, path=path)) as store:
            model, rings = measured_rings(store, model)
        samples = [_Sample(*ring.counts, ring.gbps) for ring in rings]
    fit, answer = _fitted(samples, name_of(file) if file else str(path))
    if rings is not None:
        answer |= _comparison(rings, fit)
    if as_json:
        print_json(answer)
    else:
        click.echo(_text(answer))
    for warning in _warnings(answer):
        say(warning)
    if save and model is not None:
        _save(path, config, model, answer)


def _save(path: Path, config: Config, model: str, answer: dict[str, Any]) -> None:
    """Store the fit of a GPU model, or remove it where the bottleneck model is as good."""
    better = answer["recommended"] == "refit"
    with writable_store(path, config) as store:
        found = put_effbw(store, model, answer["effbw"] if better else None)
    if better:
        say(f"stored in {path}: EffBW of {model} is this fit")
    elif found:
        say(f"removed from {path}: the earlier fit of {model}")


def _fitted(samples: Sequence[_Sample], source: str) -> tuple[Fit, dict[str, Any]]:
    try:
        fit = fit_eq2(samples)
    except ValueError as exc:
        raise SourceError(source) from exc
    coefficients = [round(c, 6) for c in fit.coefficients]
    x, y, z, gbps = zip(*samples, strict=True)
    return fit, {
        "coefficients": dict(zip(EQ2_TERMS, coefficients, strict=True)),
        "effbw": coefficients,
        "samples": fit.samples,
        "rank": fit.rank,
        "mae_gbps": fit.mae,
        "rmse_gbps": fit.rmse,
        "left_out_rmse_gbps": fit.left_out_rmse,
        "published_mae_gbps": float(abs(eq2(x, y, z, PAPER) - gbps).mean()),
    }


def _comparison(rings: Sequence[MeasuredRing], fit: Fit) -> dict[str, Any]:
    """The bottleneck model on the same samples, and which of the two is better."""
    gbps = [ring.gbps for ring in rings]
    groups = [(ring.graph, len(ring.gpus)) for ring in rings]
    simple = fit_bottleneck([r.slowest_gbps for r in rings], gbps, [r.counts for r in rings])
    alike = all(ring.graph.is_uniform for ring in rings)
    of_eq2, of_simple = (share_of_best(f.predicted, gbps, groups) for f in (fit, simple))
    better = (
        not alike
        and None not in (fit.left_out_rmse, simple.left_out_rmse)
        and (fit.left_out_rmse or 0.0) < (simple.left_out_rmse or 0.0)
        and of_eq2 >= of_simple
    )
    return {
        "share_of_best": of_eq2,
        "bottleneck": {
            "share_of_slowest_link": simple.coefficients[0],
            "mae_gbps": simple.mae,
            "rmse_gbps": simple.rmse,
            "left_out_rmse_gbps": simple.left_out_rmse,
            "share_of_best": of_simple,
        },
        "all_sets_alike": alike,
        "recommended": "refit" if better else "bottleneck",
    }


def _warnings(answer: dict[str, Any]) -> list[str]:
    """What keeps eq. 2 from holding on this machine."""
    found = []
    terms, left_out = len(answer["effbw"]), answer["left_out_rmse_gbps"]
    if answer["rank"] < terms:
        found.append(
            f"only {answer['rank']} of {terms} terms are independent in these samples: use the fit"
            " for the measured counts of links only"
        )
    if left_out is None or left_out > _OVERFITTED * max(answer["rmse_gbps"], 0.1):
        found.append(
            "the error on left-out samples is far above that of the fit: measure more rings"
        )
    if answer.get("all_sets_alike"):
        found.append(
            "all links are alike here, so no set is better than another: EffBW decides nothing"
        )
    elif answer.get("recommended") == "bottleneck":
        found.append(
            "the bottleneck model, which is the default, is at least as good: leave effbw out"
        )
    return [paragraph(f"note: {text}") for text in found]


def _text(fit: dict[str, Any]) -> str:
    rows = [[term, f"{value + 0.0:.6g}"] for term, value in fit["coefficients"].items()]
    mean, published = f"{fit['mae_gbps']:.3g}", f"{fit['published_mae_gbps']:.3g}"
    errors = pairs(
        {
            "samples": f"{fit['samples']}, {fit['rank']} independent terms",
            "mean error": f"{mean} GB/s (published coefficients: {published})",
            "RMS error": f"{fit['rmse_gbps']:.3g} GB/s",
            "left out": f"{_gbps_text(fit['left_out_rmse_gbps'])} RMS on samples left out of their"
            " own fit",
        }.items()
    )
    parts = [table(["term", "GB/s"], rows, right=["GB/s"]), errors]
    if "bottleneck" in fit:
        parts.append(_comparison_table(fit))
    if fit.get("recommended") != "bottleneck":
        option = f"effbw = [{', '.join(f'{c:g}' for c in fit['effbw'])}]"
        parts.append("\n".join(f'[policies."{policy}"]\n{option}' for policy in _POLICIES))
    return "\n\n".join(parts)


def _comparison_table(fit: dict[str, Any]) -> str:
    simple = fit["bottleneck"]
    share = f"bottleneck, {simple['share_of_slowest_link']:.1%} of the slowest link"
    headers = ["model", "RMS", "left out", "of the best set"]
    rows = [
        [
            name,
            _gbps_text(row["rmse_gbps"]),
            _gbps_text(row["left_out_rmse_gbps"]),
            f"{row['share_of_best']:.1%}",
        ]
        for name, row in (("eq. 2, refitted", fit), (share, simple))
    ]
    return (
        table(headers, rows, right=headers[1:])
        + "\n"
        + paragraph(
            "Of the best set: the least share of the best measured bandwidth that a choice among"
            " the measured sets of one size gets."
        )
    )


def _gbps_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} GB/s"


def _ring_samples(file: BinaryIO, machine_name: str | None) -> list[_Sample]:
    """Counts of links and bandwidth of each row."""
    samples = read_table(file)
    if machine_name is None:
        samples.require("x", "y", "z", "gbps")
        return samples.parse_all(
            lambda row: _Sample(
                row.count("x", *_LINKS),
                row.count("y", *_LINKS),
                row.count("z", *_LINKS),
                row.number("gbps", *_GBPS),
            )
        )
    if machine_name not in machine_names():
        raise SourceError(
            f"machine {machine_name!r} is not known; known: {', '.join(machine_names())}"
        )
    graph = machine(machine_name)
    samples.require("gpus", "gbps")
    return samples.parse_all(
        lambda row: _Sample(*fitted_ring(graph, _gpus(row, graph.n)), row.number("gbps", *_GBPS))
    )


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
