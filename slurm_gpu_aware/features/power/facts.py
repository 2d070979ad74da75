"""Facts on the size, the clock and the power of a job, and their words."""

from msgspec import Struct

from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import counted


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

    key = "power"

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

    key = "over_limit"

    planned_w: float  # With this job alone.
    limit_w: float  # What the limit leaves without its margin.

    def words(self) -> str:
        planned = f"with this job alone {self.planned_w:.0f} W are planned"
        left = f"without its margin the limit leaves {self.limit_w:.0f} W"
        return f"the power limit cannot be met: {planned}, and {left}"


FACTS = SizePower, Grown, OverLimit
