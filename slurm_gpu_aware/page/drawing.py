"""Drawings of nodes and charts over time: where each line and circle stands, as plain values."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import combinations, pairwise
from typing import NamedTuple

from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links
from slurm_gpu_aware.page.blocks import Chart, Circle, Drawing, Mark, Series, Tick, Wires
from slurm_gpu_aware.time_text import counted

SIDE = 320.0  # Side of a drawing.
WIDTH, HEIGHT = 360.0, 210.0  # Size of a chart.
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 18.0, 10.0, 24.0
_RING = 122.0
_FILLED = 0.88  # Share of the ring that circles take.
_WIDEST, _THINNEST = 7.0, 1.5
_NEAR = ("PIX", "PXB")  # Paths through PCIe that are drawn where a node has no direct link.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_APART = 11.0  # Least distance of two letters at the ends of lines.
_TICKS = 4
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def node_drawings(
    titles: Sequence[str], gpus: Sequence[Sequence[tuple[Mark, str]]], graph: HardwareGraph | None
) -> list[Drawing]:
    """Drawings of a node with its links.

    ``gpus``: (mark, value) of each GPU, for each of ``titles``. ``graph``: None: the links are not
    known.
    """
    drawings = []
    for number, (title, values) in enumerate(zip(titles, gpus, strict=True)):
        at, radius, wires, hub = _layout(graph, tuple(mark.slot for mark, _ in values))
        circles = [
            Circle(*point, f"GPU {mark.slot}", value, mark)
            for point, (mark, value) in zip(at, values, strict=True)
        ]
        drawings.append(Drawing(title, radius, circles, wires, hub, number > 0))
    return drawings


def around(slots: Sequence[int], graph: HardwareGraph | None) -> dict[int, tuple[float, float]]:
    """GPU -> place on a circle of radius 1, with the GPUs of a socket next to each other."""
    groups = {} if graph is None else dict(enumerate(graph.groups))
    order = sorted(slots, key=lambda slot: (groups.get(slot, 0), slot))
    turn = 2 * math.pi / max(1, len(order))
    start = math.pi / 2 + (turn / 2 if len(order) % 2 == 0 else 0)
    angles = {slot: start - number * turn for number, slot in enumerate(order)}
    return {slot: (math.cos(angle), math.sin(angle)) for slot, angle in angles.items()}


@lru_cache(maxsize=256)
def _layout(
    graph: HardwareGraph | None, slots: tuple[int, ...]
) -> tuple[tuple[tuple[float, float], ...], float, tuple[Wires, ...], str]:
    """Place of each GPU, radius, links, and what stands in the middle; of alike nodes the same."""
    count, middle = len(slots), SIDE / 2
    ring = _RING if count > 1 else 0.0
    at = {
        slot: (round(middle + ring * x, 1), round(middle - ring * y, 1))
        for slot, (x, y) in around(slots, graph).items()
    }
    radius = round(min(32.0, _FILLED * math.pi * ring / count), 1) if count > 1 else 32.0
    wires, hub = _wires(graph, at) if graph is not None else ((), "")
    return tuple(at[slot] for slot in slots), radius, wires, hub


def _wires(
    graph: HardwareGraph, at: Mapping[int, tuple[float, float]]
) -> tuple[tuple[Wires, ...], str]:
    """Links by kind, widest first, and what stands in the middle."""
    pairs = [pair for pair in combinations(sorted(at), 2) if pair[1] < graph.n]
    direct = [pair for pair in pairs if direct_links(graph.classes[pair[0]][pair[1]])]
    shown = direct or [pair for pair in pairs if graph.classes[pair[0]][pair[1]] in _NEAR]
    kinds: dict[tuple[float, str], list[tuple[int, int]]] = {}
    for a, b in shown:
        kinds.setdefault((float(graph.gbps[a, b]), graph.classes[a][b]), []).append((a, b))
    if len(at) > 3 and len(shown) == len(pairs) and len(kinds) == 1:
        ((gbps, word),) = kinds
        middle = (SIDE / 2, SIDE / 2)
        path = _path((point, middle) for point in at.values())
        return (Wires(path, 3.0, "", f"{word}, {gbps:.0f} GB/s, each pair"),), "switch"
    widest = max((gbps for gbps, _ in kinds), default=0.0) or 1.0
    wires = [
        Wires(
            _path((at[a], at[b]) for a, b in own),
            round(max(_THINNEST, _WIDEST * gbps / widest), 1),
            "" if direct_links(word) else "2 4",
            f"{word}, {gbps:.0f} GB/s: {counted(len(own), 'pair')}",
        )
        for (gbps, word), own in sorted(kinds.items(), reverse=True)
    ]
    return tuple(wires), ""


def _path(lines: Iterable[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    return "".join(f"M{x1:g} {y1:g} {x2:g} {y2:g}" for (x1, y1), (x2, y2) in lines)


class Curve(NamedTuple):
    """Values over time."""

    name: object  # Cell of the legend.
    points: Sequence[tuple[float, float]]  # (Unix time, value), ascending, at least one.
    steps: bool = False  # A value holds until the next one.


def chart(
    title: str,
    about: str,
    curves: Sequence[Curve],
    band: Sequence[tuple[float, float, float]] = (),
    *,
    band_name: str = "",
    unit: str = "",
    from_zero: bool = False,
) -> Chart | None:
    """A chart; None: there is no value.

    ``band``: (Unix time, low, high), drawn behind the curves. ``unit``: after the numbers of the
    axis. At most 26 curves.
    """
    times = [at for curve in curves for at, _ in curve.points] + [row[0] for row in band]
    values = [v for curve in curves for _, v in curve.points] + [v for row in band for v in row[1:]]
    if not values:
        return None
    first, last = min(times), max(times)
    last = max(last, first + 60.0)
    low, high, y_ticks = _axis(0.0 if from_zero else min(values), max(values))

    def x(at: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (at - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low), 1)

    series = []
    ends = _spread([y(curve.points[-1][1]) for curve in curves])
    for number, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        points = [(x(at), y(value)) for at, value in curve.points]
        if curve.steps:
            points = [
                points[0],
                *(p for (_, y0), (x1, y1) in pairwise(points) for p in ((x1, y0), (x1, y1))),
            ]
        text = " ".join(f"{px:g},{py:g}" for px, py in points)
        place = (min(points[-1][0] + 4, WIDTH - 12), end)
        series.append(Series(_LETTERS[number], curve.name, text, place, number))
    outline = [(x(t), y(hi)) for t, _, hi in band] + [(x(t), y(lo)) for t, lo, _ in reversed(band)]
    shape = " ".join(f"{px:g},{py:g}" for px, py in outline)
    y_marks = [Tick(y(value), f"{value:g}{unit}") for value in y_ticks]
    return Chart(title, about, series, _days(first, last, x), y_marks, shape, band_name)


def _axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Ends and ticks of an axis of numbers."""
    span = max(high - low, abs(high) * 0.02, 1e-3)
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(s * power for s in _STEPS if s * power >= span / _TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
    ticks = [round(k * step, 9) for k in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _days(first: float, last: float, x: Callable[[float], float]) -> list[Tick]:
    """First, middle and last time; ``x``: place of a time."""
    form = "%d %b" if last - first > 2 * 86_400 else "%H:%M"
    return [
        Tick(x(at), datetime.fromtimestamp(at).strftime(form))
        for at in (first, (first + last) / 2, last)
    ]


def _spread(at: Sequence[float]) -> list[float]:
    """Heights of letters: near the ends of their lines, and apart."""
    order = sorted(range(len(at)), key=lambda i: at[i])
    found = list(at)
    for below, above in pairwise(order):
        found[above] = max(found[above], found[below] + _APART)
    beyond = max([found[order[-1]] - (HEIGHT - _BOTTOM) if order else 0.0, 0.0])
    return [round(y - beyond, 1) for y in found]
