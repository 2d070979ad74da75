"""Job steps on this node, from ``/proc``."""

from __future__ import annotations

import os

__all__ = ["has_step"]


def has_step(job_id: str, proc: str = "/proc") -> bool:
    """Whether a step of a job runs on this node, by the command line of its slurmstepd.

    A user's process may have the same title, also one of a set-user-id program. Therefore only
    processes of the program slurmstepd that root started count.
    """
    title = f"slurmstepd: [{job_id}.".encode()
    for name in os.listdir(proc):
        if name.isdecimal() and _is_titled(f"{proc}/{name}", title):
            return True
    return False


def _is_titled(process: str, title: bytes) -> bool:
    try:
        with open(f"{process}/cmdline", "rb") as stream:
            if not stream.read(len(title)).startswith(title):
                return False
        # Debian: slurmstepd-wlm. After an update of Slurm: "slurmstepd (deleted)".
        program = os.readlink(f"{process}/exe")
        with open(f"{process}/status", encoding="utf-8", errors="replace") as stream:
            uids = next((line.split()[1:] for line in stream if line.startswith("Uid:")), [])
    except OSError:
        return False
    # The real user id; slurmstepd may take another effective one for a moment.
    return os.path.basename(program).startswith("slurmstepd") and uids[:1] == ["0"]
