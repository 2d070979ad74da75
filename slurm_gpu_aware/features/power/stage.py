"""Stages of a round: the power that a limit leaves, and sizes and clocks of the jobs."""

from collections.abc import Sequence
from dataclasses import replace

from slurm_gpu_aware.features.power.growth import sized
from slurm_gpu_aware.features.power.power_budget import BUDGET, POWER, budget_of, with_least_sizes
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage


class Limit(Stage):
    """The power that the limit of the site leaves for the jobs of the queue."""

    name = "power limit"
    reads = (TABLE,)
    inputs = (POWER,)

    def before(self, one: Round) -> Round:
        """The round with its budget."""
        return one.put(BUDGET, budget_of(one))


class Sizing(Stage):
    """Each job is placed at its least size; what is spare goes to sizes and clocks."""

    name = "sizes and clocks"
    reads = (TABLE,)

    def before(self, one: Round) -> Round:
        """The queue at its least sizes, with the power that each job needs."""
        queue: Sequence[Request] = one.queue
        budget, moldable = one.get(BUDGET), any(request.sizes for request in queue)
        if moldable:
            queue = with_least_sizes(queue)
        if budget is not None:
            queue = [budget.needing(request) for request in queue]
            one = replace(one, cluster=budget.cluster)
        if queue is one.queue and not one.grows:
            return one
        return replace(one, queue=queue, grows=moldable or budget is not None)

    def after(self, one: Round) -> Round:
        """The plan with the sizes and clocks that the jobs get."""
        placement = one.placement
        if placement is None or not one.grows:
            return one
        return replace(one, plan=sized(one, placement))
