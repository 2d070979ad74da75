"""Jobs on shards: they go with the jobs on their GPU."""

from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.live import Live, Told


class Shares(Live):
    """Says that a job asks for shards."""

    name = "shards"

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """The same request."""
        if shards := request.get(SHARDS):
            told.asked |= {"gpus": None, "shards": shards}
            told.lasts = told.ahead = False
        return request


LIVES = (Shares,)
