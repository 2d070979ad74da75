"""Rounds: read the jobs, track placed ones, plan, place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.fitting import binds_sockets
from slurm_gpu_aware.admission.free_cores import with_sockets
from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster, hold_of, is_usable
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.release import release
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import PLANNABLE, Candidates, waiting_entry
from slurm_gpu_aware.selector.holding_pool import HoldingPool, stranded
from slurm_gpu_aware.selector.infeasible import left_to_slurm
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.leaver import Leaver
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.selector.orphans import Orphans
from slurm_gpu_aware.selector.placer import Candidate, Placer
from slurm_gpu_aware.selector.policy_options import policy_options
from slurm_gpu_aware.selector.pool_choice import TAKEN, placeable, spare
from slurm_gpu_aware.selector.qos import QosReader
from slurm_gpu_aware.selector.start_monitor import StartMonitor
from slurm_gpu_aware.selector.task_order import in_task_order, queue_order
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmJob, split_arrays
from slurm_gpu_aware.slurm.topology import Network

__all__ = ["Outcome", "Rounds"]

log = logging.getLogger(__name__)

_GATE_MARGIN_S = 5.0
"""No job is bound if the gate may open within this time plus that of one command: a job that starts
must not be updated."""
_EPILOG_S = 3.0
"""A node on which an epilog runs for longer counts as busy until it ends."""
_CONFIG_S = 60.0
"""Age at which Slurm's configuration and QOS are read again."""


@dataclass
class Outcome:
    """Result of a round."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    held: int = 0
    """Parked jobs that something other than the gate holds."""
    taken: int = 0
    """Parked jobs that have a place and that Slurm must try first."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0
    planned: Callable[[], Mapping[str, Any]] | None = None
    """Makes plain values of the plan and its input; None: no job was placed."""

    def waits(self, job_id: str, reason: str, shadow_start_s: float | None = None) -> None:
        """Add a waiting job with its reason."""
        self.waiting.append(waiting_entry(job_id, reason, shadow_start_s))


@dataclass(frozen=True)
class _View:
    """The jobs as a round reads them."""

    now: float
    jobs: Sequence[SlurmJob]
    gated: Sequence[GatedJob]
    parked: Sequence[GatedJob]
    """Jobs behind the closed gate, without ``taken``."""
    released: Sequence[GatedJob]
    split: frozenset[int]
    """Arrays of several records."""
    gate_held: bool
    """The gate was held; else a job that was read as parked may run by now."""
    taken: frozenset[str]
    """Jobs that the start monitor has parked since, so that their records are old."""
    complete: bool
    """Every record was read; else some GPUs and CPUs in use are not known."""


