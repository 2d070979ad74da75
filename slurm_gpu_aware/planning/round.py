"""One round: from the queue and the cluster to assignments and reasons. Pure.

1. Slurm's order. The longest prefix that can start now is guaranteed to start now.
2. Inside it the most sensitive class chooses first (PAL's placement priority).
3. The first job that does not fit is the *head*. If it may preempt, its victims are planned;
   otherwise it gets a shadow reservation.
4. Behind the head only jobs that cannot delay it start (EASY backfill).

The sum of demands bounds the prefix, but packing, eligibility and CPUs decide too. So the jobs
within that sum are placed by class; if one finds no place, the prefix is found by placing in
Slurm's order instead and then placed again by class. If that leaves one of them without a place,
it chooses first in a second try, and if that fails too the placements in Slurm's order stand: no
job of the prefix loses its turn to placement priority.

A job that could not start even on the idle cluster blocks no other job.

A policy may let a job wait although GPUs that fit are free (``topo-aware-p``). Such a job is
*postponed*: it is treated like one that does not fit, but what could fit, and when, is asked
without its threshold, because a set's utility may fall when more GPUs are free. Nor does it
preempt: room is not what it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.policy import Reason
from slurm_gpu_aware.planning.backfill import Beside, reserve
from slurm_gpu_aware.planning.dispatcher import Dispatcher, PlacementFailedError, shape_of
from slurm_gpu_aware.planning.order import by_class, guaranteed_prefix, in_slurm_order
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting
from slurm_gpu_aware.planning.preempt import can_preempt, plan_preemption
from slurm_gpu_aware.planning.timeline import Held, Timeline, as_running, take, unsure
from slurm_gpu_aware.planning.trial import Known, Trial

__all__ = ["plan_round"]

_MOST_KEPT = 16  # nodes whose kept GPUs are listed one by one


def plan_round(
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    now: float,
    *,
    policy_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Plan one round.

    Parameters
    ----------
    queue : parked requests that nothing else holds, in any order.
    cluster : the snapshot; it is not changed. ``cluster.running`` gives the ends for the shadow.
    now : time in seconds, on the clock of ``RunningJob.end_s``.
    policy_options : options per policy name; a request's own options go before them.

    Returns
    -------
    Plan : every request of the queue is in exactly one of ``assignments`` and ``waiting``, the
        assignments in the order they were made (prefix, then backfill).

    Notes
    -----
    A policy that fails on a job (unknown name, bad option, a bug) makes that job wait with the
    error as its reason; the others are planned as if it were not there.
    """
    dispatcher = Dispatcher(settings, policy_options, now)
    return _Round(cluster, settings, now, dispatcher).plan(in_slurm_order(queue))


