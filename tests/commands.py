"""The commands in this process, as tests call them."""

from pathlib import Path

from click.testing import CliRunner, Result

from gpu_aware_profile.cli import cli as profile_cli
from slurm_gpu_aware.cli.main import cli


def gpu_aware(*args: str, config: Path | None = None, text: str | bytes | None = None) -> Result:
    """Run ``gpu-aware`` with a configuration, and a text on stdin."""
    own = [] if config is None else ["--config", str(config)]
    return CliRunner().invoke(cli, [*own, *args], input=text)


def gpu_aware_profile(*args: str, text: str | bytes | None = None) -> Result:
    """Run ``gpu-aware-profile`` with a text on stdin."""
    return CliRunner().invoke(profile_cli, args, input=text)
