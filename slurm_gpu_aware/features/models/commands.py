"""``gpu-aware models``: fit, show and plot performance models of the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import GPUS, Context, Number, pass_context
from slurm_gpu_aware.cli.output import (
    drawn_into,
    json_option,
    pairs,
    paragraph,
    print_json,
    say,
    table,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.time_text import stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.features.models.performance_model import PerformanceModel
    from slurm_gpu_aware.features.models.site_models import SiteFit
    from slurm_gpu_aware.features.models.store import GpuKind, ModelRow
    from slurm_gpu_aware.features.models.tables import Point
    from slurm_gpu_aware.store.database import Store

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


@click.group("models")
def models() -> None:
    """Fit and show performance models: time, power and energy by GPUs and SM clock."""


@models.command()
@pass_context
def fit(context: Context) -> None:
    """Fit the models anew from what is stored.

    A class has a model on each GPU model whose clocks were swept ('gpu-aware-profile sweep
    --clocks'); an application, where its times were imported or measured in its jobs. The error of
    each fit on measurements that it has not seen is stored with it.

    \b
      gpu-aware-profile sweep --clocks 6 --allow-clock-changes
      gpu-aware-profile import applications.csv
      gpu-aware models fit
    """
    from gpu_aware_profile.store_writer import writable_store
    from slurm_gpu_aware.features.models.store import put_models
    from slurm_gpu_aware.store.database import open_for_reading

    config = context.config()
    with open_for_reading(config.store) as store:
        rows, skipped = _fitted(store)
    for one in skipped:
        say(paragraph(f"no model of {one.kind} {one.name} on {one.gpu_model}: {one.reason}"))
    if not rows:
        raise SourceError(
            "nothing to fit: sweep the clocks ('gpu-aware-profile sweep --clocks 6"
            " --allow-clock-changes'), or import times of applications"
        )
    with writable_store(config.store.path, config) as store:
        put_models(store, rows)
    kinds = Counter(row.kind for row in rows)
    say(
        f"fitted {kinds['class']} model{'s' * (kinds['class'] != 1)} of classes and"
        f" {kinds['application']} of applications into {config.store.path}"
    )


@models.command()
@click.argument("name", required=False)
@click.option("--gpus", type=GPUS, help="GPUs of the job. Default: the least measured count.")
@click.option(
    "--slowdown",
    type=Number(0, 1000),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Longest time that the last columns allow, above that at the default clock.",
)
@json_option
@pass_context
def show(
    context: Context, name: str | None, gpus: int | None, slowdown: float, as_json: bool
) -> None:
    """Show the models and their most efficient clocks.

    NAME is an application or a class; of one the frontier is shown, too: the clocks that no other
    clock beats in energy and in time. Energy and time are those of an iteration, against the
    default clock.

    \b
      gpu-aware models show
      gpu-aware models show bert --gpus 4 --slowdown 5
    """
    views = _views(context.config(), name, gpus, slowdown)
    if as_json:
        print_json([view_json(view) for view in views])
    elif name is None:
        click.echo(list_text(views, slowdown))
    else:
        click.echo("\n\n".join(one_text(view, slowdown) for view in views))


@models.command()
@click.argument("name")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--gpus", type=GPUS, help="GPUs of the job. Default: the least measured count.")
@pass_context
def plot(context: Context, name: str, file: Path, gpus: int | None) -> None:
    """Draw time, power and frontier of NAME as a picture (PNG, SVG, PDF).

    \b
      gpu-aware models plot bert bert.png
    """
    draw(file, _views(context.config(), name, gpus, 10.0))


def _fitted(store: Store) -> tuple[list[ModelRow], list[SiteFit]]:
    """Rows of the models, and what has none."""
    from slurm_gpu_aware.features.models.refit import model_row
    from slurm_gpu_aware.features.models.site_models import fit_site
    from slurm_gpu_aware.features.models.store import (
        application_samples,
        class_samples,
        gpu_kinds,
    )

    default = {k: v.max_mhz for k, v in gpu_kinds(store).items() if v.max_mhz is not None}
    rows, skipped = [], []
    for one in fit_site(class_samples(store), application_samples(store), default):
        if one.model is None:
            skipped.append(one)
            continue
        say(f"{one.kind} {one.name} on {one.gpu_model or 'unknown GPUs'}: {one.model.confidence()}")
        rows.append(model_row(one.kind, one.model, time.time()))
    return rows, skipped


def _views(config: Config, name: str | None, gpus: int | None, slowdown: float) -> list[ModelView]:
    """The models of a name, or all. Raises SourceError if there are none."""
    from slurm_gpu_aware.features.models.store import gpu_kinds, read_models
    from slurm_gpu_aware.features.power.declared import PowerConfig
    from slurm_gpu_aware.store.database import open_for_reading

    with open_for_reading(config.store) as store:
        found, kinds = read_models(store, config.of(PowerConfig).model_error), gpu_kinds(store)
    for sentence in found.unreadable:
        say(paragraph(sentence))
    known = list(found)
    for row, model in known:
        if name in (None, row.name) and not found.uses(model):
            worst, most = model.quality.worst, found.most_error
            say(
                paragraph(
                    f"{row.kind} {row.name} on {row.gpu_model or 'unknown GPUs'} is not used: it is"
                    f" wrong by {100 * worst:.0f}% for measurements that its fit has not seen, more"
                    f" than power.model_error ({100 * most:g}%); measure more conditions"
                )
            )
    if not known:
        raise SourceError("no models: 'gpu-aware models fit' makes them")
    chosen = [one for one in known if name in (None, one[0].name)]
    if not chosen:
        names = sorted({row.name for row, _ in known})
        raise SourceError(f"no model of {name!r}; known: {', '.join(names[:20])}")
    return views_of(chosen, kinds, gpus, slowdown / 100)