class _Round:
    """State of one round while it is planned."""

    def __init__(
        self, cluster: Cluster, settings: PlanSettings, now: float, dispatcher: Dispatcher
    ) -> None:
        self.settings = settings
        self.now = now
        self.dispatcher = dispatcher
        self.here = cluster.copy()
        self.start = cluster
        self.running: list[RunningJob] = list(cluster.running)
        self.assignments: list[Assignment] = []
        self.waiting: list[Waiting] = []
        self._settled: set[str] = set()
        """Jobs whose waiting is already explained, whatever else this round finds."""
        self._known = Known()
        """What the tries of the prefix have found."""
        self._empty: Cluster | None = None
        self._infeasible: dict[object, Reason | None] = {}

    def plan(self, ordered: list[Request]) -> Plan:
        behind = self._prefix(ordered)
        behind = self._continue(behind)
        if behind:
            self._behind_head(behind[0], behind[1:])
        return Plan(tuple(self.assignments), tuple(self.waiting))

    def _prefix(self, ordered: list[Request]) -> list[Request]:
        """Start the guaranteed prefix; return the rest of the queue, the head first.

        First PAL's truncation: the jobs whose demands sum to the free GPUs, placed by class. If all
        of them find a place one pass was enough. If not, the prefix is found by placing in order.
        """
        cut = guaranteed_prefix([r.gpus for r in ordered], int(np.count_nonzero(self.here.free)))
        behind = ordered[cut:]
        prefix, misfit = self._in_turn(by_class(ordered[:cut], self.settings.classes))
        if misfit is not None:
            placed, misfit = self._in_turn(ordered)
            behind = [] if misfit is None else ordered[misfit:]
            prefix = self._class_first(placed)
        for request, found in prefix:
            self._give(request, found)
        return [request for request in behind if request.job_id not in self._settled]

    def _in_turn(
        self, requests: list[Request]
    ) -> tuple[list[tuple[Request, Assignment]], int | None]:
        """Place one after the other on a copy; also the position of the first without a place.

        Passed over: jobs that can never start, and those on which their policy fails.
        """
        trial = Trial(self.here, self.dispatcher, self._known)
        placed: list[tuple[Request, Assignment]] = []
        for position, request in enumerate(requests):
            if request.job_id in self._settled:
                continue
            try:
                found = trial.place(request)
            except PlacementFailedError as exc:
                self._wait(request, str(exc))
                continue
            if found is not None:
                placed.append((request, found))
            elif not self._is_infeasible(request):
                return placed, position
        return placed, None

    def _class_first(
        self, prefix: list[tuple[Request, Assignment]]
    ) -> list[tuple[Request, Assignment]]:
        """Place the prefix again, most sensitive class first; the given placements if it fails."""
        wanted = by_class([request for request, _ in prefix], self.settings.classes)
        if wanted == [request for request, _ in prefix]:
            return prefix
        for _ in range(2):
            again, failed = self._place_all(wanted)
            if failed is None:
                return again
            wanted = [failed, *(request for request in wanted if request is not failed)]
        return prefix

    def _place_all(
        self, requests: list[Request]
    ) -> tuple[list[tuple[Request, Assignment]], Request | None]:
        """Place one after the other on a copy; also the first that found no place."""
        trial = Trial(self.here, self.dispatcher, self._known)
        placed: list[tuple[Request, Assignment]] = []
        for request in requests:
            try:
                found = trial.place(request)
            except PlacementFailedError:
                return placed, request
            if found is None:
                return placed, request
            placed.append((request, found))
        return placed, None

    def _continue(self, behind: list[Request]) -> list[Request]:
        """Go on in Slurm's order while jobs fit or may preempt; return the rest, head first.

        The head did not fit beside the prefix as Slurm's order placed it. Placed by class the
        prefix may have left it room.
        """
        for position, request in enumerate(behind):
            try:
                found = self.dispatcher.place(request, self.here)
                if found is not None:
                    self._give(request, found)
                elif not self._is_infeasible(request) and not self._preempt(request):
                    return behind[position:]
            except PlacementFailedError as exc:
                self._wait(request, str(exc))
        return []

    def _preempt(self, request: Request) -> bool:
        if not can_preempt(request) or self.dispatcher.postponed(request, self.here):
            return False
        placed = {assignment.job_id for assignment in self.assignments}
        others = [job for job in self.running if job.job_id not in placed]
        # Which jobs Slurm preempts for GPUs that it chooses itself is not known.
        named = replace(request, several_sockets=None) if request.bound else request
        found = plan_preemption(named, self.here, others, self.dispatcher)
        if found is None:
            return False
        names = tuple(sorted(job.job_id for job in found.open_to(request, others)))
        preempted = ", ".join(names)
        why: dict[str, Any] = {**found.assignment.why, "victims": list(names)}
        if len(names) > len(found.victims):
            preempted = f"{len(found.victims)} of {preempted} (Slurm chooses)"
            why["preempts_of_these"] = len(found.victims)
        why["summary"] = f"{found.assignment.why.get('summary', '')}; preempts {preempted}"
        chosen = replace(found.assignment, victims=names, why=why)
        after = found.after
        held = take(after, request, chosen)
        # No other job gets what the victims leave until they are gone: it is only accounted for.
        here = self.here
        np.logical_and(here.free, after.free, out=here.free)
        np.minimum(here.free_cpus, after.free_cpus, out=here.free_cpus)
        np.minimum(here.free_memory_mb, after.free_memory_mb, out=here.free_memory_mb)
        if here.sockets is not None and after.sockets is not None:
            here = self.here = replace(here, sockets=here.sockets.least(after.sockets))
        self.running = [job for job in self.running if job not in found.victims]
        self.running.append(self._left_by_victims(after))
        self._book(request, chosen, held)
        return True

    def _left_by_victims(self, after: Cluster) -> RunningJob:
        """What victims free beyond the job that pushed them out, as a job that ends now."""
        node, slot = np.nonzero(after.free & ~self.here.free)
        cpus = after.free_cpus - self.here.free_cpus
        memory = after.free_memory_mb - self.here.free_memory_mb
        return RunningJob(
            job_id="(preempted)",
            gpus=tuple((int(n), (int(s),)) for n, s in zip(node, slot, strict=True)),
            end_s=self.now,
            cpus={int(n): int(cpus[n]) for n in np.flatnonzero(cpus)},
            memory_mb={int(n): int(memory[n]) for n in np.flatnonzero(memory)},
            socket_cpus=_more_on_sockets(after, self.here),
        )

    def _give(self, request: Request, found: Assignment) -> None:
        self._book(request, found, take(self.here, request, found))

    def _book(self, request: Request, found: Assignment, held: Mapping[int, Held]) -> None:
        self.running.append(as_running(request, found, self.now, held))
        self.running += unsure(held, self.now)
        self.assignments.append(replace(found, clock_mhz=self.settings.clock_mhz(request)))

    def _wait(
        self,
        request: Request,
        reason: str,
        shadow_start_s: float | None = None,
        *,
        infeasible: bool = False,
        by_policy: bool = False,
    ) -> None:
        self._settled.add(request.job_id)
        self.waiting.append(Waiting(request.job_id, reason, shadow_start_s, infeasible, by_policy))

    def _is_infeasible(self, request: Request) -> bool:
        """Say whether the job fits not even on the idle cluster; then it waits and blocks no other.

        Idle means every GPU that exists is free, also those held by jobs that we do not know;
        CPUs and memory come back from known jobs only, as totals are not known here.
        """
        key = shape_of(request)
        if key not in self._infeasible:
            if self._empty is None:
                ended = Timeline(self.start.running, self.now).at(self.start, math.inf)
                idle = None if ended.sockets is None else ended.sockets.idle()
                self._empty = replace(ended, free=ended.exists.copy(), sockets=idle)
            found = self.dispatcher.could_place(request, self._empty)
            reason = self.dispatcher.why_not(request, self._empty) if found is None else None
            self._infeasible[key] = reason
        reason = self._infeasible[key]
        if reason is None:
            return False
        text = f"cannot start even on an idle cluster: {reason.text}"
        self._wait(request, text, infeasible=True, by_policy=reason.own)
        return True

    def _behind_head(self, head: Request, behind: list[Request]) -> None:
        timeline = Timeline(self.running, self.now)
        shadow = reserve(head, self.here, timeline, self.dispatcher)
        postponed = self.dispatcher.postponed(head, self.here)
        why = self.dispatcher.why_not(head, self.here).text
        reason = f"{'postponed' if postponed else 'next in line'}: {why}"
        if shadow is not None:
            where = shadow.assignment
            names = set_words(self.here.nodes, where.nodes, where.slots)
            latest = (
                f"in {_duration(shadow.start_s - self.now)} at the latest"
                if math.isfinite(shadow.start_s)
                else "when jobs without a time limit end"
            )
            what = "looked at again" if postponed else "starts"
            reason += f"; {what} {latest}, reserved: {names}"
        self._wait(head, reason, shadow.start_s if shadow is not None else None)
        if not self.settings.backfill:
            for request in behind:
                self._wait(request, f"waits for its turn behind job {head.job_id}")
            return
        beside = Beside(self.here, shadow)
        depth = self.settings.backfill_depth
        self._backfill(head, beside, behind[:depth])
        for request in behind[depth:]:
            self._wait(request, f"waits behind job {head.job_id}, beyond the depth of backfill")

    def _backfill(self, head: Request, beside: Beside, behind: list[Request]) -> None:
        """Start what cannot delay the head. What failed once for a shape fails again: GPUs only
        get fewer here, so each shape of request is tried until its first failure."""
        failed: dict[tuple[object, bool], str] = {}
        for request in behind:
            short = beside.ends_before(request, self.now)
            key = (shape_of(request), short)
            if key in failed:
                self._wait(request, failed[key])
                continue
            try:
                view = beside.view(request, self.now)
                found = self.dispatcher.place(request, view)
                if found is not None:
                    found = _with_reserved(found, head, beside.now, view)
                    self._book(request, found, beside.take(request, found, self.now))
                elif not self._is_infeasible(request):
                    reason = self._why_behind(head, beside, request, short)
                    self._wait(request, reason)
                    if not self.dispatcher.postponed(request, beside.view(request, self.now)):
                        failed[key] = reason  # one that has waited longer may ask for less
            except PlacementFailedError as exc:
                self._wait(request, str(exc))

    def _why_behind(self, head: Request, beside: Beside, request: Request, short: bool) -> str:
        if not short and self.dispatcher.try_place(request, beside.now) is not None:
            return (
                f"would fit now, but its time limit reaches past the start of job {head.job_id}, "
                "which comes first and has these GPUs reserved"
            )
        return f"behind job {head.job_id}: {self.dispatcher.why_not(request, beside.now).text}"


