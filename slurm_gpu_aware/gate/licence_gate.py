"""Licence gate: a reservation holds the licence that parked jobs ask for, so that they wait.

The reservation ends a minute or two after the last heartbeat: if the selector dies, Slurm starts
the parked jobs. To open the gate for one job, its licences are set to those of its user.
"""

from __future__ import annotations

import logging

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.updates import NewReservation

__all__ = ["hold_gate"]

log = logging.getLogger(__name__)


def hold_gate(
    client: SlurmClient, gate: GateConfig, now: float, *, check: bool = False
) -> tuple[float, bool]:
    """Make the reservation last ``lease_s`` from ``now``; create it if there is none.

    ``check``: create it anew, too, if it does not hold all licences and so lets jobs pass.

    Returns (end of the reservation, whether it was created). Raises SourceError.
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
        # A reservation that has ended can be purged between the two calls, or another process
        # can create it.
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
    """Replace a reservation that holds too few licences by one of all.

    Slurm can start parked jobs between the two commands, as it could before. If slurm.conf counts
    fewer licences, the gate is held as it was. Raises SourceError.
    """

    def create(count: int) -> None:
        client.create_reservation(_reservation(gate, count, end_s))

    log.warning(
        "reservation %s holds %d licences %s instead of %d; it is created anew",
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
            "the gate holds only %d jobs; make Licenses in slurm.conf and gate.licence_count"
            " agree: %s",
            held,
            exc,
        )
    return True
