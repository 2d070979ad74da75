"""What several unit tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_folder import SlurmFolder


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmFolder:
    """A small Slurm of our own, which all of this process finds."""
    slurm = SlurmFolder(tmp_path)
    slurm.serve(monkeypatch)
    return slurm
