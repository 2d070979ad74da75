"""What performance models declare: the key of the comment that names one, and a fact."""

from slurm_gpu_aware.filter_rules import MAX_NAME
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.job_hints import Hint, Name

NAME = Name("[A-Za-z0-9][A-Za-z0-9._-]*", MAX_NAME)  # Names of performance models.
NAMED_MODEL: Hint[str] = Hint(
    "model",
    forms=(NAME,),
    says=f"a name of letters, digits, '.', '_' and '-', at most {MAX_NAME}",
    of_shards=False,
)
"""A performance model, which need not be in the store."""
HINTS = (NAMED_MODEL,)


class NoModel(Fact, frozen=True):
    """The model that the job names is not used."""

    key, line = "model", "model"

    reason: str

    def words(self) -> str:
        return self.reason


FACTS = (NoModel,)
