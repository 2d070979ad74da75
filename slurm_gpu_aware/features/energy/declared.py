"""What clocks that save energy declare: key of the comment, ``[energy]``, events, and facts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from slurm_gpu_aware.model.facets import Facet, Rules, Section
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.job_hints import Hint, Whole
from slurm_gpu_aware.records import MOST, Text, number

MOST_PERCENT = 50
Slowdown = Annotated[float, number(0, MOST_PERCENT / 100)]


@dataclass(frozen=True)
class EnergyConfig(Section):
    """``[energy]``: clocks that save energy."""

    name = "energy"
    slowdown: Slowdown | None = None
    """Each job that names no clock gets the one with the least energy among those with which it
    takes at most so much longer (0.03: 3%); absent: only jobs of ``classes`` and ``slower=``."""
    classes: Mapping[str, Slowdown] = field(default_factory=dict)  # Class -> the same for its jobs.
    from_median: bool = False
    """The bound counts from the class's median GPU: on slower GPUs a job gets a higher clock, and
    its default clock where they alone are slower than allowed; false: from the job's own GPUs."""
    records: Text | None = None
    """Folder of the records of measured jobs ("gpu-aware-profile job --out"): by them clocks are
    checked; absent: they are not."""
    alloc_tres: bool = False
    """Write the energy of each job's GPUs, J, into its AllocTRES in Slurm's accounting, too."""
    price_kwh: Annotated[float, number(0, MOST)] | None = None
    """Price of a kWh, in any currency; absent: reports name no money."""
    co2_kg_kwh: Annotated[float, number(0, MOST)] | None = None
    """CO2 of a kWh in kg; absent: reports name none."""

    def rules(self) -> Rules:
        """A folder whose place does not depend on where the selector starts."""
        absolute = self.records is None or self.records.startswith("/")
        yield absolute, "energy.records", "expected an absolute path"

    def of_class(self, app_class: str) -> float:
        """Bound of the jobs of a class; 0: none."""
        return self.classes.get(app_class, self.slowdown or 0.0)


SECTIONS = (EnergyConfig,)


_PERCENT = Whole(0, MOST_PERCENT)
SLOWER: Hint[int] = Hint(
    "slower",
    (),
    (_PERCENT,),
    says=f"percent from {_PERCENT.least} to {_PERCENT.most}",
    of_shards=False,
    carried=True,
)
"""Percent; 0: not slower."""
HINTS = (SLOWER,)
OWN_CLOCK = Facet("own clock", False, bool)
"""Of a request: the user has given Slurm a clock (``--gpu-freq``)."""


CHECKING, CHECKED, FITTED = "clock_checking", "clock_checked", "model_fitted"
"""The check has begun; what it found; its model was fitted to that, or why not."""
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    CHECKING: lambda _: "runs at its default clock for some iterations, to compare",
    CHECKED: lambda detail: (
        "gets its default clock back" if detail.get("slow") else "was compared with its default"
    ),
    FITTED: lambda detail: (
        "its model was not fitted anew" if detail.get("error") else "its model was fitted anew"
    ),
}


def setting_words(clock_mhz: int, limit_w: int | None) -> str:
    """``1110 MHz``, or ``1410 MHz and 250 W``."""
    return f"{clock_mhz} MHz" + (f" and {limit_w} W" if limit_w else "")


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentences on what the clock of the job costs, by its own iterations."""
    ended = [event for event in answer["events"] if event["kind"] == CHECKED]
    if not ended:
        return []
    last = ended[-1]["detail"]
    if "slower" not in last:
        return [f"Its clock was not checked: {last.get('error')}."]
    saves = "" if last.get("saves") is None else f", with {last['saves']:.0%} less energy"
    setting = setting_words(last["clock_mhz"], last.get("limit_w"))
    found = f"At {setting} it is {last['slower']:.1%} slower by its own marks{saves}"
    if not last["slow"]:
        return [f"{found}."]
    found = f"{found}: more than the {last['allowed']:.0%} allowed, so its default clock is back."
    # A fit that began before is that of an earlier run of the job.
    fits = [event["detail"] for event in answer["events"] if event["kind"] == FITTED]
    fits = [fit for fit in fits if fit.get("began", 0.0) >= ended[-1]["at"]]
    return [found, *map(_fitted, fits[-1:])]


def _fitted(fit: Mapping[str, Any]) -> str:
    if "says" in fit:
        return f"Model {fit['model']} was fitted anew to that: {fit['says']}."
    return f"Its model was not fitted anew: {fit.get('error')}."


class SavingClock(Fact, frozen=True):
    """The setting that was chosen for a job, and what the model says of it. Shares: 0.1 is 10%."""

    key, line = "energy", "saves energy"

    clock_mhz: int
    saves: float  # Energy less than at the default clock.
    slower: float  # Time more than there.
    at_most: float  # The same at the upper end of the model's error.
    allowed: float = math.inf  # Bound of that; infinite: chosen by an earlier release.
    limit_w: int = 0  # Power limit of each GPU; 0: none.

    def words(self) -> str:
        setting = setting_words(self.clock_mhz, self.limit_w)
        return f"about {self.saves:.0%} at {setting}, at most {self.at_most:.1%} slower"


class SlowGpus(Fact, frozen=True):
    """The GPUs are so slow that no lower clock keeps within the bound from the median GPU."""

    key, line = "slow_gpus", "saves energy"

    slower: float
    allowed: float

    def words(self) -> str:
        gpus = f"its GPUs are {self.slower:.1%} slower than the median"
        return f"no: {gpus}, so no lower clock keeps within {100 * self.allowed:.2g}%"


FACTS = SavingClock, SlowGpus
