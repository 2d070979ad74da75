"""Power of the site: the limit in force, the power state of a round, and the orders of its plan."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from slurm_gpu_aware.config.power_limit import OFF, LimitInForce, limit_in_force
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.power import PoweredJob, PowerState
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlannedPower, PlanSettings, Waiting
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.clock_agents import ClockAgents
from slurm_gpu_aware.selector.clock_orders import ClockOrders, Order
from slurm_gpu_aware.selector.clock_spool import AgentReport
from slurm_gpu_aware.selector.explorations import Explorations
from slurm_gpu_aware.selector.job_clocks import Clock, JobClocks
from slurm_gpu_aware.selector.job_tables import JobTables
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.power_reading import PowerReading, first_of, idle_nodes
from slurm_gpu_aware.store.ledger import Decision

__all__ = ["SitePower"]

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

    @classmethod
    def of(cls, asked: Mapping[str, Any], user: str) -> _Known:
        return cls(str(asked.get("class")), asked.get("model"), asked.get("freq"), user)


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
        self._orders = None if orders is None else ClockOrders(orders)
        self.tables = JobTables()
        self._clocks = JobClocks()
        self._known: dict[str, _Known] = {}
        self._agents = ClockAgents()
        self._explorations = Explorations(0.0 if orders is None else config.power.explore_s)
        self.limit = LimitInForce(limit_in_force(config, clock()).limit, "")
        self._seen: object = None
        self._planned_at = -math.inf
        self._limit_w = math.inf
        self._loaded = False
        self._planned: PlannedPower | None = None
        self._gpus, self._widest, self._idle = 0, 0, ""
        self._nodes: frozenset[str] = frozenset()

    def load(self) -> None:
        """Take up what a previous selector left in the ledger."""
        ledger = self._tracker.ledger
        for decision in ledger.open_decisions():
            self._take(decision)
            if self._orders is None and self.limit.limit == OFF:
                continue  # no clock has been changed, and none is asked for
            events = [e for e in ledger.events(decision.job_id) if e.at >= decision.decided_at]
            for event in events:
                if event.kind in _RECORDS:
                    self._clocks.heard(decision.job_id, event.kind, event.detail)
            begun = [event for event in events if event.kind in ("exploring", "explored")]
            if begun and begun[-1].kind == "exploring":
                with suppress(LookupError, TypeError, ValueError):
                    self._explorations.restore(decision.job_id, begun[-1].detail, begun[-1].at)

    def _load_orders(self, now: float) -> None:
        """Take up what it left in the orders, when Slurm's numbers of the jobs are known."""
        if self._orders is None or self._loaded:
            return
        self._loaded = True
        self._orders.load()
        names = {t.raw_id: job_id for job_id, t in self._tracker.placed.items()}
        for node, (seq, orders) in self._orders.ordered().items():
            for order in orders:
                job_id = names.get(order.job)
                if job_id is not None and job_id in self._known:
                    self._clocks.order(job_id, node, order.mhz or None, seq, now)

    def _take(self, decision: Decision) -> None:
        self._known[decision.job_id] = _Known.of(decision.asked, decision.user)
        self._clocks.start(decision.job_id, decision.clock_mhz, decision.nodes)

    def heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Take a record of a node: a clock that was set or refused."""
        if self._was_ordered(detail.get("node"), detail.get("seq")):
            self._clocks.heard(job_id, kind, detail)

    def reported(self, agents: Mapping[str, AgentReport]) -> None:
        """Take the newest reports of the clock agents."""
        self._agents.take(agents)
        for node, report in agents.items():
            if self._was_ordered(node, report.seq):
                self._clocks.carried_out(node, report.seq)

    def _was_ordered(self, node: object, seq: object) -> bool:
        """Whether orders of this number were written; a node that names others says nothing."""
        newest = 0 if self._orders is None else self._orders.newest(node)
        return not isinstance(seq, int) or seq <= newest

    def looks(self) -> bool:
        """Whether a round is due for clocks, even if no job waits."""
        now = self._clock()
        self.limit = limit_in_force(self._config, now)
        if self._orders is None and self._planned is None and self.limit.limit == OFF:
            return False
        ours = self._ours()
        renews = self._orders is not None and now - self._planned_at > _RENEW_S
        return self._seen != (self.limit.limit, ours) or (
            bool(ours)
            and (renews or self._clocks.awaited or self._explorations.looks(self._wanted, now))
        )

    def _wanted(self, job_id: str) -> Clock:
        return self._clocks.wanted(job_id) if job_id in self._known else None

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
        self._explorations.keep(self._known)
        self._load_orders(now)
        self._seen, self._planned_at = (self.limit.limit, ours), now
        for job_id, node in self._clocks.silent(now).items():
            detail = {"node": node, "call": "orders", "error": self._clocks.refused(job_id)}
            ledger.event(job_id, "clock_failed", detail, now)
        self._explore(settings, now)
        self.tables.renew(ledger.models(self._config.power.model_error), profile, cluster)
        if self.limit.limit == OFF:
            return None
        max_w = self._max_w(cluster, profile)
        self._limit_w = self.limit.limit.watts_of(float(max_w.sum()))
        idle_w = np.where(max_w > 0, self._config.power.idle_watts, 0.0)
        running = {
            job.job_id: self._powered(job, cluster, max_w, settings)
            for job in cluster.running
            if job.job_id in self._known
        }
        for job in cluster.running:
            if (above_w := kept_w.get(job.job_id)) is not None:
                gpus = len(job.each_gpu)
                power_w = above_w + gpus * self._config.power.idle_watts
                running[job.job_id] = PoweredJob(gpus, power_w)
        usable_w = self._limit_w * (1.0 - self._config.power.margin)
        return PowerState(max_w, np.minimum(idle_w, max_w), usable_w, running)

    def _explore(self, settings: PlanSettings, now: float) -> None:
        """Begin with jobs that have started, and end what is over, in the ledger, too."""
        ledger = self._tracker.ledger
        for job_id, one in self._explorations:
            refused = self._clocks.refused(job_id)
            if one.began is None:
                if self._ordered_as(job_id, settings) is None:
                    continue  # it has not started
                if self._adjustable(job_id, settings):
                    detail = self._explorations.begin(job_id, now).detail()
                    ledger.event(job_id, "exploring", detail, now)
                else:
                    self._explorations.end(job_id, now)
            elif one.stopped:
                continue
            elif refused:
                self._explorations.stop(job_id, now)
                ledger.event(job_id, "explored", {"error": refused}, now)
            elif one.is_over(now) and self._clocks.present(job_id) == one.back:
                self._explorations.end(job_id, now)
                ledger.event(job_id, "explored", {}, now)

    def tabled(self, queue: Sequence[Request]) -> list[Request]:
        """The queue with the tables that a round may use.

        Under a limit a job that is to be explored has none: it counts with the limits of its GPUs.
        """
        self._explorations.choose(queue, self.tables, self._clock())
        limited = self.limit.limit != OFF
        if not limited and not any(request.sizes for request in queue):
            return list(queue)
        explored = self._explorations.is_chosen if limited else lambda _: False
        return [r if explored(r.job_id) else self.tables.tabled(r) for r in queue]

    def noted(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """The plan with a note on each job whose performance model is missing."""
        explored = self._explorations.is_chosen
        missing = {
            request.job_id: why + explored(request.job_id) * "; at first it tries several clocks"
            for request in queue
            if request.performance_model is not None and (why := self.tables.why_none(request))
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
        max_w = np.full(cluster.shape, self._config.power.gpu_watts)
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
        models = {cluster.model[node] for node, _ in job.gpus}
        model = models.pop() if len(models) == 1 else None
        table, explored = None, self._explorations.of(job.job_id) is not None
        if model is not None and not explored:
            named = known.performance_model, known.app_class, model, known.user
            found = self.tables.model(*named)
            table = self.tables.table(found, known.app_class, model, (gpus,))
        return PoweredJob(
            gpus,
            float(sum(max_w[gpu] for gpu in job.each_gpu)),
            table,
            self._clocks.present(job.job_id),
            adjustable=not explored and self._adjustable(job.job_id, settings),
        )

    def _adjustable(self, job_id: str, settings: PlanSettings) -> bool:
        return (
            self._orders is not None
            and self._ordered_as(job_id, settings) is not None
            and not self._clocks.refused(job_id)
            and self._orders.failed.keys().isdisjoint(nodes := self._clocks.nodes(job_id))
            and not any(self._agents.why_not(node, self._planned_at) for node in nodes)
        )

    def _ordered_as(self, job_id: str, settings: PlanSettings) -> int | None:
        """Slurm's number of a running job whose clock may be chosen; None: it may not."""
        tracked = self._tracker.placed.get(job_id)
        if tracked is None or tracked.phase is not JobPhase.STARTED:
            return None
        return tracked.raw_id if settings.frees_clock(self._known[job_id].freq) else None

    def carry_out(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> Plan:
        """Order the clocks of a plan; return it without the jobs that wait for lowered clocks."""
        self._order(plan, cluster, settings)
        self._planned = plan.power
        self._gpus, self._widest = int(cluster.exists.sum()), cluster.shape[1]
        self._nodes = frozenset(cluster.nodes)
        self._idle = "" if plan.power is None else idle_nodes(plan, cluster)
        later = [a.job_id for a in plan.assignments if a.job_id in plan.after_lowering]
        if not later:
            return plan
        return replace(
            plan,
            assignments=tuple(a for a in plan.assignments if a.job_id not in later),
            waiting=plan.waiting + tuple(Waiting(job_id, LOWERING) for job_id in later),
        )

    def _order(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> None:
        """Write the orders for all running jobs whose clock may be chosen."""
        if self._orders is None:
            return
        now = self._clock()
        new = {c.job_id: c.clock_mhz for c in plan.clocks if c.job_id not in plan.after_lowering}
        wanted: dict[str, list[Order]] = {}
        clocks: list[tuple[str, str, int | None]] = []
        for job in cluster.running:
            job_id = job.job_id
            number = self._ordered_as(job_id, settings) if job_id in self._known else None
            if number is None:
                continue
            keeps = new.get(job_id, self._clocks.wanted(job_id))
            if plan.power is None and not self._clocks.refused(job_id):
                # Without a limit no clock is kept down but by the job's class.
                keeps = settings.class_clock_mhz.get(self._known[job_id].app_class)
            if (explored := self._explorations.of(job_id)) is not None:
                keeps = explored.clock(now)
            for row, slots in job.gpus:
                order = Order(number, keeps or 0, tuple(sorted(slots)))
                wanted.setdefault(cluster.nodes[row], []).append(order)
                clocks.append((job_id, cluster.nodes[row], keeps))
        written = self._orders.write(wanted, now)
        for job_id, node, clock in clocks:
            if node in written:
                self._clocks.order(job_id, node, clock, written[node], now)

    def reading(self) -> PowerReading | None:
        """Power after the last round; None: there was no limit."""
        planned = self._planned
        if planned is None:
            return None
        now = self._clock()
        fresh = self._agents.measured_w(self._nodes, self._widest, now)
        refused = {job_id: why for job_id in self._known if (why := self._clocks.refused(job_id))}
        orders = self._orders
        asked = [] if orders is None else [n for n, (_, some) in orders.ordered().items() if some]
        troubles = self._agents.troubles(self._nodes, asked, now)
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
            first_of(troubles | ({} if orders is None else orders.failed)),
            self._idle,
        )

    def placed(
        self, job_ids: Iterable[str], plan: Plan, candidates: Mapping[str, Candidate]
    ) -> None:
        """Take the jobs that a round has released."""
        released = set(job_ids)
        for one in plan.assignments:
            if one.job_id in released and one.job_id in self._tracker.placed:
                request = candidates[one.job_id].request
                self._known[one.job_id] = _Known(
                    request.app_class, request.performance_model, request.clock, request.user
                )
                nodes = self._tracker.placed[one.job_id].nodes
                self._clocks.start(one.job_id, one.clock_mhz, nodes)
                self._explorations.placed(one.job_id, one.clock_mhz)
