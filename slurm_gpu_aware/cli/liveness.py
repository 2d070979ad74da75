"""Whether the selector lives, as anybody can tell: by the end of the gate's reservation.

Its heartbeat pushes that end ahead every ``selector.heartbeat_s``, so the reservation's last
``gate.lease_s`` seconds tell how long ago the last one was. The ledger and its copy tell nothing
of it: nothing is written while nothing changes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import age, stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.live import GateState
    from slurm_gpu_aware.config.settings import Config

__all__ = ["Away", "away", "late_s"]

MARGIN_S = 10.0
"""So much later than its period may a heartbeat of a living selector come: Slurm may be slow."""


@dataclass(frozen=True)
class Away:
    """The selector has not been heard of for longer than a living one is silent."""

    quiet_s: float | None
    """Since its last heartbeat; None: longer than the reservation tells."""
    opens_s: float | None
    """Unix time at which Slurm ends the reservation; None: the gate is open."""

    def as_json(self) -> dict[str, Any]:
        """Both fields."""
        return {"quiet_s": self.quiet_s, "gate_opens_at": self.opens_s}

    def silence(self) -> str:
        """Half a sentence: how long it has been silent."""
        if self.quiet_s is None:
            return "the selector has not answered for a while"
        return f"the selector has not answered for {age(self.quiet_s)}"

    def sentences(self, what: str = "this job") -> str:
        """What that means for ``what`` is parked."""
        start = self.silence().capitalize()
        if self.opens_s is None:
            return f"{start}, and the gate is open: Slurm starts {what} by itself."
        when = stamp(self.opens_s)[11:]
        return (
            f"{start}. If it stays away the gate opens by itself at {when} or within a minute of"
            f" that, and Slurm starts {what} as if we were not installed."
        )


def late_s(config: Config) -> float:
    """How long a living selector may be silent."""
    return config.selector.heartbeat_s + MARGIN_S


def away(gate: GateState | None, config: Config, now: float | None = None) -> Away | None:
    """What there is to say if the selector is away; None: it lives, or Slurm does not answer."""
    if gate is None:
        return None
    if gate.end_s is None:
        return Away(None, None)
    quiet_s = (time.time() if now is None else now) - gate.end_s + config.gate.lease_s
    if quiet_s <= late_s(config):
        return None
    return Away(quiet_s, gate.end_s if gate.exists else None)
