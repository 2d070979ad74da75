"""Options of ``node`` and ``sweep``: ``--bench...``, ``--runs``, ``--clocks``, ``--links``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import Number

if TYPE_CHECKING:
    from gpu_aware_profile.backends.command_timing import CommandTiming

_Command = Callable[..., None]
_ALL = 1 << 16


class _ClockCount(click.ParamType[int]):
    """A number of clocks; ``all`` is more than any GPU has."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; fail with one sentence."""
        if value == "all":
            return _ALL
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdecimal() and 0 < int(value) < _ALL:
            return int(value)
        return self.fail(f"{value!r} is not a number of clocks, or all", param, ctx)


def _adding(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """A decorator that adds options to a command, in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


bench_options = _adding(
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
"""A program of the site as a timing backend."""
clock_options = _adding(
    click.option(
        "--clocks",
        type=_ClockCount(),
        default=0,
        metavar="N|all",
        help="Measure at N supported SM clocks besides, the highest and the lowest included; needs"
        " --allow-clock-changes.",
    ),
    click.option(
        "--allow-clock-changes",
        is_flag=True,
        help="Lock clocks for --clocks, as root, and reset them at the end.",
    ),
)
"""A sweep over the SM clocks."""
links_options = _adding(
    click.option(
        "--links",
        is_flag=True,
        help="Measure bandwidths: of each pair of GPUs, and of all-reduce over sets of GPUs.",
    ),
    click.option(
        "--links-time",
        type=Number(1, 10**6),
        default=300.0,
        show_default=True,
        metavar="S",
        help="Seconds for --links on a node; what is left then is not measured.",
    ),
)
"""Measured links."""


runs_option = click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs per GPU and class.",
)


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


def check_clocks(given: Mapping[str, Any]) -> None:
    """Raise UsageError unless the change of clocks is allowed."""
    if given["clocks"] and not given["allow_clock_changes"]:
        raise click.UsageError("--clocks locks clocks of GPUs, which needs --allow-clock-changes")


def clock_arguments(given: Mapping[str, Any]) -> list[str]:
    """The options of ``sweep`` as arguments of ``node``; empty without --clocks."""
    if not given["clocks"]:
        return []
    count = "all" if given["clocks"] == _ALL else given["clocks"]
    return [f"--clocks={count}", "--allow-clock-changes"]
