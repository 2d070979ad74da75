"""One round: read, see what became of placed jobs, park again, plan, place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurm_gpu_aware.admission.binding import fills_sockets, is_bound
from slurm_gpu_aware.admission.free_cores import with_sockets
from slurm_gpu_aware.admission.per_gpu import least_with_gpus
from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.snapshot import Hold, build_cluster, is_usable
from slurm_gpu_aware.admission.translate import Site, class_of, wishes_of
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.licence_gate import is_parked
from slurm_gpu_aware.gate.request_forms import gpus_per_node
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import PLANNABLE, Candidates, waiting_entry
from slurm_gpu_aware.selector.holding_pool import Shelf, stranded
from slurm_gpu_aware.selector.infeasible import left_to_slurm
from slurm_gpu_aware.selector.job_tracker import Watch
from slurm_gpu_aware.selector.ledger_writer import Books
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.selector.orphans import Strays
from slurm_gpu_aware.selector.placer import Candidate, Placer
from slurm_gpu_aware.selector.policy_options import policy_options
from slurm_gpu_aware.selector.pool_choice import TAKEN, placeable, spare
from slurm_gpu_aware.selector.qos import QosReader
from slurm_gpu_aware.selector.recovery import Recovery, is_released
from slurm_gpu_aware.selector.release import Leaver
from slurm_gpu_aware.selector.start_monitor import Looks
from slurm_gpu_aware.selector.task_order import in_task_order, queue_order
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmPartition,
    split_arrays,
)
from slurm_gpu_aware.slurm.topology import Network

__all__ = ["Outcome", "Rounds"]

log = logging.getLogger(__name__)

_GATE_MARGIN_S = 5.0
"""Nothing is pinned if the gate may open within this time and that of one command: a job that
starts meanwhile must not be touched."""
_EPILOG_S = 3.0
"""A node on which an epilog runs for longer than this is not planned with until it is done."""
_CONFIG_S = 60.0
"""Slurm's configuration and its QOS are read again after this time."""


@dataclass
class Outcome:
    """What a round did."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    parked_again: int = 0
    released: int = 0
    """Jobs with an open gate that Slurm has not started yet."""
    held: int = 0
    """Parked jobs that something other than the gate holds."""
    taken: int = 0
    """Parked jobs that have a place and wait until Slurm has looked at them."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0
    planned: Callable[[], Mapping[str, Any]] | None = None
    """The plan and all that it was made from, as plain values; None: nothing was placed."""


