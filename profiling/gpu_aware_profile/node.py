"""Probe of one node: identity, links, clocks and timings of its GPUs.

The schema of the report is ``gpu-aware-probe/2``. A failed call only loses its own answer: a GPU
that fell off the bus is listed in ``errors``, and the others are reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_aware_profile.nvml import DETAILS, Device, NvLink, Nvml, NvmlError
from gpu_aware_profile.pci_tree import SYSFS, nics
from gpu_aware_profile.timing import FakeTiming, median_and_spread
from slurm_gpu_aware.errors import SourceError

__all__ = ["model_word", "probe"]

SCHEMA = "gpu-aware-probe/2"
Faults = list[dict[str, Any]]
_VENDOR_WORDS = {"nvidia", "tesla", "quadro", "geforce", "graphics", "device", "gpu"}
_SERIES_WORDS = {"rtx", "gtx", "titan"}


def model_word(name: str) -> str | None:
    """Return the short name of a model: ``Tesla V100-SXM2-16GB`` is ``v100``.

    It is the first word that is neither the vendor's nor a product line's, up to its first hyphen,
    with a leading ``rtx``, ``gtx`` or ``titan``, because a number alone is not specific.
    """
    heads = [re.sub(r"[^a-z0-9]", "", word.partition("-")[0]) for word in name.lower().split()]
    words = [head for head in heads if head and head not in _VENDOR_WORDS]
    return "".join(words[: 2 if words[0] in _SERIES_WORDS else 1]) if words else None


@dataclass(frozen=True)
class _Gpu:
    """A GPU that can be read."""

    index: int
    device: Device
    record: dict[str, Any]
    nvlinks: Sequence[NvLink]


def probe(
    node: str,
    backend: FakeTiming | None,
    *,
    classes: Sequence[str],
    repeats: int,
    progress: Callable[[str], None],
    sysfs: Path = SYSFS,
) -> dict[str, Any]:
    """Probe this node and return the report.

    ``node``: Slurm's name of it. ``backend``: measures times; None: the report has none.
    ``classes``: to measure; empty: all of the backend. ``repeats``: samples per GPU and class.
    ``progress``: called with a line of text before each measurement. ``sysfs``: where the host's
    sysfs is mounted.
    """
    faults: Faults = []
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "node": node,
        "taken_at": time.time(),
        "driver": None,
        "backend": None,
        "gpus": [],
        "links": [],
        "nics": [],
        "timings": [],
        "errors": faults,
    }
    try:
        with Nvml() as nvml:
            gpus = _gpus(nvml, faults)
            report["driver"] = _try(faults, None, nvml.call, "nvmlSystemGetDriverVersion")
            report["gpus"] = [gpu.record for gpu in gpus]
            report["links"] = _links(gpus, faults)
            report["nics"] = nics(sysfs, {gpu.index: gpu.record["pci"] for gpu in gpus})
            if backend is not None:
                report["backend"] = backend.name
                wanted = classes or backend.classes
                report["timings"] = _timings(gpus, backend, wanted, repeats, faults, progress)
    except NvmlError as exc:
        faults.append(_fault(None, exc))
    return report


def _fault(index: int | None, error: SourceError) -> dict[str, Any]:
    """Entry of ``errors``; ``index`` None: an error of the node."""
    if isinstance(error, NvmlError):
        return {"index": index, "call": error.call, "error": error.reason}
    return {"index": index, "call": "timing", "error": str(error)}


def _try(faults: Faults, index: int | None, ask: Callable[..., Any], *args: Any) -> Any:
    """Return ``ask(*args)``; on failure add a fault and return None."""
    try:
        return ask(*args)
    except SourceError as exc:
        faults.append(_fault(index, exc))
        return None


def _gpus(nvml: Nvml, faults: Faults) -> list[_Gpu]:
    gpus: list[_Gpu] = []
    unopened: list[dict[str, Any]] = []
    for index, device in nvml.devices():
        if isinstance(device, NvmlError):
            unopened.append(_fault(None, device))
            continue
        try:
            record = _identity(index, device, faults)
            nvlinks = _try(faults, index, device.nvlinks)
            gpus.append(_Gpu(index, device, record | _nvlink_facts(nvlinks), nvlinks or ()))
        except NvmlError as exc:  # lost between two calls
            faults.append(_fault(index, exc))
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
    """Record of a GPU; a detail that fails is None. Raises NvmlError if its identity fails."""
    name = device.call("nvmlDeviceGetName")
    record: dict[str, Any] = {
        "index": index,
        "uuid": device.call("nvmlDeviceGetUUID"),
        "name": name,
        "model": model_word(name),
        "pci": device.pci(),
    }
    for detail, ask in DETAILS.items():
        record[detail] = _try(faults, index, ask, device)
    record["clocks_mhz"] = record["clocks_mhz"] or []
    return record


def _nvlink_facts(nvlinks: Sequence[NvLink] | None) -> dict[str, Any]:
    """NVLinks of a GPU's record; all None: they could not be read."""
    if nvlinks is None:
        return dict.fromkeys(("nvlink_version", "nvlinks", "nvswitch_links"))
    return {
        "nvlink_version": next((link.version for link in nvlinks), None),
        "nvlinks": len(nvlinks),
        "nvswitch_links": sum(link.remote_pci is None for link in nvlinks),
    }


def _links(gpus: Sequence[_Gpu], faults: Faults) -> list[dict[str, Any]]:
    """Every unordered pair once, with its best link."""
    pcie = {gpu.index: _try(faults, gpu.index, gpu.device.pcie_gbps) for gpu in gpus}
    links = []
    for i, a in enumerate(gpus):
        for b in gpus[i + 1 :]:
            shared = _shared(a.nvlinks, b.nvlinks, b.record["pci"])
            if shared:
                kind, gbps = f"NV{len(shared)}", sum(link.gbps for link in shared)
            else:
                kind = _try(faults, a.index, a.device.ancestor, b.device) or "SYS"
                rates = [r for r in (pcie[a.index], pcie[b.index]) if r is not None]
                gbps = min(rates, default=0.0)
            links.append({"a": a.index, "b": b.index, "class": kind, "gbps": gbps})
    return links


def _shared(a: Sequence[NvLink], b: Sequence[NvLink], pci_b: str) -> list[NvLink]:
    """NVLinks of a pair: the direct ones, else as many as both GPUs have to switches."""
    direct = [link for link in a if link.remote_pci == pci_b]
    to_switches = ([link for link in links if link.remote_pci is None] for links in (a, b))
    return direct or min(to_switches, key=len)


def _timings(
    gpus: Sequence[_Gpu],
    backend: FakeTiming,
    classes: Sequence[str],
    repeats: int,
    faults: Faults,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    timings = []
    for gpu in gpus:
        for name in classes:
            progress(f"GPU {gpu.index}: class {name}")
            uuid = gpu.record["uuid"]
            samples = _try(faults, gpu.index, backend.samples, gpu.index, uuid, name, repeats)
            if not samples:
                continue
            value_ms, spread = median_and_spread(samples)
            timings.append(
                {
                    "index": gpu.index,
                    "class": name,
                    "value_ms": round(value_ms, 4),
                    "samples": len(samples),
                    "spread": round(spread, 5),
                }
            )
    return timings
