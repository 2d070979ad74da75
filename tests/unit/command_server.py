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


def run_command(argv: list[str], environment: Mapping[str, str]) -> CompletedProcess[str]:
    """What a command printed, and its exit code. Raises TimeoutExpired after `LONGEST_S`."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        output = [Path(folder, name) for name in ("stdout", "stderr")]
        command = {
            "argv": argv,
            "environment": dict(environment),
            "folder": os.getcwd(),
            "output": [str(path) for path in output],
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
def _server() -> Popen[bytes]:
    """It ends at the end of this process, which closes its input."""
    return Popen([sys.executable, RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
