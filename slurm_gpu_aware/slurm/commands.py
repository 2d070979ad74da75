"""Slurm's commands, run with a time limit."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress

from slurm_gpu_aware.errors import SourceError

_MOST_SAID = 1000  # Bytes at the end of what a command has complained of that count.


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


def run_command(
    argv: Sequence[str], timeout_s: float, *, check: bool = True, stdin: str = ""
) -> tuple[str, str]:
    """Run a command; return (stdout, stderr).

    Raises SourceError if it does not exist, exceeds ``timeout_s``, or (``check``) fails.
    """
    what = " ".join(argv[:4])
    try:
        done = subprocess.run(
            list(argv),
            input=stdin.encode(),
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
        raise SourceError(f"{what}: {_why(stderr.strip() or stdout.strip(), done.returncode)}")
    return stdout, stderr


def _why(said: str, code: int) -> str:
    """Why a command failed: the last line that it wrote, or else its exit status."""
    lines = said.splitlines()
    return lines[-1][:200] if lines else f"exit {code}"


def run_bounded(argv: Sequence[str], timeout_s: float, most_bytes: int) -> str:
    """Run a command whose output may be large; return its standard output as text.

    The command ends when it has written ``most_bytes``; only whole lines up to there are returned.
    Raises SourceError if it does not exist, exceeds ``timeout_s``, or fails.
    """
    what = " ".join(argv[:4])
    late = threading.Event()
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=clean_environment(),
                process_group=0,
            )
        except OSError as exc:
            raise SourceError(f"{what}: cannot be run: {exc.strerror}") from None

        def stop() -> None:
            with suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # what it started holds the pipe, too

        def expire() -> None:
            late.set()
            stop()

        timer = threading.Timer(timeout_s, expire)
        timer.daemon = True
        timer.start()
        with process:
            output = process.stdout.read(most_bytes + 1) if process.stdout is not None else b""
            whole = len(output) <= most_bytes
            if not whole:
                stop()
                output = output[: output.rfind(b"\n", 0, most_bytes) + 1]
        timer.cancel()
        complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - _MOST_SAID))
        said = complaints.read().decode("utf-8", "replace").strip()
    if late.is_set():
        raise SourceError(f"{what}: no answer within {timeout_s:g} s")
    if whole and process.returncode != 0:
        raise SourceError(f"{what}: {_why(said, process.returncode)}")
    return output.decode("utf-8", "replace")
