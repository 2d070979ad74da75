"""The group ``gpu-aware``: global options, exit codes, and what an error means to the outside.

Exit codes: 0 done; 1 failed (one line on stderr says why); 2 wrong usage; 3 ``doctor`` found
something wrong; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from slurm_gpu_aware import __version__
from slurm_gpu_aware.cli.context import Context
from slurm_gpu_aware.errors import AwareError

__all__ = ["cli", "main"]

INTERRUPTED = 130


_COMMANDS = {
    "doctor": "slurm_gpu_aware.cli.doctor",
    "explain": "slurm_gpu_aware.cli.explain",
    "place": "slurm_gpu_aware.cli.place",
    "queue": "slurm_gpu_aware.cli.queue",
    "release": "slurm_gpu_aware.cli.release",
    "report": "slurm_gpu_aware.cli.report",
    "selectd": "slurm_gpu_aware.cli.selectd",
    "setup": "slurm_gpu_aware.cli.setup",
    "simulate": "slurm_gpu_aware.cli.simulate",
    "status": "slurm_gpu_aware.cli.status",
}
"""Command -> module that holds it as ``command``. Imported when asked for."""


class _Group(click.Group):
    """Imports a command's module when it is called; turns our errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name]).command
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AwareError as exc:
            raise click.ClickException(str(exc)) from exc


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
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
    """Run the command line and exit. The entry point of ``gpu-aware``."""
    try:
        code = cli.main(args=args, prog_name="gpu-aware", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) went away: no traceback, and none from the flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
