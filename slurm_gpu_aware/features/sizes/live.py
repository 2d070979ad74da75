"""Sizes of jobs that could not start."""

from dataclasses import replace

from slurm_gpu_aware.features.moves.declared import HAD_GPUS
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.live import Live, Told


class Sizes(Live):
    """Leaves a job whose start failed no choice: a limit may allow only what its options say, or
    what it ran with before its move."""

    name = "sizes"

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """The request with one size."""
        if not (request.sizes and self.site.backoff.failed(gated.id)):
            return request
        had = tuple(size for size in request.sizes if size == request.get(HAD_GPUS))
        return replace(request.resized(*had) if had else request, sizes=had)


LIVES = (Sizes,)
