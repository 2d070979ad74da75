"""Global options of every command, and types of numeric options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_NODES, MAX_PENALTY, MAX_TIME_S

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass
class Context:
    """Global options."""

    config_path: str | None = None  # ``--config``; None: the environment, then the default path.

    def config(self, *, check_policies: bool = False) -> Config:
        """Load the configuration; ``check_policies``: also names and options of policies."""
        from slurm_gpu_aware.config.load import load_config

        known: tuple[str, ...] = ()
        if check_policies:
            from slurm_gpu_aware.placement.policy import policy_names

            known = policy_names()
        config = load_config(self.config_path, known_policies=known)
        if config.policies and check_policies:
            from slurm_gpu_aware.selector.policy_options import policy_options

            policy_options(config)
        return config


pass_context = click.make_pass_decorator(Context, ensure=True)


def options_with(texts: Mapping[str, str]) -> Callable[..., Callable[[_Command], _Command]]:
    """``click.option`` for the options of these help texts, by their first names."""
    return lambda name, *others, **more: click.option(name, *others, help=texts[name], **more)


class Number(click.FloatRange):
    """``click.FloatRange`` without NaN, which passes all comparisons, and without infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


GPUS = click.IntRange(1, MAX_GPUS)
NODES = click.IntRange(1, MAX_NODES)
PENALTY = Number(1, int(MAX_PENALTY))
SECONDS = Number(0, int(MAX_TIME_S))
SOME_SECONDS = Number(0, int(MAX_TIME_S), min_open=True)
