"""``gpu-aware-profile``: measures GPUs and shows the measurements.

Exit codes: 0 done; 1 failed (one line on stderr says why, nothing was stored); 2 wrong usage;
3 ``import`` skipped bad rows, ``sweep`` left nodes out, ``drift`` found slower GPUs, or ``watch``
GPUs that are not well; 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from slurm_gpu_aware import __version__
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.cli.run import LateGroup, run

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config

PARTLY = 3  # Exit code: import skipped bad rows, a sweep is not complete, or GPUs became slower.

_ELSEWHERE = {
    "collect": "gpu_aware_profile.commands.import_files:collect",
    "export": "gpu_aware_profile.commands.show:export",
    "report": "gpu_aware_profile.commands.report:report",
    "drift": "gpu_aware_profile.commands.report:drift",
    "show": "gpu_aware_profile.commands.show:show",
    "classify": "gpu_aware_profile.commands.classify:classify",
    "forget": "gpu_aware_profile.commands.import_files:forget",
    "fit-effbw": "gpu_aware_profile.commands.effbw:fit_effbw",
    "import": "gpu_aware_profile.commands.import_files:import_command",
    "job": "gpu_aware_profile.commands.job:job",
    "levels": "gpu_aware_profile.commands.levels:levels",
    "level-step": "gpu_aware_profile.commands.levels:level_step",
    "pattern": "gpu_aware_profile.commands.classify:pattern",
    "node": "gpu_aware_profile.commands.probe:node",
    "sweep": "gpu_aware_profile.commands.sweep:sweep",
    "watch": "gpu_aware_profile.commands.watch:watch",
}
"""Command -> ``module:name``, imported on use: ``node`` runs on every compute node and must start
fast."""


def store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--store`` and ``--config``; the command gets the arguments ``path`` and ``config``."""

    @click.option(
        "--store",
        "store_path",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="SQLite file. Default: store.path of the configuration.",
    )
    @click.option(
        "--config",
        "config_path",
        metavar="FILE",
        help="Configuration file. Default: $GPU_AWARE_CONFIG, then"
        " /etc/slurm-gpu-aware/config.toml.",
    )
    @wraps(command)
    def wrapped(store_path: Path | None, config_path: str | None, **options: Any) -> None:
        from slurm_gpu_aware.config.load import load_config

        config = load_config(config_path)
        if store_path is not None:  # not the copy of another store
            config = replace(config, store=replace(config.store, published=None))
        command(path=store_path or config.store.path, config=config, **options)

    return wrapped


@click.group(
    cls=LateGroup, elsewhere=_ELSEWHERE, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="gpu-aware-profile")
def cli() -> None:
    """Measure the differences of GPUs, and show the measurements.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 import skipped bad rows, sweep left nodes out,
    drift found slower GPUs, or watch GPUs that are not well.
    """


@cli.command()
@store_options
@click.option(
    "--reference",
    type=click.Choice(["model", "cluster"]),
    help="Median of PM scores: that of the GPU model (default), or of all GPUs, so that scores"
    " rank the models, too. The choice is stored.",
)
def rescore(path: Path, config: Config, reference: str | None) -> None:
    """Recompute scores and bins from the stored timings (after a change of site.classes).

    \b
      gpu-aware-profile rescore
      gpu-aware-profile rescore --reference cluster
    """
    from gpu_aware_profile.store_writer import recompute_scores, writable_store

    with writable_store(path, config, create=False) as store:
        count = recompute_scores(store, config.site.classes, reference=reference)
        say(f"{count} scores in {store.path}")


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(cli, "gpu-aware-profile", args)


if __name__ == "__main__":
    main()
