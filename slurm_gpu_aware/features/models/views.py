"""Views of performance models: tables, and pictures of time, power and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import drawn_into, pairs, table
from slurm_gpu_aware.time_text import stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.features.models.performance_model import PerformanceModel
    from slurm_gpu_aware.features.models.store import GpuKind, ModelRow
    from slurm_gpu_aware.features.models.tables import Point


_STEP_MHZ = 15  # Steps of the clocks of a GPU model whose supported clocks are not known.
_ROWS = 12  # Rows of a frontier in the text.
_PANEL = 3.6  # inches


@dataclass(frozen=True)
class ModelView:
    """A model at one GPU count."""

    row: ModelRow
    model: PerformanceModel
    gpus: int
    points: Sequence[Point]  # The known settings (`points`); the last one is the default clock.
    frontier: Sequence[Point]
    best: Point  # Least energy.
    near: Point  # Least energy within the allowed slowdown.

    @property
    def default(self) -> Point:
        """The default clock."""
        return self.points[-1]


def views_of(
    chosen: Sequence[tuple[ModelRow, PerformanceModel]],
    kinds: Mapping[str, GpuKind],
    gpus: int | None,
    slowdown: float,
) -> list[ModelView]:
    """Views of models. ``gpus`` None: the least measured count. ``slowdown``: 0.1 is 10%."""
    from slurm_gpu_aware.features.models.store import GpuKind
    from slurm_gpu_aware.features.models.tables import (
        at_most_slower,
        efficient_point,
        frontier,
        points,
        size_table,
    )

    views = []
    for row, model in chosen:
        own = kinds.get(row.gpu_model, GpuKind())
        count = gpus or model.measured.least_gpus
        choice = _clocks(model, own.clocks_mhz)
        sizes = size_table(model, (count,), choice, own.per_node, limits_w=own.limits_w)
        known = points(sizes)
        best, near = efficient_point(known), at_most_slower(known, slowdown)
        if best is not None and near is not None:
            views.append(ModelView(row, model, count, known, frontier(known), best, near))
    return views


def _clocks(model: PerformanceModel, supported: Sequence[int]) -> list[int]:
    """Supported clocks up to the default one; without a list, steps over the measured range."""
    default = round(model.throughput.reference_mhz)
    low = round(min(model.measured.low_mhz, default))
    choice = supported or range(low, default, _STEP_MHZ)
    return [*(f for f in choice if low <= f < default), default]


def view_json(view: ModelView) -> dict[str, Any]:
    """A view as JSON."""
    quality, measured = view.model.quality, view.model.measured
    return {
        "kind": view.row.kind,
        "name": view.row.name,
        "gpu_model": view.row.gpu_model,
        "fitted_at": view.row.fitted_at,
        "gpus": view.gpus,
        "quality": vars(quality),
        "measured": vars(measured),
        "default": view.default._asdict(),
        "most_efficient": _compared(view.best, view.default),
        "within_slowdown": _compared(view.near, view.default),
        "frontier": [_compared(point, view.default) for point in view.frontier],
    }


def list_text(views: Sequence[ModelView], slowdown: float) -> str:
    """One row per model; without a choice of clocks there is nothing to save."""
    headers = ["model", "GPU", "n", "default", "least energy", "energy", "time"]
    headers += [f"within {slowdown:g}%", "saves", "time error", "power error"]
    return table(headers, [_row(view) for view in views], right=headers[2:])


def _row(view: ModelView) -> list[object]:
    quality, default = view.model.quality, view.default
    row: list[object] = [f"{view.row.kind} {view.row.name}", view.row.gpu_model, view.gpus]
    row.append(setting_of(default))
    if len(view.points) == 1:
        row += [None] * 5
    else:
        row += [setting_of(view.best), _change(view.best.energy_j, default.energy_j)]
        row += [_change(view.best.time_s, default.time_s), setting_of(view.near)]
        row.append(_change(view.near.energy_j, default.energy_j))
    errors = (quality.time_error, quality.power_error)
    return row + [None if error is None else f"{100 * error:.1f}%" for error in errors]


def one_text(view: ModelView, slowdown: float) -> str:
    """A model in detail, with its frontier."""
    model, default = view.model, view.default
    measured = model.measured
    only = "" if model.knows_gpus(view.gpus) else ": not measured; changes in % count, times do not"
    head = pairs(
        [
            ("model", f"{view.row.kind} {view.row.name} on {view.row.gpu_model}"),
            ("fitted", stamp(view.row.fitted_at)),
            ("error", f"{model.confidence()}, on measurements left out of the fit"),
            (
                "measured",
                f"{measured.least_gpus} to {measured.most_gpus} GPUs,"
                f" {measured.low_mhz:g} to {measured.high_mhz:g} MHz",
            ),
            ("GPUs", f"{view.gpus}{only}"),
            ("default clock", _described(default, default)),
            ("least energy", _described(view.best, default)),
            (f"within {slowdown:g}%", _described(view.near, default)),
        ]
    )
    headers = ["clock", "time", "power", "energy", "time of default", "energy of default"]
    rows = [
        [
            setting_of(point),
            f"{point.time_s:.4g} s",
            f"{point.power_w:.0f} W",
            f"{point.energy_j:.4g} J",
            _change(point.time_s, default.time_s),
            _change(point.energy_j, default.energy_j),
        ]
        for point in _thinned(view.frontier)
    ]
    return f"{head}\n\n{table(headers, rows, right=headers)}"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `_ROWS` of the points, the first and the last among them."""
    last = len(points) - 1
    rows = min(_ROWS, len(points))
    return [points[round(i * last / max(1, rows - 1))] for i in range(rows)]


