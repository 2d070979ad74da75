"""Context of every command: the path of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config

__all__ = ["Context", "pass_context"]


@dataclass
class Context:
    """Global options."""

    config_path: str | None = None
    """``--config``; None: the environment, then the default path."""

    def config(self, *, check_policies: bool = False) -> Config:
        """Load the configuration. Raises ConfigError.

        ``check_policies``: also check the names and options of policies (imports the placement
        package).
        """
        from slurm_gpu_aware.config.load import load_config

        known: tuple[str, ...] = ()
        if check_policies:
            from slurm_gpu_aware.placement.registry import policy_names

            known = policy_names()
        config = load_config(self.config_path, known_policies=known)
        if config.policies and check_policies:
            from slurm_gpu_aware.selector.policy_options import policy_options

            policy_options(config)
        return config


pass_context = click.make_pass_decorator(Context, ensure=True)
