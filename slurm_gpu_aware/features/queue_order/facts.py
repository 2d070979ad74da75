"""Fact of a job that starts before another one, and its words."""

from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import duration


class Passes(Fact, frozen=True):
    """The job starts before a longer one that Slurm puts before it."""

    key = "passes"

    job_id: str  # The longer one.
    expected_s: float

    def words(self) -> str:
        length = f"as it is shorter (expected {duration(self.expected_s)})"
        return f"starts before job {self.job_id}, {length}"


FACTS = (Passes,)
