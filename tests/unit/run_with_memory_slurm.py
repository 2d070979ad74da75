"""Run a command of ours with a `MemorySlurm` where it would open Slurm's own library.

``FOLDER gpu-aware ARGUMENTS...``, or ``FOLDER rounds CONFIG NUMBER`` for that many rounds of the
selector.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from memory_slurm import MemorySlurm

from slurm_gpu_aware.slurm import libslurm_client


def main() -> int:
    folder, command, *arguments = sys.argv[1:]
    libslurm_client.LibslurmClient = partial(MemorySlurm, Path(folder))  # type: ignore[assignment,misc]
    if command == "rounds":
        from slurm_gpu_aware.service.selectd import run

        config, number = arguments
        return max(run(config, once=True) for _ in range(int(number)))
    from slurm_gpu_aware.cli.main import main as gpu_aware

    sys.argv = [command, *arguments]
    gpu_aware()
    return 0


if __name__ == "__main__":
    sys.exit(main())
