"""``[estimates]``: run times from earlier runs."""

from dataclasses import dataclass
from typing import Annotated

from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.records import whole


@dataclass(frozen=True)
class EstimatesConfig(Section):
    """``[estimates]``: run times from earlier runs."""

    name = "estimates"
    history_days: Annotated[int, whole(0, 3650)] = 30
    """Days of history that the selector reads at its start; 0: time limits are the estimates."""


SECTIONS = (EstimatesConfig,)
