"""Explorations: a job whose performance model is missing runs at several clocks in turn at first.

So its measurement (``gpu-aware-profile job``) sees several clocks in one run, and one job makes a
model. One job at a time of each user, name and GPU model is explored. Until its clock is back it
counts with the limits of its GPUs, and its clock is not chosen otherwise. What was begun stands in
the ledger, so that another selector ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.performance_sample import own_name
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.job_clocks import Clock
from slurm_gpu_aware.selector.job_tables import JobTables

__all__ = ["Exploration", "Explorations", "tried_clocks"]

_CLOCKS = 5
_LOWEST = 0.55
"""Share of the highest clock; the most efficient one lies between (60 to 75% on V100 to A100)."""
_AGAIN_S = 86_400.0
"""A model that is still missing after this time is explored once more."""


@dataclass(frozen=True)
class Exploration:
    """The clocks of one job in its first minutes."""

    application: str
    """Name under which its measurement is stored."""
    gpu_model: str
    clocks_mhz: tuple[int, ...]
    step_s: float
    back: Clock
    """The clock that it was started with, and gets again."""
    began: float | None = None
    """Unix s; None: the job does not run yet."""

    @property
    def key(self) -> tuple[str, str]:
        """One job at a time is explored of each."""
        return self.application, self.gpu_model

    @property
    def stopped(self) -> bool:
        """Whether it has ended before all clocks were tried."""
        return not self.clocks_mhz

    def clock(self, now: float) -> Clock:
        """The clock that the job should have now."""
        step = -1 if self.began is None else int((now - self.began) // self.step_s)
        return self.clocks_mhz[step] if 0 <= step < len(self.clocks_mhz) else self.back

    def is_over(self, now: float) -> bool:
        """Whether all clocks have been tried."""
        lasts_s = self.step_s * len(self.clocks_mhz)
        return self.began is not None and not 0 <= now - self.began < lasts_s

    def detail(self) -> dict[str, Any]:
        """What the ledger keeps of it, for `Explorations.restore`."""
        return {
            "model": self.application,
            "gpu_model": self.gpu_model,
            "step_s": self.step_s,
            "clocks_mhz": list(self.clocks_mhz),
            "back_mhz": self.back,
        }


def tried_clocks(supported: Sequence[int]) -> tuple[int, ...]:
    """Some supported clocks from the highest one down, evenly spread.

    The highest comes first: a program that starts does not iterate yet, and that clock is the one
    which most jobs go on with.
    """
    if not supported:
        return ()
    known = np.array(supported)
    wanted = np.linspace(1.0, _LOWEST, _CLOCKS) * known.max()
    nearest = (int(known[np.argmin(np.abs(known - clock))]) for clock in wanted)
    return tuple(dict.fromkeys(nearest))


class Explorations:
    """The jobs that are explored, or will be when they start. Times are Unix s."""

    def __init__(self, length_s: float) -> None:
        """``length_s``: time that all clocks take together; 0: no job is explored."""
        self._length_s = length_s
        self._chosen: dict[str, Exploration] = {}
        self._jobs: dict[str, Exploration] = {}
        self._tried: dict[tuple[str, str], float] = {}

    def choose(self, queue: Sequence[Request], tables: JobTables, now: float) -> None:
        """Choose the jobs of a queue that are explored if this round starts them."""
        self._chosen = {}
        self._tried = {k: at for k, at in self._tried.items() if 0 <= now - at < _AGAIN_S}
        taken = self._tried.keys() | {one.key for one in self._jobs.values()}
        for request in queue if self._length_s > 0 else ():
            name, gpu_model = request.performance_model, tables.gpu_model(request)
            if name is None or gpu_model is None or request.clock != "auto":
                continue
            key = own_name(request.user, name), gpu_model
            clocks = tried_clocks(tables.clocks_of(gpu_model))
            if key not in taken and len(clocks) > 1 and tables.why_none(request) is not None:
                taken.add(key)
                step_s = self._length_s / len(clocks)
                self._chosen[request.job_id] = Exploration(*key, clocks, step_s, None)

    def is_chosen(self, job_id: str) -> bool:
        """Whether a job of the queue is explored if this round starts it."""
        return job_id in self._chosen

    def placed(self, job_id: str, clock: Clock) -> None:
        """Take a job that this round has released with a clock."""
        self._jobs.pop(job_id, None)  # of an earlier run
        if (chosen := self._chosen.get(job_id)) is not None:
            self._jobs[job_id] = replace(chosen, back=clock)

    def restore(self, job_id: str, detail: Mapping[str, Any], began: float) -> None:
        """Take up what a previous selector has begun. Raises KeyError and the like for nonsense."""
        clocks, step_s = tuple(map(int, detail["clocks_mhz"])), float(detail["step_s"])
        names = str(detail["model"]), str(detail["gpu_model"])
        self._jobs[job_id] = Exploration(*names, clocks, step_s, detail["back_mhz"], began)

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all other jobs."""
        self._jobs = {job_id: one for job_id, one in self._jobs.items() if job_id in job_ids}

    def of(self, job_id: str) -> Exploration | None:
        """The exploration of a job; None: it has none, or no more."""
        return self._jobs.get(job_id)

    def begin(self, job_id: str, now: float) -> Exploration:
        """Begin with a job that runs."""
        begun = self._jobs[job_id] = replace(self._jobs[job_id], began=now)
        return begun

    def end(self, job_id: str, now: float) -> None:
        """End the exploration of a job; its clock is back, or nothing was begun."""
        one = self._jobs.pop(job_id)
        if one.began is not None:
            self._tried[one.key] = now

    def stop(self, job_id: str, now: float) -> None:
        """End it for a job that refuses a clock: it shall have its own one until it ends."""
        one = self._jobs[job_id]
        self._tried[one.key] = now
        self._jobs[job_id] = replace(one, clocks_mhz=())

    def __iter__(self) -> Iterator[tuple[str, Exploration]]:
        return iter(list(self._jobs.items()))

    def looks(self, wanted: Callable[[str], Clock], now: float) -> bool:
        """Whether a round is due: a job waits for its beginning, or for another clock."""
        return any(
            one.began is None
            or wanted(job_id) != one.clock(now)
            or (one.is_over(now) and not one.stopped)
            for job_id, one in self._jobs.items()
        )
