"""Option of ``gpu-aware simulate``: which jobs may move; and what a restart costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_gpu_aware.cli.options import Number
from slurm_gpu_aware.cli.run_options import RunOptions, option
from slurm_gpu_aware.features.moves.declared import MovesConfig

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.simulator.settings import SimSettings
    from slurm_gpu_aware.simulator.trace import Trace


class MoveOptions(RunOptions):
    """Jobs that allow moves, and the cost of one."""

    options = (
        option(
            6,
            "--movable",
            "Share of the jobs that allow moves, of those that do not say, for NAME:moves.",
            metavar="SHARE",
            type=Number(0, 1),
            default=1.0,
        ),
    )
    fields = (("movable_share", "movable"),)

    def prepared(
        self, trace: Trace, cluster: Cluster, base: SimSettings
    ) -> tuple[Trace, SimSettings]:
        """The settings with the cost of a move, else that of the site."""
        trace, base = super().prepared(trace, cluster, base)
        cost_s = self.given["migration_s"]
        restart_s = self.config.of(MovesConfig).restart_s if cost_s is None else cost_s
        return trace, replace(base, migration_s=restart_s)


RUN_OPTIONS = MoveOptions
