"""What several unit tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm of files; every ``scontrol`` that the test starts finds it by the environment."""
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("FAKE_SLURM", str(fake.home))
    return fake
