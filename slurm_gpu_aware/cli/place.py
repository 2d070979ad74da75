"""``gpu-aware place``: what the policies would answer for one request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.options import GPUS, NODES
from slurm_gpu_aware.cli.output import json_option, paragraph, print_json, say, table
from slurm_gpu_aware.errors import RequestError

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.cluster_options import Answer
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.model.request import Request

__all__ = ["command"]

NOTHING_FITS = 1


@click.command("place")
@click.option("--gpus", "-g", type=GPUS, required=True, help="GPUs in total.")
@click.option("--nodes", "-N", type=NODES, help="Nodes; default: as many as it takes.")
@click.option("--class", "-c", "app_class", help="Application class; default: the site's.")
@click.option("--bw", type=click.Choice(["high", "low"]), help="Does it gain from links?")
@click.option("--pattern", default="ring", show_default=True, help="Communication pattern.")
@click.option("--model", "gpu_model", help="Only nodes with this GPU model.")
@click.option("--policy", help="Policy to ask; default: the site's.")
@click.option("--compare", metavar="POLICY,...", help="Ask these policies, too.")
@click.option("--machine", metavar="NAME", help="Idle machines of a known kind, not the store's.")
@click.option(
    "--machines",
    "count",
    type=NODES,
    default=1,
    show_default=True,
    help="How many of them.",
)
@click.option("--busy", multiple=True, metavar="NODE:0,3", help="GPUs in use. Repeatable.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Picture of the chosen nodes' links with the chosen GPUs (PNG, SVG or PDF).",
)
@json_option
@pass_context
def command(
    context: Context,
    gpus: int,
    nodes: int | None,
    app_class: str | None,
    bw: str | None,
    pattern: str,
    gpu_model: str | None,
    policy: str | None,
    compare: str | None,
    machine: str | None,
    count: int,
    busy: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Ask policies where a job would go on the profiled cluster, all idle but for --busy.

    Shows locality level, worst score V, predicted slowdown, and the bandwidths inside nodes (GB/s):
    AggBW and EffBW of the chosen GPUs, PreservedBW of those left free. Changes nothing. The exit
    code is 1 if the first policy has no place, because nothing fits or because it postpones the
    job; the reason is told.

    \b
    Examples:
      gpu-aware place --gpus 4 --class A --compare packed,pm-first
      gpu-aware place -g 3 --bw high --machine dgx-1-v100 --busy n1:0 --plot place.png
    """
    from slurm_gpu_aware.cli import cluster_options as given
    from slurm_gpu_aware.selector.policy_options import policy_options
    from slurm_gpu_aware.topology.patterns import parse_pattern

    config = context.config(check_policies=True)
    parse_pattern(pattern)
    cluster = given.mark_busy(_cluster(config, machine, count), busy)
    request = _request(config, gpus, nodes, app_class, bw, pattern, gpu_model)
    names = [policy or config.placement.policy, *_names(compare)]
    options = policy_options(config)
    answers = [given.answer(n, request, cluster, options.get(n, {})) for n in dict.fromkeys(names)]
    if as_json:
        print_json({"cluster": _shape(cluster), "answers": [a.as_json() for a in answers]})
    else:
        click.echo(_text(answers))
    if plot is not None:
        _plot(plot, cluster, answers)
    if answers[0].assignment is None:
        say(paragraph(_refusal(answers[0], gpus, cluster)))
        raise click.exceptions.Exit(NOTHING_FITS)


def _names(text: str | None) -> list[str]:
    return [n.strip() for n in (text or "").split(",") if n.strip()]


def _cluster(config: Config, machine: str | None, count: int) -> Cluster:
    from slurm_gpu_aware.cli.cluster_options import given_cluster, stored_cluster
    from slurm_gpu_aware.store.database import open_store
    from slurm_gpu_aware.store.profiles import load_profile

    if machine is not None:
        return given_cluster(machine, count, config)
    with open_store(config.store.path, readonly=True) as store:
        return stored_cluster(load_profile(store), config)


def _request(
    config: Config,
    gpus: int,
    nodes: int | None,
    app_class: str | None,
    bw: str | None,
    pattern: str,
    gpu_model: str | None,
) -> Request:
    from slurm_gpu_aware.model.request import Request

    chosen = app_class or config.site.default_class
    if chosen not in config.site.classes:
        known = ", ".join(config.site.classes)
        raise RequestError(f"class {chosen!r} is not one of the site's: {known}")
    sensitive = config.for_class(chosen).bandwidth_sensitive if bw is None else bw == "high"
    if nodes is not None and gpus % nodes:
        raise RequestError(f"{gpus} GPUs do not spread evenly over {nodes} nodes")
    return Request(
        job_id="1",
        gpus=gpus,
        min_nodes=nodes or 1,
        max_nodes=nodes,
        app_class=chosen,
        bandwidth_sensitive=sensitive,
        pattern=pattern,
        gpu_model=gpu_model,
        application=config.for_class(chosen).application,
    )


def _shape(cluster: Cluster) -> dict[str, int]:
    return {
        "nodes": len(cluster.nodes),
        "gpus": int(cluster.exists.sum()),
        "free": int(cluster.free.sum()),
    }


def _shape_text(cluster: Cluster) -> str:
    shape = _shape(cluster)
    return f"{shape['nodes']} nodes with {shape['gpus']} GPUs, {shape['free']} of them free"


def _refusal(first: Answer, gpus: int, cluster: Cluster) -> str:
    """Why there is no place, by the policy that was asked first."""
    what = "Postponed" if first.postponed else "Nothing fits"
    asked = f"{gpus} GPU{'s' if gpus > 1 else ''} on {_shape_text(cluster)}"
    return f"{what}: {asked}. {first.policy}: {first.reason}."


def _text(answers: Sequence[Answer]) -> str:
    from slurm_gpu_aware.cli.explain_text import place_text

    rows = []
    for found in answers:
        if found.assignment is None:
            outcome = "postponed" if found.postponed else "nothing fits"
            rows.append((found.policy, "", "", "", "", "", "", outcome))
            continue
        a = found.assignment
        rows.append(
            (
                found.policy,
                a.level,
                f"{a.score:.3f}",
                f"{a.slowdown:.3f}",
                _gbps(found.agg_gbps),
                _gbps(found.eff_gbps),
                _gbps(found.preserved_gbps),
                place_text(found.nodes, a.slots, a.exact),
            )
        )
    headers = ["policy", "level", "V", "slowdown", "AggBW", "EffBW", "PreservedBW", "place"]
    reasons = [paragraph(f"{a.policy}: {_reason(a)}") for a in answers if _reason(a)]
    return "\n\n".join(
        [table(headers, rows, right=headers[2:7]), *(["\n".join(reasons)] if reasons else [])]
    )


def _reason(answer: Answer) -> str:
    """Why this place, or why none; empty: not told."""
    found = answer.assignment
    return answer.reason if found is None else str(found.why.get("summary", ""))


def _gbps(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _plot(path: Path, cluster: Cluster, answers: Sequence[Answer]) -> None:
    from slurm_gpu_aware.cli.picture import draw

    placed = [a for a in answers if a.assignment is not None]
    if not placed:
        return
    draw(path, cluster, placed)
    say(f"wrote {path}")
