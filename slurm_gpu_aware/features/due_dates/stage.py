"""Stage of a round: due dates decide the order of jobs, their least sizes, and when they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.features.due_dates.account import DUE, DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.events import IMPOSSIBLE
from slurm_gpu_aware.features.due_dates.queue import (
    due_accounts,
    in_order,
    most_gpus,
    with_due_dates,
)
from slurm_gpu_aware.features.due_dates.sizes import with_due_sizes
from slurm_gpu_aware.features.moves.settings import HAD_GPUS
from slurm_gpu_aware.features.power.growth import MOST_GPUS
from slurm_gpu_aware.features.power.power_budget import BUDGET
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Note
from slurm_gpu_aware.planning.stages import Stage


@dataclass(frozen=True)
class _Dated:
    """The queue that the stage found."""

    queue: Sequence[Request] = ()
    accounts: Mapping[str, DueAccount] = field(default_factory=dict)


_DATED = Facet("queue with due dates", _Dated())


class DueDates(Stage):
    """Jobs with due dates come in order of their pressure, and no smaller than it takes."""

    name = "due dates"
    reads = (DUE_DATE, HAD_GPUS, TABLE)

    def before(self, one: Round) -> Round:
        """The queue in its order, and without sizes that are too small."""
        accounts = due_accounts(one.queue, one.now)
        queue: Sequence[Request] = in_order(one.queue, one.settings, accounts, one.now)
        if any(request.sizes for request in queue):
            queue = with_due_sizes(queue, accounts, one.cluster, one.now, one.get(BUDGET))
        dated = _Dated(one.queue, accounts)
        return replace(one, queue=queue, ordered=True).put(_DATED, dated)

    def after(self, one: Round) -> Round:
        """The plan with the accounts of the due dates."""
        dated, there = one.get(_DATED), {request.job_id for request in one.queue}
        accounts = {job_id: a for job_id, a in dated.accounts.items() if job_id in there}
        if not accounts:
            return one
        plan, known, wake_s = with_due_dates(one.plan, dated.queue, accounts, one.now)
        lost = [(job, a) for job, a in known.items() if a.impossible]
        notes = (*plan.notes, *(Note(job, IMPOSSIBLE, account.values()) for job, account in lost))
        plan = replace(plan, wake_s=min(wake_s, plan.wake_s), notes=notes)
        return replace(one, plan=plan.put(DUE, known))


class Bounds(Stage):
    """A job grows on spare GPUs only as far as its due date needs: more would cost energy."""

    name = "bounds of growth"
    reads = (DUE_DATE, HAD_GPUS, TABLE)

    def after(self, one: Round) -> Round:
        """The round with the most GPUs of the jobs that start, judged by the GPUs that they get."""
        started = () if one.placement is None else one.placement.started
        return one.put(MOST_GPUS, most_gpus(one.get(_DATED).queue, started, one.now))
