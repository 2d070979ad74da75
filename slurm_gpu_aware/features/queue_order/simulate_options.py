"""The site's order of the queue in the runs of ``gpu-aware simulate``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_gpu_aware.cli.run_options import RunOptions
from slurm_gpu_aware.features.queue_order.declared import QueueConfig

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.simulator.settings import SimSettings
    from slurm_gpu_aware.simulator.trace import Trace


class OrderOptions(RunOptions):
    """The site's order, which a policy may have beside its name (``@``)."""

    def prepared(
        self, trace: Trace, cluster: Cluster, base: SimSettings
    ) -> tuple[Trace, SimSettings]:
        """The settings with the site's order."""
        from slurm_gpu_aware.features.queue_order.stage import rule_of

        age_per_s = None if base.multifactor is None else base.multifactor.age_per_s
        return trace, replace(base, queue=rule_of(self.config.of(QueueConfig), age_per_s))


RUN_OPTIONS = OrderOptions
