"""``gpu-aware models``: fit, show and plot performance models of the store."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.options import GPUS, Context, Number, pass_context
from slurm_gpu_aware.cli.output import json_option, paragraph, print_json, say
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.views import (
    ModelView,
    list_text,
    one_text,
    view_json,
    views_of,
)

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.features.models.site_models import SiteFit
    from slurm_gpu_aware.features.models.store import ModelRow
    from slurm_gpu_aware.store.database import Store


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
    from slurm_gpu_aware.features.models.views import draw

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
    from slurm_gpu_aware.features.models.known import read_models
    from slurm_gpu_aware.features.models.store import gpu_kinds
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