def _more_on_sockets(after: Cluster, here: Cluster) -> dict[int, tuple[int, ...]]:
    """Free CPUs of each socket that one cluster has more than the other, by node."""
    if after.sockets is None or here.sockets is None:
        return {}
    more = after.sockets.free_cpus - here.sockets.free_cpus
    return {int(n): tuple(more[n].tolist()) for n in np.flatnonzero(more.any(axis=1))}


def _with_reserved(found: Assignment, head: Request, here: Cluster, view: Cluster) -> Assignment:
    """The assignment of a job behind the head, with the free GPUs that are reserved.

    In ``why``: ``kept_for`` is the head, ``kept`` node -> slots, left out if they are many nodes.
    """
    kept = here.free & ~view.free
    nodes = np.flatnonzero(kept.any(axis=1)).tolist()
    if not nodes:
        return found
    slots = [np.flatnonzero(kept[node]).tolist() for node in nodes]
    words = set_words(here.nodes, nodes, slots)
    text = f"{found.why.get('summary', '')}; free, but kept for job {head.job_id}: {words}"
    why = {**found.why, "kept_for": head.job_id, "summary": text}
    if len(nodes) <= _MOST_KEPT:
        why["kept"] = {here.nodes[n]: s for n, s in zip(nodes, slots, strict=True)}
    return replace(found, why=why)


def _duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 5 min``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
