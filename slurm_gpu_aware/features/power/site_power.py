"""Power of the site: the limit in force, the power state of a round, and the clocks of its plan."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.hints import SLOWER
from slurm_gpu_aware.features.energy.settings import EnergyConfig
from slurm_gpu_aware.features.energy.stage import bounded, chosen_clock
from slurm_gpu_aware.features.models.performance_model import MODEL, own_name
from slurm_gpu_aware.features.power.clock_orders import OrderedClocks, WantedClock
from slurm_gpu_aware.features.power.explorations import Explorable, Explorations, tried_clocks
from slurm_gpu_aware.features.power.job_tables import ExplorationPower, JobTables, running_gpu_model
from slurm_gpu_aware.features.power.power_budget import (
    PLANNED,
    PlannedPower,
    PoweredJob,
    PowerState,
)
from slurm_gpu_aware.features.power.power_limit import LimitInForce, limit_in_force
from slurm_gpu_aware.features.power.power_reading import PowerReading, first_of, idle_nodes
from slurm_gpu_aware.features.power.settings import OFF, PowerConfig
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.job_hints import HINTED
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.store.ledger import Decision

log = logging.getLogger(__name__)

_RECORDS = ("clock_set", "clock_failed")
LOWERING = "waits for power: the clocks of running jobs are being lowered for it"
_RENEW_S = 100.0
"""Longest time between two rounds while orders are out, so that they do not expire."""


@dataclass(frozen=True)
class _Known:
    """What the ledger says of a job of ours that holds GPUs."""

    app_class: str
    performance_model: str | None
    freq: str | int | None
    user: str
    is_due: bool
    energy_mhz: int | None = None
    """Clock that saves energy, which was chosen at its start."""

    @classmethod
    def of(cls, decision: Decision) -> _Known:
        asked, mhz = decision.asked, chosen_clock(decision)
        names = str(asked.get("class")), asked.get("model"), asked.get("freq")
        return cls(*names, decision.user, asked.get("due_s") is not None, mhz)


class SitePower:
    """Keeps the power limit over the rounds of a selector."""

    def __init__(
        self,
        config: Config,
        tracker: JobTracker,
        clock: Callable[[], float],
        orders: Path | None,
    ) -> None:
        """``orders``: folder of the orders for clock agents; None: clocks of running jobs stay."""
        self._config, self._tracker, self._clock = config, tracker, clock
        self.tables = JobTables()
        self.clocks = OrderedClocks(orders)
        self._clocks = self.clocks.jobs
        self._known: dict[str, _Known] = {}
        length_s = 0.0 if orders is None else config.of(PowerConfig).explore_s
        self._explorations = Explorations(length_s, tracker.ledger)
        self._missing: dict[str, str] = {}
        """Running job -> why the performance model that it names is not used."""
        self.limit = LimitInForce(limit_in_force(config, clock()).limit, "")
        self._seen: object = None
        self._planned_at = -math.inf
        self._limit_w = math.inf
        self._planned: PlannedPower | None = None
        self._unsettled = False
        """The last plan kept power for jobs that wait, or counted clocks that were not set yet."""
        self._gpus, self._widest, self._idle = 0, 0, ""
        self._nodes: frozenset[str] = frozenset()

    def load(self) -> None:
        """Take up what a previous selector left in the ledger."""
        ledger = self._tracker.ledger
        if self._explorations.length_s > 0:
            self._explorations.load(self._clock())
        for decision in ledger.open_decisions():
            self._take(decision)
            if not (self.clocks.change or self.limited):
                continue  # no clock has been changed, and none is asked for
            events = [e for e in ledger.events(decision.job_id) if e.at >= decision.decided_at]
            for event in events:
                if event.kind in _RECORDS:
                    self._clocks.heard(decision.job_id, event.kind, event.detail)
            if self.clocks.change:
                self._explorations.restore(decision.job_id, events)

    def _take(self, decision: Decision) -> None:
        self._known[decision.job_id] = _Known.of(decision)
        self._clocks.start(decision.job_id, decision.clock_mhz, decision.nodes)

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.limit.limit != OFF

    def looks(self) -> bool:
        """Whether a round is due for clocks, even if no job waits."""
        now = self._clock()
        self.limit = limit_in_force(self._config, now)
        if not self.clocks.change and self._planned is None and not self.limited:
            return False
        renews = self.clocks.change and now - self._planned_at > _RENEW_S
        changed = self._unsettled or self._seen != self._to_see()
        return changed or (
            bool(self._ours())
            and (renews or self._clocks.awaited or self._explorations.looks(self._clocks, now))
        )

    def _to_see(self) -> object:
        """What starts a round when it changes."""
        ours, placed = self._ours(), self._tracker.placed
        started = frozenset[str]()
        if self._explorations.length_s > 0 or (self.clocks.change and self.limited):
            # Only then its exploration begins, and its clock can be changed.
            started = frozenset(i for i in ours if placed[i].phase is JobPhase.STARTED)
        return self.limit.limit, ours, started

    def _ours(self) -> frozenset[str]:
        """Jobs of ours that hold GPUs, or are about to start."""
        placed = self._tracker.placed
        return frozenset(job_id for job_id in self._known if job_id in placed)

    @property
    def awaited(self) -> bool:
        """Whether an agent has not answered yet."""
        return self._clocks.awaited

    def state(
        self,
        cluster: Cluster,
        profile: Profile | None,
        settings: PlanSettings,
        kept_w: Mapping[str, float] = MappingProxyType({}),
    ) -> PowerState | None:
        """The power state of a round; None: no limit is in force.

        ``kept_w``: job on a move -> power above that of idle GPUs that is kept for it.
        """
        now = self._clock()
        self.limit = limit_in_force(self._config, now)
        ledger, ours = self._tracker.ledger, self._ours()
        self._known = {job_id: self._known[job_id] for job_id in ours}
        self._clocks.keep(self._known)
        self._explorations.keep(self._known, now)
        placed = self._tracker.placed
        self.clocks.load({placed[job_id].raw_id: job_id for job_id in ours}, now)
        self._seen, self._planned_at = self._to_see(), now
        for job_id, node in self._clocks.silent(now).items():
            detail = {"node": node, "call": "orders", "error": self._clocks.refused(job_id)}
            ledger.event(job_id, "clock_failed", detail, now)
        self.tables.renew(ledger.models(self._config.of(PowerConfig).model_error), profile, cluster)
        state = None
        if self.limited:
            state = self._limited(cluster, profile, settings, kept_w)
        with contained("explorations"):
            power = ExplorationPower(cluster, settings, state)
            self._explorations.renew(
                self._explorable(cluster, settings, kept_w), self._clocks, power, now
            )
            return power.state
        return state

    def _limited(
        self,
        cluster: Cluster,
        profile: Profile | None,
        settings: PlanSettings,
        kept_w: Mapping[str, float],
    ) -> PowerState:
        """The power state under a limit, with every job at its table."""
        max_w = self._max_w(cluster, profile)
        self._limit_w = self.limit.limit.watts_of(float(max_w.sum()))
        idle_w = np.where(max_w > 0, self._config.of(PowerConfig).idle_watts, 0.0)
        running = {}
        for job in (job for job in cluster.running if job.job_id in self._known):
            most_w = float(sum(max_w[gpu] for gpu in job.each_gpu))
            running[job.job_id] = PoweredJob(len(job.each_gpu), most_w)  # if its model fails
            with contained("power of a running job", job.job_id):
                running[job.job_id] = self._powered(job, cluster, max_w, settings)
        for job in cluster.running:
            if (above_w := kept_w.get(job.job_id)) is not None:
                gpus = len(job.each_gpu)
                power_w = above_w + gpus * self._config.of(PowerConfig).idle_watts
                running[job.job_id] = PoweredJob(gpus, power_w)
        usable_w = self._limit_w * (1.0 - self._config.of(PowerConfig).margin)
        return PowerState(max_w, np.minimum(idle_w, max_w), usable_w, running)

    def _explorable(
        self, cluster: Cluster, settings: PlanSettings, kept_w: Collection[str]
    ) -> dict[str, Explorable]:
        """The running jobs that `Explorations.renew` may begin with; ``kept_w``: those that move.

        Jobs with a due date have no time for it.
        """
        found, self._missing = {}, {}
        for job in cluster.running:
            known, gpu_model = self._known.get(job.job_id), running_gpu_model(job, cluster)
            if known is None or known.performance_model is None or not job.gpus:
                continue  # a job that ends shows no GPUs any more
            name, user = known.performance_model, known.user
            why = self.tables.why_missing(name, known.app_class, gpu_model, user)
            if why is None:
                continue
            self._missing[job.job_id] = why
            if gpu_model is None or known.freq != "auto" or known.is_due or job.job_id in kept_w:
                continue
            if self._adjustable(job.job_id, settings):
                clocks = tried_clocks(self.tables.clocks_of(gpu_model))
                of = own_name(user, name), gpu_model, known.app_class
                found[job.job_id] = Explorable(*of, self.tables.limit_w(gpu_model), clocks)
        return found

    def tabled(self, queue: Sequence[Request]) -> list[Request]:
        """The queue with the tables that a round may use."""
        energy = self._config.of(EnergyConfig)
        every = self.limited or energy.slowdown or energy.classes or any(r.sizes for r in queue)
        return [
            self.tables.tabled(one) if every or one.get(HINTED).get(SLOWER) else one
            for one in queue
        ]

    def noted(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """The plan with a note on each job whose performance model is missing."""
        missing = {
            request.job_id: why
            for request in queue
            if request.get(MODEL) is not None and (why := self.tables.why_none(request))
        }
        if not missing:
            return plan
        assignments = tuple(
            replace(a, why={**a.why, "model": missing[a.job_id]}) if a.job_id in missing else a
            for a in plan.assignments
        )
        return replace(plan, assignments=assignments)

    def _max_w(self, cluster: Cluster, profile: Profile | None) -> FloatArray:
        """(N, W) power limits of the GPUs that are usable or that a job holds."""
        max_w = np.full(cluster.shape, self._config.of(PowerConfig).gpu_watts)
        for row, node in enumerate(cluster.nodes if profile is not None else ()):
            for slot in range(cluster.shape[1]):
                record = profile.gpus.get((node, slot)) if profile is not None else None
                known_w = None if record is None else record.power_limit_w
                if known_w is not None and known_w > 0:
                    max_w[row, slot] = known_w
        there = cluster.exists.copy()
        for job in cluster.running:
            for node_row, slots in job.gpus:
                there[node_row, list(slots)] = True
        return np.where(there, max_w, 0.0)

    def _powered(
        self, job: RunningJob, cluster: Cluster, max_w: FloatArray, settings: PlanSettings
    ) -> PoweredJob:
        known, gpus = self._known[job.job_id], len(job.each_gpu)
        table, model = None, running_gpu_model(job, cluster)
        if model is not None:
            named = known.performance_model, known.app_class, model, known.user
            found = self.tables.model(*named)
            table = self.tables.table(found, known.app_class, model, (gpus,))
            table = bounded(table, known.energy_mhz)
        return PoweredJob(
            gpus,
            float(sum(max_w[gpu] for gpu in job.each_gpu)),
            table,
            self._clocks.present(job.job_id),
            adjustable=self._adjustable(job.job_id, settings),
        )

    def _adjustable(self, job_id: str, settings: PlanSettings) -> bool:
        """Whether the clock of a job may be chosen and can be changed."""
        may = self._ordered_as(job_id, settings) is not None
        return may and self.clocks.can_change(job_id, self._planned_at)

    def _ordered_as(self, job_id: str, settings: PlanSettings) -> int | None:
        """Slurm's number of a running job whose clock may be chosen; None: it may not."""
        tracked = self._tracker.placed.get(job_id)
        if tracked is None or tracked.phase is not JobPhase.STARTED:
            return None
        return tracked.raw_id if settings.frees_clock(self._known[job_id].freq) else None

    def carry_out(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> None:
        """Order the clocks of a plan; none of a round that could not reckon with the limit."""
        planned = plan.get(PLANNED)
        if planned is None and self.limited:
            return
        self._order(plan, cluster, settings)
        self._planned = planned
        self._unsettled = planned is not None and (bool(plan.waiting) or self._clocks.awaited)
        self._gpus, self._widest = int(cluster.exists.sum()), cluster.shape[1]
        self._nodes = frozenset(cluster.nodes)
        self._idle = "" if planned is None else idle_nodes(plan, cluster)

    def _order(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> None:
        """Write the orders for all running jobs whose clock may be chosen."""
        now, later = self._clock(), _after_lowering(plan)
        new = {c.job_id: c.clock_mhz for c in plan.clocks if c.job_id not in later}
        wanted = []
        for job in cluster.running if self.clocks.change else ():
            job_id = job.job_id
            number = self._ordered_as(job_id, settings) if job_id in self._known else None
            if number is None:
                continue
            keeps = new.get(job_id, self._clocks.wanted(job_id))
            if plan.get(PLANNED) is None and not self._clocks.refused(job_id):
                known = self._known[job_id]  # else only class and energy keep a clock down
                keeps = known.energy_mhz or settings.class_clock_mhz.get(known.app_class)
            if (explored := self._explorations.of(job_id)) is not None:
                keeps = explored.clock(now)
            gpus = {cluster.nodes[row]: tuple(sorted(slots)) for row, slots in job.gpus}
            wanted.append(WantedClock(job_id, number, keeps, gpus))
        self.clocks.order(wanted, now)

    def reading(self) -> PowerReading | None:
        """Power after the last round; None: there was no limit."""
        planned = self._planned
        if planned is None:
            return None
        now = self._clock()
        fresh = self.clocks.measured_w(self._nodes, self._widest, now)
        refused = {job_id: why for job_id in self._known if (why := self._clocks.refused(job_id))}
        return PowerReading(
            self.limit.words,
            round(self._limit_w, 1),
            round(planned.planned_w, 1),
            planned.planned_w > self._limit_w,
            round(sum(fresh), 1) if fresh else None,
            len(fresh),
            self._gpus,
            first_of(refused),
            len(refused),
            first_of(self.clocks.troubles(self._nodes, now)),
            self._idle,
            first_of(self._missing),
            len(self._missing),
        )

    def placed(
        self, job_ids: Iterable[str], plan: Plan, candidates: Mapping[str, Candidate]
    ) -> None:
        """Take the jobs that a round has released."""
        released = set(job_ids)
        for one in plan.assignments:
            if one.job_id in released and one.job_id in self._tracker.placed:
                request = candidates[one.job_id].request
                names = request.app_class, request.get(MODEL), request.clock
                is_due = request.get(DUE_DATE) is not None
                more = request.user, is_due, chosen_clock(one)
                self._known[one.job_id] = _Known(*names, *more)
                nodes = self._tracker.placed[one.job_id].nodes
                self._clocks.start(one.job_id, one.clock_mhz, nodes)
                self._explorations.forget(one.job_id)


def _after_lowering(plan: Plan) -> frozenset[str]:
    planned = plan.get(PLANNED)
    return frozenset() if planned is None else planned.after_lowering


def lowering_first(plan: Plan) -> Plan:
    """The plan without the jobs that wait for clocks that it lowers."""
    after = _after_lowering(plan)
    later = [a.job_id for a in plan.assignments if a.job_id in after]
    if not later:
        return plan
    return replace(
        plan,
        assignments=tuple(a for a in plan.assignments if a.job_id not in later),
        waiting=plan.waiting + tuple(Waiting(job_id, LOWERING) for job_id in later),
    )
