"""Options ``--clocks`` and ``--allow-clock-changes`` of ``node`` and ``sweep``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

__all__ = ["check_clocks", "clock_arguments", "clock_options"]

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


_OPTIONS = (
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


def clock_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


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
