"""Stage of a round: jobs that ask for shards fill used GPUs (`shards.sharing`)."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu_aware.features.shards.sharing import SplitQueue, split_queue, with_shards
from slurm_gpu_aware.planning.facets import Facet
from slurm_gpu_aware.planning.stages import Round, Stage

SPLIT: Facet[SplitQueue | None] = Facet("split queue", None)
"""The queue without jobs that share GPUs; None: no job does."""


class Sharing(Stage):
    """Jobs that share a GPU are placed beside the queue."""

    name = "shards"

    def before(self, one: Round) -> Round:
        """The queue without them."""
        split = split_queue(one.queue, one.cluster)
        if split.queue is one.queue:
            return one
        aside = (*one.aside, *split.sharing)
        one = replace(one, queue=split.queue, cluster=split.cluster, aside=aside)
        return one.put(SPLIT, split)

    def after(self, one: Round) -> Round:
        """The plan with them."""
        split = one.get(SPLIT)
        if split is None:
            return one
        there = {request.job_id for request in one.queue}
        sharing = [request for request in split.sharing if request.job_id in there]
        given = split, one.cluster, one.settings, one.now
        return replace(one, plan=with_shards(one.plan, *given, sharing))
