"""The job as Slurm describes it to a hook. Every value goes through a strict grammar."""

from __future__ import annotations

import os

from slurm_gpu_aware.names import is_node_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

Record = dict[str, object]
"""A line of the spool: JSON values that are texts, numbers, None, or lists of numbers."""


class Job:
    """A job on this node. Raises ValueError if its number or the node's name are nonsense."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.node = env.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        self.id = env.get("SLURM_JOB_ID", "")
        restarts = env.get("SLURM_JOB_RESTART_COUNT") or env.get("SLURM_RESTART_COUNT") or "0"
        self.restarts = int(restarts) if _is_number(restarts, 9) else 0
        self.extra = env.get("SLURM_JOB_EXTRA", "")
        self.gpus = env.get("SLURM_JOB_GPUS", "")
        self.slurm_conf = env.get("SLURM_CONF", "")
        if not is_node_name(self.node):
            raise ValueError(f"{self.node[:40]!r} is not a node name")
        if not _is_number(self.id, 12):
            raise ValueError(f"SLURM_JOB_ID is {self.id[:40]!r}")


def parse_extra(text: str) -> tuple[int, list[int] | None] | None:
    """(MHz, GPU indices on each node) of ``freq=MHZ`` or ``freq=MHZ@0+3`` in a list with commas.

    ``freq=0@0+3`` names the GPUs of a job at the default clock. Indices None: those of
    ``SLURM_JOB_GPUS``, which has only the GPUs of the job's last type (24.11). Returns None without
    such an item. Raises ValueError if it is malformed or twice there.
    """
    found = [item.strip() for item in text.split(",") if item.strip().startswith("freq=")]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError("freq= occurs more than once")
    mhz, at, gpus = found[0].removeprefix("freq=").partition("@")
    indices = gpus.split("+") if at else []
    if (
        not _is_number(mhz, 5)
        or not ((mhz == "0" and at) or (len(mhz) > 1 and mhz[0] != "0"))
        or not all(_is_number(index, 4) for index in indices)
    ):
        raise ValueError(f"{found[0][:40]!r} is not freq=MHZ or freq=MHZ@INDEX+INDEX")
    return int(mhz), sorted({int(index) for index in indices}) if at else None


def parse_gpus(text: str) -> list[int]:
    """GPU indices of ``SLURM_JOB_GPUS`` (``0,2`` or ``0-3``), ascending. Raises ValueError."""
    found: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, dash, last = item.partition("-")
        last = last if dash else first
        if not (_is_number(first, 4) and _is_number(last, 4)) or int(last) < int(first):
            raise ValueError(f"{text[:40]!r} is not a list of GPU indices")
        found.update(range(int(first), int(last) + 1))
    return sorted(found)


def _is_number(text: str, most_digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= most_digits
