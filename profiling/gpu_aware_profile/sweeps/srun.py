"""One ``srun``, with limits on its time and on its output."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from gpu_aware_profile.child import Child
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment, run_command

STOPPED = "the sweep was stopped"
_MOST_OUT = 8 << 20
_ENDING = (0, signal.SIGTERM, signal.SIGKILL)
"""When its job was cancelled it ends by itself. On SIGTERM it cancels the job: ``scancel`` finds
none if it has not submitted it yet."""


class Ended(NamedTuple):
    """How an ``srun`` ended."""

    code: int
    out: str
    err: str
    """Its last 64 KiB."""


def run_srun(
    argv: Sequence[str],
    job_name: str,
    limit_s: float,
    stopped: threading.Event,
    reply: Callable[[bytearray], str] | None = None,
) -> Ended:
    """Run ``srun``; cancel its job and end it if it takes too long or ``stopped`` is set.

    ``reply``: called with the output so far; what it returns first goes to all tasks, as their
    whole input.

    Raises SourceError if it cannot be run, was stopped, or prints more than 8 MiB, LateError.
    """
    out = bytearray()
    if stopped.is_set():
        raise SourceError(STOPPED)
    given = b"" if reply is None else None
    environment = clean_environment()
    with Child(argv, environment, limit_s, stopped, given=given, signals=_ENDING) as child:
        try:
            for name, piece in child.pieces():
                out += piece if name == "out" else b""
                if len(out) > _MOST_OUT:
                    raise SourceError(f"the probe printed more than {_MOST_OUT >> 20} MiB")
                if reply is not None and (text := reply(out)):
                    child.write(text)
                    child.close_input()
                    reply = None
        except SourceError:
            with suppress(SourceError):
                run_command(["scancel", "--me", f"--name={job_name}"], 20.0)
            if stopped.is_set():
                raise SourceError(STOPPED) from None
            raise
        return Ended(child.code or 0, out.decode("utf-8", "replace"), child.errors)
