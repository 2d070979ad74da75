"""GPUs that a job holds on this node, as Slurm's controller says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmJob

_TIMEOUT_S = 20.0


class Allocation(NamedTuple):
    """The GPUs of a running job."""

    job_id: str
    gpus: tuple[int, ...]
    """Slurm's indices on this node."""
    total: int
    """GPUs on all nodes."""
    nodes: int


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The job of this process. Raises SourceError if it is in none, or the job is another user's.

    The environment names the job, but a user can write it; so Slurm is asked once what this job
    holds, and whose it is. On an indexed node the environment would not name all GPUs, either.
    """
    number, node = environment.get("SLURM_JOB_ID", ""), environment.get("SLURMD_NODENAME", "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and node):
        raise SourceError("this is no job of Slurm (SLURM_JOB_ID and SLURMD_NODENAME are not set)")
    found = open_client(_TIMEOUT_S).jobs_of([number])
    job = next((one for one in found if one.raw_id == int(number)), None)
    if job is None or job.state != "RUNNING":
        raise SourceError(f"job {number} is not running")
    if job.user not in (_user(), str(os.getuid())):
        raise SourceError(f"job {number} belongs to {job.user}")
    return _of(job, node)


def _of(job: SlurmJob, node: str) -> Allocation:
    shares = [share for share in job.shares if share.gpus]
    here = next((share.gpus for share in shares if share.node == node), ())
    if not here:
        raise SourceError(f"job {job.id} holds no GPU on {node}")
    return Allocation(job.id, here, sum(len(share.gpus) for share in shares), len(shares))


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
