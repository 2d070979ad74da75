"""How a shelf is called; see `shelf`."""

from __future__ import annotations

__all__ = ["SHELF", "is_shelf"]

SHELF = "gpuaware_shelf"


def is_shelf(reservation: str | None) -> bool:
    """Whether a reservation is one of ours for parked jobs."""
    return reservation is not None and f"{reservation}_".startswith(f"{SHELF}_")
