"""The group ``gpu-aware``: commands, global options and exit codes (130: interrupted)."""

from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_gpu_aware import __version__
from slurm_gpu_aware.cli.options import Context
from slurm_gpu_aware.cli.run import LateGroup, run

_COMMANDS = {
    "clockd": "cli.clockd:clockd",
    "doctor": "cli.operation:doctor",
    "explain": "cli.explain:command",
    "metrics": "cli.operation:metrics",
    "models": "features.models.commands:models",
    "page": "cli.page:command",
    "place": "cli.place:command",
    "power": "features.power.commands:power",
    "queue": "cli.state:queue",
    "release": "cli.operation:release",
    "report": "cli.simulate:report",
    "selectd": "cli.operation:selectd",
    "setup": "cli.setup:command",
    "simulate": "cli.simulate:simulate",
    "status": "cli.state:status",
    "tune": "cli.tune:tune",
}
"""Command -> its module and its name there."""


@click.group(
    cls=LateGroup,
    elsewhere={name: f"slurm_gpu_aware.{where}" for name, where in _COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="gpu-aware")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="Configuration file. Default: $GPU_AWARE_CONFIG, then /etc/slurm-gpu-aware/config.toml.",
)
@click.pass_context
def cli(ctx: click.Context, config_path: str | None) -> None:
    """Place GPU jobs on Slurm by measured variability, links and clocks.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 doctor found something wrong.
    """
    ctx.obj = Context(config_path)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(cli, "gpu-aware", args)


if __name__ == "__main__":
    main()
