"""When the timer's rounds need not ask Slurm: it would cost too much to see that nothing is ours.

A round asks at least every ``selector.round_s``, as long as that costs less than a per cent of a
core. Where slurmctld remembers many thousands of jobs that have ended it costs more, to see each
time that none of them is ours to place. Then an idle selector asks as often as a per cent allows,
and every `MOST_S` at least. What could change is told: the filter writes a byte for each
submission. Everything else that time brings about (begin times, reservations, limits, ends)
concerns jobs that are parked, placed or running for us, and while there is one, no round is left
out. What nobody tells is seen by the rounds that ask: a job that was requeued after its end, a
filter that cannot write.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["MOST_S", "Rest", "spent_s"]

MOST_S = 30.0
"""Slurm is asked at least this often."""
_SHARE = 0.008
"""Of a core, for asking: publishing and the heartbeat take their part of the per cent."""
_AWAKE_S = 30.0
"""After an event every round asks for so long: the filter speaks before the job exists."""
_SURPRISED_S = 600.0
"""As long after a job came of which no event told."""


@dataclass
class Rest:
    """Whether the selector may rest."""

    timer: Callable[[], float] = time.monotonic
    """Seconds of a clock that is never set."""
    _awake_until: float = math.inf
    _asked: float = field(default=-math.inf)
    _quiet: bool = False
    _cost_s: float = 0.0

    def told(self) -> None:
        """An event has come, or the selector has just started."""
        self._awake_until = self.timer() + _AWAKE_S

    def asked(self, *, quiet: bool, cost_s: float) -> bool:
        """All was read. Returns whether something came of which nobody had told.

        ``quiet``: nothing there is ours. ``cost_s``: CPU time of the round, with that of the
        commands that it waited for.
        """
        now = self.timer()
        surprised = self._quiet and not quiet and now >= self._awake_until
        if surprised:
            self._awake_until = now + _SURPRISED_S
        self._quiet, self._asked, self._cost_s = quiet, now, cost_s
        return surprised

    def allowed(self) -> bool:
        """Whether the timer's round may be left out."""
        now = self.timer()
        after_s = min(MOST_S, self._cost_s / _SHARE)
        return self._quiet and now >= self._awake_until and now - self._asked < after_s


def spent_s() -> float:
    """CPU time of this process and of the children that it waited for. Units: s."""
    return sum(os.times()[:4])
