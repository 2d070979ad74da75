"""Files that drive the fake GPUs of this node."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple


class FakeMachine(NamedTuple):
    """Files of docker/fake_nvml."""

    file: Path
    state: Path
    """Folder of what changes: ``override.json``, locked clocks."""


def fake_machine() -> FakeMachine | None:
    """The files of this node; None: its GPUs are not fake."""
    host = socket.gethostname().partition(".")[0]
    file = Path(os.environ.get("FAKE_NVML_MACHINE") or f"/etc/gpu-aware-fake/{host}.json")
    state = os.environ.get("FAKE_NVML_STATE") or f"/shared/fakegpu/{host}"
    return FakeMachine(file, Path(state)) if file.exists() else None
