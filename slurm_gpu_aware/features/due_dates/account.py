"""Account of a due date: how likely it is met, and with which sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.features.due_dates.due_date import pressing
from slurm_gpu_aware.model.facets import Facet, Faceted
from slurm_gpu_aware.time_text import stamp


@dataclass(frozen=True)
class DueAccount:
    """How likely a due date is met, and with which sizes. Times: of the round's clock."""

    due_s: float
    in_time: float | None
    """Probability; 0: impossible, as far as is known; None: no earlier run says anything."""
    runs: int = 0
    """As in `sizing.due_plan.DuePlan`, as ``by_epochs`` is."""
    gpus: int = 0
    growth: tuple[tuple[float, int], ...] = ()
    """(time, GPUs) of later sizes."""
    ends_s: float = math.inf
    """End with the most work with which the job is in time."""
    weight: float = 1.0
    pressure_s: float = -math.inf
    """Time by which that end would be late with the largest number of GPUs from now on, mostly
    negative (STS, section V)."""
    by_epochs: bool = False
    passed: bool = False
    """Whether it had passed when the account was made."""

    @property
    def impossible(self) -> bool:
        """Whether the due date cannot be met, as far as is known."""
        return self.in_time == 0

    @property
    def turn(self) -> float:
        """Key of the order in which jobs with due dates get GPUs."""
        return -pressing(self.pressure_s, self.weight)

    @property
    def text(self) -> str:
        """For example ``2026-12-01 18:00:00; met in 93% of 14 earlier runs ...``."""
        if self.passed and not self.in_time:
            return f"{stamp(self.due_s)}; it has passed, so it plays no part"
        if self.in_time is None:
            return f"{stamp(self.due_s)}; no earlier run of its name says whether it is met"
        words = f"{stamp(self.due_s)}; "
        runs = f"{self.runs} earlier run{'' if self.runs == 1 else 's'}"
        if not self.in_time:
            needs = "an epoch needs" if self.by_epochs else f"{runs} needed"
            return f"{words}it cannot be met by what {needs}, so it plays no part"
        by = runs if self.runs else "its limit, as it has outlived all earlier runs"
        by = "its epochs, each number of them alike" if self.by_epochs else by
        words += f"met with {100 * self.in_time:.0f}% by {by}; longest case ends"
        words += f" {stamp(self.ends_s)} with {_gpus(self.gpus)}"
        for at, gpus in self.growth:
            words += f", {gpus} from {stamp(at)} on"
        return words

    def values(self) -> dict[str, Any]:
        """For the ledger."""
        ends_s = self.ends_s if math.isfinite(self.ends_s) else None
        left_out = ("growth", "weight", "pressure_s", "by_epochs", "passed")
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        grows = {"grows": [list(step) for step in self.growth]} if self.growth else {}
        return {**values, **grows, "ends_s": ends_s, "text": self.text}


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


DUE: Facet[Mapping[str, DueAccount]] = Facet("due", {})
"""Of a plan: job of the queue with a due date -> its account."""


def due_values(plan: Faceted, job_id: str) -> dict[str, Any]:
    """What the ledger holds of the due date of a job that waits; empty: it has none."""
    account = plan.get(DUE).get(job_id)
    return {} if account is None else {"due": account.values()}
