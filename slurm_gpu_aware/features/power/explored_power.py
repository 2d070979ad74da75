"""Power of a job at the clocks that it tried: what its nodes' energy counters say between changes.

Each record of a clock that was set carries the energy counter of its GPUs; the mean power at a
clock is the difference to the next record of the same GPUs. A record that lacks the counter, or is
not of exactly the job's GPUs on its node, says nothing. Nodes write the records, so what their GPUs
cannot draw counts for nothing, either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_gpu_aware.store.ledger import Event

_TOLERANCE = 1.05
"""A GPU is kept at its power limit up to some percent."""
_FALLS = 0.97
"""The power at a higher clock is no smaller, but for the noise."""


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
