"""CPU time of a call, for claims that it takes next to none."""

import time
from collections.abc import Callable

__all__ = ["least_cpu_s"]


def least_cpu_s(call: Callable[[], object], enough_s: float = 0.0, tries: int = 20) -> float:
    """Least CPU time of the call, s; it is made again only until one takes less than ``enough_s``.

    Beside other processes the same work takes more CPU time, now and then several times as much.
    """
    least_s = float("inf")
    for _ in range(tries):
        start = time.process_time()
        call()
        least_s = min(least_s, time.process_time() - start)
        if least_s < enough_s:
            break
    return least_s
