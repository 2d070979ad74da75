"""What the order of the queue declares: the section ``[queue]``, and a fact."""

from dataclasses import dataclass
from typing import Annotated

from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.records import MOST, above, number, words
from slurm_gpu_aware.time_text import duration

ORDERS = ("slurm", "equal", "backfill", "expected")
MOST_WEIGHT = 100


@dataclass(frozen=True)
class QueueConfig(Section):
    """``[queue]``: the order in which waiting jobs start."""

    name = "queue"
    order: Annotated[str, words(*ORDERS)] = "slurm"
    """``slurm``: by Slurm's priority. Shorter jobs go first with the others, by their expected run
    times: ``equal`` among jobs of equal priority, ``backfill`` behind the first job that waits,
    ``expected`` everywhere, with the run time counted as age. Never across partition tiers."""
    run_time_weight: Annotated[float, number(0, MOST_WEIGHT)] = 0.1
    """``expected``: seconds of age that a second of expected run time costs."""
    equal_s: Annotated[float, number(0, MOST)] = 0.0
    """``equal``: jobs submitted within so many seconds count as equal, too."""
    passed_factor: Annotated[float, above(0, 1000)] = 4.0
    """No shorter job passes one that has waited for so many times its expected run time, ..."""
    passed_s: Annotated[float, number(0, MOST)] = 86_400.0
    """... nor one that has waited for so long."""


SECTIONS = (QueueConfig,)


class Passes(Fact, frozen=True):
    """The job starts before a longer one that Slurm puts before it."""

    key = "passes"

    job_id: str  # The longer one.
    expected_s: float

    def words(self) -> str:
        length = f"as it is shorter (expected {duration(self.expected_s)})"
        return f"starts before job {self.job_id}, {length}"


FACTS = (Passes,)
