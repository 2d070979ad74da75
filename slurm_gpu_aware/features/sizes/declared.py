"""Key of the comment: how many GPUs a job may get."""

from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.model.job_hints import Hint, Range

GPUS: Hint[tuple[int, int]] = Hint(
    "gpus",
    forms=(Range(1, MAX_GPUS),),
    says="a number such as 4, or a range such as 2-8",
    of_shards=False,
    by_site=False,
)
"""(least, most) GPUs in total."""
HINTS = (GPUS,)
SENTENCES = {
    "gpus_outside": "gpu-aware: gpus=%s does not hold %d, the number of GPUs that Slurm's options"
    " ask for; valid: a number or range with %d in it",
    "gpus_fixed": "gpu-aware: gpus=%s: the number of GPUs cannot change with %s; valid: %s",
    "gpus_late": "gpu-aware: gpus=%s must be there at submission; cancel the job and submit it"
    " again",
}