class Rounds:
    """Runs rounds, and keeps the state between them."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        ledger: LedgerWriter,
        *,
        gate_held_until: Callable[[], float],
        wake: Callable[[], object] = lambda: None,
        pool: HoldingPool | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wake`` starts another round because GPUs have become free."""
        self._client = client
        self._config = config
        self._ledger = ledger
        self._clock = clock
        self._timer = timer
        self._gate_held_until = gate_held_until
        self._pool = pool if pool is not None else HoldingPool(client, clock=clock, timer=timer)
        self.tracker = JobTracker(ledger)
        self._backoff = Backoff(config.selector.reuse_backoff_s, timer)
        self._leaver = Leaver(client, config.gate, ledger, self.tracker, self._backoff)
        self._orphans = Orphans(config.gate, ledger, self.tracker, self._backoff, self._leaver)
        self.start_monitor = StartMonitor(
            client,
            config,
            ledger,
            self.tracker,
            self._backoff,
            self._gate_held,
            wake=wake,
            clock=clock,
        )
        opened = self.start_monitor.opened
        self._placer = Placer(
            client, config.gate, ledger, self.tracker, timer, clock, opened=opened
        )
        self._policy_options = policy_options(config)
        self._network = Network(client.topology, NETWORK_LEVELS)
        self._slurm: SlurmConfig | None = None
        self._qos = QosReader(client)
        self._read_at = -float("inf")
        self._completing: dict[int, float] = {}
        """Record number of a job whose epilog runs -> first time seen."""
        self.ids: dict[int, str] = {}
        """Slurm's record number -> job id, as last read."""

    def run(self) -> Outcome:
        """Run a round. Raises SourceError if Slurm does not answer."""
        started = self._timer()
        outcome = Outcome()
        self._ledger.private = self._static().private_jobs
        view, ids_complete = self._read()
        pending = [job for job in view.jobs if job.state == "PENDING"]  # most others have ended
        at_rest = [job for job in pending if job.id not in view.taken]
        self._orphans.leave(at_rest, view.now, view.split, gate_held=view.gate_held)
        self._pool.rescue([job.job for job in view.parked], self.tracker.asked_for_none)
        closed = {job.job.raw_id for job in view.gated if job.closed}
        ungated = [job for job in pending if job.raw_id not in closed]
        parked = [job.job for job in view.parked]
        self._pool.free([*ungated, *stranded(parked, view.split)], view.split)
        outcome.queued = len(view.parked)
        if view.parked or view.released:
            self._plan_and_place(view, outcome)
        else:
            self.start_monitor.watch((), frozenset())
        if ids_complete:  # else a record exists whose id is not known
            known = set(self.ids.values())
            self._backoff.forget(known)
            self._pool.forget(known)
            self._pool.tidy(pending)
        outcome.took_s = self._timer() - started
        return outcome

    def _read(self) -> tuple[_View, bool]:
        """All jobs, and whether the id of each record is known."""
        now, began = self._clock(), self._timer()
        self.start_monitor.round_begins()
        jobs = self._client.jobs()
        self.start_monitor.read_took(self._timer() - began)
        taken = self.start_monitor.taken()
        unread = self._client.unread
        still = {number: self.ids[number] for number in unread if number in self.ids}
        self.ids = still | {job.raw_id: job.id for job in jobs}
        gated = gated_jobs(jobs, self._config.gate)
        self.tracker.observe(jobs, gated, now, unread)
        parked = [job for job in gated if job.closed and job.id not in taken]
        released = [job for job in gated if job.released]
        view = _View(
            now,
            jobs,
            gated,
            parked,
            released,
            split_arrays(jobs),
            self._gate_held(now),
            taken,
            complete=not unread,
        )
        return view, len(still) == len(unread)

    def _plan_and_place(self, view: _View, outcome: Outcome) -> None:
        context = self._context(view)
        candidates = Candidates(context, self._backoff, Licences(self._client), self._pool)
        candidates.sort_out(view.parked, view.jobs)
        leave = candidates.leave
        outcome.held += candidates.held
        outcome.waiting += candidates.waiting
        began = self._timer()
        plan, planned = self._plan(candidates.to_plan, context)
        planning_s = self._timer() - began
        plan = in_task_order(plan, candidates.to_plan)
        if view.complete:
            leave += left_to_slurm(plan.waiting, candidates.to_plan, view.parked, context.cluster)
        given_up = {job.job.raw_id for job, _ in leave}
        for entry in plan.waiting:
            if candidates.to_plan[entry.job_id].gated.job.raw_id not in given_up:
                outcome.waits(entry.job_id, entry.reason, entry.shadow_start_s)
        if not (view.gate_held and self._gate_held(self._clock())):
            log.warning("the gate is not held: no job is placed until it is")
            return
        left, stays = self._leaver.leave(leave, view.now, view.split)
        for job_id, why in stays.items():
            outcome.waits(job_id, why)
        chosen = {assignment.job_id for assignment in plan.assignments}
        # Restore jobs that an interrupted round bound and this one does not place; not those just
        # left to Slurm, which may run.
        self._restore([job for job in view.parked if job.id not in chosen | left], view)
        self._place(plan, planned, candidates.to_plan, context, outcome, planning_s)
        if self._gate_held(self._clock()):
            self._fill_pool(view, candidates.to_plan, left, chosen, len(context.nodes))

    def _restore(self, jobs: Sequence[GatedJob], view: _View) -> None:
        """Give parked jobs back what placing has changed; there is nothing to do for most."""
        done = release(self._client, self._config.gate, jobs, view.now, split=view.split)
        for job_id, why in done.wrong.items():
            log.warning("job %s is not restored; tried again in the next round: %s", job_id, why)
        for job in done.parked:
            if job.id not in done.wrong:
                self.tracker.withdraw(job.id, {"why": "interrupted"}, view.now)

    def _place(
        self,
        plan: Plan,
        planned: Callable[[], Mapping[str, Any]] | None,
        candidates: Mapping[str, Candidate],
        context: AdmissionContext,
        outcome: Outcome,
        planning_s: float,
    ) -> None:
        """Place the jobs of the plan that Slurm has tried."""
        assignments, untried = placeable(plan.assignments, candidates, self._pool)
        outcome.taken = len(untried)
        for job in untried:
            outcome.waits(job.id, TAKEN)
        self._pool.take([job for job in untried if self._pool.holds(job.job)])
        if not assignments:
            return
        if not self._gate_held(self._clock()):
            log.warning("the gate is about to open: no job is placed until it is held again")
            return
        done = self._placer.place(assignments, candidates, context.cluster.nodes, planning_s)
        outcome.placed, outcome.planned = done.opened, planned
        for job_id, why in done.failed.items():
            self._backoff.punish(job_id)
            outcome.waits(job_id, why)

    def _fill_pool(
        self,
        view: _View,
        candidates: Mapping[str, Candidate],
        left: set[str],
        chosen: set[str],
        nodes: int,
    ) -> None:
        """Put jobs that are far from their turn into the holding pool."""
        gone = left | chosen
        arrays = {candidates[job_id].gated.job.array_id for job_id in chosen}
        split = view.split | {array for array in arrays if array is not None}
        stay = [
            gated
            for gated in sorted(view.parked, key=lambda gated: queue_order(gated.job))
            if not self._pool.holds(gated.job) and gated.id not in gone
        ]
        room = self._config.gate.queue_tests // max(1, nodes)
        self._pool.put(spare(stay, PLANNABLE, room, split), self._gate_held_until())

    def _context(self, view: _View) -> AdmissionContext:
        """The admission context: nodes, partitions, reservations and the planner's cluster."""
        nodes = {node.name: node for node in self._client.nodes()}
        now = self._clock()
        slurm = self._static()
        partitions = {p.name: p for p in self._client.partitions()}
        rules = PreemptionRules(slurm, partitions, self._qos.known)
        lost = frozenset(name for name, node in nodes.items() if not is_usable(node))
        self.start_monitor.watch(view.released, lost, grace_s=rules.grace_s)
        holds = [
            hold_of(job, slurm, partitions, self._config, now, victims=self._victims(job))
            for job in view.released
            if job.job.req_nodes
        ]
        profile = self._ledger.profile()
        level_ratios = profile.level_ratios if profile is not None else {}
        penalties = self._config.placement.penalties_with(level_ratios)
        network = self._network.groups(penalties.general, self._timer)
        cluster = build_cluster(
            list(nodes.values()),
            view.jobs,
            slurm,
            SiteProfile(self._config, penalties, profile, network),
            holds=holds,
            busy_nodes=self._busy(view.jobs, self._timer()),
            now=now,
            rules=rules,
        )
        if any(binds_sockets(gated.job, slurm) for gated in (*view.parked, *view.released)):
            cluster = with_sockets(cluster, nodes, view.jobs, holds, now)
        return AdmissionContext(
            self._config,
            slurm,
            nodes,
            partitions,
            self._client.reservations(),
            cluster,
            now,
            rules,
            fabric=self._network.fabric,
        )

    def _busy(self, jobs: Iterable[SlurmJob], now: float) -> frozenset[str]:
        """Nodes on which an epilog takes longer than `_EPILOG_S`."""
        ending = [job for job in jobs if job.state == "COMPLETING"]
        self._completing = {j.raw_id: self._completing.get(j.raw_id, now) for j in ending}
        slow = [job for job in ending if now - self._completing[job.raw_id] > _EPILOG_S]
        return frozenset(name for job in slow for name in job.nodes)

    def _gate_held(self, now: float) -> bool:
        # The lease is extended when at most a third of it is gone, so half of it is always left.
        margin_s = min(
            self._config.selector.command_timeout_s + _GATE_MARGIN_S, self._config.gate.lease_s / 2
        )
        return self._gate_held_until() - now > margin_s

    def _static(self) -> SlurmConfig:
        """Slurm's configuration, read once a minute, as are the QOS if they preempt."""
        if self._slurm is None or self._timer() - self._read_at > _CONFIG_S:
            self._slurm = self._client.config()
            self._read_at = self._timer()
            if self._slurm.preempt_type == "qos":
                self._qos.refresh()
        return self._slurm

    def _victims(self, gated: GatedJob) -> frozenset[str]:
        tracked = self.tracker.placed.get(gated.id)
        return tracked.victims if tracked is not None else frozenset()

    def _plan(
        self, candidates: Mapping[str, Candidate], context: AdmissionContext
    ) -> tuple[Plan, Callable[[], Mapping[str, Any]] | None]:
        """The plan, and a function that makes plain values of it and its input."""
        if not candidates:
            return Plan((), ()), None
        from slurm_gpu_aware.planning.record import record_round
        from slurm_gpu_aware.planning.round import plan_round

        placement, classes = self._config.placement, self._config.site.classes
        clocks = {name: self._config.for_class(name).clock_mhz for name in classes}
        settings = PlanSettings(
            policy=placement.policy,
            classes=classes,
            class_clock_mhz={name: mhz for name, mhz in clocks.items() if mhz is not None},
            max_clock_mhz=placement.max_clock_mhz,
            backfill=placement.backfill,
        )
        queue = [candidate.request for candidate in candidates.values()]
        options, now = self._policy_options, context.now
        plan = plan_round(queue, context.cluster, settings, now, policy_options=options)
        return plan, partial(record_round, queue, context.cluster, settings, now, plan, options)
