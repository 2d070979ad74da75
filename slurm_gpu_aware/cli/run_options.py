"""Options of ``gpu-aware simulate`` that features have, and what the runs have by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import RequestError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.model.facets import Section
    from slurm_gpu_aware.simulator.settings import SimSettings
    from slurm_gpu_aware.simulator.trace import Trace

Runs: TypeAlias = "tuple[SimSettings, ...]"


class Prepared(NamedTuple):
    """What all runs have."""

    trace: Trace
    cluster: Cluster
    settings: SimSettings

    def put(self, section: Section) -> Prepared:
        """The same with another section of a feature."""
        return self._replace(settings=self.settings.put(section))


class RunOptions:
    """What a feature makes of its options in one call of ``gpu-aware simulate``.

    A feature has a subclass as ``RUN_OPTIONS`` in its ``simulate_options.py``. The help of all
    commands loads that module, so it imports larger ones where it needs them.
    """

    options: ClassVar[tuple[Callable[[Any], Any], ...]] = ()  # Of ``click.option``.
    needs: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()
    """(option, those of which one has to be given, too): otherwise it would have no effect."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        """``given``: the values of all options. Raises RequestError."""
        self.config, self.given = config, given
        self.read()

    def read(self) -> None:
        """Check the options. Raises RequestError."""

    def prepared(self, one: Prepared) -> Prepared:
        """The same with what the options say of it. Raises RequestError, PolicyError."""
        return one

    def swept(self, runs: Runs) -> Runs:
        """Each run with each value of an option; the first ones of all runs come first."""
        return runs


def shares(option: str, text: str, most: float, none: float) -> Iterator[float]:
    """The shares of ``none,0.8,0.6``, up to ``most``. Raises RequestError."""
    for part in map(str.strip, text.split(",")):
        try:
            share = none if part == "none" else float(part)
        except ValueError:
            share = math.nan
        if not (0.0 < share <= most or share == none):
            known = f"shares above 0 up to {most:g}, or none"
            raise RequestError(f"{option} {quoted(part)}: expected {known}")
        yield share
