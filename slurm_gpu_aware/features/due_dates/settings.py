"""``[due_dates]``: the order of jobs with due dates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.records import above, words

TOGETHER = "together"


@dataclass(frozen=True)
class DueDatesConfig(Section):
    """``[due_dates]``: the order of jobs with due dates."""

    name = "due_dates"
    order: Annotated[str, words("slurm", "pressure", TOGETHER)] = "slurm"
    """``pressure``: waiting neighbours in Slurm's order with due dates exchange their places, if
    they are of one user or one priority. ``together``: all of them do, and their numbers of GPUs
    are decided together."""
    weights: Mapping[str, Annotated[float, above(0)]] = field(default_factory=dict)
    """QOS -> its weight, 1 for the others, which multiplies the pressure of its jobs."""

    def plan(self) -> Mapping[str, Any]:
        """The order."""
        return {"due_order": self.order}


SECTIONS = (DueDatesConfig,)
