"""Rounds of a simulation: requests as jobs arrive, the planner's input, and what may lose GPUs."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import each_gpu
from slurm_gpu_aware.model.facets import Facet, decided, named
from slurm_gpu_aware.model.job_hints import HINTED
from slurm_gpu_aware.model.request import PolicyChoice, Request
from slurm_gpu_aware.placement.policy import Policy, make_policy, option_names
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import guaranteed_prefix
from slurm_gpu_aware.planning.stages import Stage, World, plan_stages, told
from slurm_gpu_aware.planning.timeline import as_running, take
from slurm_gpu_aware.simulator.active import ActiveJob, order_key
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.settings import LIMIT_FACTOR, LIMIT_MARGIN, SimSettings, modes
from slurm_gpu_aware.simulator.simulated_feature import Asked
from slurm_gpu_aware.simulator.trace import TraceJob

Place = tuple[tuple[float, ...], tuple[tuple[int, ...], str], int]
"""Key of the order, key of the job's id, position in the trace."""


_FIRST = (-math.inf,)  # Key of a job on a move, before all others.


class Outcome(NamedTuple):
    """The outcome of a round."""

    plan: Plan
    keep: set[int] | None
    """Positions of the running jobs that keep their GPUs; None: all. Others may lose theirs."""
    queue: list[ActiveJob]  # The jobs to place.
    clocks: Mapping[int, int | None] = {}
    """Position of a running job -> its SM clock, if that may change; None: the default clock."""


