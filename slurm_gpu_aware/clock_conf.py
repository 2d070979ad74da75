"""Reader of clock.conf: lines ``key = value``. Standard library only, for the hooks of `clocks`."""

import os

CONFIG = "/etc/slurm-gpu-aware/clock.conf"
SPOOL = "/var/spool/slurm-gpu-aware/clocks"
"""Folder of the records, one file NODE.jsonl per node; may be on a shared file system."""
LOCKS = "/var/lib/slurm-gpu-aware/clock-locks"
"""Folder of the notes; local to the node, kept across restarts."""
ACCOUNTS = "/var/lib/slurm-gpu-aware/gpu-accounts"
"""Folder of the accounts that ``gpu-aware setup`` names; local to the node."""
NO_ACCOUNTS = "has no line 'accounts', so the energy of jobs' GPUs is not known"
_PATHS = ("spool", "locks", "command", "accounts", "orders", "job_map")
"""``command``, the path of this program, is read by the hook scripts only."""
_USER = "slurm_user"


class ClockConf:
    """What clock.conf says; ``complaint``: on a wrong line, which is skipped."""

    def __init__(self, found: dict[str, str], complaint: str | None) -> None:
        self.spool = os.environ.get("GPU_AWARE_CLOCK_SPOOL") or found.get("spool", SPOOL)
        self.locks = found.get("locks", LOCKS)
        self.accounts = found.get("accounts", "")
        """Folder of the accounts of the GPUs' jobs; empty: none are kept, no energy is known."""
        self.orders = found.get("orders", "")
        """Folder of the orders for ``gpu-aware clockd``; empty: it takes none."""
        self.job_map = found.get("job_map", "")
        """Folder of dcgm-exporter's job map; empty: none is kept."""
        self.slurm_user = found.get(_USER, "")
        """Name or number of the user that may write orders, beside root; empty: only root."""
        self.complaint = complaint


def conf_path() -> str:
    """Path of clock.conf; ``$GPU_AWARE_CLOCK_CONFIG`` names another one."""
    return os.environ.get("GPU_AWARE_CLOCK_CONFIG") or CONFIG


def read_clock_conf() -> ClockConf:
    """Read clock.conf. A wrong line is skipped, so that no job fails by it.

    ``$GPU_AWARE_CLOCK_SPOOL`` names another spool.
    """
    path = conf_path()
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
        if (key in _PATHS and value.startswith("/")) or (key == _USER and value):
            found[key] = value
        elif line.strip() and not line.strip().startswith("#"):
            names = ", ".join(_PATHS)
            complaint = f"{path}:{number}: expected {_USER} = NAME or KEY = /PATH, KEY: {names}"
    return ClockConf(found, complaint)
