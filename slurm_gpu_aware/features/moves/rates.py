"""Rates of moves: how many may begin now, in the whole site and of each user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.moves.settings import RATE_S, MoveSettings


class MoveRates:
    """Moves that may begin in a round.

    If running jobs of several users may move, a user begins a move only while the hour has more
    moves left than the user has begun in it. So no user, and no number of users that is smaller
    than `MoveSettings.per_hour`, uses up the hour: one gets half of it (rounded up), of n that want
    all of it each gets about one part in n + 1.

    Parameters
    ----------
    movable : all running jobs that allow moves.
    recent : (time, user) of moves that began.
    """

    def __init__(
        self,
        moves: MoveSettings,
        movable: Iterable[Movable],
        recent: Iterable[tuple[float, str]],
        now: float,
    ) -> None:
        self._begun = Counter(user for at, user in recent if now - at < RATE_S)
        self._of_hour = moves.per_hour - self._begun.total()
        self._of_round = min(moves.per_round, self._of_hour)
        self._shared = len({one.request.user for one in movable}) > 1

    @property
    def full(self) -> bool:
        """Whether no move may begin any more."""
        return self._of_round <= 0

    def allow(self, one: Movable) -> bool:
        """Whether a move of this job may begin."""
        return not self.full and (not self._shared or self._begun[one.request.user] < self._of_hour)

    def begin(self, one: Movable) -> None:
        """Count a move of this job."""
        self._begun[one.request.user] += 1
        self._of_hour -= 1
        self._of_round -= 1
