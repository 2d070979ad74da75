"""Liveness of the selector, read from the end of the gate's reservation.

The selector's heartbeat pushes that end ahead every ``selector.heartbeat_s``, so the last
``gate.lease_s`` seconds of the reservation tell when the last heartbeat was. The ledger and its
copy do not tell it: nothing is written while nothing changes.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.connect import open_client
from slurm_gpu_aware.time_text import age, stamp

__all__ = ["GateState", "Silence", "gate_state", "longest_silence_s", "selector_silence"]

MARGIN_S = 10.0
"""So much later than its period may a heartbeat of a running selector come: Slurm may be slow."""


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
    """The selector has been silent for longer than a running one is."""

    quiet_s: float | None
    """Since its last heartbeat; None: longer than the reservation tells."""
    opens_s: float | None
    """Unix time at which Slurm ends the reservation; None: the gate is open."""

    def as_json(self) -> dict[str, Any]:
        """Both fields."""
        return {"quiet_s": self.quiet_s, "gate_opens_at": self.opens_s}

    def sentences(self, what: str = "this job") -> str:
        """What the silence means for ``what`` is parked."""
        time_s = "a while" if self.quiet_s is None else age(self.quiet_s)
        start = f"The selector has not answered for {time_s}"
        if self.opens_s is None:
            return f"{start}, and the gate is open: Slurm starts {what} by itself."
        when = stamp(self.opens_s)[11:]
        return (
            f"{start}. If it stays away the gate opens by itself at {when} or within a minute of"
            f" that, and Slurm starts {what} as if we were not installed."
        )


def gate_state(config: Config) -> GateState | None:
    """State of the gate; None if Slurm does not answer, or hides reservations from this user."""
    name = config.gate.reservation
    try:
        client = open_client(config.selector.command_timeout_s)
        found = next((r for r in client.reservations() if r.name == name), None)
        if found is None and os.geteuid() != 0 and client.config().private_reservations:
            return None
    except SourceError:
        return None
    if found is None:
        return GateState(name, False)
    left_s = found.end_s - time.time()
    return GateState(name, left_s > 0, found.end_s, max(0.0, left_s))


def longest_silence_s(config: Config) -> float:
    """How long a running selector may be silent."""
    return config.selector.heartbeat_s + MARGIN_S


def selector_silence(
    gate: GateState | None, config: Config, now: float | None = None
) -> Silence | None:
    """The selector's silence if it is too long; None: it runs, or Slurm does not answer."""
    if gate is None:
        return None
    if gate.end_s is None:
        return Silence(None, None)
    quiet_s = (time.time() if now is None else now) - gate.end_s + config.gate.lease_s
    if quiet_s <= longest_silence_s(config):
        return None
    return Silence(quiet_s, gate.end_s if gate.exists else None)
