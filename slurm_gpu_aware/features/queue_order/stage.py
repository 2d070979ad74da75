"""Order of waiting jobs by Slurm's priority and expected run times, and its stage of a round.

Slurm's priority with an age factor is a time: a job whose priority is higher by what a second of
age adds stands as if it had been submitted a second earlier. In this unit the rules are

- ``slurm``: that time;
- ``expected``: that time plus a weight times the expected run time. A weight of 0 is Slurm's order,
  a large one is shortest job first (Smith's rule, "Various optimizers for single-stage
  production", 1956), and in between a job that waits for long is ahead of every job that comes
  (as highest response ratio next, Brinch Hansen 1971, but with a difference and not a ratio);
- ``equal``: that time in whole windows, in a window the expected run time;
- ``backfill``: the expected run time alone, for the jobs behind the first one that does not fit.

The guard: from some waiting time on (`OrderRule.until_s`), counted from when the job became
eligible, no job passes it any more that Slurm's order puts behind it. So each job is passed only by
jobs that start in a time which the site bounds, whatever others submit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.features.queue_order.declared import MOST_WEIGHT, ORDERS, Passes, QueueConfig
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import TIER, Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.planning.prefix import exchanged, in_slurm_order
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.time_text import stamp

Key = tuple[float, ...]
AT_BOUND = Facet("at the bound of the queue", False)  # Of a request: no job passes it any more.
_WEIGHT = re.compile(r"(?:100|[0-9]{1,2})(?:\.[0-9]{1,6})?")


@dataclass(frozen=True)
class OrderRule:
    """The site's order of waiting jobs, and what Slurm's priority is made of."""

    order: str = "slurm"  # One of `ORDERS`.
    run_time_weight: float = 0.1
    equal_s: float = 0.0
    passed_factor: float = 4.0
    passed_s: float = 86_400.0
    age_per_s: float | None = None
    """What a second of age adds to Slurm's priority; 0: nothing, so jobs of different priorities
    are never exchanged. None: priorities only say in which order jobs were submitted
    (``priority/basic``)."""

    @property
    def exchanges(self) -> bool:
        """Whether jobs may pass others."""
        return self.order != "slurm"

    @property
    def label(self) -> str:
        """``backfill``, ``expected=0.1``."""
        weight = f"={self.run_time_weight:g}" if self.order == "expected" else ""
        return f"{self.order}{weight}"

    def named(self, label: str) -> OrderRule:
        """The rule with another order and weight, as ``label`` has them. Raises PolicyError."""
        order, equals, weight = label.partition("=")
        if order not in ORDERS or (equals and order != "expected"):
            raise PolicyError(f"unknown order {label!r}; known: {', '.join(ORDERS)}, expected=0.1")
        if not equals:
            return replace(self, order=order)
        if not _WEIGHT.fullmatch(weight):
            raise PolicyError(f"order {label!r}: expected a weight from 0 to {MOST_WEIGHT}")
        return replace(self, order=order, run_time_weight=float(weight))

    def until_s(self, request: Request) -> float:
        """When shorter jobs pass a job for the last time, on the clock of ``submit_s``.

        A requeue gives no new time in which they may.
        """
        return request.waits_since_s + min(self.passed_factor * request.expected_s, self.passed_s)


def rule_of(config: QueueConfig, age_per_s: float | None = None) -> OrderRule:
    """The rule of a site; ``age_per_s``: what a second of age adds to Slurm's priority."""
    return OrderRule(**vars(config), age_per_s=age_per_s)


def reordered(ordered: Sequence[Request], rule: OrderRule, now: float) -> list[Request]:
    """Jobs in Slurm's order in that of a rule; with ``backfill`` that behind the first one."""
    if not rule.exchanges:
        return list(ordered)
    found: list[Request] = []
    for _, jobs in groupby(ordered, lambda request: request.tier):
        tier = list(jobs)
        put_first = _put_first(tier, rule)
        stays = [p or now >= rule.until_s(r) for r, p in zip(tier, put_first, strict=True)]
        tier = [r.put(AT_BOUND, True) if s else r for r, s in zip(tier, stays, strict=True)]
        found += exchanged(tier, _keys(tier, rule, put_first, now), stays)
    return found


def _put_first(ordered: Sequence[Request], rule: OrderRule) -> list[bool]:
    """Which jobs stand before the next one though they were submitted later (``scontrol top``)."""
    if rule.age_per_s is not None:  # priorities say more than an order
        return [False] * len(ordered)
    pairs = pairwise(ordered)
    return [*(job.submit_s > after.submit_s for job, after in pairs), False]


def _keys(
    ordered: Sequence[Request], rule: OrderRule, put_first: Sequence[bool], now: float
) -> list[Key]:
    """Sort keys of the jobs of a tier in Slurm's order, smallest first."""
    runs = [request.expected_s for request in ordered]
    if rule.order == "backfill":
        return [(run_s,) for run_s in runs]
    timed = zip(_since(ordered, rule, put_first, now), runs, strict=True)
    if rule.order == "equal":
        return [(level, _step(at_s, rule), run_s) for (level, at_s), run_s in timed]
    weight = rule.run_time_weight
    return [(level, at_s + weight * run_s if weight else at_s) for (level, at_s), run_s in timed]


def _since(
    ordered: Sequence[Request], rule: OrderRule, put_first: Sequence[bool], now: float
) -> list[tuple[float, float]]:
    """(level, time) of the jobs of a tier: Slurm's order; jobs of one level may exchange places.

    Without an age factor the time is that of submission. Where the priority only says the order,
    it is not before that of a job in front: a job that was put back (``nice``) is as old as these.
    """
    if rule.age_per_s:
        return [(0.0, now - (r.priority - TIER * r.tier) / rule.age_per_s) for r in ordered]
    if rule.age_per_s == 0:
        return [(-r.priority, r.submit_s) for r in ordered]
    found, latest_s = list[tuple[float, float]](), -math.inf
    for request, by_hand in zip(ordered, put_first, strict=True):
        latest_s = latest_s if by_hand else max(latest_s, request.submit_s)
        found.append((0.0, request.submit_s if by_hand else latest_s))
    return found


def _step(at_s: float, rule: OrderRule) -> float:
    """The time of jobs that count as equal."""
    if rule.age_per_s == 0:
        return 0.0  # their priorities are equal
    return at_s // rule.equal_s if rule.equal_s else at_s


def passes(ordered: Sequence[Request], slurm: Mapping[str, int]) -> dict[str, int]:
    """Job -> how many jobs stand before it that Slurm puts behind it; without those of none.

    ``slurm``: job -> its place in Slurm's order. O(n log n).
    """
    most = len(ordered)
    counts = [0] * (most + 1)  # a Fenwick tree of the places seen so far
    found: dict[str, int] = {}
    for seen, request in enumerate(ordered):
        place = slurm[request.job_id] + 1
        before, at = 0, place
        while at:
            before += counts[at]
            at -= at & -at
        if seen > before:
            found[request.job_id] = seen - before
        while place <= most:
            counts[place] += 1
            place += place & -place
    return found


_MOST_TIMED = 100  # the others wait alike, so one line of the record holds them
RULE = Facet("queue order", OrderRule(), OrderRule)  # Of a round: the site's rule.


@dataclass(frozen=True)
class _Passed:
    """Jobs that pass others, or are passed."""

    requests: Mapping[str, Request] = field(default_factory=dict)  # In the order of the rule.
    places: Mapping[str, int] = field(default_factory=dict)  # Job -> its place in Slurm's order.
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
    return assignment.explained(Passes(longer, request.expected_s))
