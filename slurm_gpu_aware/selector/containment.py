"""Containment of errors: one part of a round fails, and the round goes on to place jobs."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from slurm_gpu_aware.errors import SourceError

log = logging.getLogger(__name__)

_AGAIN_S = 60.0  # time until the same error is logged again
_MOST = 50  # parts and jobs of which errors are logged in this time
_told: dict[tuple[str, str], float] = {}


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
    if (part, job_id) in _told or len(_told) >= _MOST:
        return
    _told[part, job_id] = now
    what = f"{part}, job {job_id}" if job_id else part
    log.error("%s: failed; the round goes on without it", what, exc_info=error)
