"""Simulation engine: arrivals, rounds and ends on a virtual clock. ``planning`` decides.

- A round sees the jobs that arrive or end at its time: ends first, then arrivals.
- The work of a job is fixed (``duration_s`` at slowdown 1). While it holds GPUs it progresses at
  1 / slowdown, and not at all for the time of a restart after a restart or a move.
- At its time limit a job is killed, so that no reservation is made for a time that is not true.
  The limit counts anew, without that time, from a restart or a move.
- Without ``round_s`` a round follows each arrival and end, each time at which a running job
  reaches the LAS threshold, and each time at which a postponed job expects a better set, or its
  policy accepts a worse one. With it, rounds run at its multiples; GPUs of ended jobs wait for the
  next round.
- A job that moves leaves its GPUs in the round that plans it, and comes back in a second round at
  the same time; live that takes as long as Slurm requeues it.
- The planner sees binned scores; the jobs run at per-GPU scores (``truth``).
- Background jobs hold GPUs at their recorded times and precede all others.
- A job with a size table runs at the pace that the table has for its GPU count and clock, and its
  energy is metered (``power_meter``).
- With interference the pace of a job changes whenever a neighbour starts or ends.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.features import found
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.planning.prefix import id_key
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.simulator.active import ActiveJob, EventClock, Kind, same_gpus
from slurm_gpu_aware.simulator.cluster_state import BackgroundJobs, ClusterState
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.power_meter import Energy
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.rounds import Arrivals, Outcome, Rounds
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

SIMULATED: tuple[type[SimulatedFeature], ...] = tuple(found("simulated", "SIMULATED"))


class Simulator:
    """One run of a trace to its end.

    Parameters
    ----------
    cluster : idle cluster as the planner sees it.
    truth : class -> (N, W) scores at which the jobs run; None: those of ``cluster``.
    timer : seconds from any origin; measures planning. None: ``placement_ms`` stays empty.
    progress : called with the number of jobs that have ended since the last call.
    keep_placements : record every start in ``Result.placements``.
    stages : those of a round.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        settings: SimSettings,
        *,
        truth: Mapping[str, FloatArray] | None = None,
        timer: Callable[[], float] | None = None,
        progress: Callable[[int], None] | None = None,
        keep_placements: bool = False,
        stages: Sequence[Stage] = FEATURES,
    ) -> None:
        self.trace = trace
        self.settings = settings
        self.timer = timer
        self.progress = progress
        self.keep_placements = keep_placements
        self.policy = make_policy(settings.policy, settings.policy_options)
        physics = Physics(cluster if truth is None else replace(cluster, scores=truth), settings)
        self.physics = physics
        self.clock = EventClock(settings.round_s)
        self.state = ClusterState(cluster, settings, physics, self.clock, trace.jobs)
        self.state.features = tuple(make(self.state, trace) for make in SIMULATED)
        make_rounds = next((f.rounds for f in self.state.features if f.rounds is not None), Rounds)
        self.rounds = make_rounds(settings, self.state, stages)
        self.background = BackgroundJobs(trace.background, self.state)
        profiled = self.rounds.profiled
        self.arrivals = Arrivals(settings, self.policy, self.state, profiled=profiled)
        self.jobs: list[ActiveJob] = []
        """The jobs that have arrived, by position in the trace."""
        self.changed = self.awaits_round = False
        """Something has happened since the last round; a coming event is a round."""
        self.infeasible: list[tuple[str, str]] = []
        self.used: list[tuple[float, int]] = [(0.0, 0)]
        """(time, GPUs in use from then on)."""
        self.fragmented = 0.0
        self.placement_ms: list[float] = []
        self.placements: list[dict[str, Any]] = []

    def run(self) -> Result:
        """Let one event after the other happen until every job has ended or is infeasible."""
        background, again = self.background, self._look_again
        happens: dict[Kind, Callable[[Any], object]] = {
            Kind.END: self._end,
            Kind.FREE: lambda job: background.end(job) and again(),
            Kind.HOLD: background.start,
            Kind.TAKE: lambda _: background.take(),
            Kind.ARRIVAL: self._admit,
            Kind.CROSSING: lambda _: again(),
            Kind.WAKE: lambda _: again(),
            Kind.ROUND: lambda _: self._round(),
        }
        self._await_arrival()
        while (event := self.clock.pop()) is not None:
            time, kind, subject = event
            if self._matters(kind):
                self._pass_until(time)
                happens[kind](subject)
                self._await_round(kind)
        waiting = self.rounds.waiting.values()
        self.infeasible += [(w.job.job_id, "no round placed it") for w in waiting]
        return self._result()

    def _matters(self, kind: Kind) -> bool:
        """Whether an event may change the run of a job; at the end background jobs do not."""
        waiting, clock = self.rounds.waiting, self.clock
        if kind is Kind.CROSSING:
            return bool(waiting)
        if kind not in (Kind.FREE, Kind.HOLD, Kind.TAKE):
            return True
        more = len(self.jobs) < len(self.trace.jobs) or clock.wake_s is not None
        return more or self.awaits_round or bool(waiting or self.state.running)

    def _pass_until(self, time: float) -> None:
        now = self.clock.now
        if time > now:
            self.fragmented += self.state.partly * (time - now)
            if self.state.used != self.used[-1][1]:
                self.used.append((now, self.state.used))
            self.clock.now = time

    def _await_round(self, after: Kind) -> None:
        """Add the round that an event asks for, and what background jobs take before it."""
        if after is not Kind.ROUND and self.background.can_take:
            self.clock.add(self.clock.now, Kind.TAKE)
        # attained service and remaining time change while jobs run
        mixed = bool(self.rounds.waiting) and bool(self.state.running)
        wanted = self.changed or (self.settings.preemptive and mixed)
        at_once = self.clock.round_s is None
        if wanted and not self.awaits_round and not (at_once and after is Kind.ROUND):
            self.awaits_round = True
            self.clock.add(self.clock.next_round(), Kind.ROUND)

    def _await_arrival(self) -> None:
        if len(self.jobs) < len(self.trace.jobs):
            job = self.trace.jobs[len(self.jobs)]
            self.clock.add(job.submit_s, Kind.ARRIVAL, job)

    def _admit(self, job: TraceJob) -> None:
        request, turn = self.arrivals.request(job), id_key(job.job_id)
        least = self.physics.stretch(job, request.gpus, None)[0]
        active = ActiveJob(
            len(self.jobs), job, request, turn, size=request.gpus, least_stretch=least
        )
        self.jobs.append(active)
        if self.arrivals.fits(active.request):
            self.rounds.wait(active)
            self.changed = True
        else:
            reason = self.policy.why_not(active.request, self.state.idle)
            self.infeasible.append((job.job_id, reason.text))
        self._await_arrival()

    def _look_again(self) -> bool:
        """Let the next round look at all waiting jobs."""
        self.changed, self.rounds.blocked = True, None
        return True

    def _end(self, active: ActiveJob) -> None:
        for feature in self.state.features:
            feature.ends(active)
        self.state.leave(active)
        active.end_s = self.clock.now
        active.killed = not active.finished and not active.job.timed_out
        active.last = active.holder = None  # a long trace has many accounts
        self._look_again()
        if self.progress is not None:
            self.progress(1)

    def _round(self) -> None:
        """Plan the round whose time has come, and those that follow it at once, and apply them."""
        self.changed = self.awaits_round = False
        self.clock.planned_at = self.clock.now
        until, wake_s, again = self.clock.wake_s, math.inf, True
        while again and (outcome := self._planned()) is not None:
            wake_s = min(wake_s, outcome.plan.wake_s)
            for feature in self.state.features:
                wake_s = min(wake_s, feature.planned(outcome.plan))
            on_a_move = [active for active in outcome.queue if active.target is not None]
            self._apply(outcome)
            self.rounds.note_blocked(outcome.plan)
            self.used.append((self.clock.now, self.state.used))
            until = self._note_postponed(outcome)
            if self.policy.may_postpone:
                until = self._next_relaxed(a.request for a in outcome.queue if a.placed is None)
            # a job that is back has its least clock until the next round
            back = any(active.target is None for active in on_a_move)
            again = bool(outcome.plan.moved) or (back and self.rounds.adjusts)
        until = min(until or math.inf, wake_s)
        self.clock.wake_at(until if until < math.inf else None)

    def _planned(self) -> Outcome | None:
        """The outcome of the next round, with its time noted; None if no job takes part."""
        started = self.timer() if self.timer is not None else 0.0
        outcome = self.rounds.next()
        if outcome is not None and self.timer is not None:
            self.placement_ms.append((self.timer() - started) * 1e3)
        return outcome

    def _move(self, moved: Sequence[Assignment]) -> None:
        """Stop jobs that go on elsewhere."""
        running = {a.job.job_id: a for a in self.state.running.values()} if moved else {}
        for target in moved:
            active = running[target.job_id]
            self.state.leave(active)
            active.target, active.moved_s = target, self.clock.now
            self.rounds.wait(active)

    def _note_postponed(self, outcome: Outcome) -> float | None:
        """Note which jobs wait for a better set; return when the first of them expects it."""
        waits = {
            w.job_id: w.postponement for w in outcome.plan.waiting if w.postponement is not None
        }
        for active in outcome.queue if waits else ():
            if (wait := waits.get(active.job.job_id)) and wait != active.request.wait.postponed:
                active.request = active.request.postponed(wait)
        times = (wait.start_s for wait in waits.values())
        return min((time for time in times if time > self.clock.now), default=None)

    def _next_relaxed(self, requests: Iterable[Request]) -> float | None:
        """Next time at which the policy accepts the best free set for a postponed request."""
        view = self.state.view(None, with_holders=self.rounds.profiled)
        waits: dict[object, float | None] = {}
        times = []
        for request in requests:
            shape = shape_of(request)
            if shape not in waits:
                waits[shape] = self.policy.relaxed_after_s(request, view)
            if (wait := waits[shape]) is not None:
                times.append(request.submit_s + wait)
        return min((time for time in times if time > self.clock.now), default=None)

    def _apply(self, outcome: Outcome) -> None:
        self._move(outcome.plan.moved)
        by_id = {a.job.job_id: a for a in outcome.queue}
        chosen = [(by_id[a.job_id], a) for a in outcome.plan.assignments]
        moves = [(active, a) for active, a in chosen if not same_gpus(active.placed, a)]
        if outcome.keep is not None:
            moving = {active.position for active, _ in moves}
            stay = outcome.keep | ({active.position for active, _ in chosen} - moving)
            for position in sorted(self.state.running.keys() - stay):
                active = self.state.running[position]
                self.state.leave(active)
                self.rounds.wait(active)
                active.preemptions += position not in moving
        for active, assignment in moves:
            self._start(active, assignment)
        for position, clock_mhz in outcome.clocks.items():
            if position in self.state.running:
                self.state.set_clock(self.state.running[position], clock_mhz)

    def _start(self, active: ActiveJob, assignment: Assignment) -> None:
        cost = 0.0 if active.last is None else self.settings.restart_s(active.job)
        if active.last is None:
            active.start_s = self.clock.now
        else:
            active.migrations += not same_gpus(active.last, assignment)
        for feature in self.state.features:
            assignment = feature.starts(active, assignment)
        self.rounds.stop_waiting(active)
        assignment, active.target = self.state.given(active, assignment), None
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

    def _energy(self) -> Energy | None:
        """What the meter has read; None: the power of a job is not known."""
        if self.state.meter is None:
            return None
        return self.state.meter.read(self.jobs, whole=not self.trace.background)

    def _result(self) -> Result:
        self.used.append((self.clock.now, self.state.used))

        def column(name: str) -> FloatArray:
            return np.array([getattr(active, name) for active in self.jobs], dtype=np.float64)

        return Result(
            trace=self.trace,
            settings=self.settings,
            total_gpus=self.state.total,
            start_s=column("start_s"),
            end_s=column("end_s"),
            run_s=column("run_s"),
            done_s=column("done_s"),
            preemptions=column("preemptions").astype(np.int64),
            migrations=column("migrations").astype(np.int64),
            killed=column("killed").astype(np.bool_),
            infeasible=tuple(self.infeasible),
            used_s=np.array([t for t, _ in self.used]),
            used_gpus=np.array([g for _, g in self.used], dtype=np.int64),
            fragmented_gpu_s=self.fragmented,
            placement_ms=np.array(self.placement_ms),
            placements=self.placements,
            energy=self._energy(),
        )


def simulate(trace: Trace, cluster: Cluster, settings: SimSettings, **more: Any) -> Result:
    """Run a trace to its end; parameters as of :class:`Simulator`."""
    return Simulator(trace, cluster, settings, **more).run()
