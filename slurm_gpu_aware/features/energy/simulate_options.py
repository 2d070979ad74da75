"""Option of ``gpu-aware simulate``: bounds on time of clocks that save energy."""

import click

from slurm_gpu_aware.cli.run_options import RunOptions, Runs, shares
from slurm_gpu_aware.features.energy.declared import MOST_PERCENT


def parse_bounds(text: str) -> tuple[float, ...]:
    """Bounds of ``none,0.03,0.05``; none: 0. Raises RequestError."""
    return tuple(shares("--slowdown", text, MOST_PERCENT / 100, 0.0))


class EnergyOptions(RunOptions):
    """Bounds to run; without them that of the site."""

    options = (
        click.option(
            "--slowdown",
            help="Bounds on time to run each policy with, of clocks that save energy: "
            "none,0.03,0.05 (as [energy] slowdown, of all classes), by the store's models.",
            metavar="SHARES",
        ),
    )

    def read(self) -> None:
        """The bounds."""
        text = self.given["slowdown"]
        self.bounds = () if text is None else parse_bounds(text)

    def swept(self, runs: Runs) -> Runs:
        """Each run with each bound."""
        from slurm_gpu_aware.features.energy.simulated import with_bound

        bounded = tuple(with_bound(run, bound) for bound in self.bounds for run in runs)
        return bounded or runs


RUN_OPTIONS = EnergyOptions
