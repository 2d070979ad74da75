"""Run a command of ours with a `MemorySlurm` where it would open Slurm's own library.

``FOLDER gpu-aware ARGUMENTS...``, ``FOLDER gpu-aware-profile ARGUMENTS...``, or
``FOLDER rounds CONFIG NUMBER`` for that many rounds of the selector.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

from memory_slurm import MemorySlurm

from slurm_gpu_aware.slurm import client


def main() -> NoReturn:
    folder, command, *arguments = sys.argv[1:]
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


if __name__ == "__main__":
    main()
