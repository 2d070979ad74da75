"""Units of systemd: what services may do, and what they tell systemd."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from slurm_gpu_aware.service import ALIVE, READY, notify

UNITS = sorted(Path(__file__).parents[3].glob("etc/systemd/*.service"))
MOST = {"gpu-aware-clockd": 50, "gpu-aware-selectd": 30, "gpu-aware-shadow": 30}
MOST |= {"gpu-aware-watch": 30, "gpu-aware-metrics": 30, "gpu-aware-page": 30}
"""Service -> ten times its largest exposure, as systemd-analyze counts it."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_may_do_what_it_needs(unit: Path) -> None:
    most = MOST.get(unit.stem, 100)
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    told = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
    ours = [line for line in told.splitlines() if unit.name in line]
    assert [line for line in ours if "is not executable" not in line] == []


@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_systemd_hears_that_a_service_lives(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify") if kind == "a path" else f"@gpu-aware-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(path.replace("@", "\0") if kind != "a path" else path)
        there.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        for state in (READY, ALIVE):
            notify(state)
            assert there.recv(64) == state.encode()
    notify(ALIVE)  # the socket is closed


def test_without_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "relative/path"):
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY)
