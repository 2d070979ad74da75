"""Content of profile files: run times alone and beside one other job (Amaral et al., SC'17).

An object with ``solo`` and ``collocation`` by application type, batch size and GPU count. A job's
application is ``TYPE/SIZE`` (``bvlc_alexnet/4``). What cannot be used is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile, Workload

__all__ = ["ProfileFile", "parse_profile"]


@dataclass(frozen=True)
class ProfileFile:
    """What a profile file says."""

    profile: InterferenceProfile
    across: Mapping[Workload, float]
    """Run time with the GPUs on two sockets, s; ``profile.solo`` has that inside one socket."""
    unmeasured: int
    """Entries of 0: never measured."""
    bad: tuple[str, ...]
    """Entries that are no run time, each with the reason."""


def parse_profile(content: Mapping[str, Any], name: object) -> ProfileFile:
    """Parse the JSON object of a profile file; ``name`` stands in the error.

    Raises
    ------
    SourceError
        It lacks ``solo`` or ``collocation``.
    """
    for part in ("solo", "collocation"):
        if not isinstance(content.get(part), dict):
            raise SourceError(f"{name}: no object {part!r}; is it a profile file?")
    bad: list[str] = []
    solo: dict[Workload, float] = {}
    across: dict[Workload, float] = {}
    together: dict[tuple[Workload, Workload], float] = {}
    zeros = 0
    for job, entry in _workloads(content["solo"], "solo", bad):
        for kind, target in (("intra-socket", solo), ("inter-socket", across)):
            seconds = entry.get(kind, 0) if isinstance(entry, dict) else entry
            found = _seconds(seconds, f"solo {_words(job)} {kind}", bad)
            if found:
                target[job] = found
            zeros += found == 0.0
    for job, partners in _workloads(content["collocation"], "collocation", bad):
        where = f"collocation {_words(job)}"
        for other, seconds in _workloads(partners, where, bad):
            found = _seconds(seconds, f"{where} beside {_words(other)}", bad)
            if found:
                together[job, other] = found
            zeros += found == 0.0
    return ProfileFile(InterferenceProfile(solo, together), across, zeros, tuple(bad))


def _workloads(tree: object, where: str, bad: list[str]) -> Iterator[tuple[Workload, Any]]:
    """Entries of ``tree[type][size]["num_gpus"][n]``."""
    for kind, sizes in _items(tree, where, bad):
        for size, entry in _items(sizes, f"{where} {kind}", bad):
            counts = entry.get("num_gpus") if isinstance(entry, dict) else entry
            for count, value in _items(counts, f"{where} {kind}/{size}", bad):
                if count.isascii() and count.isdigit() and int(count[:9]) > 0:
                    yield (f"{kind}/{size}", int(count)), value
                else:
                    bad.append(f"{where} {kind}/{size}: {count!r} is no GPU count")


def _items(tree: object, where: str, bad: list[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        yield from tree.items()
    else:
        bad.append(f"{where}: expected an object, not {quoted(tree)}")


def _seconds(value: object, where: str, bad: list[str]) -> float | None:
    """The run time; 0.0 if it was not measured, None (and a report) if it is no run time."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_TIME_S:  # type: ignore[operator]
        bad.append(f"{where}: {quoted(value)} is no run time")
        return None
    return float(value)  # type: ignore[arg-type]


def _words(job: Workload) -> str:
    return f"{job[0]} on {job[1]}"
