"""Reader of clock.conf: lines ``key = /path``. Standard library only, for the hooks of `clocks`."""

from __future__ import annotations

import os

__all__ = ["ClockConfig", "read_clock_conf"]

CONFIG = "/etc/slurm-gpu-aware/clock.conf"
_KEYS = ("spool", "locks", "command")
"""``command``, the path of this program, is read by the hooks only."""


class ClockConfig:
    """Folders of the hooks."""

    def __init__(self) -> None:
        self.spool = "/var/spool/slurm-gpu-aware/clocks"
        """Folder of the records, one file NODE.jsonl per node; may be on a shared file system."""
        self.locks = "/var/lib/slurm-gpu-aware/clock-locks"
        """Folder of the notes; local to the node, kept across restarts."""


def read_clock_conf(file: str | None = None) -> tuple[ClockConfig, str | None]:
    """Return (configuration, complaint). A wrong line is skipped, so that no job fails by it.

    ``$GPU_AWARE_CLOCK_CONFIG`` names another file, ``$GPU_AWARE_CLOCK_SPOOL`` another spool.
    """
    path = file or os.environ.get("GPU_AWARE_CLOCK_CONFIG") or CONFIG
    config, complaint = ClockConfig(), None
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as exc:
        lines, complaint = [], f"{path}: cannot be read: {exc}"
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, _, value = (part.strip() for part in text.partition("="))
        if key not in _KEYS or not value.startswith("/"):
            complaint = f"{path}:{number}: expected KEY = /PATH with a key of {', '.join(_KEYS)}"
        elif key != "command":
            setattr(config, key, value)
    config.spool = os.environ.get("GPU_AWARE_CLOCK_SPOOL") or config.spool
    return config, complaint
