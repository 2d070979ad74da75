"""Pictures of performance models: time and power against the clock, energy against time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_gpu_aware.cli.output import drawn_into
from slurm_gpu_aware.features.models.views import ModelView, setting_of

_PANEL = 3.6


def draw(path: Path, views: Sequence[ModelView]) -> None:
    """Draw one row of three panels per model.

    Raises SourceError if matplotlib is missing or the file cannot be written.
    """
    with drawn_into(path, (3 * _PANEL, _PANEL * len(views)), dpi=150) as figure:
        axes = figure.subplots(len(views), 3, squeeze=False)
        for view, panels in zip(views, axes, strict=True):
            _row(view, panels)


def _row(view: ModelView, panels: Sequence[Any]) -> None:
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
