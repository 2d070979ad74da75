"""``gpu-aware place``: the placements of one request by the policies, and their picture.

The picture is readable without colour. The width of a line is the bandwidth of the link.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.cli.options import GPUS, NODES, Context, pass_context
from slurm_gpu_aware.cli.output import (
    drawn_into,
    json_option,
    paragraph,
    place_text,
    print_json,
    say,
    table,
)
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.time_text import counted

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.features.power.declared import SizePower
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.model.hardware_graph import HardwareGraph
    from slurm_gpu_aware.model.profile import Profile
    from slurm_gpu_aware.model.request import Request
    from slurm_gpu_aware.planning.answer import Answer

_SIZE = 3.4
_MOST_PANELS = 12
_CHOSEN, _GREY, _PALE = "#1f5fa8", "#b5b5b5", "#d9d9d9"
_GPU: dict[str, dict[str, Any]] = {
    "chosen GPU": {"facecolor": _CHOSEN, "edgecolor": "black", "linewidth": 2.0},
    "free GPU": {"facecolor": "#ffffff", "edgecolor": "black"},
    "GPU in use": {"facecolor": _PALE, "edgecolor": "black", "hatch": "////"},
}
"""State of a GPU -> properties of its circle."""
_NODE_RADIUS = 0.15
_MOST_WIDE_LINKS = 60
_CENTRED = {"ha": "center", "va": "center"}
_LABEL = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
_ON_BUSY = {**_LABEL, "boxstyle": "round,pad=0.1", "facecolor": _PALE}


@click.command("place")
@click.option("--gpus", "-g", type=GPUS, required=True, help="GPUs in total.")
@click.option("--nodes", "-N", type=NODES, help="Number of nodes; default: as needed.")
@click.option("--class", "-c", "app_class", help="Application class; default: the site's.")
@click.option("--bw", type=click.Choice(["high", "low"]), help="Sensitivity to bandwidth.")
@click.option("--pattern", default="ring", help="Communication pattern.")
@click.option("--model", "gpu_model", help="Only nodes with this GPU model.")
@click.option(
    "--application",
    metavar="NAME",
    help="Performance model (model=NAME in a comment); default: that of the class.",
)
@click.option("--policy", help="Policy to ask; default: the site's.")
@click.option("--compare", metavar="POLICY,...", help="Further policies to ask.")
@click.option(
    "--machine", metavar="NAME", help="Use machines of this kind, not the store's cluster."
)
@click.option("--machines", "count", type=NODES, default=1, help="Number of these machines.")
@click.option(
    "--busy",
    multiple=True,
    metavar="NODE:0,3[@END]",
    help="GPUs in use, until 18:30 or for 90m, 8h, 2d; by default without a known end. Repeatable.",
)
@click.option(
    "--run-time",
    metavar="TIME",
    help="Expected run time on median GPUs, such as 90m or 8h: a policy that lets jobs wait for"
    " better GPUs weighs it.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Picture of the chosen nodes' links with the chosen GPUs (PNG, SVG or PDF).",
)
@json_option
@pass_context
def command(context: Context, /, **given: Any) -> None:
    """Show where policies would place a job on the profiled cluster, all idle except for --busy.

    Shows locality level, worst score V, predicted slowdown, and the bandwidths inside nodes (GB/s):
    AggBW and EffBW of the chosen GPUs, PreservedBW of those that stay free. If a performance model
    is known (gpu-aware models), also the power at the most efficient clock, and what twice the GPUs
    and the next clock would bring and cost. With --run-time and ends of the GPUs in use, a policy
    such as eft says whether the job would wait for better ones, and what it gains. Changes nothing.
    The exit code is 1 if the first policy finds no place or postpones the job; the reason is
    printed.

    \b
    Examples:
      gpu-aware place --gpus 4 --class A --compare packed,pm-first
      gpu-aware place -g 3 --bw high --machine dgx-1-v100 --busy n1:0 --plot place.png
      gpu-aware place -g 2 --class A --busy n1:0,1@90m --run-time 8h
    """
    from slurm_gpu_aware.cli.cluster_options import mark_busy
    from slurm_gpu_aware.placement.policy import policy_class
    from slurm_gpu_aware.planning.answer import ask_policy
    from slurm_gpu_aware.selector.policy_options import config_in_force, policy_options

    config = config_in_force(context.config(check_policies=True))
    now = time.time()
    request = replace(_request(config, given), submit_s=now)
    cluster, profile = _cluster(config, given["machine"], given["count"])
    size = None if profile is None else _size(config, request, cluster, profile)
    cluster = mark_busy(cluster, given["busy"], now)
    compared = (name.strip() for name in (given["compare"] or "").split(","))
    names = dict.fromkeys([given["policy"] or config.placement.policy, *filter(None, compared)])
    site = policy_options(config)
    options = {name: {**policy_class(name).of_traces, **site.get(name, {})} for name in names}
    answers = [ask_policy(name, request, cluster, options[name], now) for name in names]
    shape = {
        "nodes": len(cluster.nodes),
        "gpus": int(cluster.exists.sum()),
        "free": int(cluster.free.sum()),
    }
    if given["as_json"]:
        told = None if size is None else records.plain(size)
        print_json({"cluster": shape, "answers": [a.as_json() for a in answers], "size": told})
    else:
        click.echo(_text(answers))
        if size is not None:
            click.echo("\n" + paragraph(f"{size.model}: {size.words()}."))
    placed = [answer for answer in answers if answer.assignment is not None]
    if given["plot"] is not None and placed:
        draw(given["plot"], cluster, placed)
        say(f"wrote {given['plot']}")
    if answers[0].assignment is None:
        say(paragraph(_refusal(answers[0], request.gpus, shape)))
        raise click.exceptions.Exit(1)


def _cluster(config: Config, machine: str | None, count: int) -> tuple[Cluster, Profile | None]:
    """The cluster, and the profile if it is the store's."""
    if machine is None:
        from slurm_gpu_aware.cli.cluster_options import stored_cluster

        return stored_cluster(config)
    from slurm_gpu_aware.simulator.simulated_site import synthetic_site

    penalties = config.placement.penalties
    return synthetic_site(count, machine_name=machine, penalties=penalties).cluster, None


