"""Picture of ``gpu-aware place``: link graphs of the chosen nodes with the chosen GPUs.

It is readable without colour. The width of a line is the bandwidth of the link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import drawn_into
from slurm_gpu_aware.model.hardware_graph import direct_links

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.model.hardware_graph import HardwareGraph
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
    assignment = answer.assignment
    assert assignment is not None  # noqa: S101 - only placements are drawn
    node, slots = assignment.nodes[position], assignment.slots[position]
    graph = cluster.graphs[node] if cluster.graphs else None
    there = [s for s in range(cluster.shape[1]) if cluster.exists[node, s]]
    at = _positions(there, graph)
    if graph is not None:
        _links(panel, graph, answer.links[position] if answer.links else (), at)
    for slot in there:
        free = "free GPU" if cluster.free[node, slot] else "GPU in use"
        _gpu(panel, at[slot], slot, "chosen GPU" if slot in slots else free, len(there))
    links = "" if answer.eff_gbps is None else f", EffBW {answer.eff_gbps:.0f} GB/s"
    title = f"{answer.policy}: {cluster.nodes[node]}\nslowdown {assignment.slowdown:.2f}{links}"
    panel.set_title(title, fontsize=9)
    panel.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")


def _positions(slots: Sequence[int], graph: HardwareGraph | None) -> dict[int, tuple[float, float]]:
    """Slot -> position on a circle, with the GPUs of a socket next to each other."""
    order = sorted(slots, key=lambda s: (graph.groups[s] if graph is not None else 0, s))
    turn = 2 * math.pi / max(1, len(order))
    start = math.pi / 2 + (turn / 2 if len(order) % 2 == 0 else 0)
    return {
        s: (math.cos(start - i * turn), math.sin(start - i * turn)) for i, s in enumerate(order)
    }


def _links(
    panel: Any,
    graph: HardwareGraph,
    used: Sequence[tuple[int, int]],
    at: dict[int, tuple[float, float]],
) -> None:
    """Direct links of the node as lines, and the links that the job uses with their bandwidth."""
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
