"""Order of the queue: Slurm's order, and PAL's placement priority in the guaranteed prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurm_gpu_aware.model.request import Request

__all__ = ["by_class", "guaranteed_prefix", "id_key", "in_slurm_order", "queue_key"]

_NUMBER = re.compile(r"[0-9]{1,18}")


def queue_key(request: Request) -> tuple[float, float, tuple[int, ...], str]:
    """Sort key of the queue: priority (larger first), submit time, :func:`id_key`."""
    return (-request.priority, request.submit_s, *id_key(request.job_id))


def id_key(job_id: str) -> tuple[tuple[int, ...], str]:
    """Sort key of job ids: ``98_3`` comes after ``98_2`` and before ``98_10``."""
    return tuple(int(n) for n in _NUMBER.findall(job_id)), job_id


def in_slurm_order(queue: Iterable[Request]) -> list[Request]:
    """Return the queue in Slurm's order."""
    return sorted(queue, key=queue_key)


def by_class(prefix: Sequence[Request], classes: Sequence[str]) -> list[Request]:
    """Return the prefix with the most sensitive class first, stable; unknown classes last.

    This is placement priority, not scheduling priority (PAL, section III-B): all jobs of the
    prefix start now.
    """
    rank = {name: position for position, name in enumerate(classes)}
    return sorted(prefix, key=lambda request: rank.get(request.app_class, len(rank)))


def guaranteed_prefix(gpus: Sequence[int], total: int) -> int:
    """Return the length of the longest prefix with a demand of at most ``total`` GPUs.

    PAL's truncation by demand alone (section III-B). Packing, eligibility and CPUs can shorten the
    prefix further, so a round also places the jobs.

    Examples
    --------
    >>> guaranteed_prefix([2, 4, 3, 1], 7)
    2
    """
    left = total
    for length, wanted in enumerate(gpus):
        left -= wanted
        if left < 0:
            return length
    return len(gpus)
