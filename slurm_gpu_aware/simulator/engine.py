"""The virtual clock: arrivals, rounds, ends. All choosing is done by ``planning``.

Semantics
---------
- Jobs that arrive or end at the time of a round are seen by it: ends first, then arrivals.
- What is fixed about a job is its work (``duration_s`` at slowdown 1). While it holds GPUs it
  progresses at 1 / slowdown, and not at all for ``migration_s`` after a restart or a move.
- Without ``round_s`` a round follows each time at which something arrived or ended, a running job
  reached LAS's threshold, or a postponed job asks for little enough. With it, rounds happen at
  its multiples; a job ends when its work is done, and its GPUs wait for the next round.
- The planner sees the cluster it is given (binned scores); the jobs run on ``truth`` (per-GPU
  scores), so that binning has its price here as it has on a real machine.
- With interference a job's pace changes whenever a neighbour comes or goes.

Cost: nothing that an event does grows with the number of nodes or of waiting jobs; what grows is
planning itself, and replanning everybody where jobs may move.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster, FloatArray, RunningJob
from slurm_gpu_aware.placement.feasible import why_not
from slurm_gpu_aware.placement.policy import make_policy, option_names
from slurm_gpu_aware.planning import Plan, PlanSettings
from slurm_gpu_aware.planning.chooser import shape_of
from slurm_gpu_aware.planning.order import guaranteed_prefix
from slurm_gpu_aware.planning.round import plan_round
from slurm_gpu_aware.request import Request
from slurm_gpu_aware.simulator.orders import Progress, order_key
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.postponing import ages, next_due, undemanding
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = ["Simulator", "simulate"]

Timer = Callable[[], float]


@dataclass(slots=True)
class _Job:
    """A job between arrival and end."""

    position: int
    job: TraceJob
    request: Request
    progress: Progress = field(default_factory=Progress)
    placed: Assignment | None = None
    """Where it runs; None: waiting."""
    last: Assignment | None = None
    """Where it ran last."""
    alone: float = 1.0
    """Slowdown of its GPUs, neighbours aside."""
    slowdown: float = 1.0
    placed_s: float = 0.0
    """When it got the GPUs that it holds."""
    since_s: float = 0.0
    """Progress is written down up to here."""
    resume_s: float = 0.0
    """From here on it progresses (later than ``since_s`` after a migration)."""
    version: int = 0
    """Of its entry among the ends; older entries are void."""
    holder: RunningJob | None = None

    def where(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(node, slots) that it holds; nothing while it waits."""
        if self.placed is not None:
            yield from zip(self.placed.nodes, self.placed.slots, strict=True)


def simulate(
    trace: Trace,
    cluster: Cluster,
    settings: SimSettings,
    *,
    truth: Mapping[str, FloatArray] | None = None,
    timer: Timer | None = None,
    progress: Callable[[int], None] | None = None,
    keep_placements: bool = False,
) -> Result:
    """Run a trace to its end.

    Parameters
    ----------
    cluster : idle cluster as the planner sees it.
    truth : class -> (N, W) scores that the jobs run at; None: those of ``cluster``.
    timer : seconds from any origin; measures planning. None: ``placement_ms`` stays empty.
    progress : called with the number of jobs that ended since the last call.
    keep_placements : record every start in ``Result.placements``.
    """
    return Simulator(
        trace,
        cluster,
        settings,
        truth=truth,
        timer=timer,
        progress=progress,
        keep_placements=keep_placements,
    ).run()


