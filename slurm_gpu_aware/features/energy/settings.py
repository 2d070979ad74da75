"""``[energy]``: how much slower jobs may run to save energy, and what energy costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from slurm_gpu_aware.model.facets import Rules, Section
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
