"""Explorations: a job whose performance model is missing runs at several clocks in turn.

So one job makes a model, by the power that its nodes measure at each clock, and
by ``gpu-aware-profile job``, where it is used. A job is planned and started as any other one; its
exploration begins once it runs, if the power limit then leaves the limits of its GPUs. With them it
counts until its clock is back; if the limit does not leave them any more, it ends. What was begun
stands in the ledger, so that another selector ends it.

Power of a job at the clocks that it tried: what its nodes' energy counters say between changes.

Each record of a clock that was set carries the energy counter of its GPUs; the mean power at a
clock is the difference to the next record of the same GPUs. A record that lacks the counter, or is
not of exactly the job's GPUs on its node, says nothing. Nodes write the records, so what their GPUs
cannot draw counts for nothing, either.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan
from typing import Any, NamedTuple

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPU_W
from slurm_gpu_aware.features.models.live import put_measured
from slurm_gpu_aware.features.models.performance_model import (
    UNKNOWN_BATCH,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.features.power.clock_orders import Clock, JobClocks
from slurm_gpu_aware.features.power.job_tables import ExplorationPower
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.ledger import Event

_TOLERANCE = 1.05  # A GPU is kept at its power limit up to some percent.
_FALLS = 0.97  # The power at a higher clock is no smaller, but for the noise.
_CLOCKS = 5
_LOWEST = 0.55
"""Share of the highest clock; the most efficient one lies between (60 to 75% on V100 to A100)."""
_AGAIN_S = 86_400.0  # A model that is still missing after this time is explored once more.
_ATTEMPTS = 3  # Jobs that begin with it within that time, if none goes on to the end.
_Key = tuple[str, str]
_NAMES = ("model", "gpu_model", "class")


class ExploredPower(NamedTuple):
    """What the nodes of a job measured."""

    gpus: int
    nodes: int
    power_w: Mapping[int, float]
    """SM clock in MHz -> mean power of all GPUs together; the highest clock first."""


class _Reading(NamedTuple):
    at: float
    energy_mj: int
    mhz: int


class _Sum:
    """Time and energy at one clock on one node."""

    def __init__(self) -> None:
        self.seconds = self.joules = 0.0


def explored_power(
    events: Sequence[Event], clocks_mhz: Sequence[int], least_s: float, limit_w: float
) -> ExploredPower:
    """Power at each clock at which all nodes of the job measured it for ``least_s`` at least.

    ``events``: those of the job. ``limit_w``: power limit of one GPU. Of its last run everything
    counts that ends after its exploration has begun.
    """
    ordered = sorted(events, key=lambda event: event.id or 0)  # clocks of nodes may differ
    gpus_of = _gpus_of(ordered)
    sums: dict[tuple[str, int], _Sum] = {}
    last: dict[str, _Reading | None] = {}
    begun = False
    for event in ordered:
        if event.kind == "released":
            sums, last, begun = {}, {}, False
        elif event.kind == "exploring":
            begun = True
        elif event.kind == "clock_set":
            node = str(event.detail.get("node"))
            now, before = _reading(event, gpus_of.get(node)), last.get(node)
            if before is not None and event.at <= before.at:
                continue  # a record that was read twice
            if begun and now is not None and before is not None:
                _add(sums.setdefault((node, before.mhz), _Sum()), before, now)
            last[node] = now
    found = {}
    for mhz in sorted(clocks_mhz, reverse=True):
        watts = [_watts(sums.get((n, mhz)), len(g), least_s, limit_w) for n, g in gpus_of.items()]
        if watts and None not in watts:
            found[mhz] = sum(one for one in watts if one is not None)
    return ExploredPower(sum(map(len, gpus_of.values())), len(gpus_of), _without_start(found))


def _gpus_of(events: Sequence[Event]) -> dict[str, list[int]]:
    """Node -> GPUs of the last start; empty: not known."""
    started = [event.detail.get("gpus") for event in events if event.kind == "started"]
    if not started or not isinstance(started[-1], Mapping):
        return {}
    return {str(node): sorted(gpus) for node, gpus in started[-1].items() if gpus}


def _reading(event: Event, gpus: Sequence[int] | None) -> _Reading | None:
    """The meter at a change; None: it is not known, or not that of the job's GPUs of the node."""
    said: Mapping[str, Any] = event.detail
    mhz, energy_mj = said.get("mhz"), said.get("counter_mj")
    if not gpus or said.get("gpus") != gpus or type(mhz) is not int or type(energy_mj) is not int:
        return None
    return _Reading(event.at, energy_mj, mhz)


