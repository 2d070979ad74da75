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


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of the configuration that commands find; it is not there yet."""
    path = tmp_path / "store.db"
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{path}"\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    return path
