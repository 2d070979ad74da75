"""``gpu-aware-profile forget``: removes GPUs, level times and fits of EffBW from the store."""

import re
from pathlib import Path
from typing import Any

import click

from gpu_aware_profile.cli import store_options
from slurm_gpu_aware.bounds import NODE_NAME
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.measurements import forget_gpus, forget_levels
from slurm_gpu_aware.store.profiles import put_effbw

_GPU = re.compile(rf"({NODE_NAME})(?::([0-9]{{1,4}}))?\Z")


def _parsed(
    ctx: click.Context, param: click.Parameter, value: Any
) -> tuple[tuple[str, int | None], ...]:
    """Callback: ``n9`` -> (n9, None), ``n1:9`` -> (n1, 9)."""
    gpus = []
    for text in value:
        match = _GPU.match(text)
        if match is None:
            raise click.BadParameter(f"{text!r} does not name a GPU; expected NODE or NODE:INDEX")
        gpus.append((match[1], None if match[2] is None else int(match[2])))
    return tuple(dict.fromkeys(gpus))


@click.command()
@store_options
@click.argument("gpus", metavar="[NODE[:INDEX]]...", nargs=-1, callback=_parsed)
@click.option(
    "--levels", "classes", multiple=True, metavar="CLASS", help="Level times of this class."
)
@click.option(
    "--effbw", "models", multiple=True, metavar="MODEL", help="Fitted EffBW of this GPU model."
)
def forget(
    path: Path,
    config: Config,
    gpus: tuple[tuple[str, int | None], ...],
    classes: tuple[str, ...],
    models: tuple[str, ...],
) -> None:
    """Remove a node or one GPU with its times from the store, and recompute the scores.

    Use it for GPUs that were imported by mistake or have been removed. Slurm's files stay
    unchanged. The next sweep adds the GPUs that it sees again. --levels removes the times per
    locality level of a class, --effbw what 'fit-effbw --save' stored. If a name is not known,
    nothing is removed.

    \b
      gpu-aware-profile forget n9
      gpu-aware-profile forget n1:9 n9:0
      gpu-aware-profile forget --levels C
      gpu-aware-profile forget --effbw v100
    """
    if not (gpus or classes or models):
        raise click.UsageError("name a NODE, a GPU as NODE:INDEX, --levels CLASS or --effbw MODEL")
    from gpu_aware_profile.store_writer import recompute_scores, writable_store  # imports NumPy

    with writable_store(path, config, create=False) as store:
        with store.write():
            removed = sum(forget_gpus(store, node, slot) for node, slot in gpus)
            times = sum(forget_levels(store, name) for name in dict.fromkeys(classes))
            for name in dict.fromkeys(models):
                if not put_effbw(store, name, None):
                    raise StoreError(f"no EffBW of GPU model {name!r} is stored")
        if gpus:
            recompute_scores(store, config.site.classes)
    if gpus:
        say(f"forgot {removed} GPU{'' if removed == 1 else 's'} in {path}")
    if classes:
        say(f"forgot {times} level times of {', '.join(dict.fromkeys(classes))} in {path}")
    if models:
        say(f"forgot EffBW of {', '.join(dict.fromkeys(models))} in {path}")
