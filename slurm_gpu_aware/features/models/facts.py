"""Fact of a job whose performance model is missing, and its words."""

from slurm_gpu_aware.model.facts import Fact


class NoModel(Fact, frozen=True):
    """The model that the job names is not used."""

    key, line = "model", "model"

    reason: str

    def words(self) -> str:
        return self.reason


FACTS = (NoModel,)