def _add(total: _Sum, before: _Reading, now: _Reading) -> None:
    if now.energy_mj >= before.energy_mj:  # else the counter began anew
        total.seconds += now.at - before.at
        total.joules += (now.energy_mj - before.energy_mj) / 1e3


def _watts(total: _Sum | None, gpus: int, least_s: float, limit_w: float) -> float | None:
    """Mean power on a node; None: too short, or more than its GPUs can draw."""
    if total is None or total.seconds < least_s:
        return None
    watts = total.joules / total.seconds
    return watts if 0.0 < watts <= _TOLERANCE * limit_w * gpus else None


def _without_start(power_w: Mapping[int, float]) -> dict[int, float]:
    """Without the first clocks while power rises: there the program was starting."""
    found = list(power_w.items())
    while len(found) > 1 and found[0][1] < _FALLS * found[1][1]:
        del found[0]
    return dict(found)


class Explorable(NamedTuple):
    """What the exploration of a job is to find."""

    application: str  # Name under which its measurement is stored.
    gpu_model: str
    app_class: str
    limit_w: float  # Power limit of a GPU.
    clocks_mhz: tuple[int, ...]

    @property
    def key(self) -> _Key:
        """One job at a time is explored of each."""
        return self.application, self.gpu_model


@dataclass(frozen=True)
class Exploration:
    """The clocks of one job in its first minutes."""

    what: Explorable
    step_s: float
    back: Clock  # The clock that it had before, and gets again.
    began: float  # Unix s.

    @property
    def stopped(self) -> bool:
        """Whether it has ended before all clocks were tried."""
        return not self.what.clocks_mhz

    def clock(self, now: float) -> Clock:
        """The clock that the job should have now."""
        step = int((now - self.began) // self.step_s)
        clocks = self.what.clocks_mhz
        return clocks[step] if 0 <= step < len(clocks) else self.back

    def is_over(self, now: float) -> bool:
        """Whether all clocks have been tried."""
        lasts_s = self.step_s * len(self.what.clocks_mhz)
        return not 0 <= now - self.began < lasts_s

    def names(self) -> dict[str, Any]:
        """What the ledger keeps when it has ended, so that it is not repeated at once."""
        return {"model": self.what.application, "gpu_model": self.what.gpu_model}

    def detail(self) -> dict[str, Any]:
        """What the ledger keeps of it, for `Explorations.load`."""
        return {
            **dict(zip(_NAMES, self.what[:3], strict=True)),
            "limit_w": self.what.limit_w,
            "step_s": self.step_s,
            "clocks_mhz": list(self.what.clocks_mhz),
            "back_mhz": self.back,
        }

    def samples(self, found: ExploredPower) -> list[NamedSample]:
        """What was found, for the store."""
        what = self.what
        return [
            NamedSample(
                *what.key,
                self.began,
                PerformanceSample(found.gpus, found.nodes, UNKNOWN_BATCH, float(mhz), nan, watts),
                what.app_class,
            )
            for mhz, watts in found.power_w.items()
        ]


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
    """The jobs that are explored. Times are Unix s."""

    def __init__(self, length_s: float, ledger: LedgerWriter) -> None:
        """``length_s``: time that all clocks take together; 0: no job is explored."""
        self.length_s = length_s
        self._ledger = ledger
        self._jobs: dict[str, Exploration] = {}
        self._done: set[str] = set()
        """Jobs that were explored in this run."""
        self._tried: dict[_Key, float] = {}
        self._begun: dict[_Key, list[float]] = {}
        self._delayed = False

    def load(self, now: float) -> None:
        """Take up which models were explored in the last day."""
        for event in self._ledger.events_since(("exploring", "explored"), now - _AGAIN_S):
            with suppress(LookupError):
                key = event.detail["model"], event.detail["gpu_model"]
                if event.kind == "explored":
                    self._tried[key] = event.at
                else:
                    self._begun.setdefault(key, []).append(event.at)

    def restore(self, job_id: str, events: Sequence[Event]) -> None:
        """Take up what a previous selector has begun with a job that runs.

        ``events``: those of its run, oldest first. A damaged one begins nothing.
        """
        for event in events:
            if event.kind == "explored":
                self._jobs.pop(job_id, None)
                self._done.add(job_id)
            elif event.kind == "exploring":
                with suppress(LookupError, TypeError, ValueError):
                    detail = event.detail
                    clocks, step_s = tuple(map(int, detail["clocks_mhz"])), float(detail["step_s"])
                    names = str(detail["model"]), str(detail["gpu_model"])
                    # An earlier release wrote neither: the job gets its clock back nonetheless.
                    app_class = str(detail.get("class", ""))
                    limit_w = float(detail.get("limit_w", MAX_GPU_W))
                    what = Explorable(*names, app_class, limit_w, clocks)
                    self._jobs[job_id] = Exploration(what, step_s, detail["back_mhz"], event.at)

    def keep(self, job_ids: Collection[str], now: float) -> None:
        """Forget all other jobs: they have ended."""
        for job_id in self._jobs.keys() - job_ids:
            if self._jobs[job_id].stopped:
                del self._jobs[job_id]
            else:
                self._end(job_id, {"error": "the job ended first"}, now)
        self._done.intersection_update(job_ids)

    def forget(self, job_id: str) -> None:
        """Forget the earlier run of a job."""
        self._jobs.pop(job_id, None)
        self._done.discard(job_id)

    def of(self, job_id: str) -> Exploration | None:
        """The exploration of a job; None: it has none, or no more."""
        return self._jobs.get(job_id)

    def renew(
        self,
        jobs: Mapping[str, Explorable],
        clocks: JobClocks,
        power: ExplorationPower,
        now: float,
    ) -> None:
        """End what is over, and begin with running jobs for which there is power.

        ``jobs``: those whose model is missing and whose clock can be changed.
        """
        for job_id, one in list(self._jobs.items()):
            if one.stopped:
                power.add_at_least(job_id, one.back)
            elif refused := clocks.refused(job_id):
                self._end(job_id, {"error": refused, **one.names()}, now)
                # It gets its own clock back, if the agent obeys again.
                self._jobs[job_id] = replace(one, what=one.what._replace(clocks_mhz=()))
                power.add_at_least(job_id, one.back)
            elif one.is_over(now) and clocks.present(job_id) == clocks.wanted(job_id) == one.back:
                self._end(job_id, one.names(), now)
            elif not power.take(job_id):
                self._end(job_id, {"error": "the power limit leaves too little for it"}, now)
        self._tried = {k: at for k, at in self._tried.items() if 0 <= now - at < _AGAIN_S}
        taken = self._tried.keys() | {one.what.key for one in self._jobs.values()}
        for key, begun in list(self._begun.items()):
            self._begun[key] = [at for at in begun if 0 <= now - at < _AGAIN_S]
            if len(self._begun[key]) >= _ATTEMPTS:
                taken.add(key)
            elif not self._begun[key]:
                del self._begun[key]
        self._delayed = False
        for job_id, what in jobs.items():
            known = what.key in taken or job_id in self._done or job_id in self._jobs
            if known or self.length_s == 0 or len(what.clocks_mhz) < 2:
                continue
            if power.is_exceeded or not power.take(job_id):
                continue
            taken.add(what.key)
            if not power.is_free:
                self._delayed = True  # the clocks of other jobs are being lowered for it
                continue
            step_s = self.length_s / len(what.clocks_mhz)
            one = Exploration(what, step_s, clocks.wanted(job_id), now)
            self._jobs[job_id] = one
            self._begun.setdefault(what.key, []).append(now)
            self._ledger.event(job_id, "exploring", one.detail(), now)

    def _end(self, job_id: str, detail: Mapping[str, Any], now: float) -> None:
        """End the exploration of a job; ``detail`` with its names: not again for a day.

        The power at each clock that it has tried to the end is stored as one of its application.
        """
        one = self._jobs.pop(job_id)
        self._done.add(job_id)
        if "model" in detail:
            self._tried[one.what.key] = now
        events, what = self._ledger.events(job_id), one.what
        found = explored_power(events, what.clocks_mhz, one.step_s / 2, what.limit_w)
        if found.power_w:
            watts = {"mhz": list(found.power_w), "power_w": list(found.power_w.values())}
            detail = {**detail, **watts}
            put_measured(self._ledger, one.samples(found))
        self._ledger.event(job_id, "explored", detail, now)

    def looks(self, clocks: JobClocks, now: float) -> bool:
        """Whether a round is due: a job waits for its beginning, another clock, or its end."""
        return self._delayed or any(
            one.is_over(now) or clocks.refused(job_id) or clocks.wanted(job_id) != one.clock(now)
            for job_id, one in self._jobs.items()
            if not one.stopped
        )
