"""GPUs that the rows of a file may name, by index, UUID, PCI address or place in NVML's order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, quoted
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import gpus_by_uuid, listed, pci_addresses, seen_gpus

_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?\Z",
    re.IGNORECASE,
)
_NVML = re.compile(r"nvml:(?P<place>[0-9]{1,2})(?:/(?P<count>[0-9]{1,2}))?\Z")


@dataclass(frozen=True)
class KnownGpus:
    """GPUs that the rows of a file may name."""

    by_uuid: Mapping[str, Gpu]
    by_pci: Mapping[str, Mapping[int, str]]
    """Node -> slot -> PCI address, of GPUs that a probe has read."""
    seen: Mapping[str, set[int]]
    """Node -> GPUs that a probe has seen."""
    new: bool = False
    """Rows may name GPUs that no probe has seen."""

    def slot(self, gpu: str, node: str) -> int:
        """Slurm's index of a GPU that a row names: see ``import``. Raises ValueError."""
        if gpu.isascii() and gpu.isdigit() and len(gpu) <= 4 and int(gpu) < MAX_GPUS_PER_NODE:
            return self._checked(node, int(gpu))
        if place := _NVML.match(gpu):
            count = place["count"]
            return self._at_place(node, int(place["place"]), None if count is None else int(count))
        if address := _pci_key(gpu):
            return self._at_address(node, gpu, address)
        if gpu not in self.by_uuid:
            raise ValueError(
                f"gpu {quoted(gpu)} is neither an index (0, 1, ...) nor UUID or PCI address of a"
                " GPU that was probed"
            )
        known_node, slot = self.by_uuid[gpu]
        if known_node != node:
            raise ValueError(f"gpu {gpu} was last seen on node {known_node}, not {node}")
        return slot

    def probed(self, gpu: str, node: str) -> int:
        """The same of a GPU that a probe has read. Raises ValueError."""
        slot = self.slot(gpu, node)
        if slot not in self.by_pci.get(node, ()):
            raise ValueError(f"no sweep has read GPU {slot} of node {node}; sweep first")
        return slot

    def _at_place(self, node: str, place: int, count: int | None) -> int:
        """The GPU at a place in NVML's order, which is that of the PCI addresses.

        ``count``: GPUs that the program saw; None: it does not tell.
        """
        slots = sorted(self.by_pci.get(node, ()), key=lambda slot: self._key(node, slot))
        if not slots and count is None:
            return self._checked(node, place)
        if not slots:
            raise ValueError(f"no sweep has read the GPUs of {node}; sweep {node} first")
        if count not in (None, len(slots)):
            raise ValueError(
                f"the file is of {count} GPUs without their addresses, and {len(slots)} GPUs of"
                f" {node} are known: which they are is not certain"
            )
        if set(slots) != self.seen.get(node):
            raise ValueError(
                f"a GPU of {node} could not be read: nvml:{place} is not certain; sweep again"
            )
        if place >= len(slots):
            raise ValueError(f"nvml:{place}: node {node} has {len(slots)} GPUs")
        return slots[place]

    def _at_address(self, node: str, gpu: str, address: tuple[int, ...]) -> int:
        for slot in self.by_pci.get(node, ()):
            if self._key(node, slot) == address:
                return slot
        what = f"a GPU with the PCI address {gpu} on node {node}"
        raise ValueError(f"no sweep has seen {what}; sweep {node} first")

    def _key(self, node: str, slot: int) -> tuple[int, ...]:
        return _pci_key(self.by_pci[node][slot]) or ()

    def _checked(self, node: str, slot: int) -> int:
        """The slot. Raises ValueError if no sweep has seen it, but others."""
        if self.new or not self.seen or slot in self.seen.get(node, ()):
            return slot
        of_node = node in self.seen
        what = f"GPU {slot} of node {node}" if of_node else f"node {node}"
        known = listed(sorted(self.seen[node])) if of_node else listed(sorted(self.seen))
        raise ValueError(f"no sweep has seen {what}, only {known}; sweep first, or give --new-gpus")


def known_gpus(store: Store, *, new: bool) -> KnownGpus:
    """The GPUs of a store. ``new``: rows may name others. Raises StoreError."""
    return KnownGpus(gpus_by_uuid(store), pci_addresses(store), seen_gpus(store), new)


def _pci_key(text: str) -> tuple[int, int, int] | None:
    """(domain, bus, device) of ``00000000:1a:00.0`` or ``1a:00``; None: not such an address."""
    match = _PCI.match(text)
    if match is None:
        return None
    return int(match["domain"] or "0", 16), int(match["bus"], 16), int(match["device"], 16)
