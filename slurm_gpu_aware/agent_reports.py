"""Reports of the clock agents (``gpu-aware clockd``), and the spool files in which they stand.

Lines come from other hosts: anything but a report of the known form is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from slurm_gpu_aware.bounds import MAX_GPU_W, MAX_MHZ
from slurm_gpu_aware.text_file import open_plain

LATEST = 1 << 33
"""Bound of times in seconds, frequencies and GPU indices."""
MOST_SEQ = 10**16
LONGEST = 200
"""Characters of a text, and entries of a list, that are kept."""
_TAIL = 1 << 18  # bytes at the end of a file that hold a report of the last minutes
_AGENT = "agent"


@dataclass(frozen=True)
class AgentReport:
    """What the agent of a node said last."""

    at: float
    """Unix seconds."""
    seq: int
    """Number of the orders that it has carried out; 0: of none. GPUs may have refused a clock."""
    clocks_mhz: Mapping[int, int] = field(default_factory=dict)
    """GPU index -> the clock that is set as ordered; 0: the default clock."""
    power_w: Mapping[int, float] = field(default_factory=dict)
    """GPU index -> its power then."""
    trouble: str = ""
    """Why it obeys no orders; empty: it does, or there are none."""


def spool_file(folder: Path, node: str) -> Path:
    """File of a node's records."""
    return folder / f"{node}.jsonl"


def open_spool(file: Path) -> BinaryIO:
    """Open a file of root, of ours, or of the folder's owner. Raises OSError, also for another."""
    stream, status = open_plain(file)
    if status.st_uid not in {0, os.geteuid(), file.parent.stat().st_uid}:
        stream.close()
        raise PermissionError(f"{file} is not a file of a node")
    return stream


def last_report(file: Path) -> AgentReport | None:
    """The newest report at the end of a spool file; None: there is none."""
    try:
        with open_spool(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            lines = os.pread(stream.fileno(), _TAIL, max(0, size - _TAIL)).splitlines()
    except OSError:
        return None
    found = (agent_report(parse_record(line)) for line in reversed(lines))
    return next((report for report in found if report is not None), None)


def parse_record(line: bytes) -> Mapping[str, Any]:
    """A line's object; empty for anything that is no record with a time."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(raw, Mapping) or not isinstance(raw.get("event"), str):
        return {}
    at = raw.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 < at < LATEST:
        return {}
    return raw


def agent_report(raw: Mapping[str, Any]) -> AgentReport | None:
    """The report of an agent; None for any other record of `parse_record`."""
    if raw.get("event") != _AGENT or not _is_count(raw.get("seq"), MOST_SEQ):
        return None
    power = _by_gpu(raw.get("gpus"), raw.get("power_w"), MAX_GPU_W)
    clocks = _by_gpu(raw.get("clock_gpus"), raw.get("clock_mhz"), MAX_MHZ)
    trouble = raw.get("error", "")
    if power is None or clocks is None or not isinstance(trouble, str):
        return None
    whole = {gpu: int(mhz) for gpu, mhz in clocks.items()}
    return AgentReport(float(raw["at"]), raw["seq"], whole, power, trouble[:LONGEST])


def _by_gpu(gpus: Any, values: Any, most: float) -> dict[int, float] | None:
    """Parallel lists as a mapping, of values from 0 to ``most``; None if they are none."""
    if not isinstance(gpus, list) or not isinstance(values, list) or len(gpus) != len(values):
        return None
    if len(gpus) > LONGEST or not all(_is_count(gpu, LATEST) for gpu in gpus):
        return None
    if not all(type(value) in (int, float) and 0 <= value <= most for value in values):
        return None
    return dict(zip(gpus, map(float, values), strict=True))


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value < most
