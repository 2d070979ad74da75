"""GRES and TRES texts: as Slurm shows nodes and jobs, and as requests ask for GPUs and shards."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from slurm_gpu_aware.bounds import MAX_GPUS, index_type, slot_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.words import UNSET, parse_indices

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)\Z")
_UNITS = ("", "K", "M", "G", "T", "P", "E")  # Of 1024 each.
_ITEMS = re.compile(r",(?![^()]*\))")
_GPU = re.compile(
    r"gpu(?::(?!no_consume[:(]|[0-9]+[KMGTP]?(?:\(|\Z))([A-Za-z0-9._+-]+))?"
    r"(?::no_consume)?(?::([0-9]+))?"
    r"(?:\((?:IDX:([0-9,-]*|N/A)|S:([0-9,-]+)|CNT:([0-9]+))\))?\Z"
)
_SHARDS = re.compile(
    r"shard(?::([A-Za-z][A-Za-z0-9._+-]*))?:([0-9]+)(?:\(([-0-9/,]+|S:[0-9,-]+)\))?\Z"
)
_SLICE = re.compile(
    r"(?:(?<![0-9a-z])|(?<=mig))[1-9][0-9]?g[._]?[0-9]+gb(?![0-9a-z])|(?<![a-z])mig(?![a-z])",
    re.IGNORECASE,
)
_COUNT = re.compile(r"([0-9]{1,20})(?:([kmgtp])(i?b)?)?\Z")
_ASKED = re.compile(
    r"((?:gres[/:])?(gpu|shard))(?:[:=]([A-Za-z0-9._-]*[A-Za-z_-][A-Za-z0-9._-]*))?([:=][0-9]+)?\Z"
)

# -- as Slurm shows them ---------------------------------------------------------------------------


@lru_cache(maxsize=16384)
def parse_tres(text: str) -> tuple[Mapping[str, int], bool]:
    """``cpu=2K,mem=1.5G,gres/gpu:a100=2`` into (TRES -> amount, whether each is a number).

    ``mem`` is in MB. Above 2^70 bytes, which a user can ask for, Slurm writes ``mem=16?``.
    """
    amounts: dict[str, int] = {}
    complete = True
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        match = _AMOUNT.match(value)
        if match is None:
            complete = False
            continue
        plain, mega = ("M", 1024**2) if name == "mem" else ("", 1)
        units = 1024 ** _UNITS.index(match[2] or plain)
        amounts[name] = math.ceil(float(match[1]) * units / mega)
    return MappingProxyType(amounts), complete


def gpu_count(tres: Mapping[str, int]) -> int:
    """GPUs of TRES; typed entries count the same GPUs as the untyped one."""
    typed = sum(count for name, count in tres.items() if name.startswith("gres/gpu:"))
    return max(typed, tres.get("gres/gpu", 0))


@dataclass(frozen=True)
class GresItem:
    """Of a GRES line: GPUs of one type, or a GRES that shares GPUs (``mps``, ``shard``)."""

    name: str
    kind: str | None  # Type; None: untyped.
    count: int  # Number of GPUs or shards; 0 for MPS.
    indices: tuple[int, ...] | None  # Slurm's GPU indices; None: not in the entry.
    sockets: tuple[int, ...] | None = None
    """Sockets that the GPUs are bound to (``S:0-1``); None: not in the entry."""
    parts: tuple[tuple[int, int], ...] = ()
    """Shards in use and all shards of each GPU (``2/8,0/8``), in the order of the node's GPUs."""


def is_mig(kind: str | None) -> bool:
    """Whether a GPU's GRES type is a MIG profile: ``a100_3g.20gb``, ``1g10gb``, ``mig-a``, ..."""
    return kind is not None and _SLICE.search(kind) is not None


@lru_cache(maxsize=8192)  # thousands of nodes and jobs show the same few lines
def parse_gres(text: str) -> tuple[GresItem, ...]:
    """Entries of GPUs and of the GRES that share them; those of other GRES are skipped.

    A line holds all that a site has defined: ``gpu:a100:4(S:0-1),shard:32``, ``tmp:512G``,
    ``VramPerGpu:no_consume:48G``, ``gpu:g0:1(IDX:0),shard:0(0/8,-/8)``, ``gpu:a100(CNT:2)``, or
    ``(null)``. Slurm writes ``gpu:(null):1`` for untyped GPUs beside shards. Raises SourceError for
    an invalid entry of GPUs.
    """
    if text in UNSET:
        return ()
    items: list[GresItem] = []
    for item in _ITEMS.split(text.replace(":(null):", ":")):
        name = re.split(r"[:(]", item, maxsplit=1)[0]
        if name == "shard":
            items.append(_shards(item))
        elif name == "mps":
            items.append(GresItem(name, None, 0, None))
        elif name == "gpu":
            items.append(_gpus(item))
    return tuple(items)


def _gpus(item: str) -> GresItem:
    match = _GPU.match(item)
    if match is None:
        raise SourceError(f"{item[:80]!r} is not a GRES of GPUs; expected gpu[:type]:count")
    kind, number, listed, bound, held = match.groups()
    count = int(number or held or 1)
    slot = slot_of(kind)
    indices = None
    if listed is not None:
        indices = parse_indices(listed) if listed != "N/A" else ()
        if slot is not None and len(indices) == 1:
            # IDX counts the GPUs that Slurm sees; on a node that lacks one, only the type is right.
            indices = (slot,)
    elif held is not None and slot is not None and count == 1:
        indices = (slot,)
    sockets = parse_indices(bound) if bound is not None else None
    return GresItem("gpu", kind, count, indices, sockets)


