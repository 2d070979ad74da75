"""Option of ``gpu-aware simulate``: what the planner knows of run times."""

import click

from slurm_gpu_aware.cli.run_options import Prepared, RunOptions


class EstimateOptions(RunOptions):
    """The kind of estimates."""

    options = (
        click.option(
            "--estimate",
            help="What the planner knows of run times: history, from runs that have ended so far; "
            "limit; exact, for research. Default: history for a trace with users, else limit.",
            metavar="KIND",
        ),
    )

    def prepared(self, one: Prepared) -> Prepared:
        """With that kind."""
        from slurm_gpu_aware.features.estimates.simulated import RunEstimates

        return one.put(RunEstimates(self.given["estimate"]))


RUN_OPTIONS = EstimateOptions
