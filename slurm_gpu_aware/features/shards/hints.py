"""Sentences of the filter on jobs of shards; they have no key of their own."""

SENTENCES = {
    "of_shards": "gpu-aware: a job of shards has its GPU and clock in common with other jobs, so"
    " these play no part: %s",
    "many_shards": "gpu-aware: no GPU has %d shards, the most is %d",
}
