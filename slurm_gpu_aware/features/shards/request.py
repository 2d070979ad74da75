"""What a request says of shards."""

from slurm_gpu_aware.model.facets import Facet

SHARDS: Facet[int] = Facet("shards", 0, int)
"""Of a request: shards of one GPU that the job asks for (``--gres=shard:N``); 0: it asks for whole
GPUs. A round plans it as a job of one GPU (`stage`)."""
