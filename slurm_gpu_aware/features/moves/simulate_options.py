"""Option of ``gpu-aware simulate``: which jobs may move; and what a restart costs."""

from dataclasses import replace

import click

from slurm_gpu_aware.cli.options import Number
from slurm_gpu_aware.cli.run_options import Prepared, RunOptions
from slurm_gpu_aware.features.moves.declared import MovesConfig


class MoveOptions(RunOptions):
    """Jobs that allow moves, and the cost of one."""

    options = (
        click.option(
            "--movable",
            help="Share of the jobs that allow moves, of those that do not say, for NAME:moves.",
            metavar="SHARE",
            type=Number(0, 1),
            default=1.0,
        ),
    )

    def prepared(self, one: Prepared) -> Prepared:
        """With that share and cost, else the site's cost."""
        from slurm_gpu_aware.features.moves.simulated import RunMoves

        cost_s = self.given["migration_s"]
        restart_s = self.config.of(MovesConfig).restart_s if cost_s is None else cost_s
        settings = replace(one.settings, migration_s=restart_s)
        return one._replace(settings=settings).put(RunMoves(self.given["movable"]))


RUN_OPTIONS = MoveOptions
