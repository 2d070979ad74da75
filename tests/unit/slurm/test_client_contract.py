"""The contract of the client of Slurm over the Slurm of the unit tests; live: tests/slurm."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_slurm import MemorySlurm
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.updates import JobUpdate

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))

from client_contract import CHECKS, Hands


class MemoryHands:
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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(slurm: SlurmFolder, check: Callable[[Hands], None]) -> None:
    check(MemoryHands(slurm))
