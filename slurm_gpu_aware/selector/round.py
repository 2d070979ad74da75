"""Rounds: read the jobs, track placed ones, plan, place."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from slurm_gpu_aware.admission.context import Known
from slurm_gpu_aware.admission.snapshot import is_usable
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.gated_job import GatedJob, GatedJobs, is_changed
from slurm_gpu_aware.gate.trial import is_trial
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.selector.elsewhere import Elsewhere, goes_elsewhere, to_plan
from slurm_gpu_aware.selector.head_guard import HeadGuard
from slurm_gpu_aware.selector.holding_pool import UNTRIED, HoldingPool, stranded
from slurm_gpu_aware.selector.isolation import Isolation, contained
from slurm_gpu_aware.selector.job_comments import JobComments, OwnerChanges
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.kept_candidates import KeptCandidates
from slurm_gpu_aware.selector.leaver import Leaver, Turns, infeasible, without_policy
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.selector.limited_kinds import LimitedKinds
from slurm_gpu_aware.selector.live import Done, Lives, Site
from slurm_gpu_aware.selector.passers import highest, need_a_part, outside
from slurm_gpu_aware.selector.placer import Placer
from slurm_gpu_aware.selector.policy_options import PolicyInForce
from slurm_gpu_aware.selector.round_planner import Notes, RoundPlanner
from slurm_gpu_aware.selector.round_state import EndedJobs, Interrupted, Outcome, Verdicts, View
from slurm_gpu_aware.selector.site_reader import SiteReader
from slurm_gpu_aware.selector.start_monitor import StartMonitor
from slurm_gpu_aware.selector.successors import Successors
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation, split_arrays

log = logging.getLogger(__name__)

_GATE_MARGIN_S = 5.0  # no job is bound if the gate may open within this time and one command's


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
        check_holder: Callable[[Sequence[SlurmReservation]], object] = lambda reservations: None,
        pool: HoldingPool | None = None,
        orders: Path | None = None,
        spool: Path | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wake`` starts another round because GPUs have become free.

        ``check_holder`` raises SourceError if another selector has taken the gate, by Slurm's
        reservations. ``orders``, ``spool``: see `Site`.
        """
        self._check_holder = check_holder
        self._client, self._config, self._ledger = client, config, ledger
        self._clock, self._timer = clock, timer
        self._gate_held_until = gate_held_until
        self._pool = pool if pool is not None else HoldingPool(client, clock=clock, timer=timer)
        self.tracker = JobTracker(ledger)
        self._gated, self._kept, self._ended = GatedJobs(config.gate), KeptCandidates(), EndedJobs()
        self._interrupted = Interrupted(client, config.gate, self.tracker)
        self._comments = JobComments(client, config.gate, self.tracker)
        self._backoff = Backoff(config.selector.reuse_backoff_s, timer)
        self._limited = LimitedKinds(self._backoff)
        self._by_choice: frozenset[str] = frozenset()
        self._leaver = Leaver(client, config.gate, self.tracker, self._backoff)
        given = client, config, ledger, self.tracker, self._backoff, clock, timer, orders, spool
        self.site = Site(*given)
        self.lives = Lives(self.site)
        self.start_monitor = StartMonitor(
            client,
            config,
            self.tracker,
            self._backoff,
            self._gate_held,
            wake=wake,
            clock=clock,
            on_move=lambda job_id: self.lives.any(lambda one: one.requeued(job_id)),
            is_ahead=lambda i: i in self._successors.opened or i in self._turns.lasting,
        )
        told = config.events.waiting_file
        self._guard = HeadGuard(client, config.gate.guard_head, timer, told)
        called = timer, clock, self.start_monitor.add, self._guard.open
        self._placer = Placer(client, config.gate, self.tracker, *called)
        self.policy = PolicyInForce(config)
        self._policy_noted: str | None = None
        self._verdicts = Verdicts()
        self._changes = OwnerChanges(self.lives)
        self._site_reader = SiteReader(client, config, clock, timer)
        self._turns = Turns(self._backoff, wake)
        self._elsewhere = Elsewhere(client, config.gate, timer)
        self._successors = Successors(self.start_monitor.recall, config.selector.ahead_s, timer)
        self.planner = RoundPlanner(self.policy, self.lives, Notes(ledger))

    def prepare(self) -> None:
        """Load the planner and what changes seldom, so that the first round is quick.

        Raises SourceError.
        """
        from slurm_gpu_aware.planning import record, round  # noqa: F401

        self._site_reader.prepare()

    def load(self) -> None:
        """Load what a previous selector left in the ledger."""
        self.tracker.load()
        for one in self.lives.all:
            one.load()

    def run(self) -> Outcome:
        """Run a round. Raises SourceError if Slurm does not answer."""
        started, outcome = self._timer(), Outcome()
        self._ledger.hide(self._site_reader.slurm().private_jobs)
        with contained("policy in force"):
            self._note_policy()
        view = self._read()
        pending = [job for job in view.jobs if job.state == "PENDING"]  # most others have ended
        current = [job for job in pending if job.id not in view.outdated]
        with contained("orphans"):
            self._leaver.leave_orphans(current, view.now, view.split, gate_held=view.gate_held)
        parked = [job.job for job in view.parked]
        with contained("holding pool"):
            self._pool.rescue(parked, self.tracker.asked_for_none)
            gated = {job.job.raw_id for job in view.gated if job.parked}
            ungated = [job for job in pending if job.raw_id not in gated]
            self._pool.free([*ungated, *stranded(parked, view.split)], view.split)
        outcome.queued = len(parked)
        queued = view.parked or view.released or view.elsewhere
        if queued or self.lives.any(lambda one: one.wants_round(view.gated, view.now)):
            self._plan_and_place(view, outcome)
        else:
            if self.site.wake_s <= view.now:
                self.site.wake_s = inf  # there was nothing to plan
            self.start_monitor.watch((), frozenset())
            with contained("guard of the head"):
                self._guard.keep({}, view.now)
        with contained("records of running jobs"):
            self._comments.remove(view.gated)  # last: GPUs that are free need not wait for it
        if view.all_ids:
            known = set(self.site.ids.values())
            self.lives.each(lambda one: one.forget(known))
            for forget in (self._backoff.forget, self._pool.forget):
                with contained("memory of jobs that are gone"):
                    forget(known)
            with contained("holding pool"):
                self._pool.tidy(pending)
            self._turns.forget(self.site.ids)
        outcome.took_s = self._timer() - started
        return outcome

    def _note_policy(self) -> None:
        self.policy.refresh()
        if self.policy.words != self._policy_noted:
            self._policy_noted = self.policy.words
            log.info("policy %s", self.policy.words)
            self._ledger.policy(self.policy.words)

    def _read(self) -> View:
        now, began = self._clock(), self._timer()
        self.start_monitor.round_begins()
        jobs = self._ended.left_out(everything := self._all_jobs())
        reservations = self._client.reservations()
        with contained("guard of the head"):
            self._guard.take_over(reservations)
        self._check_holder(reservations)  # now: the answer can take as long as a takeover
        gate = self._config.gate
        changed = any(is_changed(job, gate) for job in jobs)
        self._successors.look(jobs, changed=changed)
        if changed and self._gate_held(now):
            with contained("changes by owners"):
                self._changes.settle(jobs, now)
            began = self._timer()
            jobs = self._ended.left_out(everything := self._all_jobs())
        outdated = self.start_monitor.outdated(self._timer() - began)
        outdated |= {job.id for job in jobs if is_changed(job, gate)}
        with contained("records of requeued jobs"):
            jobs = self._comments.give_back(jobs)
        outdated |= self._comments.unclear
        unread = self._client.unread
        before = self.site.ids
        still = {number: before[number] for number in unread if number in before}
        self.site.ids = still | {job.raw_id: job.id for job in everything}
        gated: Sequence[GatedJob] = self._gated.among(jobs)
        with contained("job tracker"), self._ledger.later():  # one transaction
            self.tracker.observe(jobs, gated, now, unread)
            self._ended.note(everything, self.tracker.placed)
        self._backoff.freed(self._ended.freed(jobs, unread))
        self._successors.observe(gated)
        gated = self.lives.through(gated, lambda one, jobs: one.settle(jobs, now))
        return View(
            now,
            jobs,
            reservations,
            gated,
            parked=[job for job in gated if job.parked and job.id not in outdated],
            released=[job for job in gated if job.released],
            split=split_arrays(jobs),
            gate_held=self._gate_held(now),
            outdated=outdated,
            complete=not unread,
            all_ids=len(still) == len(unread),
            elsewhere=[job for job in gated if job.elsewhere and job.id not in outdated],
        )

    def _all_jobs(self) -> Sequence[SlurmJob]:
        """All jobs; asks ahead for what the round reads next."""
        self._client.ask_ahead("reservations")
        jobs = [job for job in self._client.jobs() if not is_trial(job)]
        if any(job.state == "PENDING" for job in jobs):
            # Not before: a GPU that is free in an older record of its node may be taken by now.
            self._client.ask_ahead("nodes", "partitions")
        return jobs

    def _candidates(self, view: View, profile: Profile | None) -> Candidates:
        """The jobs that this round may place, and the cluster as they find it."""
        held = [job.id for job in view.released if job.id not in self._turns.lasting]
        victims = {job_id: self.tracker.victims(job_id) for job_id in held}
        beside = to_plan(view.elsewhere)
        waiting = (*view.parked, *beside, *view.released)
        known = self.lives.through(Known(), lambda one, known: one.know(known, view))
        context = self._site_reader.context(
            view.jobs, waiting, view.reservations, victims, profile, known
        )
        context = self.lives.through(context, lambda one, context: one.admit(context, view.jobs))
        context = self._kept.renew(context)
        lost = frozenset(name for name, node in context.nodes.items() if not is_usable(node))
        self.start_monitor.watch(view.released, lost, grace_s=context.rules.grace_s)
        given = context, self._backoff, Licences(self._client), self._pool, self.lives
        opened = [one.job for one in view.released if one.id not in self._turns.lasting]
        rooms = self._limited.rooms([one.job for one in view.parked], opened, view.jobs)
        candidates = Candidates(
            *given,
            kept=self._kept,
            unplaceable=self._turns.unplaceable,
            by_choice=self._by_choice,
            jobs=view.jobs,
        )
        candidates.sort_out([*view.parked, *beside], view.jobs, rooms)
        return candidates

    def _plan_and_place(self, view: View, outcome: Outcome) -> None:
        profile = None
        with contained("profile"):
            profile = self._ledger.profile()
        candidates = self._candidates(view, profile)
        outcome.blocked, outcome.waiting = candidates.blocked, candidates.waiting
        context, began = candidates.context, self._timer()
        plan, record = self._plan(candidates, view, profile)
        plan, outcome.doubtful = self._verdicts.confirmed(plan, complete=view.complete)
        planning_s = self._timer() - began
        self._by_choice = frozenset(one.job_id for one in plan.waiting if one.postponement)
        if view.gate_held:
            given = context.cluster, self.policy.settings
            plan = self.lives.through(plan, lambda one, plan: one.order(plan, *given))
        with contained("verdicts"):
            bound = [one for one in view.parked if not goes_elsewhere(one, context)]
            impossible = infeasible(plan.waiting, candidates.to_plan, bound, context)
            self._turns.leave(
                self._turns.without_waiting_before(impossible, plan, candidates), candidates
            )
        plan = self._turns.open_until_start(plan, candidates, view.released)
        with contained("jobs that are opened ahead"):
            may = all(one.opens_ahead for one in self.lives.all)
            last = plan, candidates, view, self.policy.settings
            plan = self._successors.extended(*last, may=may, lasting=self._turns.lasting)
            outcome.ahead = self._successors.enough
        self.planner.tell_waiting(candidates, plan)
        if not (view.gate_held and self._gate_held(self._clock())):
            return  # the heartbeat says why
        stay = self._place(view, outcome, candidates, plan, planning_s)
        outcome.planned = record if outcome.placed else None
        held = self._gate_held(self._clock())
        done = Done(plan, outcome.placed, view, context, candidates.to_plan, gate_held=held)
        self.lives.each(lambda one: one.after(done))
        if self._gate_held(self._clock()):
            self._keep_waiting(view, outcome, candidates, plan, stay)

    def _place(
        self, view: View, outcome: Outcome, candidates: Candidates, plan: Plan, planning_s: float
    ) -> Sequence[GatedJob]:
        """Place, leave and restore jobs; return the parked ones that stay as they are."""
        from slurm_gpu_aware.planning.guard import cores_left

        leave, nodes = candidates.leave, candidates.context.cluster.nodes
        left, stays = {job.id for job, _ in leave}, dict[str, str]()
        with contained("jobs that are left to Slurm"):
            left, stays = self._leaver.leave(leave, view.now, view.split)
        for job_id, why in stays.items():
            candidates.waits(job_id, why)
        chosen = left | {assignment.job_id for assignment in plan.assignments}
        # Restore jobs that an interrupted round bound and this one neither places nor leaves.
        stay = [job for job in view.parked if job.id not in chosen]
        with contained("jobs of an interrupted round"):
            self._interrupted.restore(stay, view.now, view.split)
        planned = self._elsewhere.called(plan.assignments, candidates, view)
        assignments, untried = candidates.placeable(planned)
        outcome.note_full(candidates.context.cluster, assignments)
        outcome.untried = len(untried)
        for job in untried:
            candidates.waits(job.id, UNTRIED)
        with contained("holding pool"):
            self._pool.take([job for job in untried if self._pool.holds(job.job)])
        before, self._guard.cores = self._guard.cores, frozenset()
        with contained("guard of the head"):
            seen = candidates.context.cluster, candidates.requests
            self._guard.cores = cores_left(plan, *seen, before)
        if assignments and self._gate_held(self._clock()):
            given = assignments, candidates.to_plan, nodes
            outcome.placed, failed = self._placer.place(*given, planning_s)
            for job_id, why in failed.items():
                self._backoff.punish(job_id, why=why)
                candidates.waits(job_id, why)
        elif assignments:
            log.warning("the gate is about to open: no job is placed until it is held again")
        return stay

    def _keep_waiting(
        self,
        view: View,
        outcome: Outcome,
        candidates: Candidates,
        plan: Plan,
        stay: Sequence[GatedJob],
    ) -> None:
        """Guard the head's GPUs, fill the holding pool, show in jobs why they wait."""
        from slurm_gpu_aware.planning.guard import guarded

        context = candidates.context
        with contained("guard of the head"):
            past = candidates.later_passers
            wanted = guarded(
                plan,
                context.cluster,
                candidates.requests,
                view.now,
                # One that no filter sees starts before a round would see it.
                passing=bool(past) or context.slurm.hides_core_spec,
                parts=need_a_part(past),
                cores=self._guard.cores,
                above=highest(past, context),
                outside=outside(view.jobs, context),
            )
            self._guard.keep(wanted, self._gate_held_until(), waits=bool(plan.waiting))
        arrays = {candidates.to_plan[one.job_id].gated.job.array_id for one in plan.assignments}
        split = view.split | arrays
        with contained("jobs of nodes without GPUs"):
            stay = self._elsewhere.keep(stay, candidates, view, arrays)
        room = self._config.gate.queue_tests // max(1, len(context.nodes))
        with contained("holding pool"):
            outcome.unpooled = self._pool.fill(stay, room, split, self._gate_held_until())
        with contained("comments of waiting jobs"):
            self._comments.tell(stay, outcome.waiting, split)

    def _gate_held(self, now: float) -> bool:
        # The lease is extended when at most a third of it is gone, so half of it is always left.
        margin_s = min(
            self._config.selector.command_timeout_s + _GATE_MARGIN_S, self._config.gate.lease_s / 2
        )
        return self._gate_held_until() - now > margin_s

    def _plan(
        self, candidates: Candidates, view: View, profile: Profile | None
    ) -> tuple[Plan, Callable[[], Mapping[str, Any]]]:
        """The plan, its record; jobs with which it fails are left to Slurm."""
        isolation = Isolation(candidates.to_plan)
        try:
            plan, record = self.planner.plan(isolation, candidates, view, profile)
        except Exception:
            if view.gate_held and self._gate_held(self._clock()):
                self._turns.leave(isolation.left(view.parked), candidates)
                self._leaver.leave(candidates.leave, view.now, view.split)
            raise
        plan = candidates.in_task_order(plan)
        self._turns.leave(isolation.left(view.parked), candidates)
        self._turns.leave(without_policy(plan, candidates.to_plan, view.parked), candidates)
        return plan, record
