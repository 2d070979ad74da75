"""GPUs that the rows of a file may name, by index, UUID, PCI address or place in NVML's order."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_aware_profile.imports.formats.reader import BUS_ALONE
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, is_node_name, quoted
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    counted_gpus,
    gpus_by_uuid,
    listed,
    pci_addresses,
    put_addresses,
    seen_gpus,
)
from slurm_gpu_aware.text_file import Table

_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?\Z",
    re.IGNORECASE,
)
Address = tuple[int, int, int]  # Domain, bus, device.
_NVML = re.compile(r"nvml:(?P<place>[0-9]{1,2})(/(?P<count>[0-9]{1,2}))?\Z")
"""``nvml:0/4``: of a file that has all GPUs of its node, here 4."""


@dataclass(frozen=True)
class KnownGpus:
    """GPUs that the rows of a file may name."""

    by_uuid: Mapping[str, Gpu]
    by_pci: Mapping[str, Mapping[Address, int]]
    """Node -> PCI address -> slot, of GPUs that a probe has read."""
    seen: Mapping[str, set[int]]  # Node -> GPUs that a probe has seen.
    new: bool = False  # Rows may name GPUs that no probe has seen.
    counted: Mapping[str, int] = field(default_factory=dict)
    """Node that no probe has seen -> number of its GPUs, which an output has listed."""

    def slot(self, gpu: str, node: str) -> int:
        """Slurm's index of a GPU that a row names: see ``import``. Raises ValueError."""
        if gpu.isascii() and gpu.isdigit() and len(gpu) <= 4 and int(gpu) < MAX_GPUS_PER_NODE:
            return self._checked(node, int(gpu))
        if place := _NVML.match(gpu):
            return self._at_place(node, int(place["place"]), place["count"])
        if address := _pci_key(gpu):
            if address in self.by_pci.get(node, ()):
                return self.by_pci[node][address]
            raise ValueError(self._unseen(node, f"a GPU with the PCI address {gpu} on node {node}"))
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
        if slot not in self.by_pci.get(node, {}).values() and slot >= self.counted.get(node, 0):
            raise ValueError(self._unseen(node, f"GPU {slot} of node {node}"))
        return slot

    def _at_place(self, node: str, place: int, count: str | None) -> int:
        """The GPU at a place in NVML's order, which is that of the PCI addresses."""
        slots = [slot for _, slot in sorted(self.by_pci.get(node, {}).items())]
        if node in self.counted:
            slots = list(range(self.counted[node]))
        elif not slots:
            return self._checked(node, place)
        elif set(slots) != self.seen.get(node):
            raise ValueError(
                f"a GPU of {node} could not be read: nvml:{place} is not certain; sweep again"
            )
        if count is not None and int(count) != len(slots):
            raise ValueError(
                f"the output names no PCI addresses and has {count} GPUs, node {node} has"
                f" {len(slots)}: which ones is not known"
            )
        if place >= len(slots):
            raise ValueError(f"nvml:{place}: node {node} has {len(slots)} GPUs")
        return slots[place]

    def on_buses(self, gpus: Sequence[str], node: str) -> list[int]:
        """The GPUs on PCI buses, which an old output prints without domain and device.

        Raises ValueError if several GPUs share a bus, unless they are all GPUs of the node.
        """
        on_bus: dict[int, list[int]] = {}
        for (_, bus, _), slot in self.by_pci.get(node, {}).items():
            on_bus.setdefault(bus, []).append(slot)
        wanted = Counter(int(gpu.removeprefix(BUS_ALONE), 16) for gpu in gpus)
        for bus, count in wanted.items():
            if bus not in on_bus:
                raise ValueError(
                    f"no sweep has seen a GPU with the PCI bus {bus:02x} on node {node}; sweep it"
                    " first: this version of nccl-tests prints the bus alone"
                )
            if count != len(on_bus[bus]):
                raise ValueError(
                    f"this version of nccl-tests prints the PCI bus alone ({bus:02x}), which"
                    f" {len(on_bus[bus])} GPUs of {node} share; use one since March 2025"
                )
        return [slot for bus in wanted for slot in on_bus[bus]]

    def _unseen(self, node: str, what: str) -> str:
        """A sentence that ends with the cure."""
        if node in self.by_pci or self.new:
            return f"no sweep has seen {what}; sweep {node} again"
        every = f"all its {self.counted[node]} GPUs" if node in self.counted else "all its GPUs"
        return (
            f"no sweep has seen {what}; sweep {node} first, import what 'gpu-aware-profile node"
            f" --json' prints there, or give --new-gpus if this output has {every}"
        )

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
    by_pci = {
        node: {key: slot for slot, text in addresses.items() if (key := _pci_key(text))}
        for node, addresses in pci_addresses(store).items()
    }
    return KnownGpus(gpus_by_uuid(store), by_pci, seen_gpus(store), new, counted_gpus(store))


def add_nodes(store: Store, tables: Iterable[Table], taken_at: float) -> dict[str, int]:
    """Add the nodes that tables of bandwidths name and the store has no address of.

    Their GPUs are those of the tables, in the order of their PCI addresses, or as many as an output
    without addresses has. Returns node -> number of GPUs. ``taken_at``: Unix s. Raises StoreError.
    """
    known = seen_gpus(store).keys() | pci_addresses(store).keys()
    counted = counted_gpus(store)
    rows = store.query("SELECT node, max(slot) AS most FROM gpus GROUP BY node")
    most = {row["node"]: int(row["most"]) for row in rows}
    found: dict[str, set[str]] = {}
    for row in (row for table in tables for row in table.rows):
        cells = row.cells
        named = cells["gpus"].split() if "gpus" in cells else [cells["a"], cells["b"]]
        if is_node_name(cells["node"]) and cells["node"] not in known:
            found.setdefault(cells["node"], set()).update(named)
    added = {}
    for node, gpus in found.items():
        names = _all_addresses(gpus)
        count = len(names)
        whole = most.get(node, 0) < count <= MAX_GPUS_PER_NODE
        if whole and counted.get(node, count) == count:
            put_addresses(store, node, names, taken_at)
            added[node] = count
    return added


def _all_addresses(gpus: Collection[str]) -> Sequence[str | None]:
    """PCI addresses, ascending, of all GPUs of a node, or None for each of a count without them.

    Empty: neither is known.
    """
    keys = sorted(key for key in map(_pci_key, gpus) if key is not None)
    if len(keys) == len(gpus):
        return [f"{key[0]:08X}:{key[1]:02X}:{key[2]:02X}.0" for key in keys]
    counts = {match["count"] for match in map(_NVML.match, gpus) if match}
    return [None] * int(counts.pop() or 0) if len(counts) == 1 and not keys else []


def _pci_key(text: str) -> Address | None:
    """(domain, bus, device) of ``00000000:1a:00.0`` or ``1a:00``; None: not such an address."""
    match = _PCI.match(text)
    if match is None:
        return None
    return int(match["domain"] or "0", 16), int(match["bus"], 16), int(match["device"], 16)
