"""Options ``--bench...`` of ``node`` and ``sweep``: a program of the site as a timing backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import Number

if TYPE_CHECKING:
    from gpu_aware_profile.backends.command_timing import CommandTiming

__all__ = ["bench_arguments", "bench_options", "bench_timing"]

_OPTIONS = (
    click.option(
        "--bench",
        metavar="CMD",
        help="Measure with this program: it runs once per GPU and run, and sees that GPU only."
        " Without a shell, unless CMD is one.",
    ),
    click.option("--bench-class", metavar="NAME", help="Class that the program stands for."),
    click.option(
        "--bench-pattern",
        metavar="REGEX",
        help="The number is the last match (its first group) in the output. Default: the last"
        " number on the last line that has one.",
    ),
    click.option(
        "--bench-unit",
        type=click.Choice(["ms", "s", "rate"]),
        default="ms",
        show_default=True,
        help="Unit of the number; rate: iterations per second, or anything that is higher for a"
        " faster GPU.",
    ),
    click.option(
        "--bench-limit",
        type=Number(0.1, 10**6),
        default=300.0,
        show_default=True,
        metavar="S",
        help="Time limit of one run of the program, in seconds.",
    ),
)


def bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def bench_arguments(given: Mapping[str, Any]) -> list[str]:
    """The options of ``sweep`` as arguments of ``node``; empty without a program."""
    names = ("bench", "bench_class", "bench_pattern", "bench_unit", "bench_limit")
    if given["bench"] is None:
        return []
    return [
        f"--{name.replace('_', '-')}={given[name]}" for name in names if given[name] is not None
    ]


def bench_timing(given: Mapping[str, Any]) -> CommandTiming | None:
    """The backend; None without a program. Raises SourceError and click.UsageError."""
    if given["bench"] is None:
        return None
    if given["bench_class"] is None:
        raise click.UsageError("--bench needs --bench-class, the class that the program stands for")
    from gpu_aware_profile.backends.command_timing import CommandTiming

    return CommandTiming(
        given["bench"],
        given["bench_class"],
        given["bench_pattern"],
        given["bench_unit"],
        given["bench_limit"],
    )
