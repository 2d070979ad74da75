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
- Recorded jobs that only hold GPUs do so at their recorded times (``holding``); they come before
  everybody who arrives or waits.
- With interference a job's pace changes whenever a neighbour comes or goes.

Cost: nothing that an event does grows with the number of nodes or of waiting jobs; what grows is
planning itself, and replanning everybody where jobs may move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, FloatArray
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy, option_names
from slurm_gpu_aware.placement.reasons import reason_for
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.background_jobs import BackgroundJobs
from slurm_gpu_aware.simulator.clock import EventClock
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.postponing import ages, next_due, undemanding
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.rounds import Round, Rounds
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = ["Simulator", "simulate"]

Timer = Callable[[], float]


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
        self.policy = make_policy(settings.policy, settings.policy_options)
        self.known_options = option_names(settings.policy)
        self.profiled = settings.policy_options.get("interference") is not None
        self.ages = ages(settings.policy)
        scores = dict(truth if truth is not None else cluster.scores)
        physics = Physics(replace(cluster, scores=scores), settings)
        self.clock = EventClock(settings.round_s)
        self.state = ClusterState(cluster, settings, physics, self.clock)
        self.rounds = Rounds(settings, self.state)
        self.background = BackgroundJobs(trace.background, self.state)
        self.fitting: dict[object, bool] = {}
        self.arrived = 0
        self.changed = False
        """Something happened that the last round did not know."""
        n = len(trace.jobs)
        self.start_s = np.full(n, np.nan)
        self.end_s = np.full(n, np.nan)
        self.run_s = np.zeros(n)
        self.done_s = np.zeros(n)
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
            self.clock.now = time
            self._end_jobs()
            if self.background.advance(time):
                self.changed, self.rounds.blocked = True, None
            self._admit()
            self.changed |= self.clock.crossed()
            self.changed |= self.clock.due()
            if self._wants_round() and self.clock.now == self.clock.next_round():
                self._round()
        waiting = self.rounds.waiting.values()
        self.never += [(w.job.job_id, "never placed by a round") for w in waiting]
        return self._result()

    # time

    def _next_time(self) -> float | None:
        """Time of the next event, or None when nothing can happen any more."""
        clock = self.clock
        times = [clock.next_end(), clock.due_s]
        if self.arrived < len(self.trace.jobs):
            times.append(self.trace.jobs[self.arrived].submit_s)
        if self.rounds.waiting:
            times.append(clock.next_crossing())
        if clock.round_s is not None and self._wants_round():
            times.append(clock.next_round())
        if self.rounds.waiting or any(time is not None for time in times):
            times.append(self.background.next_time())  # at the end nobody waits for these
        first = min((time for time in times if time is not None), default=None)
        return None if first is None else max(first, clock.now)

    def _wants_round(self) -> bool:
        """Something may come of a round even if nothing arrives or ends before it."""
        if self.changed:
            return True
        # attained service and remaining time change while jobs run
        return self.settings.preemptive and bool(self.rounds.waiting) and bool(self.state.running)

    # arrivals and ends

    def _admit(self) -> None:
        jobs, now = self.trace.jobs, self.clock.now
        while self.arrived < len(jobs) and jobs[self.arrived].submit_s <= now:
            job = jobs[self.arrived]
            request = self._request(job)
            if self._fits(request):
                self.rounds.wait(ActiveJob(self.arrived, job, request))
                self.changed = True
            else:
                reason = reason_for(self.policy, request, self.state.idle)
                self.never.append((job.job_id, reason.text))
            self.arrived += 1

    def _fits(self, request: Request) -> bool:
        """Whether the policy can place the request on the idle cluster, sooner or later."""
        request = undemanding(request, self.settings.policy)
        key = shape_of(request)
        if key not in self.fitting:
            self.fitting[key] = self.policy.place(request, self.state.idle) is not None
        return self.fitting[key]

    def _request(self, job: TraceJob) -> Request:
        limit = job.time_limit_s
        if not math.isfinite(limit) and job.recorded_run_s is None:
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
        for active in self.clock.ended():
            self._leave(active)
            self.end_s[active.position] = self.clock.now
            ended += 1
        if ended:
            self.changed, self.rounds.blocked = True, None
            if self.progress is not None:
                self.progress(ended)

    def _leave(self, active: ActiveJob) -> None:
        self.state.leave(active)
        self.run_s[active.position] = active.run_s
        self.done_s[active.position] = active.progress.done_s

    # rounds

    def _round(self) -> None:
        """Choose who takes part, let the planner place, and apply what it says."""
        started = self.timer() if self.timer is not None else 0.0
        self.changed, self.clock.planned_at = False, self.clock.now
        due = self.rounds.next()
        if due is None:
            return
        if self.timer is not None:
            self.placement_ms.append((self.timer() - started) * 1e3)
        self._apply(due)
        self.rounds.note_head()
        self.used.append((self.clock.now, self.state.used))
        if self.ages:
            waiting = [a.request for a in due.queue if a.placed is None]
            view = self.state.view(None, with_holders=self.profiled)
            given = self.settings.policy_options
            self.clock.due_s = next_due(waiting, self.policy, given, view, self.clock.now)

    def _apply(self, due: Round) -> None:
        by_id = {a.job.job_id: a for a in due.queue}
        keep = due.keep
        stay = set(keep or ())
        moves: list[tuple[ActiveJob, Assignment]] = []
        for assignment in due.plan.assignments:
            active = by_id[assignment.job_id]
            if active.is_at(assignment):
                stay.add(active.position)
            else:
                moves.append((active, assignment))
        moving = {active.position for active, _ in moves}
        for position in sorted(set(self.state.running) - stay) if keep is not None else ():
            active = self.state.running[position]
            self._leave(active)
            self.rounds.wait(active)
            if position not in moving:
                self.preemptions[position] += 1
        for active, assignment in moves:
            self._start(active, assignment)

    def _start(self, active: ActiveJob, assignment: Assignment) -> None:
        cost = 0.0
        if active.last is not None:
            cost = self.settings.migration_s
            self.migrations[active.position] += not active.was_at(assignment)
        else:
            self.start_s[active.position] = self.clock.now
        self.rounds.stop_waiting(active)
        self.state.enter(active, assignment, cost)
        if self.keep_placements:
            nodes = self.state.idle.nodes
            self.placements.append(
                {
                    "job_id": active.job.job_id,
                    "at_s": self.clock.now,
                    "nodes": [nodes[n] for n in assignment.nodes],
                    "slots": [list(s) for s in assignment.slots],
                    "slowdown": active.slowdown,
                }
            )

    # bookkeeping

    def _account(self, until: float) -> None:
        """Integrate fragmentation up to ``until`` and note the use of GPUs."""
        self.fragmented += self.state.partly * (until - self.clock.now)
        if self.state.used != self.used[-1][1]:
            self.used.append((self.clock.now, self.state.used))

    def _result(self) -> Result:
        self.used.append((self.clock.now, self.state.used))
        return Result(
            trace=self.trace,
            settings=self.settings,
            total_gpus=self.state.total,
            start_s=self.start_s,
            end_s=self.end_s,
            run_s=self.run_s,
            done_s=self.done_s,
            preemptions=self.preemptions,
            migrations=self.migrations,
            never=tuple(self.never),
            used_s=np.array([t for t, _ in self.used]),
            used_gpus=np.array([g for _, g in self.used], dtype=np.int64),
            fragmented_gpu_s=self.fragmented,
            placement_ms=np.array(self.placement_ms),
            placements=self.placements,
        )