def _shards(item: str) -> GresItem:
    """Shards; without ``parts`` if the entry does not say how many each GPU has, or is not read."""
    match = _SHARDS.match(item)
    if match is None:
        return GresItem("shard", None, 0, None)
    kind, number, found = match.groups()
    parts: list[tuple[int, int]] = []
    for part in (found or "").split(","):
        used, _, total = part.partition("/")
        if not total.isdecimal() or not (used.isdecimal() or used == "-"):  # "-": a whole GPU
            return GresItem("shard", kind, int(number), None)
        parts.append((0 if used == "-" else int(used), int(total)))
    return GresItem("shard", kind, int(number), None, parts=tuple(parts))


# -- as requests ask -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """An entry of GPUs or shards in the TRES list of a request: ``gres/gpu:a100:2``."""

    start: str  # ``gres/gpu``, as it is written.
    name: str  # ``gpu`` or ``shard``.
    kind: str | None  # Type; None: any.
    end: str  # ``:2``, as it is written; may be empty.

    @property
    def count(self) -> int:
        """GPUs or shards."""
        return int(self.end[1:] or 1)

    def with_kind(self, kind: str | None) -> str:
        """The entry with another type."""
        return f"{self.start}{':' if kind else ''}{kind or ''}{self.end}"


@lru_cache(maxsize=4096)  # users ask in few forms
def asked_by(item: str) -> Asked | None:
    """An entry of a TRES list; None: it is not of GPUs or shards, or not understood."""
    match = _ASKED.match(item)
    return None if match is None else Asked(match[1], match[2], match[3], match[4] or "")


@dataclass(frozen=True)
class GpuItem:
    """The GPU part of a TRES list such as ``gres/gpu:2,gres/nic:1``."""

    count: int
    kind: str | None
    others: tuple[str, ...]  # The other entries, unchanged.


def typed_gres(slots: Iterable[int], nodes: int = 1) -> str:
    """TRES list of exactly these GPUs, on each of ``nodes``: ``gres/gpu:g1:1,gres/gpu:g3:1``."""
    return ",".join(f"gres/gpu:{index_type(slot)}:{nodes}" for slot in sorted(slots))


def typed_shards(slot: int, number: int) -> str:
    """TRES list of shards of exactly this GPU: ``gres/shard:g2:3``."""
    return f"gres/shard:{index_type(slot)}:{number}"


def shards_of(text: str | None) -> int:
    """Shards for which a TRES list asks that asks for nothing else; 0: another list."""
    asked = _only_shards(text)
    return 0 if asked is None else asked.count


def _only_shards(text: str | None) -> Asked | None:
    """The shards of any GPU or of one, with their number, of a TRES list without other entries."""
    asked = asked_by(text or "")
    if asked is None or asked.name != "shard" or not asked.end or asked.count > MAX_GPUS:
        return None
    return asked if asked.kind is None or slot_of(asked.kind) is not None else None


def gpu_item(text: str | None) -> GpuItem | None:
    """The only GPU entry of a TRES list; None if there is none, or more than one."""
    items = _items(text)
    gpus = [(item, asked) for item in items if (asked := _gpu(item)) is not None]
    if len(gpus) != 1:
        return None
    own, asked = gpus[0]
    others = tuple(item for item in items if item != own)
    return GpuItem(asked.count, asked.kind, others)


def _gpu(item: str) -> Asked | None:
    """GPUs of any type, or of one whose name begins with a letter."""
    asked = asked_by(item)
    sound = asked is not None and asked.name == "gpu" and (asked.kind or "g")[0].isalpha()
    return asked if sound else None


def gpus_and_shards(text: str | None) -> tuple[int, int]:
    """(GPUs, shards) of all entries of a TRES list, of any type; MPS count as a shard."""
    gpus = shards = 0
    for item in _items(text):
        # As Slurm reads it: "gres" may stand anywhere.
        name, _, rest = re.sub(r"^.*gres[/:]?", "", item).partition(":")
        name, _, more = name.partition("=")
        count = _number((rest or more).rpartition(":")[2].rpartition("=")[2])
        if name == "gpu":
            gpus += count
        elif name in ("shard", "mps"):
            shards += count if name == "shard" else 1
    return gpus, shards


def _number(text: str) -> int:
    """A count as Slurm reads it (``suffix_mult``): ``1k``, ``8kb``, modulo 2^64; 1 for a type."""
    match = _COUNT.match(text.lower())
    if match is None:
        return 1
    base = 1000 if match[3] == "b" else 1024
    scale: int = base ** " kmgtp".index(match[2] or " ")
    return int(match[1]) * scale % 2**64


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
    if (shards := _only_shards(text)) is not None:
        slot = slot_of(shards.kind)
        return None if slot is None else (slot,)
    gpus = [asked for item in _items(text) if (asked := _gpu(item)) is not None]
    slots = [slot for gpu in gpus if (slot := slot_of(gpu.kind)) is not None]
    return tuple(sorted(slots)) if slots and len(slots) == len(gpus) else None
