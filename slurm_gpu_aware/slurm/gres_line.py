"""GRES lines of nodes and running jobs: GPUs, and the GRES that share or split them.

A line holds all that a site has defined: ``gpu:a100:4(S:0-1),shard:32``, ``tmp:512G``,
``VramPerGpu:no_consume:48G``, ``gpu:g0:1(IDX:0),shard:0(0/8,-/8)``, ``gpu:a100(CNT:2)``. Entries
of other GRES are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.values import UNSET, parse_indices

__all__ = ["GresItem", "is_mig", "parse_gres"]

_ITEMS = re.compile(r",(?![^()]*\))")
_GPU = re.compile(
    r"gpu(?::(?!no_consume[:(]|[0-9]+[KMGTP]?(?:\(|\Z))([A-Za-z0-9._+-]+))?"
    r"(?::no_consume)?(?::([0-9]+))?"
    r"(?:\((?:IDX:([0-9,-]*|N/A)|S:([0-9,-]+)|CNT:([0-9]+))\))?\Z"
)
_SLICE = re.compile(
    r"(?:(?<![0-9a-z])|(?<=mig))[1-9][0-9]?g[._]?[0-9]+gb(?![0-9a-z])|(?<![a-z])mig(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class GresItem:
    """GPUs of one type, or a GRES that shares GPUs (``mps``, ``shard``)."""

    name: str
    kind: str | None
    """Type; None: untyped."""
    count: int
    """Number of GPUs; 0 for a GRES that shares them."""
    indices: tuple[int, ...] | None
    """Slurm's GPU indices; None: not in the entry."""
    sockets: tuple[int, ...] | None = None
    """Sockets that the GPUs are bound to (``S:0-1``); None: not in the entry."""


def is_mig(kind: str | None) -> bool:
    """Whether a GPU's GRES type is a MIG profile, that is a part of a GPU.

    Sites use names such as ``1g.5gb``, ``a100_3g.20gb``, ``nvidia_h100_80gb_hbm3_1g.10gb+me``,
    ``1g10gb`` or ``mig-...``; slurmd's AutoDetect appends NVIDIA's profile to the model.
    """
    return kind is not None and _SLICE.search(kind) is not None


@lru_cache(maxsize=8192)  # thousands of nodes and jobs show the same few lines
def parse_gres(text: str) -> tuple[GresItem, ...]:
    """Entries of GPUs and of the GRES that share them; all others are skipped.

    Takes ``gpu:g1:1(IDX:1),gpu:2(S:0-1),tmp:512G`` and ``(null)``. Raises SourceError for an
    invalid entry of GPUs.
    """
    if text in UNSET:
        return ()
    items: list[GresItem] = []
    for item in _ITEMS.split(text):
        name = re.split(r"[:(]", item, maxsplit=1)[0]
        if name in ("mps", "shard"):
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
