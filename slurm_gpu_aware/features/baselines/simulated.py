"""Published schedulers in a simulation, beside the planner's own rounds."""

from dataclasses import replace

from slurm_gpu_aware.features.baselines.afs_and_zeus import zeus_clock
from slurm_gpu_aware.features.baselines.elastic import STS, STS_PREEMPT, ElasticRounds
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.settings import Mode
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature


class SimulatedBaselines(SimulatedFeature):
    """PowerFlow, AFS and STS, which size all jobs anew, and Zeus, which chooses clocks."""

    def prepare(self) -> None:
        """Some size all jobs in each round."""
        self.rounds = ElasticRounds if self.settings.mode in ANEW else None

    def starts(self, active: ActiveJob, assignment: Assignment) -> Assignment:
        """By Zeus at the clock that is best for energy and time."""
        table = active.request.get(TABLE)
        if table is None or self.settings.mode != "zeus":
            return assignment
        gpus = active.request.gpus
        clock_mhz = zeus_clock(table, gpus, gpus * self.settings.of(RunPower).max_w)
        return replace(assignment, clock_mhz=clock_mhz, power_limit_w=None)


SIMULATED = SimulatedBaselines
ANEW = {
    "powerflow": "sizes and clocks of all jobs anew in each round (PowerFlow, Algorithm 1)",
    "afs": "sizes of all jobs anew in each round, default clocks (AFS)",
    STS: "jobs with due dates by the stochastic scheduler, running jobs keep their GPUs (STS)",
    STS_PREEMPT: "the same, but more pressing jobs may stop running ones, as its authors do",
}
MODES = {
    "as-asked": Mode("sizes as asked, default clocks", sized=False, powered=True),
    "zeus": Mode(
        "sizes as asked, each job at its best clock by energy and time (Zeus)",
        sized=False,
        powered=True,
    ),
    **{name: Mode(about, anew=True, powered=True) for name, about in ANEW.items()},
}
