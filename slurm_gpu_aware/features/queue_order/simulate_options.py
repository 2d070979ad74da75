"""The site's order of the queue in the runs of ``gpu-aware simulate``."""

from slurm_gpu_aware.cli.run_options import Prepared, RunOptions
from slurm_gpu_aware.features.queue_order.declared import QueueConfig


class OrderOptions(RunOptions):
    """The site's order, which a policy may have beside its name (``@``)."""

    def prepared(self, one: Prepared) -> Prepared:
        """With the site's order."""
        from slurm_gpu_aware.features.queue_order.simulated import RunOrder
        from slurm_gpu_aware.features.queue_order.stage import rule_of

        factors = one.settings.multifactor
        age_per_s = None if factors is None else factors.age_per_s
        return one.put(RunOrder(rule_of(self.config.of(QueueConfig), age_per_s)))


RUN_OPTIONS = OrderOptions
