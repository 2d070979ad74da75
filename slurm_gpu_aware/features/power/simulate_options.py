"""Options of ``gpu-aware simulate``: power limits, by the store's models."""

import math
from dataclasses import replace

import click

from slurm_gpu_aware.cli.run_options import Prepared, RunOptions, Runs, shares


class PowerOptions(RunOptions):
    """Limits to run; energy is known with any, or with bounds on time of clocks that save it."""

    options = (
        click.option(
            "--eta",
            help="Power limits to run each policy with, as shares of the power limits of all GPUs: "
            "none,0.8,0.6. Jobs get time, power and energy from the store's models "
            "('gpu-aware models').",
            metavar="SHARES",
        ),
        click.option(
            "--gpu-model",
            help="GPU model of all nodes, for --eta and --slowdown. Default: that of the store's "
            "cluster.",
            metavar="NAME",
        ),
    )
    needs = (("gpu_model", ("eta", "slowdown")),)

    def read(self) -> None:
        """The limits."""
        text = self.given["eta"]
        self.known = text is not None or self.given["slowdown"] is not None
        self.etas = tuple(shares("--eta", "none" if text is None else text, 1.0, math.inf))

    def prepared(self, one: Prepared) -> Prepared:
        """With the size tables of the jobs, and the power of GPUs."""
        from slurm_gpu_aware.features.power.run_tables import simulated_power

        if not self.known:
            return one
        gpu_model = self.given["gpu_model"]
        power, trace = simulated_power(self.config, one.trace, one.cluster, gpu_model)
        return one._replace(trace=trace).put(power)

    def swept(self, runs: Runs) -> Runs:
        """Each run with each limit."""
        from slurm_gpu_aware.features.power.simulated import power_of

        return tuple(run.put(replace(power_of(run), eta=eta)) for eta in self.etas for run in runs)


RUN_OPTIONS = PowerOptions