def _size(config: Config, request: Request, cluster: Cluster, profile: Profile) -> SizePower | None:
    """The power of size and clock at the most efficient clock; None: no model is known."""

    from slurm_gpu_aware.features.models.store import read_models
    from slurm_gpu_aware.features.power.declared import PowerConfig
    from slurm_gpu_aware.features.power.job_tables import JobTables
    from slurm_gpu_aware.features.power.stage import size_power
    from slurm_gpu_aware.store.database import open_for_reading

    with open_for_reading(config.store) as store:
        models = read_models(store, config.of(PowerConfig).model_error)
    tables = JobTables()
    tables.renew(models, profile, cluster)
    twice = 2 * request.gpus
    request = tables.tabled(replace(request, sizes=(request.gpus, twice)))
    if why := tables.why_none(request):
        say(paragraph(f"{why}."))
    from slurm_gpu_aware.model.size_table import TABLE

    if (sizes := request.get(TABLE)) is None:
        return None
    clock_mhz = sizes.efficient_clock(request.gpus)
    return size_power(sizes, request.gpus, clock_mhz, more_gpus=twice, free_clock=True)


def _request(config: Config, given: Mapping[str, Any]) -> Request:
    from slurm_gpu_aware.features.models.performance_model import MODEL
    from slurm_gpu_aware.model.facets import named
    from slurm_gpu_aware.model.request import NodeRules, Request
    from slurm_gpu_aware.topology.patterns import parse_pattern

    parse_pattern(given["pattern"])
    gpus, nodes, bw = given["gpus"], given["nodes"], given["bw"]
    app_class = given["app_class"] or config.site.default_class
    if app_class not in config.site.classes:
        known = ", ".join(config.site.classes)
        raise RequestError(f"class {app_class!r} is not one of the site's: {known}")
    if nodes is not None and gpus % nodes:
        raise RequestError(
            f"{counted(gpus, 'GPU')} cannot be spread evenly over {counted(nodes, 'node')}"
        )
    of_class = config.for_class(app_class)
    return Request(
        job_id="1",
        gpus=gpus,
        min_nodes=nodes or 1,
        max_nodes=nodes,
        app_class=app_class,
        bandwidth_sensitive=of_class.bandwidth_sensitive if bw is None else bw == "high",
        pattern=given["pattern"],
        nodes=NodeRules(gpu_model=given["gpu_model"]),
        application=of_class.application,
        facets=named(MODEL, given["application"]),
        estimate_s=_run_time_s(given["run_time"]),
    )


def _run_time_s(text: str | None) -> int | None:
    from slurm_gpu_aware.model.job_hints import DURATION

    if text is None:
        return None
    if (seconds := DURATION.read(text)) is None:
        raise RequestError(f"--run-time: {quoted(text)} is not a duration such as 90m or 8h")
    return seconds


def _refusal(first: Answer, gpus: int, shape: Mapping[str, int]) -> str:
    """What the first policy answers; its reason stands on stdout."""
    what = "Postponed" if first.postponed else "Nothing fits"
    asked = f"{counted(gpus, 'GPU')} on {counted(shape['nodes'], 'node')}"
    there = f"{counted(shape['gpus'], 'GPU')}, {shape['free']} of them free"
    return f"{what}: {asked} with {there}."


def _text(answers: Sequence[Answer]) -> str:
    headers = ["policy", "level", "V", "slowdown", "AggBW", "EffBW", "PreservedBW", "place"]
    rows, reasons = [], []
    for answer in answers:
        a, reason = answer.assignment, answer.reason
        if a is None:
            row = [""] * 6 + ["postponed" if answer.postponed else "nothing fits"]
        else:
            reason = a.why.text
            bandwidths = (answer.agg_gbps, answer.eff_gbps, answer.preserved_gbps)
            row = [a.level, f"{a.score:.3f}", f"{a.slowdown:.3f}"]
            row += ["" if gbps is None else f"{gbps:.0f}" for gbps in bandwidths]
            row.append(place_text({"nodes": answer.nodes, "slots": a.slots, "exact": a.exact}))
        rows.append([answer.policy, *row])
        if reason:
            reasons.append(paragraph(f"{answer.policy}: {reason}"))
    return "\n\n".join(filter(None, [table(headers, rows, right=headers[2:7]), "\n".join(reasons)]))


