"""Protocol of the Slurm client: all questions to Slurm and all updates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    SlurmSwitch,
)

__all__ = [
    "COUNT_FIELDS",
    "JOB_ID",
    "TEXT_FIELDS",
    "JobUpdate",
    "NewReservation",
    "SlurmClient",
]

JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
"""``98`` or ``98_3``."""
_COUNT = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")
_MOST = (1 << 32) - 3
"""Greatest count; larger numbers mean "not given" and "unlimited"."""
_LONGEST = 65536
TEXT_FIELDS = {
    "AdminComment": "admin_comment",
    "CpusPerTres": "cpus_per_tres",
    "ExcNodeList": "exc_nodes",
    "Extra": "extra",
    "Features": "features",
    "Licenses": "licenses",
    "ReqNodeList": "req_nodes",
    "ReservationName": "reservation",
    "TresFreq": "tres_freq",
    "TresPerJob": "tres_per_job",
    "TresPerNode": "tres_per_node",
    "TresPerSocket": "tres_per_socket",
    "TresPerTask": "tres_per_task",
}
COUNT_FIELDS = {
    "CPUsPerTask": ("cpus_per_task", None),
    "MinCPUsNode": ("pn_min_cpus", None),
    "NumCPUs": ("min_cpus", "max_cpus"),
    "NumNodes": ("min_nodes", "max_nodes"),
    "NumTasks": ("num_tasks", None),
}
"""Names of ``scontrol update`` -> fields of ``job_desc_msg_t``. A count ``N`` has fields (least,
most); NumCPUs and NumNodes also take ``MIN-MAX``."""


@dataclass(frozen=True)
class JobUpdate:
    """New values of fields of one job, by the names of ``scontrol update``.

    An empty text clears the field. Raises ValueError for an invalid value, so that every update
    that exists can be sent.
    """

    job_id: str
    fields: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not JOB_ID.match(self.job_id):
            raise ValueError(f"{self.job_id!r} is not a job id")
        for name, value in self.fields:
            if name in TEXT_FIELDS:
                fits = "\0" not in value and len(value) <= _LONGEST
            elif name in COUNT_FIELDS:
                fits = _COUNT.match(value) is not None and max(self._numbers(value)) <= _MOST
            elif name == "StartTime":
                fits = value == "now"
            else:
                raise ValueError(f"job {self.job_id}: field {name!r} may not be changed")
            if not fits:
                raise ValueError(f"job {self.job_id}: {name}={value[:80]!r} is not valid")

    @staticmethod
    def range(value: str) -> tuple[int, int | None]:
        """(least, most) of a count; most None: unchanged."""
        least, *most = JobUpdate._numbers(value)
        return least, most[0] if most else None

    @staticmethod
    def _numbers(value: str) -> list[int]:
        return [int(number) for number in value.split("-")]


@dataclass(frozen=True)
class NewReservation:
    """A reservation to create."""

    name: str
    end_s: float
    start_s: float | None = None
    """None: now."""
    users: str = "root"
    """Users that may use it; ``-alice``: all others."""
    licenses: str = ""
    """``name:count``; such a reservation holds no node."""
    nodes: str = ""
    """Host list, or ``ALL``."""
    flags: frozenset[str] = frozenset()
    """``ANY_NODES``, ``IGNORE_JOBS``, ``NO_HOLD_JOBS_AFTER``, ``OVERLAP``, ``PURGE_COMP``."""


class SlurmClient(Protocol):
    """A Slurm. Every call has a time limit; it raises SourceError if Slurm refuses or is silent."""

    @property
    def unread(self) -> frozenset[int]:
        """Slurm's numbers of existing records that this thread's last ``jobs`` could not read."""

    def settings(self) -> Mapping[str, str]:
        """Slurm's configuration: key -> value as ``scontrol show config`` spells them."""

    def config(self) -> SlurmConfig:
        """The part of Slurm's configuration that matters to placing."""

    def jobs(self) -> list[SlurmJob]:
        """All job records of slurmctld, also of jobs that have ended."""

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        """These jobs, one request each; a job that is gone is left out."""

    def nodes(self) -> list[SlurmNode]:
        """All nodes."""

    def partitions(self) -> list[SlurmPartition]:
        """All partitions, also hidden ones."""

    def qos(self) -> list[SlurmQos]:
        """All QOS, from slurmdbd."""

    def reservations(self) -> list[SlurmReservation]:
        """All reservations."""

    def topology(self) -> list[SlurmSwitch]:
        """Switches or blocks of the default topology; empty if Slurm has none."""

    def free_licenses(self) -> dict[str, int]:
        """Licences that are neither held nor reserved, by name."""

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        """Send updates in order; return refused job id -> Slurm's message.

        Not atomic: a refused update can change some fields, and after an error any update can still
        be applied. Read back.
        """

    def release_jobs(self, ids: Sequence[str]) -> None:
        """Release jobs that Slurm itself holds; a refusal is logged."""

    def create_reservation(self, wanted: NewReservation) -> None:
        """Create a reservation."""

    def move_reservation(self, name: str, end_s: float, start_s: float | None = None) -> bool:
        """Move a reservation's end, and its start if it has not begun.

        False if there is none of that name, or its start cannot be moved any more.
        """

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation if there is one."""

    def drain_node(self, name: str, reason: str) -> None:
        """Drain a node: no new jobs, running ones go on."""

    def resume_node(self, name: str) -> None:
        """The node takes jobs again."""