class Rounds:
    """Everything that lives from one round to the next."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        books: Books,
        *,
        gate_held_until: Callable[[], float],
        shelf: Shelf | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._config = config
        self._books = books
        self._clock = clock
        self._timer = timer
        self._gate_held_until = gate_held_until
        self._shelf = shelf if shelf is not None else Shelf(client, clock=clock, timer=timer)
        self.watch = Watch(books, config)
        self._backoff = Backoff(config.selector.reuse_backoff_s, timer)
        self._leaver = Leaver(client, config, books, self._backoff)
        self._strays = Strays(client, config, books, self.watch, self._backoff, self._leaver)
        self._recovery = Recovery(client, config, books, self.watch, self._backoff)
        self.looks = Looks(
            client, config, self._recovery, self._gate_held, clock=clock, timer=timer
        )
        self._placer = Placer(client, config, books, self.watch, self.looks, timer, clock)
        self._policy_options = policy_options(config)
        self._network = Network(client, NETWORK_LEVELS)
        self._slurm: SlurmConfig | None = None
        self._qos = QosReader(client)
        self._read_at = -float("inf")
        self._completing: dict[int, float] = {}
        """Record number of a job whose epilog runs -> since when."""
        self.ids: dict[int, str] = {}
        """Slurm's record number -> job id, of the last reading."""

    def run(self) -> Outcome:
        """Run a round. Raises SourceError if Slurm does not answer."""
        started = self._timer()
        outcome = Outcome()
        now = self._clock()
        self._books.private = self._static().private_jobs
        self.looks.if_due()
        jobs = self.looks.read_all()
        unread = self._client.unread
        still = {number: self.ids[number] for number in unread if number in self.ids}
        self.ids = still | {job.raw_id: job.id for job in jobs}
        self.watch.observe(jobs, now, unread)
        pending = [job for job in jobs if job.state == "PENDING"]  # most others have ended
        parked = [job for job in pending if is_parked(job, self._config.gate)]
        released = [job for job in pending if is_released(job, self._config)]
        self.looks.seen(job.id for job in released)
        split = split_arrays(jobs)
        self._strays.open(pending, now, split, gate_held=self._gate_held(now))
        self._shelf.rescue(parked, self.watch.asked_for_none)
        gated = {job.raw_id for job in parked}
        ungated = [job for job in pending if job.raw_id not in gated]
        self._shelf.free([*ungated, *stranded(parked, split)], split)
        outcome.queued = len(parked)
        outcome.released = len(released)
        if parked or released:
            self._plan_and_place(jobs, parked, released, outcome, all_known=not unread)
        if len(still) == len(unread):  # else somebody is there of whom we know no id
            known = set(self.ids.values())
            self._backoff.forget(known)
            self._shelf.forget(known)
            self._shelf.tidy(pending)
        outcome.parked_again += self.looks.freed
        outcome.took_s = self._timer() - started
        return outcome

    def _plan_and_place(
        self,
        jobs: Sequence[SlurmJob],
        parked: Sequence[SlurmJob],
        released: Sequence[SlurmJob],
        outcome: Outcome,
        *,
        all_known: bool,
    ) -> None:
        """``all_known``: no record was left unread when ``jobs`` were read."""
        between = self.looks.if_due
        nodes = {node.name: node for node in self._client.nodes()}
        between()
        now = self._clock()
        lost = frozenset(name for name, node in nodes.items() if not is_usable(node))
        # Of whom a look has parked again by now we know old records only.
        seen = [job for job in released if job.id not in self.looks.parked]
        due = self._recovery.due(seen, lost)
        if due and self._gate_held(now):
            by_id = {job.id: job for job in jobs}
            outcome.parked_again = self._recovery.park_again(by_id, due, now)
            outcome.released -= outcome.parked_again
        waiting = [job for job in released if job.id not in due]
        self.looks.starting = [job.id for job in seen if job.id not in due]
        slurm = self._static()
        partitions = {p.name: p for p in self._client.partitions()}
        holds = [h for h in (self._hold(j, partitions, now) for j in waiting) if h]
        rules = PreemptionRules(slurm, partitions, self._qos.known)
        self._recovery.grace_s = rules.grace_s
        profile = self._books.profile()
        measured = profile.level_ratios if profile is not None else {}
        penalties = self._config.placement.penalties_with(measured)
        cluster = build_cluster(
            list(nodes.values()),
            jobs,
            profile,
            slurm,
            classes=self._config.site.classes,
            penalties=penalties,
            network=self._network.groups(penalties.general, self._timer),
            holds=holds,
            busy_nodes=self._busy(jobs, self._timer()),
            now=now,
            class_of=self._class_of,
            applications=self._config.applications,
            rules=rules,
        )
        if any(is_bound(job, slurm) for job in (*parked, *waiting)):
            cluster = with_sockets(cluster, nodes, jobs, holds, now)
        between()
        reservations = self._client.reservations()
        site = Site(
            self._config,
            slurm,
            nodes,
            partitions,
            reservations,
            cluster,
            now,
            rules,
            fabric=self._network.fabric,
        )
        sorted_out = Candidates(site, self._backoff, Licences(self._client), self._shelf)
        sorted_out.sort_out(parked, jobs, between)
        candidates, leave = sorted_out.found, sorted_out.leave
        outcome.held += sorted_out.held
        outcome.waiting += sorted_out.waiting
        began = self._timer()
        plan, planned = self._plan(candidates, site)
        planning_s = self._timer() - began
        between()
        plan = in_task_order(plan, candidates)
        if all_known:  # else there are CPUs that nobody accounts for
            leave += left_to_slurm(plan.waiting, candidates, parked, cluster, between)
        given_up = {job.raw_id for job, _ in leave}
        outcome.waiting += [
            waiting_entry(w.job_id, w.reason, w.shadow_start_s)
            for w in plan.waiting
            if candidates[w.job_id].job.raw_id not in given_up
        ]
        if not self._gate_held(self._clock()):
            log.warning("the gate is not held: nothing is placed until it is")
            return
        split = split_arrays(jobs)
        left, stays = self._leaver.leave(leave, now, split, between)
        outcome.waiting += [waiting_entry(job_id, why) for job_id, why in stays.items()]
        chosen = {assignment.job_id for assignment in plan.assignments}
        # Whatever an interrupted round left pinned and this one does not place.
        # Not what has just been left to Slurm: it may run by now.
        pinned = [job for job in parked if job.id not in chosen | left]
        self._recovery.unpin(pinned, split, between)
        assignments, shelved = placeable(plan.assignments, candidates, self._shelf)
        outcome.taken = len(shelved)
        outcome.waiting += [waiting_entry(job_id, TAKEN) for job_id in shelved]
        self._shelf.take(
            [c.job for c in map(candidates.__getitem__, shelved) if self._shelf.holds(c.job)],
            between,
        )
        if assignments and not self._gate_held(self._clock()):
            log.warning("the gate is about to open: nothing is placed until it is held again")
        elif assignments:
            placed, failed = self._placer.place(
                assignments, candidates, cluster.nodes, planning_s, self._clock()
            )
            outcome.placed, outcome.planned = placed, planned
            for job_id, why in failed.items():
                self._backoff.punish(job_id)
                outcome.waiting.append(waiting_entry(job_id, why))
        if not self._gate_held(self._clock()):
            return
        gone = left | chosen
        split |= {
            task.job.array_id
            for task in map(candidates.__getitem__, chosen)
            if task.job.array_id is not None
        }
        stay = [
            job
            for job in sorted(parked, key=queue_order)
            if not self._shelf.holds(job) and job.id not in gone
        ]
        room = self._config.gate.queue_tests // max(1, len(nodes))
        self._shelf.put(spare(stay, PLANNABLE, room, split), self._gate_held_until(), between)

    def _busy(self, jobs: Iterable[SlurmJob], now: float) -> frozenset[str]:
        """Nodes on which one epilog takes so long that waiting there is no good."""
        ending = [job for job in jobs if job.state == "COMPLETING"]
        self._completing = {j.raw_id: self._completing.get(j.raw_id, now) for j in ending}
        slow = [job for job in ending if now - self._completing[job.raw_id] > _EPILOG_S]
        return frozenset(name for job in slow for name in job.nodes)

    def _gate_held(self, now: float) -> bool:
        # A lease is extended when at most a third of it is gone: half of it is always left.
        margin_s = min(
            self._config.selector.command_timeout_s + _GATE_MARGIN_S, self._config.gate.lease_s / 2
        )
        return self._gate_held_until() - now > margin_s

    def _static(self) -> SlurmConfig:
        """Slurm's configuration, and its QOS where they preempt; read once a minute."""
        if self._slurm is None or self._timer() - self._read_at > _CONFIG_S:
            self._slurm = self._client.config()
            self._read_at = self._timer()
            if self._slurm.preempt_type == "qos":
                self._qos.refresh()
        return self._slurm

    def _class_of(self, job: SlurmJob) -> str | None:
        if parse(job.admin_comment) is None:
            return None
        return class_of(job, wishes_of(job, self._config), self._config)

    def _hold(
        self, job: SlurmJob, partitions: Mapping[str, SlurmPartition], now: float
    ) -> Hold | None:
        """What a job whose gate is open will take as soon as Slurm starts it."""
        original = parse(job.admin_comment)
        if original is None or not job.req_nodes:
            return None
        nodes = len(job.req_nodes)
        slots = placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job) or ()
        gpus = len(slots) or gpus_per_node(original, nodes)
        cpus, memory_mb = least_with_gpus(job, original, self._static(), partitions)
        return Hold(
            job_id=job.id,
            nodes=job.req_nodes,
            slots=slots,
            gpus_per_node=gpus,
            # The record shows defaults per GPU only after Slurm has tried to start the job.
            cpus_per_node=max(-(-job.cpus // nodes), cpus * gpus),
            memory_mb_per_node=max(job.req_tres.get("mem", 0) // nodes, memory_mb * gpus),
            end_s=now + job.time_limit_s,
            app_class=self._class_of(job),
            whole_node=original.exclusive or job.exclusive,
            fills_sockets=is_bound(job, self._static()) and fills_sockets(original, nodes),
            memory_mb_per_cpu=job.memory_mb_per_cpu or 0,
            victims=tracked.victims if (tracked := self.watch.placed.get(job.id)) else frozenset(),
        )

    def _plan(
        self, candidates: Mapping[str, Candidate], site: Site
    ) -> tuple[Plan, Callable[[], Mapping[str, Any]] | None]:
        """The plan, and what writes it down."""
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
        options = self._policy_options
        plan = plan_round(
            queue,
            site.cluster,
            settings,
            site.now,
            policy_options=options,
        )
        return plan, partial(record_round, queue, site.cluster, settings, site.now, plan, options)
