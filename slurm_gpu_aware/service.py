"""What a service tells systemd (sd_notify(3)); without systemd nothing."""

import contextlib
import os
import socket

READY = "READY=1"
ALIVE = "WATCHDOG=1"


def notify(state: str) -> None:
    """Send a state to the service manager; if that fails, its watchdog may restart the service."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as there:
        there.connect(f"\0{name[1:]}" if name.startswith("@") else name)
        there.sendall(state.encode())
