"""What due dates declare: keys of the comment, the section ``[due_dates]``, events, and facts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.job_hints import DURATION, Duration, Hint, Repeated, Time, Whole
from slurm_gpu_aware.records import above, words
from slurm_gpu_aware.time_text import counted, stamp

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


_EPOCHS = Whole(1, 100_000)
_EPOCH = Duration({"s": 1, "m": 60, "min": 60, "h": 3600}, DURATION.most_s)
DUE: Hint[str | int] = Hint(
    "due",
    forms=(DURATION, Time()),
    says="a time such as 2026-12-01T08:00, or a duration from submission, such as 90m, 36h or 2d,"
    f" at most {DURATION.most_s // 86_400}d",
    of_shards=False,
)
"""A local time, or seconds from submission."""
EPOCHS: Hint[tuple[int, int]] = Hint(
    "epochs",
    forms=(Repeated(_EPOCHS, _EPOCH),),
    says=f"the most epochs, 1 to {_EPOCHS.most}, and the time of one, such as 90x10m or 30x45s",
    of_shards=False,
    carried=True,
)
"""(most epochs, seconds of each)."""
HINTS = (DUE, EPOCHS)
SENTENCES = {
    "late": "gpu-aware: due=%s has passed, so it plays no part",
    "no_epoch": "gpu-aware: the due date leaves no time for one epoch of %d s, even with the"
    " most GPUs that it may get, %d; it plays no part unless an earlier run was as short",
    "no_run": "gpu-aware: the due date leaves no time for any earlier run of this name, as the"
    " shortest takes at least %d s, even with the most GPUs that it may get, %d; it plays no part",
}


IMPOSSIBLE = "due_impossible"  # No earlier run of the job's name would have met its due date.
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    IMPOSSIBLE: lambda detail: f"due {DueAccount.said(detail)}",
}


def pressing(pressure_s: float, weight: float) -> float:
    """A pressure times its weight: so many times the lateness, or one part in so many of the time
    to spare, which is a negative pressure."""
    return pressure_s * weight if pressure_s > 0 else pressure_s / weight


class DueAccount(Fact, frozen=True):
    """How likely a due date is met, and with which sizes. Times: of the round's clock."""

    key, line = "due", "due"
    waits = "It is due {}."

    due_s: float
    in_time: float | None = None
    """Probability; 0: impossible, as far as is known; None: no earlier run says anything."""
    runs: int = 0  # As in `due_dates.plan.DuePlan`, as ``by_epochs`` is.
    gpus: int = 0
    growth: tuple[tuple[float, int], ...] = ()  # (time, GPUs) of later sizes.
    ends_s: float | None = None
    """End with the most work with which the job is in time; None: not known."""
    weight: float = 1.0
    pressure_s: float = -math.inf
    """Time by which that end would be late with the largest number of GPUs from now on, mostly
    negative (STS, section V)."""
    by_epochs: bool = False
    passed: bool = False  # Whether it had passed when the account was made.
    text: str = ""  # Its words, of an earlier release.

    @property
    def impossible(self) -> bool:
        """Whether the due date cannot be met, as far as is known."""
        return self.in_time == 0

    @property
    def turn(self) -> float:
        """Key of the order in which jobs with due dates get GPUs."""
        return -pressing(self.pressure_s, self.weight)

    def short(self) -> str:
        return "due-impossible" if self.impossible else ""

    def words(self) -> str:
        """For example ``2026-12-01 18:00:00; met in 93% of 14 earlier runs ...``."""
        if self.text:
            return self.text
        if self.passed and not self.in_time:
            return f"{stamp(self.due_s)}; it has passed, so it plays no part"
        if self.in_time is None:
            return f"{stamp(self.due_s)}; no earlier run of its name says whether it is met"
        words = f"{stamp(self.due_s)}; "
        runs = counted(self.runs, "earlier run")
        if not self.in_time:
            needs = "an epoch needs" if self.by_epochs else f"{runs} needed"
            return f"{words}it cannot be met by what {needs}, so it plays no part"
        by = runs if self.runs else "its limit, as it has outlived all earlier runs"
        by = "its epochs, each number of them alike" if self.by_epochs else by
        words += f"met with {100 * self.in_time:.0f}% by {by}; longest case ends"
        words += f" {stamp(self.ends_s)} with {counted(self.gpus, 'GPU')}"
        for at, gpus in self.growth:
            words += f", {gpus} from {stamp(at)} on"
        return words


class OnModel(Fact, frozen=True):
    """The job may have GPUs of several models, and got this one."""

    key = "gpu_model"

    gpu_model: str
    models: int

    def words(self) -> str:
        which = "the one with which its due date costs least now"
        return f"on {self.gpu_model}: of {self.models} GPU models {which}"


FACTS = DueAccount, OnModel
