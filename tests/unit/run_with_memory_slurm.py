"""Run a command of ours with a `MemorySlurm` where it would open Slurm's own library.

``FOLDER gpu-aware ARGUMENTS...``, ``FOLDER gpu-aware-profile ARGUMENTS...``, or
``FOLDER rounds CONFIG NUMBER`` for that many rounds of the selector. Without arguments it imports
what these need once, and answers each line of its input (`command_server`) by such a process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from memory_slurm import MemorySlurm

from slurm_gpu_aware.slurm import client

PROGRAMS = (
    "gpu_aware_profile.commands.sweep",
    "slurm_gpu_aware.cli.main",
    "slurm_gpu_aware.selector.daemon",
)


def main(asked: Sequence[str]) -> NoReturn:
    folder, command, *arguments = asked
    client.SlurmClient = partial(MemorySlurm, Path(folder))  # type: ignore[assignment,misc]
    if command == "rounds":
        from slurm_gpu_aware.selector.daemon import run

        config, number = arguments
        sys.exit(max(run(config, once=True) for _ in range(int(number))))
    if command == "gpu-aware-profile":
        from gpu_aware_profile.cli import main as profile

        profile(arguments)
    from slurm_gpu_aware.cli.main import main as gpu_aware

    gpu_aware(arguments)


def serve() -> None:
    """Answer each command by its exit code; a fork has imported all that a command needs."""
    for name in PROGRAMS:
        import_module(name)
    while line := sys.stdin.buffer.readline():
        command = json.loads(line)
        if not (child := os.fork()):
            for number, path in enumerate(command["streams"]):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
            os.environ.clear()
            os.environ.update(command["environment"])
            time.tzset()
            os.chdir(command["folder"])
            main(command["argv"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:]) if sys.argv[1:] else serve()
