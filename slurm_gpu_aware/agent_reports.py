"""Reports of the clock agents (``gpu-aware clockd``), and the spool files in which they stand.

Lines come from other hosts: anything but a report of the known form is skipped.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from msgspec import Meta, Struct

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_GPU_W, MAX_GPUS_PER_NODE, MAX_MHZ
from slurm_gpu_aware.files import open_plain
from slurm_gpu_aware.records import number, whole

LATEST = 1 << 33  # Bound of times in seconds, frequencies and job numbers.
MOST_SEQ = 10**16
MOST_MASK = (1 << 53) - 1
LONGEST = 200  # Characters of a text, and entries of a list, that are kept.
_TAIL = 1 << 18  # bytes at the end of a file that hold a report of the last minutes
_AGENT = "agent"
_Gpu = Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1)]
_Whole = Annotated[int, whole(0, LATEST)]
_Time = Annotated[float, number(0, LATEST)]


class Throttle(NamedTuple):
    """A GPU between or under jobs."""

    mask: int  # Reasons for a lower clock, as bits of nvmlClocksEventReasons.
    mhz: int  # SM clock; 0: not known.
    job: int  # Job that holds the GPU by the prolog's accounts; 0: none, or no accounts.


class Xid(NamedTuple):
    """An error that the driver reported, at any load."""

    gpu: int
    xid: int  # NVIDIA's number.
    at: float  # Unix seconds.
    job: int  # Job that held the GPU by the prolog's accounts; 0: none, or no accounts.


@dataclass(frozen=True)
class AgentReport:
    """What the agent of a node said last."""

    at: float  # Unix seconds.
    seq: int
    """Number of the orders that it has carried out; 0: of none. GPUs may have refused a clock."""
    clocks_mhz: Mapping[int, int] = field(default_factory=dict)
    """GPU index -> the clock that is set as ordered; 0: the default clock."""
    power_w: Mapping[int, float] = field(default_factory=dict)  # GPU index -> its power then.
    throttle: Mapping[int, Throttle] = field(default_factory=dict)
    """GPU index -> why its clock is low; a GPU that cannot tell is absent."""
    xids: tuple[Xid, ...] = ()
    """Of the last day, as far as the agent ran; of equal ones of a GPU the newest."""
    trouble: str = ""  # Why it obeys no orders; empty: it does, or there are none.


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


class _Wire(Struct):
    """An agent's record: parallel lists of GPUs and values."""

    at: float
    seq: Annotated[int, whole(0, MOST_SEQ - 1)]
    gpus: Annotated[list[_Gpu], Meta(max_length=LONGEST)]
    power_w: list[Annotated[float, number(0, MAX_GPU_W)]]
    clock_gpus: Annotated[list[_Gpu], Meta(max_length=LONGEST)]
    clock_mhz: list[Annotated[float, number(0, MAX_MHZ)]]
    error: str = ""
    read_gpus: Annotated[list[_Gpu], Meta(max_length=LONGEST)] = []
    read_throttle: list[Annotated[int, whole(0, MOST_MASK)]] = []
    read_mhz: list[Annotated[float, number(0, MAX_MHZ)]] = []
    read_jobs: list[_Whole] = []
    xids: Annotated[list[tuple[_Gpu, _Whole, _Time, _Whole]], Meta(max_length=LONGEST)] = []


def agent_report(raw: Mapping[str, Any]) -> AgentReport | None:
    """The report of an agent; None for any other record of `parse_record`."""
    if raw.get("event") != _AGENT:
        return None
    try:
        wire = records.read(raw, _Wire)
        power = dict(zip(wire.gpus, wire.power_w, strict=True))
        clocks = dict(zip(wire.clock_gpus, map(int, wire.clock_mhz), strict=True))
        states = zip(wire.read_throttle, map(int, wire.read_mhz), wire.read_jobs, strict=True)
        throttle = dict(zip(wire.read_gpus, map(Throttle._make, states), strict=True))
    except ValueError:
        return None
    xids = tuple(map(Xid._make, wire.xids))
    return AgentReport(wire.at, wire.seq, clocks, power, throttle, xids, wire.error[:LONGEST])
