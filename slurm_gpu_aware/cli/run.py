"""Groups of commands: late imports, exit codes, and errors of one line."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click

from slurm_gpu_aware.cli.entry import INTERRUPTED
from slurm_gpu_aware.cli.output import visible
from slurm_gpu_aware.errors import AwareError

_MOST = 4000  # Limit of the characters of an error.
_LONG_WORD = re.compile(r"(\S{100})\S{900,}")


@contextmanager
def signals_handled(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP call ``handle``; at the end what handled them does again."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LateGroup(click.Group):
    """Imports a command when it is called; an AwareError becomes one line.

    ``elsewhere``: command -> ``module:name``, for commands of other modules.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted([*super().list_commands(ctx), *self._elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None: there is none of this name."""
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, name = self._elsewhere[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an AwareError ends the program with its text and exit code 1."""
        try:
            return super().invoke(ctx)
        except AwareError as exc:
            raise click.ClickException(_brief(str(exc))) from exc
        except click.UsageError as exc:
            raise click.UsageError(_brief(exc.format_message()), exc.ctx) from None


def _brief(sentence: str) -> str:
    """The text of an error, safe for a terminal: it may quote long or unprintable input."""
    words = _LONG_WORD.sub(r"\1...", sentence)
    text = visible(words)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def run(group: click.Group, name: str, args: Sequence[str] | None = None) -> NoReturn:
    """Run a group of commands under a program name and exit.

    Output that cannot be written (a full disk, a closed stream) is an error of one line. A reader
    that has exited (``| head``) is not an error.
    """
    _open_closed_streams()
    try:
        code = group.main(args=args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as exc:
        _end(exc.exit_code, exc.show)
    except AwareError as exc:  # while commands are imported for --help
        _end(1, click.ClickException(_brief(str(exc))).show)
    except (click.Abort, KeyboardInterrupt):
        _end(INTERRUPTED, lambda: click.echo("interrupted", err=True))
    except BrokenPipeError:
        _end(0)
    except OSError as exc:
        what = "the output" if exc.filename is None else str(exc.filename)
        _end(1, click.ClickException(f"{what}: {exc.strerror or exc}").show)
    except MemoryError:
        _end(1, click.ClickException("out of memory").show)
    sys.exit(code if isinstance(code, int) else 0)


def _end(code: int, say: Callable[[], object] = lambda: None) -> NoReturn:
    """Print the error and exit. Output that cannot be written is dropped, also at Python's exit."""
    with suppress(OSError):
        say()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open /dev/null for closed standard streams, so that no other file becomes one of them.

    Writing to a closed standard output must fail, so it is opened for reading.
    """
    for number, attribute in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, attribute) is None:
            handle = os.open(os.devnull, os.O_WRONLY if attribute == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            mode = "r" if attribute == "stdin" else "w"
            setattr(sys, attribute, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115
