"""Back-off of jobs that could not start, and changes of parked jobs that Slurm refuses."""

import math
import time
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field

STALE_S = 5.0
"""Until its scheduler tries a job again, at most this long, Slurm shows the old reason."""
_BLOCKED_S = 2.0
HELD_BY = "held by "
"""Start of a reason that names one of Slurm's, by which Slurm itself keeps a job from starting."""
TRIES = 3
"""Starts that Slurm does not explain: so often a job's GPUs are kept while it waits. If it is left
to Slurm, its gate then opens in its turn until it starts."""
MOST = 5  # Refusals in a row after which the gate opens.


@dataclass
class _Waits:
    """The waits of one job, in seconds of the timer."""

    until: float = -math.inf
    doubtful_until: float = -math.inf  # until then only the reason ``Licenses`` counts
    punished: float = -math.inf
    count: int = 0
    blind: int = 0  # how often it was blocked while bound and showed no cause while parked
    misplaced: bool = False
    keeps: bool = False
    why: str = ""
    held_by: str = ""
    nodes: frozenset[str] | None = None


@dataclass
class Backoff:
    """Back-off of jobs that could not start: the wait doubles, up to 16 times the first.

    A job for which Slurm shows what blocks it waits only a short time: once parked, its reason
    tells how long that lasts. Slurm shows no reason for a job that it has not tried yet, so only
    ``Licenses`` says that nothing blocks it. If a cause shows only while the job is bound (a
    maintenance of its node), the short wait doubles, too.

    A job that found no room, or did not start in time, is tried again as soon as a job has ended on
    its nodes, the first `TRIES` times: Slurm may never start it, and each try binds GPUs in vain.
    """

    base_s: float
    timer: Callable[[], float] = time.monotonic  # Seconds of a clock that is never set.
    _waits: dict[str, _Waits] = field(default_factory=dict)
    _unexplained: dict[str, int] = field(default_factory=dict)

    def knows(self, job_id: str) -> bool:
        """Whether the job was ever held back."""
        return job_id in self._waits

    def misplaced(self, job_id: str) -> bool:
        """Whether the job could not start at an earlier place, and nothing else blocked it."""
        return job_id in self._waits and self._waits[job_id].misplaced

    def failed(self, job_id: str, within_s: float = math.inf) -> bool:
        """Whether the job could not start where it was placed, in the last ``within_s``."""
        waits = self._waits.get(job_id)
        return waits is not None and self.timer() - waits.punished <= within_s

    def failures(self, job_id: str) -> int:
        """How often the job did not start, and Slurm showed no cause."""
        return self._unexplained.get(job_id, 0)

    def keeps(self, job_id: str) -> bool:
        """Whether its GPUs are kept while it waits: else jobs behind it would take them."""
        return job_id in self._waits and self._waits[job_id].keeps

    def cause(self, job_id: str) -> str:
        """Why the job could not start, for its user."""
        waits = self._waits.get(job_id)
        return (waits and waits.why) or "it could not start"

    def held_by(self, job_id: str) -> str:
        """Slurm's reason for which the job could not start; empty: it showed none."""
        return self.last(job_id)[1]

    def last(self, job_id: str) -> tuple[float, str]:
        """(When the job was last held back, by the timer, Slurm's reason for it; empty: none)."""
        waits = self._waits.get(job_id, _Waits())
        return waits.punished, waits.held_by

    def punish(
        self,
        job_id: str,
        *,
        blocked: bool = False,
        misplaced: bool = False,
        unexplained: bool = False,
        silent: bool = False,
        why: str = "",
        held_by: str = "",
        nodes: Collection[str] | None = (),
    ) -> float:
        """Hold a job back once more; return for how many seconds.

        ``blocked``: Slurm showed by what. ``misplaced``: its place was the cause. ``unexplained``:
        Slurm showed no cause. ``silent``: parked, it never shows ``Licenses``. ``why``: for its
        user. ``held_by``: Slurm's reason. ``nodes``: where it did not start, as far as it was
        bound; None: no job's end there ends its wait.
        """
        waits = self._waits.setdefault(job_id, _Waits())
        now = self.timer()
        long_s = wait_s = self.base_s * (1 << min(waits.count, 4))
        if blocked:
            wait_s = min(_BLOCKED_S * (1 << min(waits.blind, 16)), long_s)
            waits.blind += 1
        waits.count += 1
        if unexplained:
            self.count(job_id)
        # Slurm tried it in vain: the room that it needs comes back, and jobs behind it wait.
        few = unexplained and self.failures(job_id) <= TRIES
        waits.keeps = blocked and few
        waits.why, waits.held_by = why, held_by
        waits.nodes = frozenset(nodes) if few and nodes is not None else None
        waits.misplaced |= misplaced
        # What the parked job shows tells of a limit, and nothing of the room on its nodes.
        doubtful_s = wait_s if blocked and (unexplained or silent) else long_s
        waits.punished, waits.until, waits.doubtful_until = now, now + wait_s, now + doubtful_s
        return wait_s

    def freed(self, nodes: Set[str]) -> None:
        """End the waits for room on nodes where jobs have ended since the last round."""
        for waits in list(self._waits.values()):  # the start monitor's thread may add one
            if nodes and waits.nodes is not None and (not waits.nodes or waits.nodes & nodes):
                waits.until = waits.doubtful_until = -math.inf

    def shown(self, job_id: str) -> None:
        """Note that the parked job shows what blocks it, so the cause does not need a binding."""
        waits = self._waits.get(job_id)
        if waits is not None and self.timer() - waits.punished >= STALE_S:
            waits.blind = 0

    def wait_s(self, job_id: str, reason: str = "") -> float | None:
        """Rest of the wait of a job that shows this reason; None: it is not held back."""
        waits = self._waits.get(job_id, _Waits())
        until = waits.until if reason == "Licenses" else max(waits.until, waits.doubtful_until)
        left_s = until - self.timer()
        return left_s if left_s > 0 else None

    def count(self, job_id: str) -> None:
        """Count a start that failed, and Slurm showed no cause."""
        self._unexplained[job_id] = self.failures(job_id) + 1

    def clear(self, job_id: str) -> None:
        """Drop the waits of a job that has another request now; its `failures` stay."""
        self._waits.pop(job_id, None)

    def forget(self, known: set[str]) -> None:
        """Drop jobs that are gone. ``known`` has an unsplit array under its number."""
        for one in (self._waits, self._unexplained):
            for job_id in list(one):  # the start monitor's thread may add one
                if job_id not in known and job_id.partition("_")[0] not in known:
                    del one[job_id]


@dataclass
class Refusals:
    """The refusals since a parked job last got through."""

    ended: Callable[[], Set[str]] = frozenset
    """Slurm's sentences for jobs that have ended: they are no refusals."""
    count: int = 0
    why: str = ""  # Of the last one: job and Slurm's sentence.
    who: set[str] = field(default_factory=set)  # The users of these jobs.
    through: bool = True  # A job got through since the gate was last opened, or it never was.

    @property
    def too_many(self) -> bool:
        """Whether the gate must open."""
        return self.count >= MOST

    def refused(self, job_id: str, why: str, user: str) -> None:
        """Count a refusal."""
        if why not in self.ended():
            self.count += 1
            self.who.add(user)
            self.why = f"job {job_id}: {why}"

    def accepted(self) -> None:
        """Forget the refusals: a job got through."""
        self.forget()
        self.through = True

    def forget(self) -> None:
        """Begin a new row."""
        self.count = 0
        self.who.clear()

    def try_again(self) -> None:
        """Note that the gate closes: until a job gets through, the first refusal opens it again."""
        self.count = 0 if self.through else MOST - 1
