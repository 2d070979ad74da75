"""What a test needs of its machine; it is skipped where that is not there."""

import os
from pathlib import Path

import pytest

__all__ = ["NOBODY", "needs_root", "shared_data"]

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as several users, which needs root")


def shared_data(name: str) -> Path:
    """A file or folder of the measured data beside the repository, or where the caller says."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    found = Path(os.environ.get("GPU_AWARE_SHARED", beside)) / "data" / name
    if not found.exists():
        pytest.skip(f"measured data not found: {found}")
    return found
