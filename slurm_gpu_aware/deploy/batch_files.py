"""Environments and scripts of pending batch jobs, as slurmctld keeps them in StateSaveLocation.

No request to Slurm shows the environment with which a pending job will start. slurmctld keeps it in
``hash.D/job.N/environment`` (D: last digit of N): a count of 32 bits, then texts that end with NUL.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_gpu_aware.filter_rules import TYPED_ENVIRONMENT
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["BatchFiles"]

_LARGEST = 1 << 24
_COUNT_BYTES = 4


class BatchFiles:
    """Files of batch jobs below StateSaveLocation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def type_problem(self, job: SlurmJob, kind: str) -> str | None:
        """Why srun inside a job may ask for this GPU type; None: it does not."""
        number = job.array_id or job.raw_id
        folder = self._folder / f"hash.{number % 10}" / f"job.{number}"
        try:
            environment = _read(folder / "environment")[_COUNT_BYTES:].split(b"\0")
            script = _read(folder / "script")
        except FileNotFoundError:
            return "it has no script (srun or salloc)"
        except OSError as exc:
            return f"its environment cannot be read ({exc.filename or folder}: {exc.strerror})"
        name = re.escape(kind.encode())
        in_value = re.compile(rb"(?:^|[:=])" + name + rb"(?:[:=,]|$)")
        for entry in environment:
            variable, _, value = entry.partition(b"=")
            known = variable.decode("ascii", "replace")
            if known in TYPED_ENVIRONMENT and in_value.search(value):
                return f"its environment names the type ({known}), and srun inside asks for that"
        in_line = re.compile(
            rb"(?:gpus?[A-Za-z0-9-]{0,20}[:= ]|-G ?)" + name + rb"(?![A-Za-z0-9_.-])"
        )
        if any(in_line.search(line) for line in script.split(b"\n") if line[:1] != b"#"):
            return f"its script asks for GPU type {kind}"
        return None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(0, "it is too large", str(path))
    return content
