"""Facts on the clock of a job that saves energy, and their words."""

import math

from slurm_gpu_aware.features.energy.events import setting_words
from slurm_gpu_aware.model.facts import Fact


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
