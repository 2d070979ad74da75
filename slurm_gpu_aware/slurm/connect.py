"""Connection to the Slurm that this host belongs to."""

from __future__ import annotations

from slurm_gpu_aware.slurm.client import SlurmClient

__all__ = ["open_client"]


def open_client(timeout_s: float) -> SlurmClient:
    """The client of the Slurm that this host belongs to; ``timeout_s`` bounds each call.

    Raises SourceError that says what is missing.
    """
    from slurm_gpu_aware.slurm.libslurm_client import LibslurmClient

    return LibslurmClient(timeout_s)
