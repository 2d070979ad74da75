"""GPUs in TRES lists: requests, and the GPU indices of placed jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from slurm_gpu_aware.names import index_type, slot_of
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode

_GPU = re.compile(r"(?:gres[/:])?gpu(?:[:=]([A-Za-z][A-Za-z0-9._-]*))?(?:[:=]([0-9]+))?\Z")
_SHARDS = re.compile(r"(?:gres[/:])?shard(?:[:=](g[0-9]+))?[:=]([0-9]{1,5})\Z")


@dataclass(frozen=True)
class GpuItem:
    """The GPU part of a TRES list such as ``gres/gpu:2,gres/nic:1``."""

    count: int
    kind: str | None
    others: tuple[str, ...]
    """The other entries, unchanged."""


def typed_gres(slots: Iterable[int], nodes: int = 1) -> str:
    """TRES list of exactly these GPUs, on each of ``nodes``: ``gres/gpu:g1:1,gres/gpu:g3:1``."""
    return ",".join(f"gres/gpu:{index_type(slot)}:{nodes}" for slot in sorted(slots))


def typed_shards(slot: int, number: int) -> str:
    """TRES list of shards of exactly this GPU: ``gres/shard:g2:3``."""
    return f"gres/shard:{index_type(slot)}:{number}"


def shards_of(text: str | None) -> int:
    """Shards for which a TRES list asks that asks for nothing else; 0: another list."""
    match = _SHARDS.match(text or "")
    return 0 if match is None else int(match[2])


def gpu_item(text: str | None) -> GpuItem | None:
    """The only GPU entry of a TRES list; None if there is none, or more than one."""
    items = _items(text)
    gpus = [match for item in items if (match := _GPU.match(item)) is not None]
    if len(gpus) != 1:
        return None
    others = tuple(item for item in items if item != gpus[0][0])
    return GpuItem(int(gpus[0][2] or 1), gpus[0][1], others)


def gpus_and_shards(text: str | None) -> tuple[int, int]:
    """(GPUs, shards) of all entries of a TRES list, of any type; MPS count as a shard."""
    gpus = shards = 0
    for item in _items(text):
        # As Slurm reads it: "gres" may stand anywhere.
        name, _, rest = re.sub(r"^.*gres[/:]?", "", item).partition(":")
        name, _, more = name.partition("=")
        number = (rest or more).rpartition(":")[2].rpartition("=")[2]
        count = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 1
        if name == "gpu":
            gpus += count
        elif name in ("shard", "mps"):
            shards += count if name == "shard" else 1
    return gpus, shards


def _items(text: str | None) -> list[str]:
    return [item for item in (text or "").split(",") if item]


def same_tres(one: str | None, other: str | None) -> bool:
    """Whether two TRES lists mean the same, whatever their order and spelling."""
    return _normal(one) == _normal(other)


def _normal(text: str | None) -> list[str]:
    items = []
    for item in _items(text):
        plain = item.replace("=", ":").removeprefix("gres/").removeprefix("gres:")
        items.append(plain if plain.rpartition(":")[2].isdigit() else f"{plain}:1")
    return sorted(items)


def gpu_slots(node: SlurmNode) -> tuple[tuple[int, ...], bool]:
    """(GPU indices of a node, whether exact ones can be chosen)."""
    slots, exact = _slots(node.gpus)
    return slots, exact and not node.shared_gres


@lru_cache(maxsize=256)  # a site has few kinds of nodes
def _slots(gpus: tuple[tuple[str | None, int], ...]) -> tuple[tuple[int, ...], bool]:
    named = [slot_of(kind) for kind, count in gpus if count == 1]
    slots = tuple(sorted(slot for slot in named if slot is not None))
    if slots and len(set(slots)) == len(gpus):
        return slots, True
    return tuple(range(sum(count for _, count in gpus))), False


def bound_slots(job: SlurmJob) -> tuple[int, ...] | None:
    """GPU indices for which a placed job asks; None: it asks for no index types."""
    return placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job)


def placed_slots(text: str | None) -> tuple[int, ...] | None:
    """GPU indices of a TRES list (``gres/gpu:g1:1,gres/gpu:g3:1``, ``gres/shard:g2:3``); None if
    untyped."""
    if (shards := _SHARDS.match(text or "")) is not None:
        slot = slot_of(shards[1])
        return None if slot is None else (slot,)
    gpus = [match for item in _items(text) if (match := _GPU.match(item)) is not None]
    slots = [slot for gpu in gpus if (slot := slot_of(gpu[1])) is not None]
    return tuple(sorted(slots)) if slots and len(slots) == len(gpus) else None
