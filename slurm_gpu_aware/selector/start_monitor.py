"""Looks at placed jobs that have not started: between rounds, and inside long ones.

One that cannot start keeps its GPUs and its node from others. On a large site a round takes
seconds, so it does not wait for the next one: a round asks here between its phases, between two
jobs that it plans, and between the updates that it sends, whether a second has passed.

What a round read before a look is stale for the jobs that the look has parked again: for that
round their GPUs stay taken, which is safe, and the next round follows at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.selector.recovery import FEW, Recovery, is_released
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Looks"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Between two looks, however long they take."""
_SOON_S = 0.5
"""Between two quick looks while nothing else is done."""
_QUICK_S = 0.5
"""If all jobs were last read within this time, a look at more than a few reads them all: one by
one a few take as long."""


class Looks:
    """Who is placed and has not started, and when to look there again."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        recovery: Recovery,
        gate_held: Callable[[float], bool],
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._config = config
        self._recovery = recovery
        self._gate_held = gate_held
        self._clock = clock
        self._timer = timer
        self._begun = self._ended = -math.inf
        self._all_took_s = math.inf
        self.starting: list[str] = []
        """Jobs whose gate is open and that have not started, as of the last round or look."""
        self.parked: set[str] = set()
        """Jobs that looks meant to park again since a round read all."""
        self.freed = 0
        """How many of them were: their GPUs can be planned with as soon as all is read anew."""

    def read_all(self) -> list[SlurmJob]:
        """All jobs; how long that takes is remembered. Raises SourceError."""
        began = self._timer()
        jobs = self._client.jobs()
        self._all_took_s = self._timer() - began
        return jobs

    def seen(self, starting: Iterable[str]) -> None:
        """A round has read all jobs; these are the placed ones that have not started."""
        self.starting = list(starting)
        self.parked, self.freed = set(), 0
        self._begun = self._ended = self._timer()

    def opened(self, job_ids: Iterable[str]) -> None:
        """The gate of these jobs has just been opened."""
        self.starting += job_ids

    def due_in_s(self) -> float:
        """Seconds until the next look while nothing else is done; inf: there is nobody to look at.

        Looks are a second apart at most; quick ones take a quarter of the time at most.
        """
        if not self.starting:
            return math.inf
        pause_s = min(_LOOK_S, max(_SOON_S, 3 * (self._ended - self._begun)))
        return max(0.0, self._ended + pause_s - self._timer())

    def if_due(self) -> None:
        """Inside a round: look if the last one began a second ago; half of the time at most."""
        pause_s = max(_LOOK_S, 2 * (self._ended - self._begun))
        if self.starting and self._timer() - self._begun >= pause_s:
            self.try_look()

    def try_look(self) -> bool:
        """Look, whatever happens; whether somebody was parked again, so that GPUs are free."""
        try:
            return self.look() > 0
        except SourceError as exc:
            log.warning("placed jobs are looked at in the next round: %s", exc)
        except Exception:
            log.exception("placed jobs are looked at in the next round")
        self.starting = []
        return False

    def look(self) -> int:
        """Look at placed jobs that have not started, and at nothing else.

        If there are more than `FEW` and reading all jobs takes long, those that were looked at
        longest ago. Returns how many were parked again. Raises SourceError.
        """
        self._begun = self._timer()
        try:
            return self._look()
        finally:
            self._ended = self._timer()

    def _look(self) -> int:
        now = self._clock()
        if not self._gate_held(now):
            return 0
        ids, others = self.starting, []
        if len(ids) <= FEW:
            read = self._client.jobs_of(ids)
        elif self._all_took_s <= _QUICK_S:
            read = self.read_all()
        else:
            ids, others = ids[:FEW], ids[FEW:]
            read = self._client.jobs_of(ids)
        known = {job.id: job for job in read}
        self.starting = others
        waiting = [
            known[job_id]
            for job_id in ids
            if job_id in known and is_released(known[job_id], self._config)
        ]
        due = self._recovery.due(waiting, frozenset(), some=True)
        self.starting += [job.id for job in waiting if job.id not in due]
        self.parked.update(due)
        freed = self._recovery.park_again(known, due, now)
        self.freed += freed
        return freed
