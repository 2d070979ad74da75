"""The gateway over ``scontrol``: complaints, and jobs that must be read a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.slurm.gateway import JobUpdate


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("FAKE_SLURM", str(fake.home))
    return fake


def saying(folder: Path, text: str) -> CliGateway:
    """A gateway whose ``scontrol`` reads what it is told and complains."""
    script = folder / "scontrol"
    (folder / "said").write_text(text)
    script.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {folder}/said >&2\n")
    script.chmod(0o755)
    return CliGateway(scontrol=str(script))


@pytest.mark.parametrize(
    ("sent", "text", "refused"),
    [
        ("7", "Access/permission denied for job 7", "7"),
        ("98_3", "98_3: Requested node configuration is not available", "98_3"),
        ("98", "98_[4-9]: Requested node configuration is not available", "98"),
        ("98", "98_[0-5,...]: Job/step already completing or completed", "98"),
        ("98", "98_3: Job/step already completing or completed\n98_[4-9]: No error", "98"),
        ("98_3", "scontrol: scontrol: 98_3: Invalid license specification", "98_3"),
        ("98", "98_3: No error\n98_[4-9]: No error", None),
    ],
)
def test_complaints_are_known_by_their_job(
    tmp_path: Path, sent: str, text: str, refused: str | None
) -> None:
    gateway = saying(tmp_path, text + "\n")
    found = gateway.update_jobs([JobUpdate(sent, (("Licenses", ""),))])
    assert list(found) == ([] if refused is None else [refused])
