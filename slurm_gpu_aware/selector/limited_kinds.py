"""Kinds of jobs that a limit has held, and how many of them a round opens.

Slurm shows a limit only in jobs that it tries. Once a job has ended, all others of its kind show
that only the gate holds them, although the limit has room for one. Opened together they keep the
free GPUs from jobs of other users until they are parked again, a second or two after each end.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.holding_pool import alike, is_limit_reason
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

_KEPT_S = 600.0
"""So long a limit counts: jobs that are opened in vain each ten minutes delay few others."""


def _number(job: SlurmJob) -> int:
    """What a job's record keeps from its gate to its start: tasks of an array count as one."""
    return job.array_id or job.raw_id


def _owner(job: SlurmJob) -> Hashable:
    """What the limits of associations and QOS count jobs by, as far as a job shows it."""
    return job.user, job.account, job.qos


@dataclass
class LimitedKinds:
    """As many jobs may run as ran when the limit was last met; if all these run, twice as many."""

    backoff: Backoff
    _met: dict[Hashable, tuple[float, int]] = field(default_factory=dict)
    """Kind -> (when a job of it was last parked again for a limit, most jobs of its user that ran
    at a time since)."""
    _kinds: dict[int, Hashable] = field(default_factory=dict)
    """Number of a job -> its kind when it was last parked: a binding changes what it asks for."""

    def rooms(
        self, parked: Sequence[SlurmJob], released: Sequence[SlurmJob], jobs: Iterable[SlurmJob]
    ) -> dict[Hashable, int]:
        """Kind -> how many of its parked jobs may be opened now. Others: as many as fit.

        ``jobs``: all, as a round read them.
        """
        now = self.backoff.timer()
        for job in (one for one in parked if self.backoff.knows(one.id)):
            at, why = self.backoff.last(job.id)
            if is_limit_reason(why) and now - at < _KEPT_S:
                kind = alike(job)
                if at > self._met.get(kind, (-math.inf, 0))[0]:
                    self._met[kind] = at, 0
        if not self._met:
            return {}
        there = {_number(job) for job in released}
        kinds = {number: kind for number, kind in self._kinds.items() if number in there}
        self._kinds = kinds | {_number(job): alike(job) for job in parked}
        of = {self._kinds[_number(job)]: _owner(job) for job in parked}
        running = Counter(_owner(job) for job in jobs if job.state in HOLDING)
        opened = Counter(self._kinds.get(_number(job), alike(job)) for job in released)
        self._met = {
            kind: (at, max(most, running[of[kind]]))
            for kind, (at, most) in self._met.items()
            if kind in of and now - at < _KEPT_S
        }
        return {
            kind: _room(most, running[of[kind]], opened[kind])
            for kind, (_, most) in self._met.items()
        }


def _room(most: int, running: int, opened: int) -> int:
    may_run = most if running < most else max(1, 2 * running)
    return max(0, may_run - running - opened)
