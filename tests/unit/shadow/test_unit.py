"""The systemd unit of the shadow: it may do nothing but read Slurm and write its store."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "etc/systemd/gpu-aware-shadow.service"


def settings() -> dict[str, str]:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


def test_it_has_no_right_beside_its_user() -> None:
    known = settings()
    assert known["ExecStart"].endswith("gpu-aware selectd --shadow")
    assert known["User"] not in ("root", "slurm")
    assert (known["CapabilityBoundingSet"], known["ReadWritePaths"]) == (
        "",
        "/var/lib/slurm-gpu-aware",
    )
    on = ("PrivateTmp", "PrivateDevices", "NoNewPrivileges")
    assert [known[name] for name in on] == ["yes"] * 3
    assert known["ProtectSystem"] == "strict"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_its_exposure_is_low() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_knows_its_words() -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert [line for line in ours if "is not executable" not in line] == []
