"""``[estimates]``: run times from earlier runs, and the fact that says them."""

import math
from dataclasses import dataclass
from typing import Annotated

from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.records import whole
from slurm_gpu_aware.time_text import counted, duration


@dataclass(frozen=True)
class EstimatesConfig(Section):
    """``[estimates]``: run times from earlier runs."""

    name = "estimates"
    history_days: Annotated[int, whole(0, 3650)] = 30
    """Days of history that the selector reads at its start; 0: time limits are the estimates."""


SECTIONS = (EstimatesConfig,)


class Estimated(Fact, frozen=True):
    """An expected run time on median GPUs, and where it is from. Times: s."""

    key, line = "estimate", "run time"
    waits = "Its run time is expected to be {}."

    runs: int  # As in `history.Estimate`, as ``source`` is.
    source: str = "limit"
    seconds: float = math.inf
    limit_s: float = math.inf

    def words(self) -> str:
        """``about 40 min on median GPUs, from 12 earlier runs with its name; limit 4 h``."""
        limit = f"limit {duration(self.limit_s)}" if self.limit_s < math.inf else "no time limit"
        if self.seconds == math.inf or not self.runs:
            return f"at most its limit, as no earlier run is like it; {limit}"
        whose = _WHOSE.get(self.source, "")
        time = f"about {_about(self.seconds)} on median GPUs"
        return f"{time}, from {counted(self.runs, 'earlier run')}{whose}; {limit}"


_WHOSE = {"name": " with its name", "user": " of its user", "account": " of its account"}
FACTS = (Estimated,)


def _about(seconds: float) -> str:
    """A duration with two digits or so."""
    step = 300 if seconds >= 3600 else 60 if seconds >= 600 else 10 if seconds >= 60 else 1
    return duration(max(1.0, round(seconds / step) * step))
