"""NICs of a node, and measured bandwidths: of pairs of GPUs and of collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ALL_REDUCE = "all_reduce"
OPERATIONS = (ALL_REDUCE, "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall")
"""Collectives in the words of nccl-tests."""


class Nic(NamedTuple):
    """A network adapter with its place in the PCIe tree."""

    name: str
    """Its InfiniBand device, ``mlx5_0``, else its network interface."""
    pci: str
    """``0000:1a:00.0``"""
    numa: int | None
    """NUMA node; None: not known."""
    gpus: Mapping[int, str]
    """Slurm's index of a GPU -> class of the path, in nvidia-smi's words (PIX .. SYS)."""
    nics: Mapping[str, str]
    """Name of another NIC of the node -> class of the path."""


class PairBandwidth(NamedTuple):
    """One measurement between two GPUs of a node. None: not measured. Units: GB/s."""

    node: str
    a: int
    b: int
    """``a < b``, Slurm's indices."""
    taken_at: float
    """Unix time."""
    ab_gbps: float | None = None
    """From ``a`` to ``b``."""
    ba_gbps: float | None = None
    both_gbps: float | None = None
    """Sum of both directions at once."""
    latency_us: float | None = None
    """One way, mean of both directions."""


class Collective(NamedTuple):
    """Bandwidth of one collective operation over GPUs of one node."""

    node: str
    gpus: tuple[int, ...]
    """Slurm's indices, ascending; two or more."""
    operation: str
    """One of ``OPERATIONS``."""
    taken_at: float
    """Unix time."""
    gbps: float
    """Bus bandwidth as nccl-tests defines it; of a ring: that of its slowest link. GB/s."""
    size_bytes: int | None = None
    """Size of the message; None: not known."""
