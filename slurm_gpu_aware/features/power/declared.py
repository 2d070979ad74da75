"""What power declares: the key of the comment, ``[power]``, events, and facts.

A limit is ``off``, ``eta=X`` (a share of what all GPUs may draw) or watts.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.model.facets import Rules, Section
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.job_hints import Hint, Whole
from slurm_gpu_aware.records import MOST, Text, above, number, words
from slurm_gpu_aware.time_text import counted, duration

MINUTES = 24 * 60
_LIMIT = re.compile(r"off|eta=(?P<eta>0?\.[0-9]{1,6}|1(\.0{1,6})?)|(?P<watts>[1-9][0-9]{0,8})")
_SPAN = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
Watts = Annotated[float, above(0)]


@dataclass(frozen=True)
class PowerLimit:
    """A limit for the power of all GPUs. Neither: there is none."""

    watts: float | None = None
    eta: float | None = None  # Share of the sum of the power limits of all GPUs.

    def watts_of(self, max_w: float) -> float:
        """The limit in watts for GPUs that may draw ``max_w`` together; inf: none."""
        if self.eta is not None:
            return self.eta * max_w
        return math.inf if self.watts is None else self.watts

    @property
    def words(self) -> str:
        """``eta=0.7``, ``18000 W`` or ``off``."""
        return str(self) if self.watts is None else f"{self} W"

    def __str__(self) -> str:
        if self.eta is not None:
            return f"eta={self.eta:g}"
        return "off" if self.watts is None else f"{self.watts:.0f}"


OFF = PowerLimit()


def parse_limit(text: str) -> PowerLimit:
    """A limit from ``off``, ``eta=0.7`` or watts. Raises ValueError."""
    found = _LIMIT.fullmatch(text)
    if found is None or (found["eta"] and float(found["eta"]) <= 0):
        raise ValueError(f"{quoted(text)} is not off, watts, or eta=X with X above 0 up to 1")
    eta, watts = found["eta"], found["watts"]
    return PowerLimit(float(watts) if watts else None, float(eta) if eta else None)


def _span(text: str) -> tuple[int, int]:
    """(From, to) of ``22:00-06:00``, minutes of the day. Raises ValueError."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{quoted(text)} is not a time of day like 22:00-06:00")
    hours = [int(part) for part in found.groups()]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if begin == end:
        raise ValueError(f"{quoted(text)} is empty")
    return begin, end


def minutes_of(text: str) -> frozenset[int]:
    """The minutes of the day of ``22:00-06:00``. Raises ValueError."""
    begin, end = _span(text)
    return frozenset(minute % MINUTES for minute in range(begin, end + MINUTES * (end < begin)))


def _schedule_faults(schedule: Mapping[str, str]) -> Mapping[str, str]:
    """Entry -> what is wrong with it, in order: the grammar of both parts, and overlaps."""
    faults, seen = {}, dict[int, str]()
    for span, limit in schedule.items():
        try:
            minutes = minutes_of(span)
            parse_limit(limit)
        except ValueError as exc:
            faults[span] = str(exc)
            continue
        if other := next((seen[minute] for minute in sorted(minutes) if minute in seen), None):
            faults[span] = f"overlaps with {other}"
        seen |= dict.fromkeys(minutes, span)
    return faults


@dataclass(frozen=True)
class PowerConfig(Section):
    """``[power]``: a limit for the power of all GPUs together."""

    name = "power"
    power_budget_watts: Watts | None = None
    """The limit, idle GPUs included; absent, as ``eta`` is: there is none."""
    eta: Annotated[float, above(0, 1)] | None = None
    """The limit as a share of what all GPUs may draw by their power limits."""
    schedule: Mapping[str, Text] = field(default_factory=dict)
    """Time of day (``22:00-06:00``) -> limit at that time (`parse_limit`)."""
    clocks: Annotated[str, words("auto", "default")] = "default"
    """``auto``: under a limit a job that names no clock gets the one that the planner chooses."""
    margin: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.05
    """Share of the limit that is kept free, for what models do not foresee."""
    idle_watts: Annotated[float, number(0, MOST)] = 60.0  # Power of a GPU without a job.
    gpu_watts: Watts = 400.0  # Power limit of a GPU that no sweep has read.
    model_error: Annotated[float, above(0)] = 0.15
    """Largest mean error (0.15: 15%) with which a performance model predicted measurements that its
    fit had not seen; one that is further off is not used."""
    explore_s: Annotated[float, number(0, 3600)] = 0.0
    """Time in which the first job of a performance model that is missing tries several clocks."""
    system_comment: bool = True
    """Write the energy of each job's GPUs into its SystemComment in Slurm's accounting."""

    def rules(self) -> Rules:
        """At most one limit, which is possible."""
        watts, eta = self.power_budget_watts, self.eta
        yield watts is None or eta is None, "power.eta", "power_budget_watts is set, too: keep one"
        wrong = f"must be less than power.gpu_watts ({self.gpu_watts:g})"
        yield self.idle_watts < self.gpu_watts, "power.idle_watts", wrong
        sound = self.explore_s == 0 or self.explore_s >= 100
        yield sound, "power.explore_s", "must be 0, or from 100 to 3600"
        for span, wrong in _schedule_faults(self.schedule).items():
            yield False, f"power.schedule.{span}", wrong

    def plan(self) -> Mapping[str, Any]:
        """Whether the planner chooses clocks."""
        return {"auto_clocks": self.clocks == "auto"}


