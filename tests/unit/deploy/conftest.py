"""What several tests of deploy start from."""

import pytest

from slurm_gpu_aware.deploy.reconfiguration import Reconfiguration


@pytest.fixture
def no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconfiguration does not wait for jobs that are being launched: there are none."""
    monkeypatch.setattr(Reconfiguration, "QUIET_S", 0.0)
