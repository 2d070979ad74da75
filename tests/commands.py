"""The commands in this process, as tests call them."""

from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeVar

from click.testing import CliRunner, Result

from gpu_aware_profile.cli import cli as profile_cli
from slurm_gpu_aware.cli.main import cli

Done = TypeVar("Done", Result, CompletedProcess[str])


def gpu_aware(*args: str, config: Path | None = None, text: str | bytes | None = None) -> Result:
    """Run ``gpu-aware`` with a configuration, and a text on stdin."""
    own = [] if config is None else ["--config", str(config)]
    return CliRunner().invoke(cli, [*own, *args], input=text)


def gpu_aware_profile(*args: str, text: str | bytes | None = None) -> Result:
    """Run ``gpu-aware-profile`` with a text on stdin."""
    return CliRunner().invoke(profile_cli, args, input=text)


def succeeded(done: Done) -> Done:
    """The outcome of a command that must succeed."""
    assert _code(done) == 0, done.stderr
    return done


def words(*args: str, config: Path | None = None) -> str:
    """What ``gpu-aware`` prints, with single blanks, as long lines are wrapped."""
    return " ".join(succeeded(gpu_aware(*args, config=config)).stdout.split())


def refusal(done: Result | CompletedProcess[str], code: int = 1) -> str:
    """What a command that must fail says, by default with exit code 1."""
    assert _code(done) == code, done.stderr
    return done.stderr


def _code(done: Result | CompletedProcess[str]) -> int:
    return done.exit_code if isinstance(done, Result) else done.returncode
