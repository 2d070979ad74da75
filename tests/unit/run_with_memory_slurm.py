"""Run a command of ours with a `MemorySlurm` where it would open Slurm's own library.

``FOLDER gpu-aware ARGUMENTS...``, ``FOLDER gpu-aware-profile ARGUMENTS...``, or
``FOLDER rounds CONFIG NUMBER`` for that many rounds of the selector. Without arguments it imports
what these need once, and answers each line of its input (`command_server`) by such a process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import walk_packages
from typing import NoReturn

from memory_slurm import MemorySlurm

import gpu_aware_profile
import slurm_gpu_aware
from slurm_gpu_aware.slurm import client


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
    """Answer each command by its exit code; a fork has imported all of ours that it may need."""
    for package in (gpu_aware_profile, slurm_gpu_aware):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.freeze()  # else each fork copies all of it
    asked = sys.stdin.buffer
    sys.stdin = None  # type: ignore[assignment]  # multiprocessing would close that of the child
    while line := asked.readline():
        child = get_context("fork").Process(target=answer, kwargs=json.loads(line))
        child.start()
        child.join()
        print(child.exitcode, flush=True)


def answer(
    argv: Sequence[str], environment: dict[str, str], folder: str, streams: Sequence[str]
) -> None:
    """Run a command in this process."""
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = sys.__stdin__
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    main(argv)


if __name__ == "__main__":
    main(sys.argv[1:]) if sys.argv[1:] else serve()
