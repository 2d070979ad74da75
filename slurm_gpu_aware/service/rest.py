"""When the timer's rounds need not ask Slurm: nothing there is ours, and nothing has happened.

Reading 10,000 jobs that have ended every few seconds costs more than a per cent of a core, to see
each time that none of them is ours to place. What would change that is told: the filter writes a
byte for each submission. Everything else that time brings about (begin times, reservations, limits,
ends) concerns jobs that are parked, placed or running for us, and while there is one, no round is
left out. Slurm is still asked every `ASK_S`, for what nobody tells: a job that was requeued after
its end, a filter that cannot write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["ASK_S", "Rest"]

ASK_S = 30.0
"""Slurm is asked at least this often."""
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

    def told(self) -> None:
        """An event has come, or the selector has just started."""
        self._awake_until = self.timer() + _AWAKE_S

    def asked(self, *, quiet: bool) -> bool:
        """All was read. Returns whether something came of which nobody had told.

        ``quiet``: nothing there is ours.
        """
        now = self.timer()
        surprised = self._quiet and not quiet and now >= self._awake_until
        if surprised:
            self._awake_until = now + _SURPRISED_S
        self._quiet, self._asked = quiet, now
        return surprised

    def allowed(self) -> bool:
        """Whether the timer's round may be left out."""
        now = self.timer()
        return self._quiet and now >= self._awake_until and now - self._asked < ASK_S
