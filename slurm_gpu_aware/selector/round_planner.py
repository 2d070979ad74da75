"""Plan of a live round: what only the selector knows is added to the queue before it is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.movable import Move
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.selector.containment import contained
from slurm_gpu_aware.selector.due_dates import DueDates
from slurm_gpu_aware.selector.isolation import Isolation
from slurm_gpu_aware.selector.mover import Mover
from slurm_gpu_aware.selector.policy_in_force import PolicyInForce
from slurm_gpu_aware.selector.postponements import Postponements
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.selector.site_power import SitePower


@dataclass
class RoundPlanner:
    """Plans rounds with the site's policy, power, moves, waits and due dates."""

    policy: PolicyInForce
    power: SitePower
    mover: Mover
    postponements: Postponements
    due: DueDates

    def plan(
        self, isolation: Isolation, candidates: Candidates, view: View, profile: Profile | None
    ) -> tuple[Sequence[Assignment], Sequence[Move], Plan, Callable[[], Mapping[str, Any]]]:
        """Jobs that are back from a move, moves that begin, the plan of the others, its record."""
        from slurm_gpu_aware.planning.moved import begun, place_moved
        from slurm_gpu_aware.planning.record import record_round
        from slurm_gpu_aware.planning.round import plan_round
        from slurm_gpu_aware.planning.sharing import split_queue, with_shards

        context = candidates.context
        cluster, now = context.cluster, context.now
        settings, options = self.policy.settings, self.policy.options
        power, dates = None, self.due
        with contained("power limit"):
            power = self.power.state(cluster, profile, settings, self.mover.under_way.power_w)

        def dated(queue: Sequence[Request]) -> Sequence[Request]:
            return dates.queue(queue, candidates.to_plan, self.mover.restart_s)

        queue: Sequence[Request] = [one.request for one in candidates.to_plan.values()]
        noted, tabled = self.postponements.noted, self.power.tabled
        for part, step in ("postponements", noted), ("due dates", dated), ("power", tabled):
            with contained(part):
                queue, _ = isolation.run(step, queue)
        split, _ = isolation.run(lambda queue: split_queue(queue, context.cluster), queue)
        queue, cluster = split.queue, split.cluster
        moved: Sequence[Assignment] = ()
        targets: Mapping[str, Assignment] = {}
        with contained("moves under way"):
            targets = self.mover.under_way.targets(cluster.nodes, queue, now) if queue else {}
        if targets:
            (moved, queue, cluster, power), _ = isolation.run(
                lambda queue: place_moved(
                    targets, queue, cluster, settings, now, policy_options=options, power=power
                ),
                queue,
            )
        moves: Sequence[Move] = ()
        if view.complete:
            tables = self.power.tables
            with contained("moves"):
                planned = self.mover.plan(
                    view.gated, context, queue, cluster, self.policy, tables, dates, power
                )
                cluster, power = begun(cluster, planned, settings, now, power)
                moves = planned
        given = cluster, settings, now
        plan, queue = isolation.run(
            lambda queue: plan_round(queue, *given, policy_options=options, power=power), queue
        )
        record = partial(record_round, queue, *given, plan, options, power=power)
        fill = partial(with_shards, plan, split, *given)
        plan = isolation.run(fill, split.sharing)[0]
        with contained("notes on performance models"):
            plan = self.power.noted(plan, queue)
        with contained("postponements"):
            self.postponements.note(plan)
        with contained("due dates"):
            dates.note_impossible(plan.due, now)
        self.mover.wake_s = min(self.mover.wake_s, plan.wake_s)
        return moved, moves, plan, record
