"""Rounds: read the jobs, track placed ones, plan, place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurm_gpu_aware.admission.snapshot import is_usable
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import Candidates, Licences, queue_order
from slurm_gpu_aware.selector.holding_pool import UNTRIED, HoldingPool, spare, stranded
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.leaver import Leaver, infeasible
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.placer import Placer
from slurm_gpu_aware.selector.policy_options import policy_options
from slurm_gpu_aware.selector.site_reader import SiteReader
from slurm_gpu_aware.selector.start_monitor import StartMonitor
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, split_arrays

__all__ = ["Outcome", "Rounds"]

log = logging.getLogger(__name__)

_GATE_MARGIN_S = 5.0  # no job is bound if the gate may open within this time and one command's


@dataclass
class Outcome:
    """Result of a round."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    blocked: int = 0
    """Parked jobs that something other than the gate holds."""
    untried: int = 0
    """Parked jobs that have a place and that Slurm must try first."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0
    planned: Callable[[], Mapping[str, Any]] | None = None
    """Makes plain values of the plan and its input; None: no job was placed."""


@dataclass(frozen=True)
class _View:
    """The jobs as a round reads them."""

    now: float
    jobs: Sequence[SlurmJob]
    gated: Sequence[GatedJob]
    parked: Sequence[GatedJob]  # jobs behind the closed gate, without ``outdated``
    released: Sequence[GatedJob]
    split: frozenset[int]  # arrays of several records
    gate_held: bool  # the gate was held; else a job that was read as parked may run by now
    outdated: frozenset[str]
    """Jobs that the start monitor has parked since, so that their records are old."""
    complete: bool  # every record was read; else some GPUs and CPUs in use are not known
    all_ids: bool  # the id of every record is known


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
        self._client, self._config, self._ledger = client, config, ledger
        self._clock, self._timer = clock, timer
        self._gate_held_until = gate_held_until
        self._pool = pool if pool is not None else HoldingPool(client, clock=clock, timer=timer)
        self.tracker = JobTracker(ledger)
        self._backoff = Backoff(config.selector.reuse_backoff_s, timer)
        self._leaver = Leaver(client, config.gate, self.tracker, self._backoff)
        self.start_monitor = StartMonitor(
            client, config, self.tracker, self._backoff, self._gate_held, wake=wake, clock=clock
        )
        on_release = self.start_monitor.add
        self._placer = Placer(client, config.gate, self.tracker, timer, clock, on_release)
        self._policy_options = policy_options(config)
        self._settings = _plan_settings(config)
        self._site = SiteReader(client, config, clock, timer)
        self.ids: dict[int, str] = {}
        """Slurm's record number -> job id, as last read."""

    def run(self) -> Outcome:
        """Run a round. Raises SourceError if Slurm does not answer."""
        started = self._timer()
        outcome = Outcome()
        self._ledger.private = self._site.slurm().private_jobs
        view = self._read()
        pending = [job for job in view.jobs if job.state == "PENDING"]  # most others have ended
        current = [job for job in pending if job.id not in view.outdated]
        self._leaver.leave_orphans(current, view.now, view.split, gate_held=view.gate_held)
        parked = [job.job for job in view.parked]
        self._pool.rescue(parked, self.tracker.asked_for_none)
        gated = {job.job.raw_id for job in view.gated if job.parked}
        ungated = [job for job in pending if job.raw_id not in gated]
        self._pool.free([*ungated, *stranded(parked, view.split)], view.split)
        outcome.queued = len(view.parked)
        if view.parked or view.released:
            self._plan_and_place(view, outcome)
        else:
            self.start_monitor.watch((), frozenset())
        if view.all_ids:
            known = set(self.ids.values())
            self._backoff.forget(known)
            self._pool.forget(known)
            self._pool.tidy(pending)
        outcome.took_s = self._timer() - started
        return outcome

    def _read(self) -> _View:
        now, began = self._clock(), self._timer()
        self.start_monitor.round_begins()
        jobs = self._client.jobs()
        outdated = self.start_monitor.outdated(self._timer() - began)
        unread = self._client.unread
        still = {number: self.ids[number] for number in unread if number in self.ids}
        self.ids = still | {job.raw_id: job.id for job in jobs}
        gated = gated_jobs(jobs, self._config.gate)
        self.tracker.observe(jobs, gated, now, unread)
        return _View(
            now,
            jobs,
            gated,
            parked=[job for job in gated if job.parked and job.id not in outdated],
            released=[job for job in gated if job.released],
            split=split_arrays(jobs),
            gate_held=self._gate_held(now),
            outdated=outdated,
            complete=not unread,
            all_ids=len(still) == len(unread),
        )

    def _plan_and_place(self, view: _View, outcome: Outcome) -> None:
        victims = {job.id: self.tracker.victims(job.id) for job in view.released}
        waiting = (*view.parked, *view.released)
        context = self._site.context(view.jobs, waiting, victims, self._ledger.profile())
        lost = frozenset(name for name, node in context.nodes.items() if not is_usable(node))
        self.start_monitor.watch(view.released, lost, grace_s=context.rules.grace_s)
        candidates = Candidates(context, self._backoff, Licences(self._client), self._pool)
        candidates.sort_out(view.parked, view.jobs)
        leave = candidates.leave
        outcome.blocked, outcome.waiting = candidates.blocked, candidates.waiting
        began = self._timer()
        plan, planned = self._plan(candidates)
        planning_s = self._timer() - began
        plan = candidates.in_task_order(plan)
        if view.complete:
            leave += infeasible(plan.waiting, candidates.to_plan, view.parked, context.cluster)
        given_up = {job.job.raw_id for job, _ in leave}
        for entry in plan.waiting:
            if candidates.to_plan[entry.job_id].gated.job.raw_id not in given_up:
                candidates.waits(entry.job_id, entry.reason, entry.shadow_start_s)
        if not (view.gate_held and self._gate_held(self._clock())):
            log.warning("the gate is not held: no job is placed until it is")
            return
        left, stays = self._leaver.leave(leave, view.now, view.split)
        for job_id, why in stays.items():
            candidates.waits(job_id, why)
        chosen = {assignment.job_id for assignment in plan.assignments}
        # Restore jobs that an interrupted round bound and this one neither places nor leaves.
        self._restore([job for job in view.parked if job.id not in chosen | left], view)
        assignments, untried = candidates.placeable(plan.assignments)
        outcome.untried = len(untried)
        for job in untried:
            candidates.waits(job.id, UNTRIED)
        self._pool.take([job for job in untried if self._pool.holds(job.job)])
        if assignments and self._gate_held(self._clock()):
            nodes = context.cluster.nodes
            outcome.placed, failed = self._placer.place(
                assignments, candidates.to_plan, nodes, planning_s
            )
            outcome.planned = planned
            for job_id, why in failed.items():
                self._backoff.punish(job_id)
                candidates.waits(job_id, why)
        elif assignments:
            log.warning("the gate is about to open: no job is placed until it is held again")
        if self._gate_held(self._clock()):
            arrays = {candidates.to_plan[job_id].gated.job.array_id for job_id in chosen}
            stay = [job for job in view.parked if job.id not in left | chosen]
            self._fill_pool(stay, view.split | arrays, len(context.nodes))

    def _restore(self, jobs: Sequence[GatedJob], view: _View) -> None:
        done = restore(self._client, self._config.gate, jobs, view.now, split=view.split)
        for job_id, why in done.wrong.items():
            log.warning("job %s is not restored; tried again in the next round: %s", job_id, why)
        for job in done.parked:
            if job.id not in done.wrong:
                self.tracker.withdraw(job.id, {"why": "interrupted"}, view.now)

    def _fill_pool(self, parked: Sequence[GatedJob], split: Set[int | None], nodes: int) -> None:
        queue = sorted(parked, key=lambda gated: queue_order(gated.job))
        stay = [gated for gated in queue if not self._pool.holds(gated.job)]
        room = self._config.gate.queue_tests // max(1, nodes)
        self._pool.put(spare(stay, room, split), self._gate_held_until())

    def _gate_held(self, now: float) -> bool:
        # The lease is extended when at most a third of it is gone, so half of it is always left.
        margin_s = min(
            self._config.selector.command_timeout_s + _GATE_MARGIN_S, self._config.gate.lease_s / 2
        )
        return self._gate_held_until() - now > margin_s

    def _plan(self, candidates: Candidates) -> tuple[Plan, Callable[[], Mapping[str, Any]] | None]:
        if not candidates.to_plan:
            return Plan((), ()), None
        from slurm_gpu_aware.planning.record import record_round
        from slurm_gpu_aware.planning.round import plan_round

        queue = [candidate.request for candidate in candidates.to_plan.values()]
        cluster, now = candidates.context.cluster, candidates.context.now
        options = self._policy_options
        plan = plan_round(queue, cluster, self._settings, now, policy_options=options)
        return plan, partial(record_round, queue, cluster, self._settings, now, plan, options)


def _plan_settings(config: Config) -> PlanSettings:
    placement, classes = config.placement, config.site.classes
    clocks = {name: config.for_class(name).clock_mhz for name in classes}
    return PlanSettings(
        policy=placement.policy,
        classes=classes,
        class_clock_mhz={name: mhz for name, mhz in clocks.items() if mhz is not None},
        max_clock_mhz=placement.max_clock_mhz,
        backfill=placement.backfill,
    )
