"""Histories of times in the store, and what probe reports say of the hardware."""

from collections.abc import Collection, Mapping
from itertools import groupby
from statistics import median

from gpu_aware_profile.watch.hardware import Seen
from gpu_aware_profile.watch.slow_gpus import History
from slurm_gpu_aware.model.hardware_graph import board_of
from slurm_gpu_aware.model.profile import IDLE, Gpu, GpuHealth
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import timing_runs
from slurm_gpu_aware.store.report import ProbeReport

_KEPT_FAULTS = 8
_SWEEPS = 20
"""Newest measurements that count: three of now, and the level before them."""


def histories(store: Store, nodes: Collection[str] | None = None) -> list[History]:
    """Of each GPU and class the median times of the newest sweeps with its newest benchmark.

    ``nodes``: those that Slurm still has; None: all. Raises StoreError.
    """
    found = []
    for (node, slot, app_class), rows in groupby(timing_runs(store), key=lambda row: row[:3]):
        if nodes is not None and node not in nodes:
            continue
        own = list(rows)
        source, model, name = own[-1].source, own[-1].model, own[-1].name
        times = [
            (at, median(row.value_ms for row in runs))
            for (at, of), runs in groupby(own, key=lambda row: (row.taken_at, row.source))
            if of == source
        ]
        group = f"{model or name}/{board_of(name)}/{source}"
        found.append(History(node, slot, app_class, group, times[-_SWEEPS:]))
    return found


def seen_by(report: ProbeReport, known: Mapping[Gpu, Seen]) -> dict[Gpu, Seen]:
    """What a probe read of each GPU of its node; of one that it could not read, why not.

    ``known``: GPUs that earlier probes read. One of them that the probe does not mention is gone if
    the probe had no fault of the node, else it could not be read.
    """
    throttled: dict[int, set[str]] = {}
    for run in report.runs:
        if run.conditions.neighbours == IDLE and not run.conditions.clock_mhz:
            throttled.setdefault(run.slot, set()).update(run.conditions.throttle.split())
    faults: dict[int | None, list[tuple[str, str]]] = {}
    for one in report.faults:
        faults.setdefault(one.slot, []).append((one.call, one.error))
    found = {}
    for slot, gpu in report.gpus.items():
        health = report.health.get(slot, GpuHealth())
        said = tuple(faults.get(slot, ())[:_KEPT_FAULTS])
        reasons = frozenset(throttled.get(slot, ()))
        found[report.node, slot] = Seen(gpu.name or "", health, said, reasons, report.taken_at)
    lost = {slot for slot in faults if slot is not None}
    if None in faults:
        lost |= {slot for node, slot in known if node == report.node}
    for slot in sorted(lost - report.gpus.keys()):
        name = known[report.node, slot].name if (report.node, slot) in known else ""
        said = tuple(faults.get(slot, faults.get(None, ()))[:_KEPT_FAULTS])
        found[report.node, slot] = Seen(name, None, said, at=report.taken_at)
    return found