def draw(path: Path, cluster: Cluster, answers: Sequence[Answer]) -> None:
    """Draw one row per policy with one panel per node (at most 12 panels).

    Raises SourceError if matplotlib is missing or the file cannot be written.
    """
    lines = [[(answer, i) for i in range(len(answer.nodes))] for answer in answers]
    if all(len(line) == 1 for line in lines):
        lines = [[panel for line in lines for panel in line]]
    columns = min(_MOST_PANELS, max(len(line) for line in lines))
    size = (max(5.2, _SIZE * columns), _SIZE * len(lines) + 0.9)
    with drawn_into(path, size, dpi=150, bbox_inches="tight") as figure:
        axes = figure.subplots(len(lines), columns, squeeze=False)
        for line, panels in zip(lines, axes, strict=True):
            for panel in panels:
                panel.set_axis_off()
            for (answer, position), panel in zip(line, panels, strict=False):
                _panel(panel, cluster, answer, position)
        legend = {"loc": "outside lower center", "ncols": 3, "fontsize": 8, "frameon": False}
        figure.legend(handles=_legend(), **legend)


def _panel(panel: Any, cluster: Cluster, answer: Answer, position: int) -> None:
    """One node of a placement."""
    from slurm_gpu_aware.page.drawing import around

    assignment = answer.assignment
    assert assignment is not None  # noqa: S101 - only placements are drawn
    node, slots = assignment.nodes[position], assignment.slots[position]
    graph = cluster.graphs[node] if cluster.graphs else None
    there = [s for s in range(cluster.shape[1]) if cluster.exists[node, s]]
    at = around(there, graph)
    if graph is not None:
        _links(panel, graph, answer.links[position] if answer.links else (), at)
    for slot in there:
        free = "free GPU" if cluster.free[node, slot] else "GPU in use"
        _gpu(panel, at[slot], slot, "chosen GPU" if slot in slots else free, len(there))
    links = "" if answer.eff_gbps is None else f", EffBW {answer.eff_gbps:.0f} GB/s"
    title = f"{answer.policy}: {cluster.nodes[node]}\nslowdown {assignment.slowdown:.2f}{links}"
    panel.set_title(title, fontsize=9)
    panel.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")


def _links(
    panel: Any,
    graph: HardwareGraph,
    used: Sequence[tuple[int, int]],
    at: dict[int, tuple[float, float]],
) -> None:
    """Direct links of the node as lines, and the links that the job uses with their bandwidth."""
    from slurm_gpu_aware.model.hardware_graph import direct_links

    widest = float(graph.gbps.max()) or 1.0
    pairs = list(combinations(sorted(at), 2))
    # A switch links every pair; thin lines keep the picture readable.
    scale = 4.4 if len(pairs) <= _MOST_WIDE_LINKS else 0.8
    for a, b in pairs:
        inside = (a, b) in used
        direct = direct_links(graph.classes[a][b]) > 0
        if not direct and not inside:
            continue
        gbps = float(graph.gbps[a, b])
        panel.plot(
            [at[a][0], at[b][0]],
            [at[a][1], at[b][1]],
            linewidth=0.4 + (4.4 if inside else scale) * gbps / widest,
            linestyle="-" if direct else ":",
            color=_CHOSEN if inside else _GREY,
            zorder=2 if inside else 1,
        )
        if inside:
            # Away from the middle, where the diagonals of the circle cross.
            x, y = (0.62 * at[a][i] + 0.38 * at[b][i] for i in (0, 1))
            panel.text(x, y, f"{gbps:.0f}", fontsize=7, zorder=5, bbox=_LABEL, **_CENTRED)


def _gpu(panel: Any, at: tuple[float, float], slot: int, state: str, count: int) -> None:
    """One GPU of ``count`` in the panel."""
    from matplotlib.patches import Circle

    radius, chosen = min(_NODE_RADIUS, 1.6 / count), state == "chosen GPU"
    panel.add_patch(Circle(at, radius, zorder=3, **_GPU[state]))
    panel.text(
        *at,
        str(slot),
        zorder=4,
        fontsize=9 if radius >= _NODE_RADIUS else 7,
        color="white" if chosen else "black",
        fontweight="bold" if chosen else "normal",
        bbox=_ON_BUSY if state == "GPU in use" else None,
        **_CENTRED,
    )


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        *(Patch(label=state, **style) for state, style in _GPU.items()),
        Line2D([], [], color=_CHOSEN, linewidth=3, label="link that the job uses (GB/s)"),
        Line2D([], [], color=_GREY, linewidth=3, label="other NVLink or xGMI"),
        Line2D([], [], color=_CHOSEN, linestyle=":", label="the same through PCIe or host"),
    ]