class Rounds:
    """The waiting jobs and their rounds."""

    def __init__(
        self,
        settings: SimSettings,
        state: ClusterState,
        stages: Sequence[Stage] = FEATURES,
    ) -> None:
        self.settings, self.stages = settings, stages
        self.state, self.features = state, state.features
        self.options = {settings.policy: settings.policy_options}
        self.waiting: dict[int, ActiveJob] = {}
        """Position in the trace -> job."""
        self.blocked: Place | None = None
        """Key of the first job that lacked GPUs in the last round; None once that may change."""
        self.plan_settings = PlanSettings(
            policy=settings.policy,
            classes=settings.classes,
            backfill=settings.backfill,
            backfill_depth=settings.backfill_depth,
            reservations=settings.reservations,
            **{**decided(settings.sections), "auto_clocks": True},
        )
        self.adjusts = any(feature.adjusts for feature in self.features)
        """Clocks of running jobs may change in each round."""
        self._key = order_key(settings)
        self._lined = not settings.preemptive and not settings.anew
        """The order of the waiting jobs is fixed, so the queue is kept sorted."""
        self._line: list[Place] = []
        """Keys of the waiting jobs, sorted; unused if they change with time."""
        self.profiled = settings.policy_options.get("interference") is not None
        """The policy considers the neighbours of jobs."""
        policy = make_policy(settings.policy, settings.policy_options)
        self._weighs = policy.wait_rule() is not None
        """Jobs may wait for GPUs that become free later."""
        self._whole = state.shares is not None or any(one.passes for one in self.features)
        """Any job of the queue may start."""
        self._sees_running = any(stage.sees_running for stage in stages)
        self._patient = settings.backfill or policy.may_postpone or self._whole
        """Jobs may overtake one that lacks GPUs, or accept a worse set later."""
        self.prepare()

    def prepare(self) -> None:
        """What rounds of another kind have beside that."""

    def wait(self, active: ActiveJob) -> None:
        self.waiting[active.position] = active
        if self._lined:
            place = self._place(active)
            insort(self._line, place)
            if self.blocked is not None and place < self.blocked:
                self.blocked = None

    def stop_waiting(self, active: ActiveJob) -> None:
        del self.waiting[active.position]
        if self._lined:
            del self._line[bisect_left(self._line, self._place(active))]

    def note_blocked(self, plan: Plan) -> None:
        """Record the first job that lacks GPUs after a round; those behind it wait for it.

        With a policy that waits a start may change what is best for a job that waits by choice.
        """
        lacking = {waiting.job_id for waiting in plan.waiting if waiting.turn is not None}
        settled = not (plan.moved or (self._weighs and plan.assignments))
        line = self._line if settled and lacking else ()
        self.blocked = next((p for p in line if self.waiting[p[-1]].job.job_id in lacking), None)

    def next(self) -> Outcome | None:
        """Plan the round that is due; None if no job takes part."""
        settings, state = self.settings, self.state
        wanted = sum(feature.begins(self.waiting) for feature in self.features) > 0
        if self._lined:
            settled = not self._line or (self.blocked is not None and not self._patient)
            if settled and not wanted and not (self.adjusts and self.state.running):
                return None
            return self._in_line()
        for active in state.running.values():
            active.credit(state.clock.now)
        ordered = [*state.running.values(), *self.waiting.values()]
        ordered.sort(key=self._place)
        room = state.total - state.background_gpus
        prefix = guaranteed_prefix([a.size for a in ordered], room)
        first, rest = ordered[:prefix], ordered[prefix:]
        if not settings.anew:
            return self._sticky(first, rest, wanted=wanted)
        queue = [*first, *rest] if settings.backfill else first
        return self._outcome(self._plan(queue, set(), first=True), set(), queue) if queue else None

    def _in_line(self) -> Outcome:
        """Plan the waiting jobs in their fixed order, as many as can matter.

        A job that waits although it could start (by choice, or as a stage says) holds up no other,
        so more are shown until one lacks GPUs.
        """
        backfill = self.settings.backfill
        beyond = 1 + (self.settings.backfill_depth if backfill else 0)
        while True:
            queue = list(self._head_of_line(beyond))
            plan = self._plan(queue, None, first=True)
            ends = backfill or any(waiting.turn is not None for waiting in plan.waiting)
            if ends or len(queue) == len(self._line):
                return self._outcome(plan, None, queue)
            beyond *= 16

    def _sticky(
        self, first: list[ActiveJob], rest: list[ActiveJob], *, wanted: bool
    ) -> Outcome | None:
        """Running jobs of ``rest`` lose their GPUs only if the prefix does not fit beside them."""
        keep = {a.position for a in first if a.placed is not None}
        want = [a for a in first if a.placed is None]
        tail = [a for a in rest if a.placed is not None]
        late = [a for a in rest if a.placed is None] if self.settings.backfill else []
        if not want and not late and not wanted:
            return None
        beside = keep | {a.position for a in tail}
        plan = self._plan([*want, *late], beside, first=True)
        if plan.moved or not tail or _all_placed(plan, want):
            return self._outcome(plan, beside, [*want, *late])
        kept: list[ActiveJob] = []
        for staying in self._fewer(tail, want):
            kept = staying
            plan = self._plan(want, keep | {a.position for a in staying}, backfill=False)
            if _all_placed(plan, want):
                break
        if not self.adjusts:  # a power limit has no room for more than the plan counts
            taken = {gpu for a in plan.assignments for gpu in each_gpu(a.gpus)}
            kept = [a for a in tail if taken.isdisjoint(each_gpu(a.gpus()))]
        keep |= {a.position for a in kept}
        if not self.settings.backfill:
            return self._outcome(plan, keep, want)
        placed = {a.job_id for a in plan.assignments}
        behind = [a for a in want if a.job.job_id not in placed]
        behind += [a for a in rest if a.position not in keep]
        more = self._plan(behind, keep, given=(want, plan))
        both = replace(more, assignments=(*plan.assignments, *more.assignments))
        return self._outcome(both, keep, [*(a for a in want if a.job.job_id in placed), *behind])

    def _fewer(self, tail: list[ActiveJob], want: list[ActiveJob]) -> Iterator[list[ActiveJob]]:
        """Ever shorter prefixes of ``tail``; the first omits the GPUs that ``want`` lacks."""
        lacking = sum(a.size for a in want) - self.state.free
        go = 0
        while go < len(tail) and (lacking > 0 or not go):
            go += 1
            lacking -= tail[-go].size
        while go < len(tail):
            yield tail[:-go]
            go *= 2
        yield []

    def _plan(
        self,
        queue: list[ActiveJob],
        keep: set[int] | None,
        *,
        backfill: bool = True,
        given: tuple[list[ActiveJob], Plan] | None = None,
        first: bool = False,
    ) -> Plan:
        """Plan ``queue`` beside ``keep`` (None: all).

        ``given``: an earlier part of this round; ``first``: there is none.
        """
        asked = Asked(queue, keep, first)
        holders = self.settings.backfill or self.profiled or self._weighs
        holders |= self._sees_running or any(one.sees_running(asked) for one in self.features)
        shown, now = self.state.view(keep, with_holders=holders), self.state.clock.now
        if given is not None:
            requests = {a.job.job_id: a.request for a in given[0]}
            shown = shown.copy()
            new = [
                as_running(requests[a.job_id], a, now, take(shown, requests[a.job_id], a))
                for a in given[1].assignments
            ]
            shown = replace(shown, running=(*shown.running, *new))
        settings, rules = self.settings, self.plan_settings
        for feature in self.features:
            feature.renew(queue)
        one = Round(
            self._ranked(queue),
            shown,
            rules if backfill else replace(rules, backfill=False),
            now,
            self.options,
            explain=False,
        )
        inputs: dict[Facet[Any], Any] = {}
        for feature in self.features:
            inputs |= feature.told(asked)
        world = World(settings.sections, inputs)
        return plan_stages(told(one, self.stages, world), self.stages)

    def _outcome(self, plan: Plan, keep: set[int] | None, queue: list[ActiveJob]) -> Outcome:
        """The outcome with the clocks of running jobs that a plan changes."""
        if not plan.clocks:
            return Outcome(plan, keep, queue)
        new = {change.job_id: change.clock_mhz for change in plan.clocks}
        running = self.state.running.values()
        clocks = {a.position: new[a.job.job_id] for a in running if a.job.job_id in new}
        return Outcome(plan, keep, queue, clocks)

    def _place(self, active: ActiveJob) -> Place:
        """Sort key of a job in the queue, with ties broken as in ``planning``."""
        key = self._key(active) if active.target is None else _FIRST
        return key, active.turn, active.position

    def _head_of_line(self, beyond: int) -> Iterator[ActiveJob]:
        """Waiting jobs in order, with so many that ask for more than the free GPUs."""
        if self._whole:
            yield from (self.waiting[position] for *_, position in self._line)
            return
        room = self.state.free
        for *_, position in self._line:
            active = self.waiting[position]
            room -= active.size
            beyond -= room < 0
            if beyond < 0:
                return
            yield active

    def _ranked(self, ordered: list[ActiveJob]) -> list[Request]:
        """Requests with the priority that their order gives them, equal ones with the same."""
        if self.state.shares is not None:
            return self.state.shares.ranked(ordered, self.state.clock.now)
        firsts = [self._key(active)[0] for active in ordered]
        rank = {first: float(n) for n, first in enumerate(sorted(set(firsts), reverse=True))}
        if len(rank) <= 1:
            return [a.request for a in ordered]  # the planner breaks ties by submission
        return [
            replace(a.request, priority=rank[first])
            for a, first in zip(ordered, firsts, strict=True)
        ]


