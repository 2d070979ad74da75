"""What we ask Slurm and tell it: the narrow protocol behind which Slurm stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

__all__ = ["Gateway", "JobUpdate"]

JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
"""``98`` or ``98_3``."""
_VALUE = re.compile(r"[\x21\x23-\x26\x28-\x5b\x5d-\x7e]*\Z")
"""Printable ASCII without blanks, quotes and backslash: one word for ``scontrol``."""


@dataclass(frozen=True)
class JobUpdate:
    """New values for fields of one job, by the names of ``scontrol update``.

    An empty value clears the field. Raises ValueError for what is not one plain word: nothing
    that a user typed can become another argument or another command.
    """

    job_id: str
    fields: tuple[tuple[str, str], ...]

    FIELDS = frozenset(
        [
            "AdminComment",
            "CpusPerTres",
            "CPUsPerTask",
            "ExcNodeList",
            "Extra",
            "Features",
            "Licenses",
            "MinCPUsNode",
            "NumCPUs",
            "NumNodes",
            "NumTasks",
            "ReqNodeList",
            "ReservationName",
            "StartTime",
            "TresFreq",
            "TresPerJob",
            "TresPerNode",
            "TresPerTask",
            "TresPerSocket",
        ]
    )

    def __post_init__(self) -> None:
        if not JOB_ID.match(self.job_id):
            raise ValueError(f"{self.job_id!r} is not a job id")
        for name, value in self.fields:
            if name not in self.FIELDS:
                raise ValueError(f"job {self.job_id}: field {name!r} is not ours to change")
            if not _VALUE.match(value):
                raise ValueError(f"job {self.job_id}: {name}={value[:80]!r} is not a plain word")


class Gateway(Protocol):
    """Every call has a time limit and raises SourceError when Slurm cannot be asked."""

    unread: frozenset[int]
    """Raw numbers of records that the last ``jobs`` left out: they are there, but were not read."""

    def config(self) -> SlurmConfig:
        """Read Slurm's configuration."""

    def jobs(self) -> list[SlurmJob]:
        """All job records that slurmctld has, also those that ended a while ago."""

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        """A few jobs, each asked for by itself; whoever is gone or doubtful is not among them."""

    def nodes(self) -> list[SlurmNode]:
        """All nodes."""

    def partitions(self) -> list[SlurmPartition]:
        """All partitions."""

    def qos(self) -> list[SlurmQos]:
        """All QOS, by slurmdbd."""

    def reservations(self) -> list[SlurmReservation]:
        """All reservations."""

    def topology(self) -> list[SlurmSwitch]:
        """Switches or blocks of the default topology; empty if Slurm has none."""

    def free_licenses(self) -> dict[str, int]:
        """Licences that nobody holds or reserves, by name."""

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        """Carry out updates in their order; return Slurm's complaint per job id refused.

        Not atomic: a refused update may have changed some of its fields, and after an error any
        of them may still be applied. Read back.
        """

    def release_jobs(self, ids: Sequence[str]) -> None:
        """Let jobs go that Slurm itself holds."""

    def create_licence_reservation(
        self,
        name: str,
        licence: str,
        count: int,
        users: str,
        end_s: float,
        start_s: float | None = None,
    ) -> None:
        """Create a reservation that holds ``count`` licences and no node.

        ``start_s``: when it begins; None: now. With it, jobs that wait in the reservation when it
        ends go on without it, and Slurm removes it when it has begun and is not used.
        """

    def extend_reservation(self, name: str, end_s: float) -> bool:
        """Move a reservation's end; False if there is no such reservation."""

    def put_off_reservation(self, name: str, start_s: float, end_s: float) -> bool:
        """Move start and end of a reservation; False if there is none, or it has begun."""

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation if there is one."""
