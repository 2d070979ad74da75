"""Reader of clock.conf: lines ``key = /path``. Standard library only, for the hooks of `clocks`."""

from __future__ import annotations

import os

__all__ = ["read_clock_conf"]

CONFIG = "/etc/slurm-gpu-aware/clock.conf"
SPOOL = "/var/spool/slurm-gpu-aware/clocks"
"""Folder of the records, one file NODE.jsonl per node; may be on a shared file system."""
LOCKS = "/var/lib/slurm-gpu-aware/clock-locks"
"""Folder of the notes; local to the node, kept across restarts."""
_KEYS = ("spool", "locks", "command")
"""``command``, the path of this program, is read by the hook scripts only."""


def read_clock_conf() -> tuple[str, str, str | None]:
    """Return (spool, locks, complaint). A wrong line is skipped, so that no job fails by it.

    ``$GPU_AWARE_CLOCK_CONFIG`` names another file, ``$GPU_AWARE_CLOCK_SPOOL`` another spool.
    """
    path = os.environ.get("GPU_AWARE_CLOCK_CONFIG") or CONFIG
    found: dict[str, str] = {}
    lines: list[str] = []
    complaint = None
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as exc:
        complaint = f"{path}: cannot be read: {exc}"
    for number, line in enumerate(lines, 1):
        key, _, value = (part.strip() for part in line.partition("="))
        if key in _KEYS and value.startswith("/"):
            found[key] = value
        elif line.strip() and not line.strip().startswith("#"):
            complaint = f"{path}:{number}: expected KEY = /PATH with a key of {', '.join(_KEYS)}"
    spool = os.environ.get("GPU_AWARE_CLOCK_SPOOL") or found.get("spool", SPOOL)
    return spool, found.get("locks", LOCKS), complaint
