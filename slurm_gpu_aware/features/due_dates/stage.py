"""Stage of a round: due dates decide the order of jobs, their least sizes, and when they grow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.features.due_dates.due_date import DUE, DUE_DATE, DueAccount, on_a_model
from slurm_gpu_aware.features.due_dates.events import IMPOSSIBLE
from slurm_gpu_aware.features.due_dates.queue import in_order, most_gpus, with_due_dates
from slurm_gpu_aware.features.due_dates.settings import TOGETHER
from slurm_gpu_aware.features.due_dates.sizes import with_due_sizes, with_shares
from slurm_gpu_aware.features.due_dates.together import (
    on_best_models,
    on_shared_models,
    shared_out,
)
from slurm_gpu_aware.features.moves.settings import HAD_GPUS
from slurm_gpu_aware.features.power.growth import MOST_GPUS
from slurm_gpu_aware.features.power.power_budget import BUDGET
from slurm_gpu_aware.model.facets import Facet, changed
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES
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
    reads = (DUE_DATE, HAD_GPUS, TABLE, TABLES)

    def before(self, one: Round) -> Round:
        """The queue in its order, and without sizes that are too small."""
        settings, cluster, now = one.settings, one.cluster, one.now
        found, accounts, several = on_best_models(one.queue, cluster, now)
        queue: Sequence[Request] = in_order(found, settings, accounts, now)
        together, shares = settings.due_order == TOGETHER, dict[str, tuple[str, int]]()
        if accounts and (together or any(request.get(TABLES) for request in queue)):
            asked = {request.job_id: request for request in one.queue}
            shares = shared_out(queue, asked, accounts, several, cluster, now, waits=together)
            queue, shared = on_shared_models(queue, several, shares)
            accounts |= shared
        dated = _Dated(queue, accounts)
        if together and shares:
            sizes = {job_id: gpus for job_id, (_, gpus) in shares.items()}
            queue = with_shares(queue, sizes, cluster, one.get(BUDGET))
        elif any(request.sizes for request in queue):
            queue = with_due_sizes(queue, accounts, cluster, now, one.get(BUDGET))
        return changed(one, queue=queue, ordered=True).put(_DATED, dated)

    def after(self, one: Round) -> Round:
        """The plan with the accounts of the due dates."""
        dated, there = one.get(_DATED), {request.job_id for request in one.queue}
        accounts = {job_id: a for job_id, a in dated.accounts.items() if job_id in there}
        if not accounts:
            return one
        plan, known, wake_s = with_due_dates(one.plan, dated.queue, accounts, one.now)
        lost = [(job, a) for job, a in known.items() if a.impossible]
        notes = (*plan.notes, *(Note(job, IMPOSSIBLE, account.values()) for job, account in lost))
        several = {r.job_id: r for r in dated.queue if r.get(TABLES) and r.nodes.gpu_model}
        starts = (
            on_a_model(a, several[a.job_id]) if a.job_id in several else a for a in plan.assignments
        )
        wake_s = min(wake_s, plan.wake_s)
        plan = replace(plan, assignments=tuple(starts), wake_s=wake_s, notes=notes)
        return replace(one, plan=plan.put(DUE, known))


class Bounds(Stage):
    """A job grows on spare GPUs only as far as its due date needs: more would cost energy."""

    name = "bounds of growth"
    reads = (DUE_DATE, HAD_GPUS, TABLE)

    def after(self, one: Round) -> Round:
        """The round with the most GPUs of the jobs that start, judged by the GPUs that they get."""
        placement = one.placement
        if placement is None or not placement.spare.free.any():
            return one  # no job grows
        return one.put(MOST_GPUS, most_gpus(one.get(_DATED).queue, placement.started, one.now))
