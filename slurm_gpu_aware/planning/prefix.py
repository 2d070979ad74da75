"""Guaranteed prefix: order of the queue, PAL's placement priority, trials of placements."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import as_running, take

_NUMBER = re.compile(r"[0-9]{1,18}")


def in_slurm_order(queue: Iterable[Request]) -> list[Request]:
    """Return the queue by turn, priority (larger first), submit time, :func:`id_key`."""
    return sorted(queue, key=lambda r: (r.turn, *slurm_key(r)))


def slurm_key(request: Request) -> tuple[Any, ...]:
    """Sort key of Slurm's own order."""
    return -request.priority, request.submit_s, *id_key(request.job_id)


def exchanged(
    jobs: Iterable[Request], keys: Iterable[tuple[float, ...]], stays: Iterable[bool]
) -> list[Request]:
    """Jobs by their keys, equal ones in their order; none passes one before it that ``stays``."""
    found: list[Request] = []
    ready: list[tuple[tuple[float, ...], int, Request]] = []
    for place, (request, key, stay) in enumerate(zip(jobs, keys, stays, strict=True)):
        heappush(ready, (key, place, request))
        while stay:  # what comes after it is not ready yet
            *_, first = heappop(ready)
            found.append(first)
            stay = first is not request
    return found + [request for *_, request in sorted(ready)]


@lru_cache(maxsize=1 << 14)
def id_key(job_id: str) -> tuple[tuple[int, ...], str]:
    """Sort key of job ids: ``98_3`` comes after ``98_2`` and before ``98_10``."""
    return tuple(int(n) for n in _NUMBER.findall(job_id)), job_id


def by_class(prefix: Iterable[Request], classes: Sequence[str]) -> list[Request]:
    """Placement priority (PAL, section III-B): most sensitive class first, unknown ones last.

    Jobs whose GPUs Slurm chooses come before them: no exact GPUs of their nodes can be chosen then.
    """
    rank = {name: position for position, name in enumerate(classes)}

    def key(request: Request) -> int:
        return -1 if request.left is not None else rank.get(request.app_class, len(rank))

    return sorted(prefix, key=key)


def guaranteed_prefix(gpus: Sequence[int], total: int) -> int:
    """Return the length of the longest prefix with a demand of at most ``total`` GPUs.

    PAL's truncation by demand alone (section III-B); a round also places the jobs.

    Examples
    --------
    >>> guaranteed_prefix([2, 4, 3, 1], 7)
    2
    """
    return bisect_right(list(accumulate(gpus)), total)


class TrialResults(dict[int, tuple[Assignment | Postponement | None, "TrialResults"]]):
    """Identity of a request -> its answer and the results after it (a tree)."""


class Trial:
    """Placement of jobs in turn on a copy of a cluster; trials share ``results`` of a beginning."""

    def __init__(self, start: Cluster, dispatcher: Dispatcher, results: TrialResults) -> None:
        self._cluster = start.copy()
        self._dispatcher = dispatcher
        self._results = results
        self._ends = dispatcher.ends.copy()

    def place(self, request: Request) -> Assignment | Postponement | None:
        """Place the next job, or return its wait; None if it has no place.

        Raises PlacementFailedError.
        """
        if (known := self._results.get(id(request))) is None:
            answer = self._dispatcher.place(request, self._cluster, ends=self._ends)
            after = TrialResults() if isinstance(answer, Assignment) else self._results
            known = self._results[id(request)] = (answer, after)
        answer, self._results = known
        if isinstance(answer, Assignment):
            held = take(self._cluster, request, answer)
            self._ends.start(as_running(request, answer, self._dispatcher.now, held))
        return answer