class Simulator:
    """One run; see :func:`simulate`."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        settings: SimSettings,
        *,
        truth: Mapping[str, FloatArray] | None = None,
        timer: Timer | None = None,
        progress: Callable[[int], None] | None = None,
        keep_placements: bool = False,
    ) -> None:
        self.trace = trace
        self.settings = settings
        self.timer = timer
        self.progress = progress
        self.keep_placements = keep_placements
        self.idle = cluster
        self.cluster = cluster.copy()
        self.total = int(cluster.exists.sum())
        scores = dict(truth if truth is not None else cluster.scores)
        self.physics = Physics(replace(cluster, scores=scores), settings)
        self.plan_settings = PlanSettings(
            policy=settings.policy,
            classes=settings.classes,
            backfill=settings.backfill,
            backfill_depth=settings.backfill_depth,
        )
        self.policy = make_policy(settings.policy, settings.policy_options)
        self.known_options = option_names(settings.policy)
        self.blocked: int | None = None
        """Position of the job that headed the line when the last round was done, until an end."""
        self.fitting: dict[object, bool] = {}
        self.ages = ages(settings.policy)
        self.profiled = settings.policy_options.get("interference") is not None
        """The policy looks at who runs beside whom."""
        self.due_s: float | None = None
        """When a job that was postponed by the last round asks for little enough."""
        self.crossings: list[tuple[float, int, float]] = []
        """(time, position, start) at which running jobs reach LAS's threshold of service."""
        self.key = order_key(settings)
        self.lined = settings.sticky and not settings.preemptive
        """Who waits does not change its place: the queue is kept sorted."""
        self.waiting: dict[int, _Job] = {}
        self.line: list[tuple[tuple[float, ...], int]] = []
        """Keys and positions of waiting jobs, in order; unused where keys change with time."""
        self.running: dict[int, _Job] = {}
        self.on_node: dict[int, set[int]] = {}
        """Node -> positions of the jobs on it; kept with interference only."""
        self.capacity: list[int] = cluster.exists.sum(axis=1).tolist()
        self.free_on: list[int] = self.cluster.free.sum(axis=1).tolist()
        self.free: int = sum(self.free_on)
        self.partly = 0
        """Free GPUs on nodes that are partly used."""
        self.ends: list[tuple[float, int, int, int]] = []
        self.sequence = count()
        self.arrived = 0
        self.now = 0.0
        self.planned_at = -math.inf
        self.changed = False
        n = len(trace.jobs)
        self.start_s = np.full(n, np.nan)
        self.end_s = np.full(n, np.nan)
        self.run_s = np.zeros(n)
        self.preemptions = np.zeros(n, dtype=np.int64)
        self.migrations = np.zeros(n, dtype=np.int64)
        self.never: list[tuple[str, str]] = []
        self.used: list[tuple[float, int]] = [(0.0, 0)]
        self.fragmented = 0.0
        self.placement_ms: list[float] = []
        self.placements: list[dict[str, Any]] = []

    def run(self) -> Result:
        """Advance from event to event until every job has ended or can never run."""
        while True:
            time = self._next_time()
            if time is None:
                break
            self._account(time)
            self.now = time
            self._end_jobs()
            self._admit()
            self._pass_time()
            if self._round_is_due():
                self._round()
        self.never += [(w.job.job_id, "never placed by a round") for w in self.waiting.values()]
        return self._result()

    # time

    def _next_time(self) -> float | None:
        """Time of the next event, or None when nothing can happen any more."""
        times = []
        while self.ends and self._void(self.ends[0]):
            heapq.heappop(self.ends)
        if self.ends:
            times.append(self.ends[0][0])
        jobs = self.trace.jobs
        if self.arrived < len(jobs):
            times.append(jobs[self.arrived].submit_s)
        if self.due_s is not None:
            times.append(self.due_s)
        while self.crossings and self._left_before(self.crossings[0]):
            heapq.heappop(self.crossings)
        if self.crossings and self.waiting:
            times.append(self.crossings[0][0])
        step = self.settings.round_s
        if step is not None and self._wants_round():
            times.append(self._boundary_after(self.now, step))
        return max(min(times), self.now) if times else None

    def _boundary_after(self, time: float, step: float) -> float:
        """First multiple of the round that no round has been planned at, >= ``time``."""
        boundary = math.ceil(time / step) * step
        return boundary if boundary > self.planned_at else self.planned_at + step

    def _wants_round(self) -> bool:
        """Something may come of a round even if nothing arrives or ends before it."""
        if self.changed:
            return True
        # attained service and remaining time change while jobs run
        return self.settings.preemptive and bool(self.waiting) and bool(self.running)

    def _round_is_due(self) -> bool:
        step = self.settings.round_s
        if step is None:
            return self._wants_round()
        return self._wants_round() and self.now == self._boundary_after(self.now, step)

    def _void(self, entry: tuple[float, int, int, int]) -> bool:
        _, _, position, version = entry
        active = self.running.get(position)
        return active is None or active.version != version

    def _left_before(self, crossing: tuple[float, int, float]) -> bool:
        """The job lost its GPUs before it reached the threshold."""
        _, position, placed_s = crossing
        active = self.running.get(position)
        return active is None or active.placed_s != placed_s

    def _pass_time(self) -> None:
        """Ask for a round where time alone has changed what one would do."""
        if self.due_s is not None and self.due_s <= self.now:
            self.due_s, self.changed = None, True
        while self.crossings and self.crossings[0][0] <= self.now:
            self.changed |= not self._left_before(heapq.heappop(self.crossings))

    # events

    def _admit(self) -> None:
        jobs = self.trace.jobs
        while self.arrived < len(jobs) and jobs[self.arrived].submit_s <= self.now:
            job = jobs[self.arrived]
            request = self._request(job)
            if self._fits(request):
                self._wait(_Job(self.arrived, job, request))
                self.changed = True
            else:
                self.never.append((job.job_id, why_not(request, self.idle)))
            self.arrived += 1

    def _fits(self, request: Request) -> bool:
        """Whether the policy can place the request on the idle cluster, sooner or later."""
        request = undemanding(request, self.settings.policy)
        key = shape_of(request)
        if key not in self.fitting:
            self.fitting[key] = self.policy.place(request, self.idle) is not None
        return self.fitting[key]

    def _request(self, job: TraceJob) -> Request:
        limit = job.time_limit_s
        if not math.isfinite(limit):
            limit = job.duration_s * self.settings.limit_factor
        return Request(
            job_id=job.job_id,
            gpus=job.gpus,
            min_nodes=job.nodes or 1,
            max_nodes=job.nodes,
            app_class=job.app_class,
            bandwidth_sensitive=job.bandwidth_sensitive,
            pattern=job.pattern,
            time_limit_s=limit,
            submit_s=job.submit_s,
            options=self._options(job),
        )

    def _options(self, job: TraceJob) -> dict[str, object]:
        """What the trace gives the policy; a job is known to a profile by its model."""
        own = {k: v for k, v in job.options.items() if k in self.known_options}
        if self.profiled and job.model:
            own.setdefault("application", job.model)
        return own

    def _end_jobs(self) -> None:
        ended = 0
        while self.ends and self.ends[0][0] <= self.now:
            entry = heapq.heappop(self.ends)
            if self._void(entry):
                continue
            active = self.running[entry[2]]
            self._leave(active)
            self.end_s[active.position] = self.now
            ended += 1
        if ended:
            self.changed, self.blocked = True, None
            if self.progress is not None:
                self.progress(ended)

    def _wait(self, active: _Job) -> None:
        self.waiting[active.position] = active
        if self.lined:
            insort(self.line, (self.key(active.job, active.progress), active.position))

    def _stop_waiting(self, active: _Job) -> None:
        del self.waiting[active.position]
        if self.lined:
            entry = (self.key(active.job, active.progress), active.position)
            del self.line[bisect_left(self.line, entry)]

    def _leave(self, active: _Job) -> None:
        """Take a job off its GPUs."""
        self._credit(active)
        for node, slots in active.where():
            self.cluster.give_back(node, slots)
            self._free_changed(node, len(slots))
        active.version += 1
        del self.running[active.position]
        self._neighbours_changed(active, gone=True)
        active.last, active.placed, active.holder = active.placed, None, None

    def _free_changed(self, node: int, by: int) -> None:
        """Keep the counts of free GPUs."""
        for sign in (-1, 1):
            free = self.free_on[node]
            if free < self.capacity[node]:
                self.partly += sign * free
            if sign < 0:
                self.free_on[node] = free + by
        self.free += by

    def _neighbours_changed(self, active: _Job, *, gone: bool) -> None:
        """Give everybody on the nodes of a job that came or went the pace that is now due."""
        if self.settings.interference is None:
            return
        affected: set[int] = set()
        for node, _ in active.where():
            there = self.on_node.setdefault(node, set())
            there.discard(active.position) if gone else there.add(active.position)
            affected |= there
        for position in sorted(affected):
            self._set_pace(self.running[position])

    def _set_pace(self, active: _Job) -> None:
        """Compute slowdown and end of a running job."""
        pace = active.alone
        if self.settings.interference is not None:
            beside: set[int] = set()
            for node, _ in active.where():
                beside |= self.on_node.get(node, set())
            beside.discard(active.position)
            others = [self.running[position].job for position in sorted(beside)]
            pace *= self.settings.interference.factor(active.job, others)
        self._credit(active)
        active.slowdown = pace
        active.version += 1
        left = max(active.job.duration_s - active.progress.done_s, 0.0)
        end = max(active.resume_s, self.now) + left * pace
        heapq.heappush(self.ends, (end, next(self.sequence), active.position, active.version))

    def _credit(self, active: _Job) -> None:
        """Write down the progress made since the last time this was done."""
        held = self.now - active.since_s
        self.run_s[active.position] += held
        active.progress.service_gpu_s += held * active.job.gpus
        if self.now > active.resume_s:
            active.progress.done_s += (self.now - active.resume_s) / active.slowdown
            active.resume_s = self.now
        active.since_s = self.now

    # rounds

    def _round(self) -> None:
        """Choose who takes part, let the planner place, and apply what it says."""
        started = self.timer() if self.timer is not None else 0.0
        keep, chosen = self._select()
        self.changed, self.planned_at = False, self.now
        if not chosen or self._still_blocked():
            return
        queue = self._ranked(chosen)
        view = self._view(keep)
        options = {self.settings.policy: self.settings.policy_options}
        plan = plan_round(queue, view, self.plan_settings, self.now, policy_options=options)
        if self.timer is not None:
            self.placement_ms.append((self.timer() - started) * 1e3)
        self._apply(plan, keep, chosen)
        self.blocked = self.line[0][1] if self.line else None
        self.used.append((self.now, self._used()))
        if self.ages:
            waiting = [a.request for a in chosen if a.placed is None]
            view, given = self._view(None), self.settings.policy_options
            self.due_s = next_due(waiting, self.policy, given, view, self.now)

    def _select(self) -> tuple[set[int] | None, list[_Job]]:
        """Jobs that keep their GPUs (None: all), and those to plan, first comes first."""
        settings = self.settings
        if self.lined:
            return None, list(self._head_of_line())
        for active in self.running.values():
            self._credit(active)
        everybody = [*self.running.values(), *self.waiting.values()]
        everybody.sort(key=lambda a: (*self.key(a.job, a.progress), a.position))
        prefix = guaranteed_prefix([a.job.gpus for a in everybody], self.total)
        chosen, rest = everybody[:prefix], everybody[prefix:]
        keep = {a.position for a in chosen if a.placed is not None} if settings.sticky else set()
        queue = [a for a in chosen if a.position not in keep]
        if settings.backfill:
            queue += [a for a in rest if a.placed is None or not settings.sticky]
        return keep, queue

    def _still_blocked(self) -> bool:
        """The head that found no place last time is still the head, and no GPU became free: then
        nobody behind it starts either, unless jobs may overtake or get less choosy with time."""
        patient = self.settings.backfill or self.ages
        return not patient and bool(self.line) and self.line[0][1] == self.blocked

    def _head_of_line(self) -> Iterator[_Job]:
        """Waiting jobs in order, as far as the planner would look."""
        room = self.free
        beyond = 1 + (self.settings.backfill_depth if self.settings.backfill else 0)
        for _, position in self.line:
            active = self.waiting[position]
            room -= active.job.gpus
            beyond -= room < 0
            if beyond < 0:
                return
            yield active

    def _ranked(self, ordered: list[_Job]) -> list[Request]:
        """Requests whose priority says their place in the list."""
        if self.settings.order == "fifo":
            return [a.request for a in ordered]  # submission time already says it
        return [
            replace(a.request, priority=float(len(ordered) - place))
            for place, a in enumerate(ordered)
        ]

    def _view(self, keep: set[int] | None) -> Cluster:
        """The cluster as the planner sees it: only the jobs in ``keep`` hold GPUs."""
        if keep is None or len(keep) == len(self.running):
            view, keep = self.cluster, None
        else:
            view = self.idle.copy()
            for position in keep:
                for node, slots in self.running[position].where():
                    view.take(node, slots)
        if not self.settings.backfill and not self.profiled:
            return view
        holding = self.running if keep is None else keep
        holders = tuple(self._holder(self.running[p]) for p in sorted(holding))
        return replace(view, running=holders)

    def _holder(self, active: _Job) -> RunningJob:
        if active.holder is None:
            active.holder = RunningJob(
                job_id=active.job.job_id,
                gpus=tuple(active.where()),
                end_s=active.placed_s + active.request.time_limit_s,
                app_class=active.job.app_class,
                application=active.job.model,
            )
        return active.holder

    def _apply(self, plan: Plan, keep: set[int] | None, queue: Iterable[_Job]) -> None:
        by_id = {a.job.job_id: a for a in queue}
        stay = set(keep or ())
        moves: list[tuple[_Job, Assignment]] = []
        for assignment in plan.assignments:
            active = by_id[assignment.job_id]
            same = active.placed is not None and (
                (active.placed.nodes, active.placed.slots) == (assignment.nodes, assignment.slots)
            )
            if same:
                stay.add(active.position)
            else:
                moves.append((active, assignment))
        moving = {active.position for active, _ in moves}
        for position in sorted(set(self.running) - stay) if keep is not None else ():
            active = self.running[position]
            self._leave(active)
            self._wait(active)
            if position not in moving:
                self.preemptions[position] += 1
        for active, assignment in moves:
            self._start(active, assignment)

    def _start(self, active: _Job, assignment: Assignment) -> None:
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            self.cluster.take(node, slots)
            self._free_changed(node, -len(slots))
        cost = 0.0
        if active.last is not None:
            cost = self.settings.migration_s
            same = (active.last.nodes, active.last.slots) == (assignment.nodes, assignment.slots)
            self.migrations[active.position] += not same
        else:
            self.start_s[active.position] = self.now
        self._stop_waiting(active)
        self.running[active.position] = active
        active.placed, active.placed_s = assignment, self.now
        self._expect_crossing(active)
        active.since_s, active.resume_s = self.now, self.now + cost
        active.alone = self.physics.slowdown(active.job, assignment)
        if self.settings.interference is None:
            self._set_pace(active)
        else:
            self._neighbours_changed(active, gone=False)
        if self.keep_placements:
            self.placements.append(
                {
                    "job_id": active.job.job_id,
                    "at_s": self.now,
                    "nodes": [self.idle.nodes[n] for n in assignment.nodes],
                    "slots": [list(s) for s in assignment.slots],
                    "slowdown": active.slowdown,
                }
            )

    def _expect_crossing(self, active: _Job) -> None:
        """Under LAS: note when the job, if it keeps its GPUs, reaches the threshold."""
        if self.settings.order != "las":
            return
        left = self.settings.las_threshold_gpu_s - active.progress.service_gpu_s
        if left > 0:
            time = self.now + left / active.job.gpus
            heapq.heappush(self.crossings, (time, active.position, active.placed_s))

    # bookkeeping

    def _used(self) -> int:
        return self.total - self.free

    def _account(self, until: float) -> None:
        """Integrate fragmentation up to ``until`` and note the use of GPUs."""
        self.fragmented += self.partly * (until - self.now)
        used = self._used()
        if used != self.used[-1][1]:
            self.used.append((self.now, used))

    def _result(self) -> Result:
        self.used.append((self.now, self._used()))
        return Result(
            trace=self.trace,
            settings=self.settings,
            total_gpus=self.total,
            start_s=self.start_s,
            end_s=self.end_s,
            run_s=self.run_s,
            preemptions=self.preemptions,
            migrations=self.migrations,
            never=tuple(self.never),
            used_s=np.array([t for t, _ in self.used]),
            used_gpus=np.array([g for _, g in self.used], dtype=np.int64),
            fragmented_gpu_s=self.fragmented,
            placement_ms=np.array(self.placement_ms),
            placements=self.placements,
        )
