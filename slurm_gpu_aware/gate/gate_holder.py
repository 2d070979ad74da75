"""Holder of the gate: the selector that works; all others stand by.

The comment of the gate's reservation names it. Where there is one controller, a gate without a
comment is held by the selector there: slurmctld takes every update of a reservation with a comment
for a change of what slurmdbd counts (its copy of the old record lacks the comment), so each
heartbeat would add a row to slurmdbd's table of reservations.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.controllers import Controllers, same_host
from slurm_gpu_aware.slurm.records import SlurmReservation

_COMMENT = re.compile(r"gpu-aware: host ([A-Za-z0-9._-]{1,255}), process ([0-9]{1,10})\Z")


@dataclass(frozen=True)
class Holder:
    """A selector; as text it is the reservation's comment."""

    host: str
    process: int
    """Process id. A selector is known by its host: a restart does not make it another one.
    0: not known."""

    def __str__(self) -> str:
        return f"gpu-aware: host {self.host}, process {self.process}"


def this_holder() -> Holder:
    """This host and process."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:255] or "unknown"
    return Holder(host, os.getpid())


def gate_reservation(client: SlurmClient, gate: GateConfig) -> SlurmReservation | None:
    """The gate's reservation; None: there is none. Raises SourceError."""
    return next((r for r in client.reservations() if r.name == gate.reservation), None)


def holder_comment(settings: Mapping[str, str]) -> str:
    """Comment of the gate that this process holds; ``settings``: Slurm's configuration."""
    controllers = Controllers(settings)
    return "" if controllers.only and not controllers.elsewhere else str(this_holder())


def holder_of(reservation: SlurmReservation | None, only: str | None) -> Holder | None:
    """Holder that the reservation names; None: no reservation, or another comment.

    ``only``: the controller, if there is one only.
    """
    if reservation is None:
        return None
    if only is not None and not reservation.comment:
        return Holder(only, 0)
    match = _COMMENT.match(reservation.comment)
    return Holder(match[1], int(match[2])) if match else None


def other_holder(reservation: SlurmReservation | None, only: str | None) -> Holder | None:
    """Holder on another host; None: none, or a process of this host."""
    holder = holder_of(reservation, only)
    return holder if holder is not None and not same_host(holder.host, this_holder().host) else None
