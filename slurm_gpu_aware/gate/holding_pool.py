"""The pool: a reservation in which parked jobs wait that Slurm's scheduler need not look at.

A job that only lacks a licence is tried in full on every pass of Slurm's main scheduler, behind
its locks: 7 us for each node of its partition (24.11). With 600 such jobs on 2,000 nodes slurmctld
spends two of every five seconds on jobs that cannot start. A job in a reservation that has not
begun is not tried at all, keeps its priority, and goes on growing older.

So the pool is a reservation of no nodes that is always about to begin: the heartbeat moves its
start ahead, to behind the end of the gate. If the selector dies, the gate ends, the reservation
begins, and Slurm's ResvProlog (etc/resv.d) takes its jobs from it, so that they start as plain
Slurm would start them. Where that script does not run they start in the reservation, on any nodes,
before jobs without one. It never ends before they do: Slurm holds jobs whose reservation is over.
Once begun it cannot be put off again, so the next pool has another name.
"""

from __future__ import annotations

import re

from slurm_gpu_aware.filter_rules import HOLDING_POOL, in_holding_pool
from slurm_gpu_aware.slurm.client import NewReservation, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation

__all__ = [
    "LAST_S",
    "LICENCE",
    "LICENCE_COUNT",
    "create_pool",
    "holding_pools",
    "left_fields",
    "lost_reservation",
]

LICENCE = HOLDING_POOL
"""Licence in slurm.conf of which each pool holds one: a reservation has to hold something."""
LICENCE_COUNT = 8
"""More than there are pools at a time: one that is closed, others whose jobs still run."""
LAST_S = 365 * 86400.0
"""Its end is as far behind its start: Slurm holds who waits in a reservation that ends."""
_USERS = "-root"
"""Whom a reservation is for must be said: all users but root, who is let in anyway."""
_LOST = re.compile(r"reservation.*(?:invalid|deleted)", re.IGNORECASE)


def create_pool(client: SlurmClient, now: float, opens_s: float) -> str:
    """Make a pool that opens at ``opens_s`` unless it is put off; its name.

    Raises SourceError if Slurm refuses, as it does where slurm.conf has no licence for it.
    """
    name = f"{HOLDING_POOL}_{int(now)}"
    end_s = opens_s + LAST_S
    client.create_reservation(
        NewReservation(
            name,
            end_s,
            start_s=opens_s,
            users=_USERS,
            licenses=f"{LICENCE}:1",
            flags=frozenset({"ANY_NODES", "NO_HOLD_JOBS_AFTER", "PURGE_COMP"}),
        )
    )
    return name


def holding_pools(reservations: list[SlurmReservation]) -> list[SlurmReservation]:
    """The holding pools among reservations, the one that opens last at the end."""
    return sorted((r for r in reservations if in_holding_pool(r.name)), key=lambda r: r.start_s)


def lost_reservation(job: SlurmJob) -> bool:
    """Whether Slurm holds a job because the reservation that it lay in is gone."""
    return _LOST.search(job.reason) is not None


def left_fields(job: SlurmJob) -> tuple[tuple[str, str], ...]:
    """Fields of an update that take a job from the holding pool; none if it is not there."""
    return (("ReservationName", ""),) if job.holding_pool is not None else ()
