"""Fact of a job that has shards of a GPU, and its words."""

from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import counted


class OfGpu(Fact, frozen=True):
    """Shards of a GPU, the first or the fewest free ones that suffice."""

    key = "shards"

    shards: int
    total: int  # Shards of the GPU.
    free: int | None = None  # Of a GPU that other jobs use; None: no job has shards of it.

    def words(self) -> str:
        if self.free is None:
            return f"the first with shards of this GPU: {self.shards} of {self.total}"
        gpu = f"{counted(self.shards, 'shard')} of a GPU that other jobs use"
        return f"{gpu}: {self.free} of {self.total} were free, the fewest that suffice"


FACTS = (OfGpu,)
