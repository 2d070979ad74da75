"""Slurm's commands, run with a time limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from slurm_gpu_aware.errors import SourceError

__all__ = ["clean_environment", "run_command"]


def clean_environment() -> dict[str, str]:
    """The environment without variables that change the output of Slurm's commands."""
    unrelated = {
        key: value
        for key, value in os.environ.items()
        if key == "SLURM_CONF"
        or not key.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_"))
    }
    # Times as Unix seconds, task lists of arrays in full, texts in English.
    return unrelated | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def run_command(argv: Sequence[str], timeout_s: float, *, check: bool = True) -> tuple[str, str]:
    """Run a command; return (stdout, stderr).

    Raises SourceError if it does not exist, exceeds ``timeout_s``, or (``check``) fails.
    """
    what = " ".join(argv[:4])
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=clean_environment(),
            process_group=0,  # Ctrl-C does not interrupt a command that has begun
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{what}: no answer within {timeout_s:g} s") from None
    except OSError as exc:
        raise SourceError(f"{what}: cannot be run: {exc.strerror}") from None
    stdout = done.stdout.decode("utf-8", "surrogateescape")
    stderr = done.stderr.decode("utf-8", "surrogateescape")
    if check and done.returncode != 0:
        lines = (stderr.strip() or stdout.strip()).splitlines()
        raise SourceError(f"{what}: {lines[-1][:200] if lines else f'exit {done.returncode}'}")
    return stdout, stderr
