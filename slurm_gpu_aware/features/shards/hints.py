"""What a request says of shards. They have no key of the comment, but sentences of the filter."""

from slurm_gpu_aware.model.facets import Facet

SENTENCES = {
    "of_shards": "gpu-aware: a job of shards has its GPU and clock in common with other jobs, so"
    " these play no part: %s",
    "many_shards": "gpu-aware: no GPU has %d shards, the most is %d",
}


SHARDS: Facet[int] = Facet("shards", 0, int)
"""Of a request: shards of one GPU that the job asks for (``--gres=shard:N``); 0: it asks for whole
GPUs. A round plans it as a job of one GPU (`stage`)."""
