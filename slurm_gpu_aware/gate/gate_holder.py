"""Holder of the gate: the selector that works, named in the comment of the gate's reservation.

Selectors can run on several hosts (two slurmctld); the holder works, all others stand by.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmReservation

__all__ = ["Holder", "gate_reservation", "holder_of", "other_holder", "this_holder"]

_COMMENT = re.compile(r"gpu-aware: host ([A-Za-z0-9._-]{1,255}), process ([0-9]{1,10})\Z")


@dataclass(frozen=True)
class Holder:
    """A selector; as text it is the reservation's comment."""

    host: str
    process: int
    """Process id. A selector is known by its host: a restart does not make it another one."""

    def __str__(self) -> str:
        return f"gpu-aware: host {self.host}, process {self.process}"


def this_holder() -> Holder:
    """This host and process."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:255] or "unknown"
    return Holder(host, os.getpid())


def gate_reservation(client: SlurmClient, gate: GateConfig) -> SlurmReservation | None:
    """The gate's reservation; None: there is none. Raises SourceError."""
    return next((r for r in client.reservations() if r.name == gate.reservation), None)


def holder_of(reservation: SlurmReservation | None) -> Holder | None:
    """Holder that the comment names; None: no reservation, or another comment."""
    match = _COMMENT.match(reservation.comment) if reservation is not None else None
    return Holder(match[1], int(match[2])) if match else None


def other_holder(reservation: SlurmReservation | None) -> Holder | None:
    """Holder on another host; None: none, or a process of this host."""
    holder = holder_of(reservation)
    return holder if holder is not None and holder.host != this_holder().host else None
