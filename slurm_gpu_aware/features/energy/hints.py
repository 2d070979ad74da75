"""Key of the comment: how much slower a job may run to save energy."""

from slurm_gpu_aware.features.energy.settings import MOST_PERCENT
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.job_hints import Hint, Whole

_PERCENT = Whole(0, MOST_PERCENT)
SLOWER: Hint[int] = Hint(
    "slower",
    (),
    (_PERCENT,),
    says=f"percent from {_PERCENT.least} to {_PERCENT.most}",
    of_shards=False,
    carried=True,
)
"""Percent; 0: not slower."""
HINTS = (SLOWER,)
OWN_CLOCK = Facet("own clock", False, bool)
"""Of a request: the user has given Slurm a clock (``--gpu-freq``)."""
