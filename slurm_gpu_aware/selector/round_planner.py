"""Plan of a live round: what only the selector knows is added to the queue before it is planned."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Note, Plan, Waiting
from slurm_gpu_aware.planning.record import record_round
from slurm_gpu_aware.planning.stages import Stage, Step, World, steps, told
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.selector.isolation import Isolation, contained
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.live import Lives, Seen
from slurm_gpu_aware.selector.passers import need_a_part
from slurm_gpu_aware.selector.policy_options import PolicyInForce
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.selector.waiting_jobs import Promises

log = logging.getLogger(__name__)
_FORGOTTEN = "the last round decided nothing of it; the next one tries again"
_MOST_NAMED = 20


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
    """Plans rounds with the site's policy, and what features know of the site."""

    policy: PolicyInForce
    lives: Lives
    notes: Notes
    features: Sequence[Stage] = FEATURES  # The stages of a round.
    promises: Promises = field(default_factory=Promises)

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
        queue = asked.queue
        plan = with_forgotten(one.whole_plan, isolation.sound(queue))
        plan = self.lives.through(plan, lambda live, plan: live.planned(plan, queue))
        with contained("notes of stages"):
            self.notes.write(plan.notes, asked.now)
        site = self.lives.site
        if view.complete and site.wake_s <= asked.now:
            site.wake_s = math.inf  # this was the round
        site.wake_s = min(site.wake_s, plan.wake_s)
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
            more = self.lives.waits(entry, plan)
            reason = "; ".join(filter(None, (entry.reason, broken.get(entry.job_id))))
            if entry.turn is not None:
                more["turn"] = entry.turn
            candidates.waits(entry.job_id, reason, entry.shadow_start_s, **more)

    def _asked(
        self, isolation: Isolation, candidates: Candidates, view: View, profile: Profile | None
    ) -> Round:
        """The input of the round."""
        context, config = candidates.context, self.lives.site.config
        guarded = config.gate.guard_head
        settings = replace(self.policy.settings, guarded=guarded, guarded_core=guarded)
        with contained("guard of the head"):
            settings = replace(
                settings,
                guarded=guarded and need_a_part(candidates.passers),
                guarded_core=guarded and bool(candidates.later_passers),
            )
        queue: Sequence[Request] = [one.request for one in candidates.to_plan.values()]
        inputs = self.lives.inputs(Seen(view, context, profile, settings, queue))
        queue = self.lives.requests(isolation, queue, candidates.to_plan)
        one = Round(queue, context.cluster, settings, context.now, self.policy.options)
        return told(one, self.features, World(config.sections, inputs))


def with_forgotten(plan: Plan, queue: Sequence[Request]) -> Plan:
    """The plan in which jobs that a stage took from the queue, and nothing decided of, wait."""
    decided = {one.job_id for one in plan.assignments} | {one.job_id for one in plan.waiting}
    lost = [one.job_id for one in queue if one.job_id not in decided]
    if not lost:
        return plan
    log.error(
        "a stage took jobs from the queue and decided nothing of them: %s", lost[:_MOST_NAMED]
    )
    return replace(plan, waiting=(*plan.waiting, *(Waiting(job, _FORGOTTEN) for job in lost)))


def _with_queue(one: Round, step: Step, queue: Sequence[Request]) -> Round:
    return step(one.only(queue))
