"""Isolation of jobs with which planning fails: the others are planned without them.

Containment of errors: one part of a round fails, and the round goes on to place jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request

if TYPE_CHECKING:
    from slurm_gpu_aware.selector.candidates import Candidate

log = logging.getLogger(__name__)

T = TypeVar("T")
Step: TypeAlias = Callable[[Sequence[Request]], T]
_MOST = 3  # records that one round leaves to Slurm; for each the queue is planned log2(n) times
_LONGEST = 200  # characters of an error in the ledger
_AGAIN_S = 60.0  # time until the same error is logged again
_MOST_FAILURES = 50  # parts and jobs of which errors are logged in this time
_told: dict[tuple[str, str], float] = {}


class Isolation:
    """Runs steps of planning, and finds by bisection the jobs with which they fail.

    Tasks of one record go together. No step may have effects or ask Slurm.
    """

    def __init__(self, candidates: Mapping[str, Candidate]) -> None:
        self._candidates = candidates
        self.faults: dict[int, str] = {}
        """Number of a record -> why it is left to Slurm."""

    def run(self, step: Step[T], queue: Sequence[Request]) -> tuple[T, Sequence[Request]]:
        """(Outcome of a step, the queue for which it succeeds).

        Raises the step's error if that is not one of a few jobs.
        """
        while True:
            try:
                return step(queue), queue
            except Exception as exc:
                found = self._at_fault(step, queue, exc) if len(self.faults) < _MOST else None
                if found is None:
                    raise
            job_id, error = found
            number = self._number(job_id)
            log.error("job %s is left to Slurm: planning fails with it", job_id, exc_info=error)
            self.faults[number] = f"planning fails with it: {error!r:.{_LONGEST}}"
            queue = self.sound(queue)

    def sound(self, queue: Iterable[Request]) -> list[Request]:
        """The queue without the jobs at fault."""
        return [one for one in queue if self._number(one.job_id) not in self.faults]

    def left(self, parked: Iterable[GatedJob]) -> list[tuple[GatedJob, str]]:
        """The records at fault, each with the reason."""
        return [(job, self.faults[n]) for job in parked if (n := job.job.raw_id) in self.faults]

    def _at_fault(
        self, step: Step[T], queue: Sequence[Request], error: Exception
    ) -> tuple[str, Exception] | None:
        """A job with which the step fails, though not for the queue before it; None: none is.

        ``error``: that of the whole queue.
        """
        if _error(step, ()) is not None:
            return None
        good, bad = 0, len(queue)
        while bad - good > 1:
            half = (good + bad) // 2
            wrong = _error(step, queue[:half])
            if wrong is None:
                good = half
            else:
                bad, error = half, wrong
        return queue[good].job_id, error

    def _number(self, job_id: str) -> int:
        return self._candidates[job_id].gated.job.raw_id


def _error(step: Step[Any], queue: Sequence[Request]) -> Exception | None:
    """The error with which a step fails; None: it succeeds."""
    try:
        step(queue)
    except Exception as exc:
        return exc
    return None


class Contained:
    """A block whose errors are logged; it ends there, and what follows goes on."""

    __slots__ = ("_job_id", "_part")

    def __init__(self, part: str, job_id: str) -> None:
        self._part, self._job_id = part, job_id

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, SourceError):
            return False
        _tell(self._part, self._job_id, error)
        return True


def contained(part: str, job_id: str = "") -> Contained:
    """A block of a round whose errors stay inside it: they are logged with part and job.

    SourceError passes: if Slurm does not answer, there is no round.
    """
    return Contained(part, job_id)


def _tell(part: str, job_id: str, error: Exception) -> None:
    now = time.monotonic()
    for key in [key for key, at in _told.items() if now - at >= _AGAIN_S]:
        del _told[key]
    if (part, job_id) in _told or len(_told) >= _MOST_FAILURES:
        return
    _told[part, job_id] = now
    what = f"{part}, job {job_id}" if job_id else part
    log.error("%s: failed; the round goes on without it", what, exc_info=error)
