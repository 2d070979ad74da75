"""Key of the comment: the clock of a job's GPUs."""

from slurm_gpu_aware.model.job_hints import Hint, Whole

MHZ = Whole(100, 10_000)
_WORDS = ("auto", "max")
FREQ: Hint[str | int] = Hint(
    "freq",
    _WORDS,
    (MHZ,),
    says=f"{', '.join(_WORDS)}, or MHz from {MHZ.least} to {MHZ.most}",
    of_shards=False,
)
"""``auto``, ``max``, or MHz."""
HINTS = (FREQ,)
