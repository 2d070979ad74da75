"""What every command is given: where the configuration stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_gpu_aware.config import Config

__all__ = ["Context", "pass_context"]


@dataclass
class Context:
    """Global options."""

    config_path: str | None = None
    """``--config``; None: the environment, then the default place."""

    def config(self) -> Config:
        """Load the configuration. Raises ConfigError."""
        from slurm_gpu_aware.config import load_config

        return load_config(self.config_path)


pass_context = click.make_pass_decorator(Context, ensure=True)
