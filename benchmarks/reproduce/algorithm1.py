"""PowerFlow's Algorithm 1 as printed, with its misprints read as meant: to compare with.

One step at a time from two heaps: GPUs first, then clocks; each step is tested before it is taken,
and the first one that does not fit ends its loop.
"""

import heapq
import math
from collections.abc import Sequence

from slurm_gpu_aware.features.power.menu import SizingJob

__all__ = ["algorithm1"]


class _Held:
    """What a job holds: its size and clock."""

    def __init__(self, job: SizingJob) -> None:
        assert job.table is not None
        self.job, self.table = job, job.table
        self.size, self.clock = -1, 0

    def at(self, size: int, clock: int) -> tuple[float, float]:
        """(time of the work left, power)."""
        row = self.table.row(self.job.sizes[size])
        return (
            self.job.work * float(self.table.time_s[row, clock]),
            float(self.table.power_w[row, clock]),
        )

    def efficient(self, size: int) -> int:
        """The clock with the least energy."""
        return min(range(len(self.table.clocks_mhz)), key=lambda c: math.prod(self.at(size, c)))

    @property
    def gpus(self) -> int:
        return self.job.sizes[self.size] if self.size >= 0 else 0

    def step(self, size: int, clock: int, divisor: str) -> tuple[float, float, float] | None:
        """(key, time, power) of a step; None: it brings nothing."""
        (now_s, now_w), (time_s, power_w) = self.at(self.size, self.clock), self.at(size, clock)
        if not time_s < now_s:
            return None
        cost = power_w - now_w if divisor == "power" else time_s * power_w - now_s * now_w
        gain = now_s - time_s
        return (-gain / cost if cost > 0 else -1e30 * gain), time_s, power_w


def algorithm1(
    jobs: Sequence[SizingJob], gpus: int, limit_w: float, idle_w: float, divisor: str = "power"
) -> dict[str, tuple[int, float, float]]:
    """Job ID -> (GPUs, time of the work left, power) of the jobs that start.

    ``divisor``: what a gain in time is divided by, the ``power`` or the ``energy`` of the step.
    """
    held = [_Held(job) for job in jobs]
    free, spare_w = gpus, limit_w - gpus * idle_w
    for one in sorted(held, key=lambda one: math.prod(one.at(0, one.efficient(0)))):
        clock = one.efficient(0)
        need_w = one.at(0, clock)[1] - one.job.sizes[0] * idle_w
        if one.job.sizes[0] > free:
            continue
        if need_w > spare_w:
            break
        one.size, one.clock = 0, clock
        free, spare_w = free - one.gpus, spare_w - need_w
    started = [one for one in held if one.size >= 0]
    for grow in (True, False):
        heap: list[tuple[float, int]] = []

        def push(i: int, grow: bool = grow, heap: list[tuple[float, int]] = heap) -> None:
            if (target := _target(started[i], grow)) and (
                step := started[i].step(*target, divisor)
            ):
                heapq.heappush(heap, (step[0], i))

        for i in range(len(started)):
            push(i)
        while heap:
            _, i = heapq.heappop(heap)
            one = started[i]
            size, clock = _target(one, grow) or (0, 0)
            more = one.job.sizes[size] - one.gpus
            more_w = one.at(size, clock)[1] - one.at(one.size, one.clock)[1] - more * idle_w
            if more > free:
                continue
            if more_w > spare_w:
                break
            one.size, one.clock = size, clock
            free, spare_w = free - more, spare_w - more_w
            push(i)
    return {one.job.job_id: (one.gpus, *one.at(one.size, one.clock)) for one in started}


def _target(one: _Held, grow: bool) -> tuple[int, int] | None:
    """(size, clock) after the next step; None: there is none."""
    if grow:
        size = one.size + 1
        return (size, one.efficient(size)) if size < len(one.job.sizes) else None
    return (one.size, one.clock + 1) if one.clock + 1 < len(one.table.clocks_mhz) else None
