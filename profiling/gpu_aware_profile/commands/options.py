"""Options that several commands of ``gpu-aware-profile`` take, and the end by a signal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import Number
from slurm_gpu_aware.cli.output import say

if TYPE_CHECKING:
    from gpu_aware_profile.backends.process_timing import CommandTiming

_Command = Callable[..., None]
_ALL = 1 << 16
_MOST_LIMITS = 16
_BENCH = ("bench", "bench_class", "bench_pattern", "bench_unit", "bench_limit")


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


def seconds(
    name: str,
    *names: str,
    default: float | None = None,
    most: int = 10**7,
    least: float = 1,
    text: str,
) -> Callable[[_Command], _Command]:
    """An option of seconds."""
    return click.option(
        name,
        *names,
        type=Number(least, most),
        default=default,
        show_default=default is not None,
        metavar="S",
        help=text,
    )


def count(name: str, *, default: int, most: int, text: str) -> Callable[[_Command], _Command]:
    """An option of a number from 1 on."""
    return click.option(
        name, type=click.IntRange(1, most), default=default, show_default=True, help=text
    )


def _adding(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """A decorator that adds options to a command, in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


classes_option = click.option(
    "--class", "classes", multiple=True, metavar="NAME", help="Only this class."
)
nodes_option = click.option(
    "--node", "nodes", multiple=True, metavar="NAME", help="Only this node."
)
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
    seconds(
        "--bench-limit",
        default=300.0,
        least=0.1,
        most=10**6,
        text="Time limit of one run of the program, in seconds.",
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
        "--power-limits",
        type=click.IntRange(0, _MOST_LIMITS),
        default=0,
        metavar="N",
        help="Measure each clock of --clocks under N lower power limits, too, from the lowest that"
        " the GPU allows.",
    ),
    click.option(
        "--allow-clock-changes",
        is_flag=True,
        help="Lock clocks and set power limits, as root, and reset them at the end.",
    ),
)
"""A sweep over the SM clocks, and over power limits."""
links_options = _adding(
    click.option(
        "--links",
        is_flag=True,
        help="Measure bandwidths: of each pair of GPUs, and of all-reduce over sets of GPUs.",
    ),
    seconds(
        "--links-time",
        default=300.0,
        most=10**6,
        text="Seconds for --links on a node; what is left then is not measured.",
    ),
)
"""Measured links."""


runs_option = count("--runs", default=3, most=100, text="Runs per GPU and class.")


def node_arguments(given: Mapping[str, Any]) -> list[str]:
    """The options of ``sweep`` as arguments of ``node``."""
    words = [f"--class={name}" for name in given["classes"]]
    words += [f"--backend={given['backend']}"] if given["backend"] else []
    if given["bench"] is not None:
        program = {name: given[name] for name in _BENCH if given[name] is not None}
        words += [f"--{name.replace('_', '-')}={value}" for name, value in program.items()]
    if given["clocks"]:
        count = "all" if given["clocks"] == _ALL else given["clocks"]
        words += [f"--clocks={count}", "--allow-clock-changes"]
        words += [f"--power-limits={given['power_limits']}"] if given["power_limits"] else []
    return words + (["--links", f"--links-time={given['links_time']:g}"] if given["links"] else [])


def bench_timing(given: Mapping[str, Any]) -> CommandTiming | None:
    """The backend; None without a program. Raises SourceError and click.UsageError."""
    if given["bench"] is None:
        return None
    if given["bench_class"] is None:
        raise click.UsageError("--bench needs --bench-class, the class that the program stands for")
    from gpu_aware_profile.backends.process_timing import CommandTiming

    return CommandTiming(*(given[name] for name in _BENCH))


def check_clocks(given: Mapping[str, Any]) -> None:
    """Raise UsageError unless the change of clocks is allowed."""
    if given["power_limits"] and not given["clocks"]:
        raise click.UsageError("--power-limits needs --clocks, the clocks to measure under them")
    if given["clocks"] and not given["allow_clock_changes"]:
        raise click.UsageError("--clocks locks clocks of GPUs, which needs --allow-clock-changes")


def this_node() -> str:
    """Slurm's name of this node: that of slurmd inside a job, else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def site_command(option: str, command: str) -> list[str]:
    """The command of an option as an argv list. Raises UsageError if it cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise click.UsageError(f"{option}: {exc}") from None
    if not words:
        raise click.UsageError(f"{option}: the command is empty")
    if shutil.which(words[0]) is None:
        raise click.UsageError(f"{option}: {words[0]}: no such command")
    return words


srun_options = _adding(
    click.option(
        "--srun-option",
        multiple=True,
        metavar="OPTION",
        help="Option for srun, such as --account=x.",
    ),
    click.option(
        "--command",
        default="gpu-aware-profile",
        show_default=True,
        metavar="PATH",
        help="Path of this program on the nodes.",
    ),
)
"""What the commands that measure through Slurm share."""


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
