"""Power of the site: the limit in force, the power state of a round, and the clocks of its plan."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.declared import SLOWER, EnergyConfig
from slurm_gpu_aware.features.energy.live import ClockChecks, Watched
from slurm_gpu_aware.features.energy.stage import bounded, chosen_setting, doubted
from slurm_gpu_aware.features.models.live import live_models
from slurm_gpu_aware.features.models.performance_model import MODEL, own_name
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay
from slurm_gpu_aware.features.power.clock_orders import OrderedClocks, WantedClock
from slurm_gpu_aware.features.power.declared import OFF, PowerConfig
from slurm_gpu_aware.features.power.explorations import Explorable, Explorations, tried_clocks
from slurm_gpu_aware.features.power.job_tables import (
    ExplorationPower,
    JobTables,
    KnownJob,
    limits_w,
    running_gpu_model,
)
from slurm_gpu_aware.features.power.metrics import PowerReading, first_of, idle_nodes
from slurm_gpu_aware.features.power.power_budget import (
    PLANNED,
    POWER,
    PlannedPower,
    PoweredJob,
    PowerState,
    after_lowering,
    lowering_first,
)
from slurm_gpu_aware.features.power.power_limit import LimitInForce, limit_in_force
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.job_hints import HINTED
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.live import Done, Live, Seen, Site
from slurm_gpu_aware.store.ledger import Decision

log = logging.getLogger(__name__)

_RECORDS = ("clock_set", "clock_failed")
_RENEW_S = 100.0
"""Longest time between two rounds while orders are out, so that they do not expire."""


class SitePower(Live):
    """Keeps the power limit over the rounds of a selector."""

    name = "power"
    tells = (POWER,)

    def __init__(self, site: Site) -> None:
        self._config, self._tracker, self._clock = site.config, site.tracker, site.clock
        config, tracker, orders = site.config, site.tracker, site.orders
        self._moves = site.of(MovesUnderWay)
        self.tables = JobTables()
        self.clocks = OrderedClocks(orders)
        self._clocks = self.clocks.jobs
        self._known: dict[str, KnownJob] = {}
        length_s = 0.0 if orders is None else config.of(PowerConfig).explore_s
        self._explorations = Explorations(length_s, tracker.ledger)
        records = config.of(EnergyConfig).records
        self._checks = ClockChecks(Path(records) if records and orders else None, tracker.ledger)
        self._missing: dict[str, str] = {}
        """Running job -> why the performance model that it names is not used."""
        self.limit = LimitInForce(limit_in_force(config, site.clock()).limit, "")
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
        self._checks.load(self._clock())
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
                self._checks.restore(decision.job_id, events)

    def _take(self, decision: Decision) -> None:
        self._known[decision.job_id] = KnownJob.of(decision)
        self._clocks.start(decision.job_id, decision.clock_mhz, decision.nodes)

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.limit.limit != OFF

    @property
    def opens_ahead(self) -> bool:
        """Not under a limit, which Slurm does not know."""
        return not self.limited

    def wants_round(self, gated: Sequence[GatedJob], now: float) -> bool:
        """A clock may have to change."""
        now = self._clock()
        self.limit = limit_in_force(self._config, now)
        if not self.clocks.change and self._planned is None and not self.limited:
            return False
        renews = self.clocks.change and now - self._planned_at > _RENEW_S
        changed = self._unsettled or self._seen != self._to_see() or self._checks.looks(now)
        return changed or (
            bool(self._ours())
            and (renews or self._clocks.awaited or self._explorations.looks(self._clocks, now))
        )

    def _to_see(self) -> object:
        """What starts a round when it changes."""
        ours, placed = self._ours(), self._tracker.placed
        started = frozenset[str]()
        lives = self._explorations.length_s > 0 or self._checks.folder is not None
        if lives or (self.clocks.change and self.limited):
            # Only then its exploration or check begins, and its clock can be changed.
            started = frozenset(i for i in ours if placed[i].phase is JobPhase.STARTED)
        return self.limit.limit, ours, started

    def _ours(self) -> frozenset[str]:
        """Jobs of ours that hold GPUs, or are about to start."""
        placed = self._tracker.placed
        return frozenset(job_id for job_id in self._known if job_id in placed)

    @property
    def awaits(self) -> bool:
        """Whether an agent has not answered yet."""
        return self._clocks.awaited

    def inputs(self, seen: Seen) -> Iterator[tuple[Facet[Any], Any]]:
        """The power state."""
        kept_w = self._moves.power_w
        yield POWER, self.state(seen.context.cluster, seen.profile, seen.settings, kept_w)

    def state(
        self,
        cluster: Cluster,
        profile: Profile | None,
        settings: PlanSettings,
        kept_w: Mapping[str, float],
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
        models = live_models(ledger, self._config.of(PowerConfig).model_error)
        self.tables.renew(models, profile, cluster)
        with contained("checks of clocks"):
            self._checks.follow(self._checked(cluster, kept_w), self._known)
            self._checks.looks(now)
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
        max_w = limits_w(cluster, profile, self._config.of(PowerConfig).gpu_watts)
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

    def planned(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """The plan with a note on each job whose performance model is missing."""
        return self.tables.noted(plan, queue)

    def requests(self, jobs: Mapping[str, Candidate], queue: Sequence[Request]) -> list[Request]:
        """The queue with the tables that a round may use."""
        energy = self._config.of(EnergyConfig)
        every = self.limited or energy.slowdown or energy.classes or any(r.sizes for r in queue)
        return [
            self._trusted(self.tables.tabled(one)) if every or one.get(HINTED).get(SLOWER) else one
            for one in queue
        ]

    def _trusted(self, request: Request) -> Request:
        """The request without a clock that saves energy, if jobs like it were too slow with it."""
        table, gpu_model = request.get(TABLE), self.tables.gpu_model(request)
        of = Watched(request.user, request.get(MODEL), request.app_class, gpu_model or "")
        wrong = self._checks.is_wrong(of, self.tables.fitted_at(*of[1:4], of.user), self._clock())
        return request.put(TABLE, doubted(table)) if table is not None and wrong else request

    def _powered(
        self, job: RunningJob, cluster: Cluster, max_w: FloatArray, settings: PlanSettings
    ) -> PoweredJob:
        known, gpus = self._known[job.job_id], len(job.each_gpu)
        table, model = None, running_gpu_model(job, cluster)
        if model is not None:
            named = known.performance_model, known.app_class, model, known.user
            found = self.tables.model(*named)
            table = self.tables.table(found, known.app_class, model, (gpus,))
            slow = self._checks.is_slow(job.job_id)
            table = bounded(table, None if slow else known.energy_mhz)
        return PoweredJob(
            gpus,
            float(sum(max_w[gpu] for gpu in job.each_gpu)),
            table,
            self._clocks.present(job.job_id),
            adjustable=self._adjustable(job.job_id, settings),
        )

    def _adjustable(self, job_id: str, settings: PlanSettings) -> bool:
        """Whether the clock of a job may be chosen and can be changed."""
        may = settings.frees_clock(self._known[job_id].freq) and self._number(job_id) is not None
        return may and self.clocks.can_change(job_id, self._planned_at)

    def _number(self, job_id: str) -> int | None:
        """Slurm's number of a running job; None: it does not run."""
        tracked = self._tracker.placed.get(job_id)
        return tracked.raw_id if tracked and tracked.phase is JobPhase.STARTED else None

    def _checked(self, cluster: Cluster, moving: Collection[str]) -> dict[str, Watched]:
        """The running jobs whose clocks may be checked: under a limit none."""
        found = {}
        for job in cluster.running if not self.limited else ():
            job_id, known = job.job_id, self._known.get(job.job_id)
            busy = job_id in moving or self._explorations.of(job_id) is not None
            if known is None or not known.energy_mhz or busy or self._number(job_id) is None:
                continue
            if self.clocks.can_change(job_id, self._planned_at):
                model = running_gpu_model(job, cluster) or ""
                of = known.user, known.performance_model, known.app_class, model
                setting = known.energy_mhz, known.allowed, known.limit_w
                found[job_id] = Watched(*of, *setting, len(job.each_gpu), len(job.gpus))
        return found

    def order(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> Plan:
        """Order the clocks of a plan; what waits for lower ones is not started yet."""
        with contained("power orders"):
            self.carry_out(plan, cluster, settings)
        return lowering_first(plan)

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
        now, later = self._clock(), after_lowering(plan)
        new = {c.job_id: c.clock_mhz for c in plan.clocks if c.job_id not in later}
        wanted = []
        for job in cluster.running if self.clocks.change else ():
            job_id = job.job_id
            freq = self._known[job_id].freq if job_id in self._known else "max"
            frees = settings.frees_clock(freq) or self._checks.at_default(job_id)
            number = self._number(job_id) if frees else None
            if number is None:
                continue
            keeps = new.get(job_id, self._clocks.wanted(job_id))
            if plan.get(PLANNED) is None and not self._clocks.refused(job_id):
                known = self._known[job_id]  # else only class and energy keep a clock down
                keeps = known.energy_mhz or settings.class_clock_mhz.get(known.app_class)
                keeps = None if self._checks.at_default(job_id) else keeps
            explored = self._explorations.of(job_id)
            if explored is not None:
                keeps = explored.clock(now)
            free = explored is not None or self._checks.at_default(job_id)
            limit_w = 0 if free and self._known[job_id].limit_w else None
            gpus = {cluster.nodes[row]: tuple(sorted(slots)) for row, slots in job.gpus}
            wanted.append(WantedClock(job_id, number, keeps, gpus, limit_w))
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

    def after(self, done: Done) -> None:
        """Take the jobs that a round has released."""
        released = set(done.placed)
        for one in done.plan.assignments:
            if one.job_id in released and one.job_id in self._tracker.placed:
                request = done.jobs[one.job_id].request
                names = request.app_class, request.get(MODEL), request.clock
                is_due = request.get(DUE_DATE) is not None
                known = KnownJob(*names, request.user, is_due, *chosen_setting(one.why))
                self._known[one.job_id] = known
                nodes = self._tracker.placed[one.job_id].nodes
                self._clocks.start(one.job_id, one.clock_mhz, nodes)
                self._explorations.forget(one.job_id)
                self._checks.forget(one.job_id)
