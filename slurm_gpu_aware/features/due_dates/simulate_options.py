"""Option of ``gpu-aware simulate``: due dates of jobs that have none."""

import click

from slurm_gpu_aware.cli.run_options import Prepared, RunOptions


class DueOptions(RunOptions):
    """Due dates that are drawn."""

    options = (
        click.option(
            "--due",
            help="Jobs without deadline_s are due after a random multiple of their fastest run "
            "time, such as 1-3, from their submission on.",
            metavar="LOW-HIGH",
        ),
    )

    def read(self) -> None:
        """Least and greatest factor."""
        from slurm_gpu_aware.features.due_dates.simulated import parse_factors

        text = self.given["due"]
        self.factors = None if text is None else parse_factors(text)

    def prepared(self, one: Prepared) -> Prepared:
        """With due dates of the jobs."""
        from slurm_gpu_aware.features.due_dates.simulated import with_due_dates

        if self.factors is None:
            return one
        return one._replace(trace=with_due_dates(one.trace, self.factors, self.given["seed"]))


RUN_OPTIONS = DueOptions