def _compared(point: Point, default: Point) -> dict[str, float]:
    return {
        **point._asdict(),
        "energy_saved": 1.0 - point.energy_j / default.energy_j,
        "slowdown": point.time_s / default.time_s - 1.0,
    }


def _described(point: Point, default: Point) -> str:
    text = (
        f"{setting_of(point)}: {point.time_s:.4g} s, {point.power_w:.0f} W, {point.energy_j:.4g} J"
    )
    if point == default:
        return text
    energy, time = (
        _change(getattr(point, what), getattr(default, what)) for what in ("energy_j", "time_s")
    )
    return f"{text} (energy {energy}, time {time})"


def setting_of(point: Point) -> str:
    """``1305 MHz``, or ``1410 MHz, 250 W``."""
    return f"{point.clock_mhz} MHz" + (f", {point.limit_w} W" if point.limit_w else "")


def _change(value: float, default: float) -> str:
    return f"{100 * (value / default - 1.0):+.1f}%"


def draw(path: Path, views: Sequence[ModelView]) -> None:
    """Draw one row of three panels per model.

    Raises SourceError if matplotlib is missing or the file cannot be written.
    """
    with drawn_into(path, (3 * _PANEL, _PANEL * len(views)), dpi=150) as figure:
        axes = figure.subplots(len(views), 3, squeeze=False)
        for view, panels in zip(views, axes, strict=True):
            _draw(view, panels)


def _draw(view: ModelView, panels: Sequence[Any]) -> None:
    alone = [point for point in view.points if not point.limit_w]
    clocks = [point.clock_mhz for point in alone]
    title = f"{view.row.name} on {view.row.gpu_model}, {view.gpus} GPU{'s' * (view.gpus != 1)}"
    for panel, values, label in (
        (panels[0], [point.time_s for point in alone], "time of an iteration, s"),
        (panels[1], [point.power_w for point in alone], "power, W"),
    ):
        panel.plot(clocks, values, color="#1f5fa8")
        panel.axvline(view.best.clock_mhz, color="#b5b5b5", linestyle=":")
        panel.set(xlabel="SM clock, MHz", ylabel=label, ylim=(0, 1.1 * max(values)))
    # A name may hold what matplotlib takes for mathematics.
    panels[0].set_title(title, fontsize=9, parse_math=False)
    times = [point.time_s for point in view.points]
    energies = [point.energy_j for point in view.points]
    panels[2].plot(times, energies, ".", color="#b5b5b5", label="clocks, power limits")
    panels[2].plot(
        [point.time_s for point in view.frontier],
        [point.energy_j for point in view.frontier],
        color="#1f5fa8",
        label="frontier",
    )
    marked = ((view.default, "default", (8, -14)), (view.best, "least energy", (4, 14)))
    for point, name, offset in marked:
        panels[2].plot(point.time_s, point.energy_j, "o", color="#1f5fa8")
        panels[2].annotate(
            f"{name}\n{setting_of(point)}",
            (point.time_s, point.energy_j),
            xytext=offset,
            textcoords="offset points",
            fontsize=8,
        )
    panels[2].set(xlabel="time of an iteration, s", ylabel="energy of an iteration, J")
    panels[2].legend(fontsize=8)
