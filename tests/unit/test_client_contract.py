<<<<<<< HEAD
"""The contract of `SlurmClient` over the Slurm of the unit tests.

``tests/slurm/test_client.py`` asks the same of Slurm's library on a cluster.
"""
=======
"""The contract of the client of Slurm over the Slurm of the unit tests; live: tests/slurm."""
>>>>>>> contract

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
<<<<<<< HEAD
from memory_slurm import FOREVER, MemorySlurm, job_record
from slurm_folder import SlurmFolder

from slurm_gpu_aware.slurm.client import JobUpdate
from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))
=======
from memory_slurm import MemorySlurm
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.slurm.client import JobUpdate
from slurm_gpu_aware.slurm.read_jobs import job_of

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
>>>>>>> contract

from client_contract import CHECKS, Hands


class MemoryHands:
<<<<<<< HEAD
    """See `client_contract.Hands`; jobs wait for the gate's licence."""

    node, other_node = "n1", "n2"
    user = "alice"

    def __init__(self, slurm: SlurmFolder) -> None:
        self._slurm = slurm
        self.client: MemorySlurm = slurm.client()

    def park(self, *, tasks: int = 0, name: str = "parked", comment: str = "") -> str:
        """Write a record."""
        with self._slurm.state() as state:
            number = max((job["job_id"] for job in state["jobs"]), default=6) + 1
            array = {
                "array_job_id": number,
                "array_task_id": NOT_SET,
                "array_task_str": ",".join(map(str, range(tasks))),
            }
            record = job_record(
                job_id=number,
                name=name,
                comment=comment,
                licenses="gpuaware:1",
                tres_per_node="gres/gpu:1",
                eligible_time=FOREVER,
                **(array if tasks else {}),
            )
            state["jobs"].append(record)
        return str(number)

    def run(self, job_id: str) -> None:
        """Open the gate."""
        fields = (("Licenses", ""), ("TresPerNode", "gres/gpu:g1:1"), ("StartTime", "now"))
        assert self.client.update_jobs([JobUpdate(job_id, fields)]) == {}

    def finish(self, job_id: str) -> None:
        """End it."""
        self._slurm.change(job_id, state="CANCELLED")
=======
    """`Hands` over a `MemorySlurm`."""

    node, other_node, user = "n1", "n2", "alice"

    def __init__(self, slurm: SlurmFolder) -> None:
        self._slurm = slurm
        self.client = MemorySlurm(slurm.home)

    def park(self, *, tasks: int = 0, name: str = "parked", comment: str = "") -> str:
        """A job that never starts by itself."""
        with self._slurm.state() as state:
            number = 1 + max((job["job_id"] for job in state["jobs"]), default=0)
            fields = {"name": name, "comment": comment, "admin_comment": "", "stuck": True}
            if tasks:
                fields |= {"array_job_id": number, "array_task_str": f"0-{tasks - 1}"}
            state["jobs"].append(parked(str(number), **fields))
        return str(number)

    def run(self, job_id: str) -> None:
        """By opening its gate, which makes a record of a task of an array."""
        opening = [JobUpdate(job_id, (("Licenses", ""),))]
        self.client.update_jobs(opening)
        for number, record in self._slurm.jobs.items():
            if job_of(record).id == job_id:
                self._slurm.change(number, stuck=False)
        self.client.update_jobs(opening)

    def finish(self, job_id: str) -> None:
        """It has ended."""
        self._slurm.change(job_id, state="COMPLETED", slots=[])
>>>>>>> contract


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(slurm: SlurmFolder, check: Callable[[Hands], None]) -> None:
    check(MemoryHands(slurm))
