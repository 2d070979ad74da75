"""Ill GPUs: readings of the hardware against what the model has, or what its peers have.

What most GPUs of a product have is what the site's nodes can do, so the majority of the fleet
decides; without one, a table of models does (NVIDIA's data sheets and white papers). A PCIe link
that is as good as its slot, and the same on all GPUs of the node, is a node of another design: that
is said, and no GPU is ill. A reading that a GPU does not support finds nothing, and is named as not
read.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from slurm_gpu_aware.model.profile import IDLE, THROTTLED, Gpu, GpuHealth
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.report import ProbeReport
from slurm_gpu_aware.store.watch_state import Reading
from slurm_gpu_aware.time_text import counted

_FEWEST = 3  # GPUs of a product from which on their majority counts.
_P0 = 0
_NVLINKS = (
    (r"P100-SXM", 4),
    (r"V100-SXM", 6),
    (r"A100-SXM", 12),
    (r"H100 80GB HBM3", 18),
    (r"H200(?! NVL)", 18),
    (r"B[23]00", 18),
)
"""Part of a product name -> NVLinks. Cards have bridges or not, so they are compared only."""
_PCIE_GEN = (
    (r"[PV]100|\bT4\b|RTX [68]000\b(?! Ada)", 3),
    (r"A100|A800|A30|A40|A10\b|\bL4\b|L40", 4),
    (r"H100|H200|H800|B[23]00", 5),
)
_LANES = 16
_WORDS = {
    "hw_slowdown": "its hardware lowers its clock",
    "hw_thermal_slowdown": "it is too hot",
    "hw_power_brake_slowdown": "its power supply brakes it",
    "sw_thermal_slowdown": "the driver lowers its clock for heat",
}
_ILL_FAULTS = {"xid": "", "ecc": "", "result": "computes wrong results: "}
"""Call of a fault of the probe -> what it says of the GPU."""
_READINGS = {
    "pcie_gen": "PCIe generation",
    "pcie_lanes": "PCIe width",
    "active_nvlinks": "NVLinks",
    "ecc_now": "ECC errors",
    "remap_pending": "row remapping",
    "throttle": "throttle reasons",
}
_LONGEST = 120
_KEPT_FAULTS = 8


def seen_by(report: ProbeReport, known: Mapping[Gpu, Reading]) -> dict[Gpu, Reading]:
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
        reasons = tuple(sorted(throttled.get(slot, ())))
        found[report.node, slot] = Reading(gpu.name or "", health, said, reasons, report.taken_at)
    lost = {slot for slot in faults if slot is not None}
    if None in faults:
        lost |= {slot for node, slot in known if node == report.node}
    for slot in sorted(lost - report.gpus.keys()):
        name = known[report.node, slot].name if (report.node, slot) in known else ""
        said = tuple(faults.get(slot, faults.get(None, ()))[:_KEPT_FAULTS])
        found[report.node, slot] = Reading(name, None, said, at=report.taken_at)
    return found


class Finding(NamedTuple):
    """Something wrong with a GPU."""

    kind: str
    """``pcie``, ``nvlink``, ``ecc``, ``remap``, ``xid``, ``throttle``, ``lost`` or ``result``."""
    text: str  # One short sentence without a full stop.


def findings(seen: Mapping[Gpu, Reading]) -> dict[Gpu, tuple[Finding, ...]]:
    """What is wrong with each GPU; a GPU with nothing wrong is absent."""
    usual = _usual(seen.values())
    designs = _designs(seen)
    found = {gpu: tuple(_of_gpu(one, usual | designs.get(gpu[0], {}))) for gpu, one in seen.items()}
    return {gpu: own for gpu, own in found.items() if own}


def without_throttle(seen: Mapping[Gpu, Reading], busy: Set[Gpu]) -> dict[Gpu, Reading]:
    """The readings, without why the clock of a busy GPU is low: its job may be the cause."""
    found = dict(seen)
    for gpu in busy & seen.keys():
        one = seen[gpu]
        health = None if one.health is None else replace(one.health, throttle=None)
        found[gpu] = structs.replace(one, health=health, throttled=())
    return found


def unread(seen: Mapping[Gpu, Reading]) -> dict[str, list[Gpu]]:
    """Reading -> GPUs that do not support it, or that could not be asked."""
    missing: dict[str, list[Gpu]] = {}
    for gpu, one in sorted(seen.items()):
        for field, words in _READINGS.items():
            if one.health is None or getattr(one.health, field) is None:
                missing.setdefault(words, []).append(gpu)
    return missing


def facts_of_site(seen: Mapping[Gpu, Reading]) -> list[str]:
    """Sentences: products of which most GPUs have less than the model, nodes of other designs."""
    found = []
    every = _usual(seen.values())
    narrow: dict[tuple[str, str, int], list[str]] = {}
    for node, own in _designs(seen).items():
        for (name, field), value in own.items():
            if value < every.get((name, field), 0):
                narrow.setdefault((name, field, value), []).append(node)
    for (name, field, value), nodes in sorted(narrow.items()):
        usual, words = every[name, field], _READINGS[field]
        found.append(f"{hostlist(nodes)}: {words} {value} on all GPUs, most {name} have {usual}")
    for (name, field), usual in sorted(every.items()):
        table = {"active_nvlinks": _NVLINKS, "pcie_gen": _PCIE_GEN}.get(field, ())
        best = _in_table(table, name)
        if best is not None and usual < best:
            words = "NVLinks" if field == "active_nvlinks" else "as PCIe generation"
            found.append(f"most {name} have {usual} {words}, the model has {best}")
    return found


def _of_gpu(one: Reading, usual: Mapping[tuple[str, str], int]) -> Iterable[Finding]:
    for call, error in one.faults:
        if call in _ILL_FAULTS:
            yield Finding(call, f"{_ILL_FAULTS[call]}{error}"[:_LONGEST])
    if one.health is None:
        reason = one.faults[0][1] if one.faults else "no answer"
        yield Finding("lost", f"cannot be read: {reason}"[:_LONGEST])
        return
    yield from _links(one.name, one.health, usual)
    yield from _memory(one.health)
    reasons = THROTTLED.intersection((*one.throttled, *(one.health.throttle or "").split()))
    if reasons:
        yield Finding("throttle", throttle_words(reasons))


def throttle_words(reasons: Iterable[str]) -> str:
    """``throttles: it is too hot``"""
    return "throttles: " + ", ".join(_WORDS[reason] for reason in sorted(reasons))


def _links(name: str, health: GpuHealth, usual: Mapping[tuple[str, str], int]) -> Iterable[Finding]:
    expected = usual.get((name, "active_nvlinks"), _in_table(_NVLINKS, name))
    active = health.active_nvlinks
    if active is not None and expected is not None and active < expected:
        yield Finding("nvlink", f"{active} of {expected} NVLinks are active")
    table = _in_table(_PCIE_GEN, name) if health.pcie_gen_gpu is None else health.pcie_gen_gpu
    expected = _most(usual.get((name, "pcie_gen"), table), health.pcie_gen_most)
    gen = _generation(health)
    if gen is not None and expected is not None and gen < expected:
        yield Finding("pcie", f"PCIe generation {gen} instead of {expected}")
    expected = _most(usual.get((name, "pcie_lanes"), _LANES), health.pcie_lanes_most)
    if health.pcie_lanes is not None and expected is not None and health.pcie_lanes < expected:
        yield Finding("pcie", f"PCIe width x{health.pcie_lanes} instead of x{expected}")


def _most(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _generation(health: GpuHealth) -> int | None:
    """The generation; None: not read, or an idle GPU may have lowered it."""
    return health.pcie_gen if health.performance_state == _P0 else None


def _memory(health: GpuHealth) -> Iterable[Finding]:
    if health.ecc_now:
        yield Finding("ecc", counted(health.ecc_now, "uncorrectable memory error"))
    if health.remap_failed:
        yield Finding("remap", "a bad row of its memory could not be replaced")
    elif health.remap_pending:
        yield Finding("remap", "a bad row of its memory waits for a reset")


_USUAL: Mapping[str, Callable[[GpuHealth], int | None]] = {
    "active_nvlinks": lambda health: health.active_nvlinks,
    "pcie_gen": _generation,
    "pcie_lanes": lambda health: health.pcie_lanes,
}


def _designs(seen: Mapping[Gpu, Reading]) -> dict[str, dict[tuple[str, str], int]]:
    """Node -> (product, reading) -> value of a PCIe link that all its GPUs and slots have."""
    values: dict[str, dict[tuple[str, str], set[tuple[int | None, int | None]]]] = {}
    for (node, _), one in seen.items():
        if one.health is not None and one.name:
            own = values.setdefault(node, {})
            gen = (_generation(one.health), one.health.pcie_gen_most)
            own.setdefault((one.name, "pcie_gen"), set()).add(gen)
            lanes = (one.health.pcie_lanes, one.health.pcie_lanes_most)
            own.setdefault((one.name, "pcie_lanes"), set()).add(lanes)
    designs: dict[str, dict[tuple[str, str], int]] = {}
    for node, fields in values.items():
        for key, found in fields.items():
            ((now, most), *others) = found
            if now is not None and now == most and not others:
                designs.setdefault(node, {})[key] = now
    return designs


def _usual(seen: Iterable[Reading]) -> dict[tuple[str, str], int]:
    """(product, reading) -> value of more than half of at least three GPUs."""
    counts: dict[tuple[str, str], Counter[int]] = {}
    for one in seen:
        for field, read in _USUAL.items():
            value = None if one.health is None or not one.name else read(one.health)
            if value is not None:
                counts.setdefault((one.name, field), Counter())[value] += 1
    usual = {}
    for key, count in counts.items():
        ((value, most),) = count.most_common(1)
        if count.total() >= _FEWEST and 2 * most > count.total():
            usual[key] = value
    return usual


def _in_table(table: Sequence[tuple[str, int]], name: str) -> int | None:
    return next((value for pattern, value in table if re.search(pattern, name)), None)
