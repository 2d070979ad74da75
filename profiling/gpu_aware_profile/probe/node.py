"""Probe of one node: identity, links, clocks and timings of its GPUs.

The schema of the report is ``gpu-aware-probe/2``. A failed call only loses its own answer: a GPU
that fell off the bus is listed in ``errors``, and the others are reported.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_aware_profile.backends.timing import Timing
from gpu_aware_profile.devices.driver import (
    Device,
    Driver,
    Faults,
    PeerLink,
    in_time,
    nics,
    open_driver,
)
from gpu_aware_profile.probe.clock_sweep import (
    clock_steps,
    limit_steps,
    reset_left_behind,
    sweep_clocks,
)
from gpu_aware_profile.probe.runs import Measurement, ReadableGpu, Wanted, fault
from slurm_gpu_aware.clocks.job import Setting
from slurm_gpu_aware.errors import DeviceError, SourceError

SCHEMA = "gpu-aware-probe/2"


def probe(node: str, backend: Timing | None, wanted: Wanted) -> dict[str, Any]:
    """Probe this node and return the report.

    ``node``: Slurm's name of it. ``backend``: measures times; None: the report has none.
    """
    faults: Faults = []
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "node": node,
        "taken_at": time.time(),
        "driver": None,
        "cuda": None,
        "backend": None,
        "gpus": [],
        "links": [],
        "nics": [],
        "timings": [],
        "errors": faults,
    }
    left_locked = reset_left_behind(node)
    try:
        with open_driver() as driver:
            gpus = _gpus(driver, faults)
            for name, ask in driver.versions().items():
                report[name] = _try(faults, None, ask)
            report["gpus"] = [gpu.record for gpu in gpus]
            report["links"] = _links(gpus, faults)
            report["nics"] = nics(wanted.sysfs, {gpu.index: gpu.record["pci"] for gpu in gpus})
            if backend is not None or wanted.links_s > 0.0:
                gpus = _undivided(gpus, faults)
            if wanted.links_s > 0.0:
                report |= _bandwidths(driver, gpus, report["links"], wanted, faults)
            if backend is not None:
                report["backend"] = backend.name
                report["timings"] = _timings(driver, gpus, backend, wanted, faults)
        if backend is not None and wanted.clock_steps:
            report["timings"] += _at_locked_clocks(gpus, backend, wanted, faults)
    except SourceError as exc:
        faults.append(fault(None, exc))
    faults += left_locked
    return report


def _bandwidths(
    driver: Driver,
    gpus: Sequence[ReadableGpu],
    links: Sequence[dict[str, Any]],
    wanted: Wanted,
    faults: Faults,
) -> dict[str, Any]:
    from gpu_aware_profile.links.link_runs import LinkRuns, measure_links  # imports NumPy

    uuids = {gpu.index: gpu.record["uuid"] for gpu in gpus}
    runs = LinkRuns(time.monotonic() + wanted.links_s, wanted.progress, wanted.stopped, faults)
    return measure_links(runs, uuids, links, driver.visible_variable)


def _undivided(gpus: Sequence[ReadableGpu], faults: Faults) -> list[ReadableGpu]:
    """GPUs that can be measured as a whole; the others get a fault."""
    whole = []
    for gpu in gpus:
        divided = _try(faults, gpu.index, gpu.device.is_divided)
        if divided:
            error = "it is divided into instances, so it has no time as a whole"
            faults.append({"index": gpu.index, "call": "timing", "error": error})
        elif divided is not None:
            whole.append(gpu)
    return whole


def _timings(
    driver: Driver, gpus: Sequence[ReadableGpu], backend: Timing, wanted: Wanted, faults: Faults
) -> list[dict[str, Any]]:
    classes = wanted.classes or backend.classes
    with _measurement(driver, gpus, backend, wanted, faults) as measurement:
        timings = measurement.idle(classes, wanted.runs)
        if wanted.loaded and len(gpus) > 1:
            timings += measurement.loaded(classes, wanted.runs)
    return timings


@contextmanager
def _measurement(
    driver: Driver, gpus: Sequence[ReadableGpu], backend: Timing, wanted: Wanted, faults: Faults
) -> Iterator[Measurement]:
    with driver.events() as events:
        yield Measurement(gpus, backend, driver.visible_variable, faults, events, wanted)


def _at_locked_clocks(
    gpus: Sequence[ReadableGpu], backend: Timing, wanted: Wanted, faults: Faults
) -> list[dict[str, Any]]:
    """Timings at several clocks, and under power limits at each, one run of each setting.

    No connection to the driver may be open.
    """
    steps = {}
    for gpu in gpus:
        if profiles := gpu.record["requested_profiles"]:
            error = f"{profiles} is requested: no clock would be measured alone"
            faults.append({"index": gpu.index, "call": "power profile", "error": error})
            continue
        clocks = clock_steps(gpu.record["clocks_mhz"], wanted.clock_steps)
        range_w = gpu.record["min_limit_w"], gpu.record["power_limit_w"]
        limits = limit_steps(*range_w, wanted.limit_steps)
        steps[gpu.index] = [(mhz, limit_w) for limit_w in (0, *limits) for mhz in clocks]
    sick: set[int] = set()

    def measure(settings: Mapping[int, Setting]) -> list[dict[str, Any]]:
        try:
            with open_driver() as driver:
                here = _opened_again(driver, [gpu for gpu in gpus if gpu.index in settings])
                with _measurement(driver, here, backend, wanted, faults) as measurement:
                    measurement.sick = sick
                    return measurement.idle(wanted.classes or backend.classes, 1, settings)
        except DeviceError as exc:
            faults.append(fault(None, exc))
            return []

    return sweep_clocks(steps, faults, measure, wanted.stopped.is_set)


def _opened_again(driver: Driver, gpus: Sequence[ReadableGpu]) -> list[ReadableGpu]:
    """The GPUs of another connection; without those that are lost now."""
    devices = {
        index: device for index, device in driver.devices() if not isinstance(device, DeviceError)
    }
    return [replace(gpu, device=devices[gpu.index]) for gpu in gpus if gpu.index in devices]


def _try(faults: Faults, index: int | None, ask: Callable[..., Any], *args: Any) -> Any:
    """Return ``ask(*args)``; on failure add a fault, unless it is there, and return None."""
    try:
        return ask(*args)
    except SourceError as exc:
        if (entry := fault(index, exc)) not in faults:  # two questions may make the same call
            faults.append(entry)
        return None


def _gpus(driver: Driver, faults: Faults) -> list[ReadableGpu]:
    gpus: list[ReadableGpu] = []
    unopened: list[dict[str, Any]] = []
    for index, device in driver.devices():
        if isinstance(device, DeviceError):
            unopened.append(fault(None, device))
            continue
        try:
            record = in_time("identity", partial(_identity, index, device, faults))
            peers = _try(faults, index, device.peer_links)
            gpus.append(ReadableGpu(index, device, record | _peer_facts(peers), peers or ()))
        except DeviceError as exc:  # lost between two calls
            faults.append(fault(index, exc))
    _name_the_missing(unopened, [gpu.index for gpu in gpus] + [f["index"] for f in faults])
    faults.extend(unopened)
    return sorted(gpus, key=lambda gpu: gpu.index)


def _name_the_missing(unopened: Faults, seen: list[int | None]) -> None:
    """Set the index of a GPU without a handle if only one index is missing."""
    known = {index for index in seen if index is not None}
    missing = set(range(len(known) + len(unopened))) - known
    if len(unopened) == 1 and len(missing) == 1:
        unopened[0]["index"] = missing.pop()


def _identity(index: int, device: Device, faults: Faults) -> dict[str, Any]:
    """Record of a GPU; a detail that fails is None. Raises DeviceError if its identity fails."""
    record: dict[str, Any] = {"index": index, **device.identity()._asdict()}
    for detail, ask in device.details.items():
        record[detail] = _try(faults, index, ask)
    record["clocks_mhz"] = record["clocks_mhz"] or []
    record["health"] = {name: _try(faults, index, ask) for name, ask in device.health.items()}
    errors = _try(faults, index, device.ecc_errors)
    record["ecc_corrected"], record["ecc_uncorrected"] = errors or (None, None)
    return record


def _peer_facts(peers: Sequence[PeerLink] | None) -> dict[str, Any]:
    """NVLinks of a GPU's record; all None: they could not be read."""
    if peers is None:
        return dict.fromkeys(("nvlink_version", "nvlinks", "nvswitch_links"))
    nvlinks = [link for link in peers if link.kind == "NV"]
    return {
        "nvlink_version": next((link.version for link in nvlinks), None),
        "nvlinks": len(nvlinks),
        "nvswitch_links": sum(link.remote_pci is None for link in nvlinks),
    }


