"""Liveness of the selector, read from the end of the gate's reservation.

The heartbeat moves that end to ``gate.lease_s`` ahead every ``selector.heartbeat_s``, so the end
tells the time of the last heartbeat. The ledger does not: it is written only on changes.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.time_text import age, stamp

__all__ = ["GateState", "Silence", "gate_state", "longest_silence_s", "selector_silence"]

MARGIN_S = 10.0
"""Delay of a heartbeat that a slow Slurm explains."""


@dataclass(frozen=True)
class GateState:
    """The reservation that holds the gate's licences."""

    reservation: str
    exists: bool
    end_s: float | None = None
    left_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class Silence:
    """Silence of the selector that is longer than that of a running one."""

    quiet_s: float | None
    """Time since its last heartbeat; None: not known, as there is no reservation."""
    opens_s: float | None
    """Unix time at which Slurm ends the reservation; None: the gate is open."""

    def as_json(self) -> dict[str, Any]:
        """Both fields."""
        return {"quiet_s": self.quiet_s, "gate_opens_at": self.opens_s}

    def sentences(self, what: str = "this job") -> str:
        """What the silence means for ``what``, which is parked."""
        duration = "a while" if self.quiet_s is None else age(self.quiet_s)
        start = f"The selector has not answered for {duration}"
        if self.opens_s is None:
            return f"{start}, and the gate is open: Slurm starts {what} by itself."
        when = stamp(self.opens_s)[11:]
        return (
            f"{start}. If it does not return, the gate opens by itself at {when} or within a minute"
            f" after that, and Slurm starts {what} as if we were not installed."
        )


def gate_state(config: Config) -> GateState | None:
    """State of the gate; None if Slurm does not answer, or hides reservations from this user."""
    name = config.gate.reservation
    try:
        client = open_client(config.selector.command_timeout_s)
        lease = next((r for r in client.reservations() if r.name == name), None)
        if lease is None and os.geteuid() != 0 and client.config().private_reservations:
            return None
    except SourceError:
        return None
    if lease is None:
        return GateState(name, False)
    left_s = lease.end_s - time.time()
    return GateState(name, left_s > 0, lease.end_s, max(0.0, left_s))


def longest_silence_s(config: Config) -> float:
    """Longest time between two heartbeats of a running selector. Units: s."""
    return config.selector.heartbeat_s + MARGIN_S


def selector_silence(
    gate: GateState | None, config: Config, now: float | None = None
) -> Silence | None:
    """The selector's silence; None if it runs, or Slurm does not answer."""
    if gate is None:
        return None
    if gate.end_s is None:
        return Silence(None, None)
    quiet_s = (time.time() if now is None else now) - gate.end_s + config.gate.lease_s
    if quiet_s <= longest_silence_s(config):
        return None
    return Silence(quiet_s, gate.end_s if gate.exists else None)