def _all_placed(plan: Plan, wanted: list[ActiveJob]) -> bool:
    """Whether each job starts or waits by its own choice."""
    served = {assignment.job_id for assignment in plan.assignments}
    served |= {waiting.job_id for waiting in plan.waiting if waiting.postponed}
    return all(active.job.job_id in served for active in wanted)


class Arrivals:
    """Makes the request of each job, and says whether it can ever start."""

    def __init__(
        self,
        settings: SimSettings,
        policy: Policy,
        state: ClusterState,
        *,
        profiled: bool,
    ) -> None:
        """``profiled``: the policy considers the neighbours of jobs."""
        self._settings, self._policy, self._features = settings, policy, state.features
        self._idle, self._physics, self._profiled = state.idle, state.physics, profiled
        self._options = option_names(settings.policy)
        self._fitting: dict[object, bool] = {}
        self._worst: dict[object, float] = {}
        """What ``Physics.worst`` depends on -> its value."""

    def fits(self, request: Request) -> bool:
        """Whether the policy can place the request on the idle cluster."""
        request = self._policy.relaxed(request)
        key = shape_of(request)
        if key not in self._fitting:
            self._fitting[key] = self._policy.place(request, self._idle) is not None
        return self._fitting[key]

    def request(self, job: TraceJob) -> Request:
        """The request of a job."""
        sizes = job.sizes if modes()[self._settings.mode].sized else ()
        known = self._options
        request = Request(
            job_id=job.job_id,
            user=job.user or "",
            gpus=sizes[0] if sizes else job.gpus,
            min_nodes=job.nodes or 1,
            max_nodes=job.nodes,
            sizes=sizes,
            app_class=job.app_class,
            bandwidth_sensitive=job.bandwidth_sensitive,
            pattern=job.pattern,
            time_limit_s=self._limit_s(job),
            submit_s=job.submit_s,
            application=job.model if self._profiled else None,
            policy=PolicyChoice(None, {k: v for k, v in job.options.items() if k in known}),
            facets=named(HINTED, job.hints),
        )
        for feature in self._features:
            request = feature.asked(job, request)
        return request

    def _limit_s(self, job: TraceJob) -> float:
        """Time limit of a job in seconds; inf: none."""
        limit = job.time_limit_s
        if job.timed_out:
            return max(limit, job.recorded_run_s or 0.0)
        given = math.isfinite(limit) or job.recorded_run_s is not None
        if given and self._settings.overrun == "kill":
            return limit
        share = self._physics.share(job) if job.bandwidth_sensitive else 0.0
        key = (job.app_class, job.gpus, job.pattern, share)
        if key not in self._worst:
            self._worst[key] = self._physics.worst(job)
        longest = LIMIT_MARGIN * self._worst[key] * self._physics.longest(job)
        return max(longest, limit if given else LIMIT_FACTOR * job.duration_s)
