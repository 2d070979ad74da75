"""The gate: the licence that a reservation holds, so that jobs asking for it wait.

The reservation ends a minute or two after the last heartbeat. If the selector dies, it runs out
and Slurm starts the parked jobs by itself. Opening the gate for one job is giving it back the
licences that the user asked for.
"""

from __future__ import annotations

import logging

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import NewReservation, SlurmClient

__all__ = ["hold_gate"]

log = logging.getLogger(__name__)


def hold_gate(
    client: SlurmClient, gate: GateConfig, now: float, *, check: bool = False
) -> tuple[float, bool]:
    """Make the reservation last ``lease_s`` from ``now``; create it if it is not there.

    With ``check`` also if it does not hold all of the licences, so that jobs would slip through.

    Returns (end of the reservation, whether it had to be created). Raises SourceError.
    """
    end_s = now + gate.lease_s
    if client.move_reservation(gate.reservation, end_s):
        held = _held(client, gate) if check else None
        if held is None or held >= gate.licence_count:
            return end_s, False
        return end_s, _replace(client, gate, held, end_s)
    try:
        client.create_reservation(_reservation(gate, gate.licence_count, end_s))
    except SourceError:
        # One that ended a moment ago may be purged between the two calls, or another one
        # may have created it.
        if not client.move_reservation(gate.reservation, end_s):
            raise
        return end_s, False
    return end_s, True


def _reservation(gate: GateConfig, count: int, end_s: float) -> NewReservation:
    licenses = f"{gate.licence}:{count}"
    return NewReservation(
        gate.reservation, end_s, licenses=licenses, flags=frozenset({"ANY_NODES"})
    )


def _held(client: SlurmClient, gate: GateConfig) -> int | None:
    """Licences of the gate that its reservation holds; None: there is no such reservation."""
    for reservation in client.reservations():
        if reservation.name == gate.reservation:
            return sum(count for name, count in reservation.licenses if name == gate.licence)
    return None


def _replace(client: SlurmClient, gate: GateConfig, held: int, end_s: float) -> bool:
    """Put a reservation of all licences in the place of one that holds too few.

    Slurm may start parked jobs between the two commands, as it might have before. If it does not
    give that many (slurm.conf counts fewer), the gate is held as it was. Raises SourceError.
    """

    def create(count: int) -> None:
        client.create_reservation(_reservation(gate, count, end_s))

    log.warning(
        "reservation %s holds %d licences %s instead of %d: it is made anew",
        gate.reservation,
        held,
        gate.licence,
        gate.licence_count,
    )
    client.delete_reservation(gate.reservation)
    try:
        create(gate.licence_count)
    except SourceError as exc:
        if not held:
            raise
        create(held)
        log.error(
            "the gate holds %d jobs only: Licenses in slurm.conf and gate.licence_count must"
            " agree: %s",
            held,
            exc,
        )
    return True