SECTIONS = (PowerConfig,)


MHZ = Whole(100, 10_000)
_WORDS = ("auto", "max")
FREQ: Hint[str | int] = Hint(
    "freq",
    _WORDS,
    (MHZ,),
    says=f"{', '.join(_WORDS)}, or MHz from {MHZ.least} to {MHZ.most}",
    of_shards=False,
)
"""``auto``, ``max``, or MHz."""
HINTS = (FREQ,)


def _clock_set(detail: Mapping[str, Any]) -> str:
    clock = f"{detail['mhz']} MHz" if detail.get("mhz") else "the default clock"
    asked = detail.get("asked_mhz")
    beside = f" (nearest to {asked} MHz)" if asked and asked != detail.get("mhz") else ""
    limit_w = detail.get("limit_w")
    limit = f", {limit_w} W at most each" if limit_w else ""
    return f"{_gpus(detail)} at {clock}{beside}{limit}"


def _clock_failed(detail: Mapping[str, Any]) -> str:
    why = str(detail.get("error") or "no reason was recorded")
    if why.startswith("no clock is set"):  # on a node with shards or MPS
        return f"{_gpus(detail)}: {why}"
    what = "its clock is not reset" if detail.get("during") == "reset" else "no clock is set"
    return f"{_gpus(detail)}: {what}: {why}"


def _energy(detail: Mapping[str, Any]) -> str:
    joules = detail.get("energy_j")
    if joules is None:
        return f"{_gpus(detail)}: energy not known: {detail.get('error') or 'no reason'}"
    return f"{_gpus(detail)} took {joules / 3600:.3g} Wh in {duration(detail.get('seconds'))}"


def _gpus(detail: Mapping[str, Any]) -> str:
    """``n1: 0,1``."""
    numbers = ",".join(map(str, detail.get("gpus") or ()))
    node = str(detail.get("node") or "its node")
    return f"{node}: {numbers}" if numbers else node


OF_NODES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "clock_set": _clock_set,
    "clock_failed": _clock_failed,
    "energy": _energy,
}
"""Events that nodes record."""
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    **OF_NODES,
    "exploring": lambda _: "tries several clocks for its performance model",
    "explored": lambda _: "has tried its clocks",
}


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentence on the clocks that the job has tried, and the power there."""
    ended = [event["detail"] for event in answer["events"] if event["kind"] == "explored"]
    if not ended:
        return []
    watts = zip(ended[-1].get("mhz", ()), ended[-1].get("power_w", ()), strict=False)
    found = ", ".join(f"{power:.0f} W at {mhz} MHz" for mhz, power in watts)
    what = found or ended[-1].get("error") or "its nodes know no energy at each of them"
    return [f"It tried several clocks for its performance model: {what}."]


class Step(Struct, frozen=True, omit_defaults=True):
    """One step to more GPUs or a higher clock: its gain in time and cost in energy."""

    sooner_percent: float
    energy_percent: float
    gpus: int | None = None
    clock_mhz: int | None = None

    def words(self) -> str:
        """``4 GPUs would end it 35% sooner for 12% more energy``."""
        what = f"{self.clock_mhz} MHz" if self.gpus is None else counted(self.gpus, "GPU")
        sooner, energy = self.sooner_percent, self.energy_percent
        time = f"{abs(sooner):.0f}% {'sooner' if sooner >= 0 else 'later'}"
        than = "more" if energy >= 0 else "less"
        return f"{what} would end it {time} for {abs(energy):.0f}% {than} energy"


class SizePower(Fact, frozen=True):
    """Power of a job, and the gain and cost of one step more."""

    key, told = "power", True

    gpus: int
    power_w: float
    clock_mhz: int | None = None  # None: the default clock.
    model: str = ""  # Performance model; empty: not known.
    more_gpus: Step | None = None
    more_mhz: Step | None = None

    def words(self) -> str:
        """``2 GPUs at 1065 MHz (480 W); 4 GPUs would end it 35% sooner for 12% more energy``."""
        clock = "" if self.clock_mhz is None else f" at {self.clock_mhz} MHz"
        own = f"{counted(self.gpus, 'GPU')}{clock} ({self.power_w:.0f} W)"
        steps = filter(None, (self.more_gpus, self.more_mhz))
        return "; ".join([own, *(step.words() for step in steps)])


class Grown(Fact, frozen=True):
    """The job got more GPUs than its least number."""

    key = "grown"

    least_gpus: int


class OverLimit(Fact, frozen=True):
    """The job starts although the power limit cannot be met."""

    key, told = "over_limit", True

    planned_w: float  # With this job alone.
    limit_w: float  # What the limit leaves without its margin.

    def words(self) -> str:
        planned = f"with this job alone {self.planned_w:.0f} W are planned"
        left = f"without its margin the limit leaves {self.limit_w:.0f} W"
        return f"the power limit cannot be met: {planned}, and {left}"


FACTS = SizePower, Grown, OverLimit
