"""What shards declare: sentences of the filter, a facet of the request, and a fact."""

from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import counted

SENTENCES = {
    "of_shards": "gpu-aware: a job of shards has its GPU and clock in common with other jobs, so"
    " these play no part: %s",
    "many_shards": "gpu-aware: no GPU has %d shards, the most is %d",
}
SHARDS: Facet[int] = Facet("shards", 0, int)
"""Of a request: shards of one GPU that the job asks for (``--gres=shard:N``); 0: it asks for whole
GPUs. A round plans it as a job of one GPU (`stage`)."""


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