def _links(gpus: Sequence[ReadableGpu], faults: Faults) -> list[dict[str, Any]]:
    """Every unordered pair once, with its best link."""
    pcie = {gpu.index: _try(faults, gpu.index, gpu.device.pcie_gbps) for gpu in gpus}
    links = []
    for i, a in enumerate(gpus):
        for b in gpus[i + 1 :]:
            shared = _shared(a.peers, b.peers, b.record["pci"])
            if shared:
                kind, gbps = f"{shared[0].kind}{len(shared)}", sum(link.gbps for link in shared)
            else:
                kind = _try(faults, a.index, a.device.ancestor, b.device) or "SYS"
                rates = [r for r in (pcie[a.index], pcie[b.index]) if r is not None]
                gbps = min(rates, default=0.0)
            links.append({"a": a.index, "b": b.index, "class": kind, "gbps": gbps})
    return links


def _shared(a: Sequence[PeerLink], b: Sequence[PeerLink], pci_b: str) -> list[PeerLink]:
    """Links of a pair beside PCIe: the direct ones, else as many as both GPUs have to switches."""
    direct = [link for link in a if link.remote_pci == pci_b]
    to_switches = ([link for link in links if link.remote_pci is None] for links in (a, b))
    return direct or min(to_switches, key=len)
