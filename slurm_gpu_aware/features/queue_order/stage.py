"""Stage of a round: the site's order of waiting jobs, and which job passes which."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.features.queue_order.rule import OrderRule, passes, reordered
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.time_text import duration, stamp

_MOST_TIMED = 100  # the others wait alike, so one line of the record holds them
RULE = Facet("queue order", OrderRule(), OrderRule)
"""Of a round: the site's rule."""


@dataclass(frozen=True)
class _Passed:
    """Jobs that pass others, or are passed."""

    requests: Mapping[str, Request] = field(default_factory=dict)
    """In the order of the rule."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Job -> its place in Slurm's order."""
    by: Mapping[str, int] = field(default_factory=dict)
    """Job -> number of shorter jobs that may pass it."""


_PASSED = Facet("passed in the queue", _Passed())


class QueueOrder(Stage):
    """Shorter jobs stand before longer ones, as far as the site's rule lets them."""

    name = "order of the queue"
    inputs = (RULE,)

    def before(self, one: Round) -> Round:
        """The queue with the turn of each job."""
        rule = one.get(RULE)
        if not rule.exchanges or len(one.queue) < 2:
            return one
        in_turn = in_slurm_order(one.queue)
        ordered = reordered(in_turn, rule, one.now)
        if rule.order == "backfill":
            behind = {request.job_id: turn for turn, request in enumerate(ordered)}
            one = replace(one, queue=ordered, behind=behind)
        else:
            one = replace(one, queue=[replace(r, turn=turn) for turn, r in enumerate(ordered)])
        if not one.explain:
            return one
        requests = {request.job_id: request for request in ordered}
        slurm = {request.job_id: place for place, request in enumerate(in_turn)}
        return one.put(_PASSED, _Passed(requests, slurm, passes(ordered, slurm)))

    def after(self, one: Round) -> Round:
        """The plan with the jobs that pass others named."""
        known, rule, plan = one.get(_PASSED), one.get(RULE), one.plan
        if not known.by:
            return one
        waits = {w.job_id for w in plan.waiting if _may_be_passed(w, rule)}
        passed, longer = waits & known.by.keys(), _longer(known, waits)
        waiting = [_waiting(w, known, rule) if w.job_id in passed else w for w in plan.waiting]
        starts = [
            _started(a, known.requests[a.job_id], longer[a.job_id]) if a.job_id in longer else a
            for a in plan.assignments
        ]
        plan = replace(plan, assignments=tuple(starts), waiting=tuple(waiting))
        return replace(one, plan=plan)


def _may_be_passed(waiting: Waiting, rule: OrderRule) -> bool:
    """Whether it waits for its turn; behind the first job, backfill delays that one never."""
    first = rule.order == "backfill" and waiting.shadow_start_s is not None
    return not (waiting.infeasible or waiting.failed or first)


def _longer(known: _Passed, waits: Collection[str]) -> dict[str, str]:
    """Job -> the first one by Slurm's order of those in ``waits`` that it passes."""
    found: dict[str, str] = {}
    first, least = "", len(known.places)
    for job_id in reversed(list(known.requests)):  # in the order of the rule
        place = known.places[job_id]
        if place > least:
            found[job_id] = first
        if job_id in waits and place < least:
            first, least = job_id, place
    return found


def _waiting(waiting: Waiting, known: _Passed, rule: OrderRule) -> Waiting:
    count, until = known.by[waiting.job_id], rule.until_s(known.requests[waiting.job_id])
    text = "shorter jobs may start before it"
    if known.places[waiting.job_id] < _MOST_TIMED:
        jobs = "a shorter job" if count == 1 else f"{count} shorter jobs"
        text = f"{jobs} may start before it, until {stamp(until)[:16]} at the latest"
    return replace(waiting, reason=f"{waiting.reason}; {text}")


def _started(assignment: Assignment, request: Request, longer: str) -> Assignment:
    text = f"starts before job {longer}, as it is shorter (expected {duration(request.expected_s)})"
    return assignment.explained(text, passes=longer)
