"""Energy in a simulation: a run at default clocks."""

from dataclasses import dataclass

from slurm_gpu_aware.features.energy.declared import SLOWER, EnergyConfig
from slurm_gpu_aware.model.job_hints import HINTED, JobHints
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.simulator.settings import RunSection, SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import TraceJob


@dataclass(frozen=True)
class RunBound(RunSection):
    """Bound on time of clocks that save energy, in place of the site's."""

    slowdown: float | None = None
    """None: the site's; 0: all jobs run at default clocks, whatever they say."""

    @property
    def words(self) -> str:
        """``slowdown=0.03``."""
        return f" slowdown={self.slowdown:g}" if self.slowdown else ""


RUN = RunBound


def with_bound(settings: SimSettings, slowdown: float) -> SimSettings:
    """The run with a bound on time of clocks that save energy, of all classes.

    0: default clocks.
    """
    site = settings.of(EnergyConfig)
    energy = EnergyConfig(slowdown=slowdown, from_median=site.from_median)
    return settings.put(RunBound(slowdown), energy)


class SimulatedEnergy(SimulatedFeature):
    """At default clocks no job has a bound on time of its own, either."""

    def asked(self, job: TraceJob, request: Request) -> Request:
        """Without that bound."""
        if self.settings.of(RunBound).slowdown != 0.0:
            return request
        hints = {k: v for k, v in request.get(HINTED).values.items() if k != SLOWER.key}
        return request.put(HINTED, JobHints(hints))


SIMULATED = SimulatedEnergy
