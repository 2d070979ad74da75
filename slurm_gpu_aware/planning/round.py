"""Placement of one round: assignments and reasons for a queue and a cluster. Pure functions.

1. The longest prefix of the queue that can start now starts now.
2. In the prefix the most sensitive class chooses first (PAL's placement priority).
3. The first job that does not fit is the *head*. If it may preempt, its victims are planned;
   otherwise it gets a shadow reservation.
4. Behind the head only jobs that delay no job with a reservation start (`backfill`).

An infeasible job, which could not start even on the empty cluster (`Impossible`), blocks no other.

A policy may let a job wait although GPUs that fit are free (``topo-aware-p``). Such a *postponed*
job is treated as one that does not fit, but questions of capacity ignore its threshold, because a
set's utility may fall when more GPUs are free. It does not preempt, as enough GPUs are free.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment, RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob
from slurm_gpu_aware.model.facets import changed
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.planning.backfill import BackfillRoom
from slurm_gpu_aware.planning.dispatcher import (
    Dispatcher,
    Impossible,
    PlacementFailedError,
    shape_of,
)
from slurm_gpu_aware.planning.facts import Preempts
from slurm_gpu_aware.planning.placed import Placement, Round, Started
from slurm_gpu_aware.planning.plan import NEXT, Kept, Plan, Waiting, waits_behind
from slurm_gpu_aware.planning.postponing import awaited, row_of, with_slurms_choice
from slurm_gpu_aware.planning.preempt import can_preempt, plan_preemption
from slurm_gpu_aware.planning.prefix import (
    Trial,
    TrialResults,
    by_class,
    guaranteed_prefix,
    slurm_key,
)
from slurm_gpu_aware.planning.refusals import Refusals
from slurm_gpu_aware.planning.reservation import Shadow, reserve
from slurm_gpu_aware.planning.timeline import (
    NodeShare,
    Timeline,
    as_running,
    keep_least,
    left_behind,
    take,
)
from slurm_gpu_aware.time_text import duration

_Placed = list[tuple[Request, Assignment]]


def place_round(one: Round) -> Placement:
    """Place the jobs of a round in the order of its queue.

    If the policy of a job fails, the job waits with the error as its reason.
    """
    cluster = changed(one.cluster, running=RunningJobs.of(one.cluster.running))
    if any(request.left is not None for request in one.queue):
        cluster = with_slurms_choice(cluster)
    placing = _Placing(one, cluster)
    plan = placing.plan(list(one.queue), one.behind)
    return Placement(plan, one.queue, cluster, placing.placed, placing.spare, placing.dispatcher)


class _Placing:
    """State of a round while its jobs are placed."""

    def __init__(self, one: Round, cluster: Cluster) -> None:
        self.settings, self.now = one.settings, one.now
        self.explain, self.grows = one.explain, one.grows
        self.reserves = one.grows or one.explain or one.settings.backfill
        self.dispatcher = Dispatcher(one.settings, one.options, one.now, cluster.running)
        self.cluster = cluster.copy()
        self.spare = self.cluster
        """What no waiting job can use, now and when the head starts."""
        self.placed: list[Started] = []
        self.running = RunningJobs.of(cluster.running)
        """The jobs of the snapshot that are not preempted."""
        self.started: list[RunningJob] = []
        self.assignments: list[Assignment] = []
        self.waiting: dict[str, Waiting] = {}
        self._results = TrialResults()
        """Answers of trials after the jobs that are assigned so far."""
        self._impossible = Impossible(cluster, self.dispatcher)
        self._awaited: set[Gpu] = set()
        """GPUs that jobs wait for, which no job behind them waits for."""
        self._refusals = Refusals(self.dispatcher, self.placed)
        self._lowest = min((request.priority for request in one.queue), default=math.inf)

    def plan(self, ordered: list[Request], turns: Mapping[str, int]) -> Plan:
        if self._all_wait(ordered):
            return Plan((), tuple(self.waiting.values()))
        behind, wait = self._continue(self._prefix(ordered))
        if behind:
            head, rest = behind[0], behind[1:]
            if turns and self.settings.backfill:
                rest.sort(key=lambda request: turns[request.job_id])
            self._behind_head(head, rest, wait)
        return Plan(tuple(self.assignments), tuple(self.waiting.values()))

    def _all_wait(self, ordered: list[Request]) -> bool:
        """Let all jobs wait on by choice, if each does beside what the first waits for, too."""
        more = self.grows or self.settings.guarded or self.cluster.sockets is not None
        more |= any(request.wait.postponed is None for request in ordered)
        if more or not 0 < len(ordered) <= self.settings.backfill_depth:
            return False
        if not all(map(self._kept_wait, ordered)):
            return False
        waits = [wait for request in ordered if (wait := self._kept_wait(request))]
        beside = self.cluster.copy()
        for node, slots in awaited(ordered[0], waits[0], beside):
            beside.free[node, list(slots)] = False
        rest = ordered[1:] if (beside.free != self.cluster.free).any() else []
        if any(self.dispatcher.kept_wait(request, beside) is None for request in rest):
            return False
        for request, wait in zip(ordered, waits, strict=True):
            kept = "; reserved for it" if request is ordered[0] else ""
            self._wait(request, f"{wait.reason}{kept}", postponement=wait)
        return True

    def _prefix(self, ordered: list[Request]) -> list[Request]:
        """Start the guaranteed prefix; return the rest of the queue, the head first.

        The jobs that demand up to the free GPUs (PAL's truncation) are placed by class. If one
        finds no place, placing in Slurm's order decides which jobs are then placed by class.
        """
        cut = guaranteed_prefix([r.gpus for r in ordered], int(np.count_nonzero(self.cluster.free)))
        behind = ordered[cut:]
        prefix: _Placed = []
        misfit = next(filter(self._kept_wait, ordered[:cut]), None)
        if misfit is not None and misfit is ordered[0]:
            return ordered
        if misfit is None:
            prefix, misfit = self._in_turn(by_class(ordered[:cut], self.settings.classes))
        if misfit is not None:
            prefix, misfit = self._in_turn(ordered)
            behind = [] if misfit is None else ordered[ordered.index(misfit) :]
            prefix = self._class_first(prefix)
        for request, assignment in prefix:
            self._assign(request, assignment)
        return [request for request in behind if request.job_id not in self.waiting]

    def _in_turn(self, requests: list[Request]) -> tuple[_Placed, Request | None]:
        """Place requests on a copy until a feasible one has no place or waits; return also that."""
        trial = Trial(self.cluster, self.dispatcher, self._results)
        placed: _Placed = []
        for request in requests:
            if request.job_id in self.waiting:
                continue
            try:
                answer = trial.place(request)
            except PlacementFailedError as exc:
                self._wait(request, str(exc), failed=True)
                continue
            if isinstance(answer, Assignment):
                placed.append((request, answer))
            elif answer is not None or not self._is_infeasible(request):
                return placed, request
        return placed, None

    def _kept_wait(self, request: Request) -> Postponement | None:
        """The wait of a job that waits on by choice, whatever else starts; None: not known."""
        if id(request) not in self._results:
            with suppress(Exception):  # its placement says which
                if wait := self.dispatcher.kept_wait(request, self.cluster):
                    self._results[id(request)] = wait, self._results
        answer, _ = self._results.get(id(request), (None, None))
        return answer if isinstance(answer, Postponement) else None

    def _class_first(self, prefix: _Placed) -> _Placed:
        """Place again by class; then with the misfit first; else Slurm's order stays."""
        in_order = [request for request, _ in prefix]
        wanted = by_class(in_order, self.settings.classes)
        for _ in range(2 if wanted != in_order else 0):
            again, failed = self._in_turn(wanted)
            if failed is None:
                return again
            wanted = [failed, *(request for request in wanted if request is not failed)]
        return [(request, a) for request, a in prefix if request.job_id not in self.waiting]

    def _continue(self, behind: list[Request]) -> tuple[list[Request], Postponement | None]:
        """Continue in Slurm's order while jobs start; return the rest, the head first.

        Also the head's wait, if it waits by its own choice.
        """
        for position, request in enumerate(behind):
            try:
                known = self._results.get(id(request))
                answer = known[0] if known else self.dispatcher.place(request, self.cluster)
                if isinstance(answer, Assignment):
                    self._assign(request, answer)
                elif answer is not None:
                    return behind[position:], answer
                elif not self._is_infeasible(request) and not self._preempt(request):
                    return behind[position:], None
            except PlacementFailedError as exc:
                self._wait(request, str(exc), failed=True)
        return [], None

    def _preempt(self, request: Request) -> bool:
        if not can_preempt(request, self.running):
            return False
        asked = request, self.cluster
        if self.dispatcher.postponed(*asked) or self.dispatcher.only_lacks_power(*asked):
            return False  # Slurm preempts for GPUs only
        soon = Timeline((), self.now).at(self.cluster, self.now)
        if self.cluster.by_slurm is not None and self.dispatcher.could_place(request, soon):
            return False  # it only waits for jobs that are about to start
        placed = {assignment.job_id for assignment in self.assignments}
        others = [job for job in (*self.running, *self.started) if job.job_id not in placed]
        # The victims of GPUs that Slurm itself chooses are not known.
        named = replace(request, sockets=replace(request.sockets, several=None))
        preemption = plan_preemption(named, self.cluster, others, self.dispatcher)
        if preemption is None or not preemption.after.has_power(request.power_w):
            return False
        names = tuple(sorted(job.job_id for job in preemption.open_to(request, others)))
        chosen = preemption.assignment.explained(Preempts(names, len(preemption.victims)))
        chosen = replace(chosen, victims=names)
        after = preemption.after
        held = take(after, request, chosen)
        # No other job gets the resources of the victims before they end.
        keep_least(self.cluster, self.cluster, after, slice(None))
        self.running = RunningJobs(j for j in self.running if j not in preemption.victims)
        self.dispatcher.ends.preempt(names)
        self.started.append(left_behind(self.cluster, after, "(preempted)", self.now))
        self._record(request, chosen, held)
        return True

    def _assign(self, request: Request, assignment: Assignment) -> None:
        self._record(request, assignment, take(self.cluster, request, assignment))

    def _record(
        self, request: Request, assignment: Assignment, held: Mapping[int, NodeShare]
    ) -> None:
        job = as_running(request, assignment, self.now, held)
        self.started.append(job)
        self.dispatcher.ends.start(job)
        if gpus := tuple((node, share.unsure) for node, share in held.items() if share.unsure):
            self.started.append(RunningJob("(by Slurm)", gpus, self.now))
        chosen = changed(assignment, clock_mhz=self.settings.clock_mhz(request))
        self.assignments.append(chosen)
        self.placed.append(Started(request, chosen, job))
        answer, after = self._results.get(id(request), (None, None))
        self._results = after if after and isinstance(answer, Assignment) else TrialResults()

    def _wait(self, request: Request, reason: str, **more: Any) -> None:
        """Add a `Waiting`; ``more``: its other fields."""
        self.waiting[request.job_id] = Waiting(request.job_id, reason, **more)

    def _is_infeasible(self, request: Request) -> bool:
        """Say whether the job does not fit even on the empty cluster; if so, it waits."""
        reason = self._impossible.why(request) if self.explain else None
        if reason is None:
            return False
        self._wait(request, reason.text, infeasible=True, by_policy=reason.own)
        return True

    def _behind_head(self, head: Request, behind: list[Request], wait: Postponement | None) -> None:
        shadow = None
        if self.reserves or wait is not None:
            timeline = Timeline(self.running, self.now, self.started)
            shadow = reserve(head, self.cluster, timeline, self.dispatcher, wait)
        if wait is not None:
            self._postpone(head, wait, f"{wait.reason}; reserved for it")
        else:
            self._wait_as_head(head, shadow)
        most = max(self.settings.reservations, 1 if wait is None else 2)
        room = BackfillRoom(self.cluster, head, shadow, settings=self.settings, most=most)
        depth, why = 0, waits_behind(head.job_id)
        if self.settings.backfill:
            depth = self.settings.backfill_depth
            behind = _tried_first(behind, depth)
            why = f"waits behind job {head.job_id}, beyond the depth of backfill"
            self._backfill(room, behind[:depth])
        elif wait is not None:  # a job that waits by its own choice holds up no other
            depth = len(behind)
            self._backfill(room, behind, strict=True)
        for request in behind[depth:]:
            kept = self._keep(room, request) if self.grows else None
            self._wait(request, why, turn="behind", kept=kept)
        self.spare = self._refusals.beside(room.outside)

    def _keep(self, room: BackfillRoom, request: Request) -> Kept | None:
        """Reserve for a job behind the head that does not fit, too, if there is a time for it."""
        shadow = room.keep(request, self.running, self.started, self.dispatcher)
        return None if shadow is None else Kept(shadow.start_s, shadow.gpus)

    def _wait_as_head(self, head: Request, shadow: Shadow | None) -> None:
        self._wait(
            head,
            self._why_next(head, shadow) if self.explain else "",
            turn="next",
            shadow_start_s=None if shadow is None else shadow.start_s,
            reserved=() if shadow is None else shadow.gpus,
            held_up=() if shadow is None else shadow.held_up,
        )

    def _why_next(self, head: Request, shadow: Shadow | None) -> str:
        postponed = self.dispatcher.postponed(head, self.cluster)
        why = self.dispatcher.why_not(head, self.cluster).text
        reason = f"{'postponed: ' if postponed else NEXT}{why}"
        if shadow is not None:
            names = set_words(self.cluster, *zip(*shadow.gpus, strict=True))
            latest = (
                f"in {duration(shadow.start_s - self.now)} at the latest"
                if math.isfinite(shadow.start_s)
                else "when jobs without a time limit end"
            )
            what = "reconsidered" if postponed else "starts"
            reason += f"; {what} {latest}, reserved: {names}"
            if shadow.unpassed is not None or shadow.held_up:
                reason += "; sooner if jobs without GPUs end there"
        return reason

    def _postpone(self, request: Request, wait: Postponement, reason: str) -> None:
        """Let a job wait for a set that frees up later; no job behind it waits for the same."""
        self._wait(request, reason, postponement=wait)
        rows = row_of(self.cluster.nodes)
        gpus = {(rows[node], slot) for node, slots in wait.gpus for slot in slots}
        self._awaited |= gpus
        if self.grows or self._lowest < request.priority:  # else it stands before no other
            self._refusals.add(request, wait, gpus, self.cluster)

    def _backfill(self, room: BackfillRoom, behind: list[Request], *, strict: bool = False) -> None:
        """Start jobs that delay no reservation; equal requests until the first failure.

        ``strict``: in their order, up to the first job that does not fit.
        """
        failed: dict[tuple[object, tuple[bool, ...]], str] = {}
        self._awaited.update(room.reserved)
        blocked: str | None = None
        for request in behind:
            if blocked is not None:
                self._wait(request, waits_behind(blocked), turn="behind")
                continue
            key = (shape_of(request, room.now), room.ends_before_each(request, self.now))
            if key in failed:
                kept = self._keep(room, request)
                self._wait(request, failed[key], turn="behind", kept=kept)
                continue
            try:
                view = room.view(request, self.now)
                answer = self.dispatcher.place(request, view, self._awaited)
                if (why := self._refusals.why_not(request, answer)) is not None:
                    self._wait(request, why, turn="behind")
                    blocked = request.job_id if strict else None
                elif isinstance(answer, Assignment):
                    answer = room.with_reserved(answer, request, self.now)
                    if request.left is not None:
                        answer = room.kept_off(answer, request, self.now)
                    self._record(request, answer, room.take(request, answer, self.now))
                elif answer is not None:
                    self._postpone(request, answer, answer.reason)
                elif not self._is_infeasible(request):
                    reason = self._why_behind(room, request) if self.explain else ""
                    kept = self._keep(room, request)
                    self._wait(request, reason, turn="behind", kept=kept)
                    blocked = request.job_id if strict else None
                    if not self.dispatcher.postponed(request, view):
                        failed[key] = reason  # a job that waits longer may have a lower threshold
            except PlacementFailedError as exc:
                self._wait(request, str(exc), failed=True)

    def _why_behind(self, room: BackfillRoom, request: Request) -> str:
        fits = self.dispatcher.try_place(request, room.now) is not None
        for one in room.each() if fits else ():
            if self.dispatcher.try_place(request, one.beside(request, self.now)) is None:
                return one.why_kept(request, self.now)
        if fits:  # beside each of the reservations, but not beside all
            late = [one for one in room.each() if not one.ends_before(request, self.now)]
            return late[-1].why_kept(request, self.now)
        why = self.dispatcher.why_not(request, room.now).text
        return f"behind job {room.head.job_id}: {why}"


def _tried_first(behind: list[Request], depth: int) -> list[Request]:
    """The jobs with those that backfill tries in front: the first by Slurm's order, in their order.

    So jobs that an order of the site puts first take nothing of the depth from others.
    """
    if len(behind) <= depth:
        return behind
    first = sorted(range(len(behind)), key=lambda n: slurm_key(behind[n]))
    tried = set(first[:depth])
    rest = [request for n, request in enumerate(behind) if n not in tried]
    return [*(request for n, request in enumerate(behind) if n in tried), *rest]
