"""Facts of the planner on a start, and their words."""

from collections.abc import Mapping

from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import stamp


class Preempts(Fact, frozen=True):
    """Slurm preempts running jobs for the job."""

    key, told = "preempts", True

    victims: tuple[str, ...]
    number: int  # So many of them; of more Slurm chooses.

    def words(self) -> str:
        names = ", ".join(self.victims)
        if self.number < len(self.victims):
            return f"preempts {self.number} of {names} (Slurm chooses)"
        return f"preempts {names}"


class Reserved(Fact, frozen=True):
    """GPUs are free and fit, but are kept for a job that waits."""

    key, told = "reserved", True

    job_id: str
    gpus: str  # The set in words.
    kept: Mapping[str, tuple[int, ...]] = {}  # Node -> GPUs; empty: of too many nodes.

    def words(self) -> str:
        return f"free, but reserved for job {self.job_id}: {self.gpus}"


class WaitsUntil(Fact, frozen=True):
    """The longest wait of the site kept the job from waiting for better GPUs."""

    key = "waits_until"

    until_s: float

    def words(self) -> str:
        return f"by choice it waits until {stamp(self.until_s)[:16]} at most (longest_wait_s)"
