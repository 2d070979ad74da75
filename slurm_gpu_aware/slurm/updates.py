"""Changes that are sent to Slurm: updates of jobs and their order, new reservations."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

_JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")  # ``98`` or ``98_3``.
_RECORD_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9][0-9,:-]{0,65535})?\Z")
"""The same, or the rest of an array by its tasks: ``98_4-9,12``."""
_COUNT = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")
_MOST = (1 << 32) - 3  # Greatest count; larger numbers mean "not given" and "unlimited".
_LONGEST = 65536
TRES_FIELDS = {
    "TresPerNode": "tres_per_node",
    "TresPerJob": "tres_per_job",
    "TresPerTask": "tres_per_task",
    "TresPerSocket": "tres_per_socket",
}
"""Fields that ask for GPUs, by the names of ``scontrol update`` -> field of Slurm's records."""
_TEXTS = {
    **TRES_FIELDS,
    "AdminComment": "admin_comment",
    "CpusPerTres": "cpus_per_tres",
    "ExcNodeList": "exc_nodes",
    "Extra": "extra",
    "Features": "features",
    "Licenses": "licenses",
    "ReqNodeList": "req_nodes",
    "ReservationName": "reservation",
    "TresBind": "tres_bind",
    "TresFreq": "tres_freq",
}
_COUNTS = {
    "CPUsPerTask": ("cpus_per_task",),
    "MinCPUsNode": ("pn_min_cpus",),
    "NumCPUs": ("min_cpus", "max_cpus"),
    "NumNodes": ("min_nodes", "max_nodes"),
    "NumTasks": ("num_tasks",),
    "TasksPerNode": ("ntasks_per_node",),
}
"""Names of ``scontrol update`` -> fields of ``job_desc_msg_t``. NumCPUs and NumNodes also take
``MIN-MAX``."""
_FLAGS = {"IGNORE_JOBS": "IGN_JOBS", "NO_HOLD_JOBS_AFTER": "NO_HOLD_JOBS"}
"""Flags of reservations whose names in ``slurm.h`` are others."""
Update: TypeAlias = tuple[str, Mapping[str, str], Mapping[str, int]]  # Job id, texts, numbers.
_LANES = 4  # Requests sent at the same time: most of a request's time passes outside slurmctld.


def check_job_ids(ids: Iterable[str]) -> None:
    """Raise ValueError if one is not the id of a job or of an array task."""
    for job_id in ids:
        if not _JOB_ID.match(job_id):
            raise ValueError(f"{job_id!r} is not a job id")


@dataclass(frozen=True)
class JobUpdate:
    """New values of fields of one job, by the names of ``scontrol update``.

    An empty text clears the field. Raises ValueError for an invalid value, so that every update
    that exists can be sent.
    """

    job_id: str
    fields: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not _RECORD_ID.match(self.job_id):
            raise ValueError(f"{self.job_id[:80]!r} is not a job id, nor one of array tasks")
        for name, value in self.fields:
            if name in _TEXTS:
                fits = "\0" not in value and len(value) <= _LONGEST
            elif name in _COUNTS:
                fits = _COUNT.match(value) is not None and max(_numbers(value)) <= _MOST
            elif name == "StartTime":
                fits = value == "now"
            else:
                raise ValueError(f"job {self.job_id}: field {name!r} may not be changed")
            if not fits:
                raise ValueError(f"job {self.job_id}: {name}={value[:80]!r} is not valid")

    def descriptor(self) -> tuple[dict[str, str], dict[str, int]]:
        """(texts, numbers) by the names of ``job_desc_msg_t``."""
        texts: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for name, value in self.fields:
            if name in _TEXTS:
                texts[_TEXTS[name]] = value
            elif name == "StartTime":
                numbers["begin_time"] = int(time.time())
            else:
                numbers |= zip(_COUNTS[name], _numbers(value), strict=False)
        return texts, numbers


def _numbers(count: str) -> list[int]:
    return [int(number) for number in count.split("-")]


@dataclass(frozen=True)
class NewReservation:
    """A reservation to create."""

    name: str
    end_s: float
    start_s: float | None = None  # None: now.
    users: str = "root"  # Users that may use it; ``-alice``: all others.
    licenses: str = ""  # ``name:count``; such a reservation holds no node.
    nodes: str = ""  # Host list, or ``ALL``.
    tres: str = ""  # What it holds of the nodes, such as ``gres/gpu=2``; empty: the whole nodes.
    flags: frozenset[str] = frozenset()
    """``ANY_NODES``, ``IGNORE_JOBS``, ``NO_HOLD_JOBS_AFTER``, ``OVERLAP``, ``PURGE_COMP``."""
    comment: str = ""

    @property
    def flag_names(self) -> list[str]:
        """Its flags by their names in ``slurm.h``."""
        return [f"RESERVE_FLAG_{_FLAGS.get(flag, flag)}" for flag in self.flags]


def lanes_of(items: Sequence[T], id_of: Callable[[T], str]) -> list[list[T]]:
    """Requests that may be sent at the same time; those of a job or an array stay in order."""
    lanes: list[list[T]] = [[] for _ in range(_LANES)]
    lane_of: dict[str, int] = {}
    for item in items:
        number = id_of(item).partition("_")[0]
        lanes[lane_of.setdefault(number, len(lane_of) % _LANES)].append(item)
    return [lane for lane in lanes if lane]


def refused_id(record: str, asked: str) -> str:
    """Id of a refused record as in the request: ``98_[4-9]`` is the rest of array 98."""
    array, _, task = record.partition("_")
    return record if task.isdigit() and asked != array else asked


def one_line(message: str) -> str:
    """A message of Slurm on one line: to that of a site's filter Slurm may add its own."""
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())
