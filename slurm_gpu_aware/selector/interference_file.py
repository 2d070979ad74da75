"""Interference files: run times alone and beside one other job, as published with Amaral et al.

A JSON object with ``solo`` and ``collocation`` by application type, batch size and GPU count. The
application of a job is ``TYPE/SIZE`` (``bvlc_alexnet/4``). An entry of 0 was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile, Workload
from slurm_gpu_aware.text_file import read_object

__all__ = ["read_interference"]


def read_interference(path: Path | str) -> tuple[InterferenceProfile, tuple[str, ...]]:
    """The profile in a file, and reports of its entries that are no run time.

    Raises
    ------
    SourceError
        The file cannot be read, is not JSON, lacks ``solo`` or ``collocation``, or has no run time
        of a job beside another.
    """
    content = read_object(path)
    for part in ("solo", "collocation"):
        if not isinstance(content.get(part), dict):
            raise SourceError(f"{path}: no object {part!r}; is it a profile file?")
    bad: list[str] = []
    solo: dict[Workload, float] = {}
    beside: dict[tuple[Workload, Workload], float] = {}
    for job, entry in _workloads(content["solo"], "solo", bad):
        seconds = entry.get("intra-socket", 0) if isinstance(entry, dict) else entry
        if run_time_s := _seconds(seconds, f"solo {_words(job)}", bad):
            solo[job] = run_time_s
    for job, partners in _workloads(content["collocation"], "collocation", bad):
        where = f"collocation {_words(job)}"
        for other, seconds in _workloads(partners, where, bad):
            if run_time_s := _seconds(seconds, f"{where} beside {_words(other)}", bad):
                beside[job, other] = run_time_s
    if not beside:
        raise SourceError(f"{path} has no run time of a job beside another")
    return InterferenceProfile(solo, beside), tuple(bad)


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
    """The run time; 0.0 if not measured, None with a report if it is not a run time."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_TIME_S:  # type: ignore[operator]
        bad.append(f"{where}: {quoted(value)} is no run time")
        return None
    return float(value)  # type: ignore[arg-type]


def _words(job: Workload) -> str:
    return f"{job[0]} on {job[1]}"
