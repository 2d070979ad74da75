"""What the commands that measure through Slurm share: options for srun, and an end by signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from slurm_gpu_aware.cli.output import say


def srun_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--srun-option`` and ``--command``; the command gets ``srun_option`` and ``command``."""
    command = click.option(
        "--command",
        default="gpu-aware-profile",
        show_default=True,
        metavar="PATH",
        help="Path of this program on the nodes.",
    )(command)
    return click.option(
        "--srun-option",
        multiple=True,
        metavar="OPTION",
        help="Option for srun, such as --account=x.",
    )(command)


@contextmanager
def stopped_by_signals(stop: Callable[[], object], last_words: str = "") -> Iterator[None]:
    """SIGINT and SIGTERM, however many, call ``stop``; then raise KeyboardInterrupt.

    As an exception, a second one would end the cancelling of the jobs that the first began.
    ``last_words``: said before the end by a signal.
    """
    numbers = []

    def handle(number: int, frame: object) -> None:
        numbers.append(number)
        stop()

    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    if numbers:
        if last_words:
            say(last_words)
        raise KeyboardInterrupt
    for number, handler in before.items():
        signal.signal(number, handler)
