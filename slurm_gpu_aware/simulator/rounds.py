"""The rounds of a simulation: who takes part, in which order, and what the planner is shown."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace

from slurm_gpu_aware.planning import Plan, PlanSettings
from slurm_gpu_aware.planning.order import guaranteed_prefix
from slurm_gpu_aware.planning.round import plan_round
from slurm_gpu_aware.request import Request
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.floor import Floor
from slurm_gpu_aware.simulator.orders import order_key
from slurm_gpu_aware.simulator.postponing import ages
from slurm_gpu_aware.simulator.settings import SimSettings

__all__ = ["Rounds"]


class Rounds:
    """The waiting jobs, and the questions that are put to ``planning``."""

    def __init__(self, settings: SimSettings, floor: Floor) -> None:
        self.settings = settings
        self.floor = floor
        self.waiting: dict[int, ActiveJob] = {}
        """Position in the trace -> job."""
        self.blocked: int | None = None
        """Position of the job that headed the line when the last round was done, until an end."""
        self._plan_settings = PlanSettings(
            policy=settings.policy,
            classes=settings.classes,
            backfill=settings.backfill,
            backfill_depth=settings.backfill_depth,
        )
        self._key = order_key(settings)
        self._lined = settings.sticky and not settings.preemptive
        """Who waits does not change its place: the queue is kept sorted."""
        self._line: list[tuple[tuple[float, ...], int]] = []
        """Keys and positions of waiting jobs, in order; unused where keys change with time."""
        self._profiled = settings.policy_options.get("interference") is not None
        """The policy looks at who runs beside whom."""
        self._patient = settings.backfill or ages(settings.policy)
        """Jobs may overtake, or get less choosy with time."""

    def wait(self, active: ActiveJob) -> None:
        """Take a job into the queue."""
        self.waiting[active.position] = active
        if self._lined:
            insort(self._line, (self._key(active.job, active.progress), active.position))

    def stop_waiting(self, active: ActiveJob) -> None:
        """Take a job out of the queue."""
        del self.waiting[active.position]
        if self._lined:
            entry = (self._key(active.job, active.progress), active.position)
            del self._line[bisect_left(self._line, entry)]

    def note_head(self) -> None:
        """The round is done: remember who could not start."""
        self.blocked = self._line[0][1] if self._line else None

    def still_blocked(self) -> bool:
        """The head that found no place last time is still the head, and no GPU became free: then
        nobody behind it starts either, unless jobs may overtake or get less choosy with time."""
        return not self._patient and bool(self._line) and self._line[0][1] == self.blocked

    def select(self) -> tuple[set[int] | None, list[ActiveJob]]:
        """Jobs that keep their GPUs (None: all), and those to plan, first comes first."""
        settings, running = self.settings, self.floor.running
        if self._lined:
            return None, list(self._head_of_line())
        for active in running.values():
            active.credit(self.floor.clock.now)
        everybody = [*running.values(), *self.waiting.values()]
        everybody.sort(key=lambda a: (*self._key(a.job, a.progress), a.position))
        prefix = guaranteed_prefix([a.job.gpus for a in everybody], self.floor.total)
        chosen, rest = everybody[:prefix], everybody[prefix:]
        keep = {a.position for a in chosen if a.placed is not None} if settings.sticky else set()
        queue = [a for a in chosen if a.position not in keep]
        if settings.backfill:
            queue += [a for a in rest if a.placed is None or not settings.sticky]
        return keep, queue

    def plan(self, chosen: list[ActiveJob], keep: set[int] | None) -> Plan:
        """Let the planner place the chosen jobs beside those that keep their GPUs."""
        shown = self.floor.view(keep, with_holders=self.settings.backfill or self._profiled)
        return plan_round(
            self._ranked(chosen),
            shown,
            self._plan_settings,
            self.floor.clock.now,
            policy_options={self.settings.policy: self.settings.policy_options},
        )

    def _head_of_line(self) -> Iterator[ActiveJob]:
        """Waiting jobs in order, as far as the planner would look."""
        room = self.floor.free
        beyond = 1 + (self.settings.backfill_depth if self.settings.backfill else 0)
        for _, position in self._line:
            active = self.waiting[position]
            room -= active.job.gpus
            beyond -= room < 0
            if beyond < 0:
                return
            yield active

    def _ranked(self, ordered: list[ActiveJob]) -> list[Request]:
        """Requests whose priority says their place in the list."""
        if self.settings.order == "fifo":
            return [a.request for a in ordered]  # submission time already says it
        return [
            replace(a.request, priority=float(len(ordered) - place))
            for place, a in enumerate(ordered)
        ]
