"""GRES types of single GPUs: type ``gK`` is the GPU of Slurm index K. Standard library only."""

from __future__ import annotations

__all__ = ["INDEX_TYPES", "index_type", "slot_of"]

INDEX_TYPES = 1024
"""``g0`` to ``g1023`` are index types; more GPUs than any node has."""


def index_type(slot: int) -> str:
    """GRES type of a GPU index."""
    return f"g{slot}"


def slot_of(kind: str | None) -> int | None:
    """GPU index K of the GRES type ``gK``; None for any other type."""
    digits = (kind or "")[1:5]
    if not digits.isascii() or not digits.isdigit():
        return None
    slot = int(digits)
    return slot if kind == index_type(slot) and slot < INDEX_TYPES else None
