"""Plan of a live round: what only the selector knows is added to the queue before it is planned."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.due_dates.due_date import due_values
from slurm_gpu_aware.features.due_dates.live import DueDates
from slurm_gpu_aware.features.moves.live import Mover
from slurm_gpu_aware.features.moves.movable import MOVING, RETURNING
from slurm_gpu_aware.features.power.power_budget import POWER
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.features.queue_order.live import FirstSubmissions
from slurm_gpu_aware.features.queue_order.settings import QueueConfig
from slurm_gpu_aware.features.queue_order.stage import RULE, rule_of
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.features.waiting.live import Postponements
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Note, Plan
from slurm_gpu_aware.planning.record import record_round
from slurm_gpu_aware.planning.stages import Stage, Step, World, steps, told
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.selector.head_guard import passing
from slurm_gpu_aware.selector.isolation import Isolation, contained
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.policy_options import PolicyInForce
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.selector.waiting_jobs import Promises

log = logging.getLogger(__name__)


class Notes:
    """Writes them, also after a restart of the selector only the first."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._there: set[tuple[str, str]] = set()
        """(job, kind) of the last round's notes, which the ledger has."""

    def write(self, notes: Sequence[Note], now: float) -> None:
        """Write the notes of a round that are new."""
        self._there &= {(note.job_id, note.kind) for note in notes}
        for job_id, kind, detail in notes:
            if (job_id, kind) in self._there:
                continue
            self._there.add((job_id, kind))
            if self._ledger.first_event(job_id, kind) is None:
                log.info("job %s: %s: %s", job_id, kind.replace("_", " "), detail)
                self._ledger.event(job_id, kind, detail, now)


@dataclass
class RoundPlanner:
    """Plans rounds with the site's policy, power, moves, waits and due dates."""

    policy: PolicyInForce
    power: SitePower
    mover: Mover
    postponements: Postponements
    due: DueDates
    firsts: FirstSubmissions
    notes: Notes
    config: Config
    guards: bool = True  # Whether the GPUs of the head are held against jobs that pass the gate.
    features: Sequence[Stage] = FEATURES  # The stages of a round.
    promises: Promises = field(default_factory=Promises)

    @property
    def exchanges(self) -> bool:
        """Whether jobs start in another order than Slurm's."""
        return rule_of(self.config.of(QueueConfig)).exchanges

    def plan(
        self, isolation: Isolation, candidates: Candidates, view: View, profile: Profile | None
    ) -> tuple[Plan, Callable[[], Mapping[str, Any]]]:
        """The plan, its record."""
        one = asked = self._asked(isolation, candidates, view, profile)
        for stage, step in steps(self.features):
            if stage.optional:  # starts go on, whatever is wrong with it
                with contained(stage.name):
                    one = step(one)
            else:
                one, _ = isolation.run(partial(_with_queue, one, step), one.queue)
        plan = one.whole_plan
        with contained("notes on performance models"):
            plan = self.power.tables.noted(plan, asked.queue)
        with contained("postponements"):
            self.postponements.note(plan)
        with contained("notes of stages"):
            self.notes.write(plan.notes, asked.now)
        self.mover.wake_s = min(self.mover.wake_s, plan.wake_s)
        asked = replace(asked, queue=isolation.sound(asked.queue))
        return plan, partial(record_round, asked, plan, self.features)

    def tell_waiting(self, candidates: Candidates, plan: Plan) -> None:
        """Add the jobs that wait for GPUs to the candidates, with their reasons."""
        given_up = {job.job.raw_id for job, _ in candidates.leave}
        broken: Mapping[str, str] = {}
        with contained("promised starts"):
            broken = self.promises.told(plan.waiting, candidates.context.cluster)
        for entry in plan.waiting:
            if candidates.to_plan[entry.job_id].gated.job.raw_id in given_up:
                continue
            more = due_values(plan, entry.job_id)
            with contained("postponements", entry.job_id):
                more |= self.postponements.times(entry)
            reason = "; ".join(filter(None, (entry.reason, broken.get(entry.job_id))))
            if entry.turn is not None:
                more["turn"] = entry.turn
            candidates.waits(entry.job_id, reason, entry.shadow_start_s, **more)

    def _asked(
        self, isolation: Isolation, candidates: Candidates, view: View, profile: Profile | None
    ) -> Round:
        """The input of the round."""
        context = candidates.context
        cluster, now = context.cluster, context.now
        guarded = self.guards and passing(view.jobs, context)
        settings, power, dates = replace(self.policy.settings, guarded=guarded), None, self.due
        with contained("power limit"):
            power = self.power.state(cluster, profile, settings, self.mover.under_way.power_w)

        def dated(queue: Sequence[Request]) -> Sequence[Request]:
            return dates.queue(queue, candidates.to_plan, self.mover.restart_s)

        def aged(queue: Sequence[Request]) -> Sequence[Request]:
            return self.firsts.noted(queue, candidates.to_plan)

        queue: Sequence[Request] = [one.request for one in candidates.to_plan.values()]
        known = {
            "first submissions": aged,
            "postponements": self.postponements.noted,
            "due dates": dated,
            "power": self.power.tabled,
        }
        for part, step in known.items():
            with contained(part):
                queue, _ = isolation.run(step, queue)
        returning: Mapping[str, Assignment] = {}
        with contained("moves under way"):
            returning = self.mover.under_way.targets(cluster.nodes, queue, now) if queue else {}
        moving = None
        if view.complete:
            with contained("moves"):
                moving = self.mover.moving(view.gated, context, self.power.tables, dates)
        rule = rule_of(self.config.of(QueueConfig), context.slurm.age_per_s)
        inputs = {RULE: rule, POWER: power, RETURNING: returning, MOVING: moving}
        one = Round(queue, cluster, settings, now, self.policy.options)
        return told(one, self.features, World(self.config.sections, inputs))


def _with_queue(one: Round, step: Step, queue: Sequence[Request]) -> Round:
    return step(one.only(queue))
