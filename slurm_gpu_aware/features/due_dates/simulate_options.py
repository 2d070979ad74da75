"""Option of ``gpu-aware simulate``: due dates of jobs that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_gpu_aware.cli.run_options import RunOptions, option

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.simulator.settings import SimSettings
    from slurm_gpu_aware.simulator.trace import Trace


class DueOptions(RunOptions):
    """Due dates that are drawn."""

    options = (
        option(
            4,
            "--due",
            "Jobs without deadline_s are due after a random multiple of their fastest run "
            "time, such as 1-3, from their submission on.",
            metavar="LOW-HIGH",
        ),
    )

    def read(self) -> None:
        """Least and greatest factor."""
        from slurm_gpu_aware.features.due_dates.simulated import parse_factors

        text = self.given["due"]
        self.factors = None if text is None else parse_factors(text)

    def prepared(
        self, trace: Trace, cluster: Cluster, base: SimSettings
    ) -> tuple[Trace, SimSettings]:
        """The trace with due dates."""
        from slurm_gpu_aware.features.due_dates.simulated import with_due_dates

        if self.factors is not None:
            trace = with_due_dates(trace, self.factors, self.given["seed"])
        return trace, base


RUN_OPTIONS = DueOptions
