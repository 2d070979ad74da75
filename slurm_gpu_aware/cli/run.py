"""A group of commands and how it is run: late imports, exit codes, no traceback for our errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from slurm_gpu_aware.errors import AwareError

__all__ = ["INTERRUPTED", "LateGroup", "run"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class LateGroup(click.Group):
    """Imports a command when it is called; an error of ours becomes one line.

    ``elsewhere``: command -> ``module:name`` of what is not defined beside the group.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted([*super().list_commands(ctx), *self._elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported if need be; None if there is none of that name."""
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, name = self._elsewhere[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run; an AwareError ends the program with its sentence and exit code 1."""
        try:
            return super().invoke(ctx)
        except AwareError as exc:
            raise click.ClickException(str(exc)) from exc


def run(group: click.Group, name: str, args: Sequence[str] | None = None) -> NoReturn:
    """Run a group of commands under a program name and exit."""
    try:
        code = group.main(args=args, prog_name=name, standalone_mode=False)
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
