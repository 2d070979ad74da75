"""Commands of `run_with_memory_slurm` in processes of their own that do not import it all anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from select import select
from subprocess import CompletedProcess, Popen
from tempfile import TemporaryDirectory

RUNNER = Path(__file__).with_name("run_with_memory_slurm.py")
LONGEST_S = 300
"""No claim: a machine may be busy."""


def run_command(
    argv: list[str], environment: Mapping[str, str], *, text: str = "", folder: Path | None = None
) -> CompletedProcess[str]:
    """What a command printed, and its exit code; ``text``: on stdin, ``folder``: it runs there.

    Raises TimeoutExpired after `LONGEST_S`.
    """
    server = _server(environment.get("LD_LIBRARY_PATH", ""))
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as streams:
        given, *output = (Path(streams, name) for name in ("stdin", "stdout", "stderr"))
        given.write_text(text)
        command = {
            "argv": argv,
            "environment": dict(environment),
            "folder": str(folder or Path.cwd()),
            "streams": [str(path) for path in (given, *output)],
        }
        server.stdin.write(f"{json.dumps(command)}\n".encode())
        server.stdin.flush()
        if not select([server.stdout], [], [], LONGEST_S)[0]:
            server.kill()  # what it has started ends by itself, or shows in the list of processes
            _server.cache_clear()
            raise subprocess.TimeoutExpired(argv, LONGEST_S)
        code = int(server.stdout.readline())
        return CompletedProcess(argv, code, *(path.read_text() for path in output))


@cache
def _server(libraries: str) -> Popen[bytes]:
    """It ends at the end of this process, which closes its input.

    The loader reads its path once, so each path has a server.
    """
    environment = {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    command = [sys.executable, RUNNER]
    return Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
