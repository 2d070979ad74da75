"""Holding pool: a reservation in which parked jobs wait outside of Slurm's scheduling passes.

Slurm's main scheduler tries a job that only lacks a licence on every pass, behind its locks: 7 us
for each node of its partition (24.11). With 600 such jobs on 2,000 nodes slurmctld spends two of
every five seconds on them. A job in a reservation that has not begun is not tried; its priority
and age go on as usual.

So the pool is a reservation without nodes, and the heartbeat keeps moving its start to after the
end of the gate. If the selector dies, the gate ends, the reservation begins, and Slurm's ResvProlog
(etc/resv.d) takes its jobs from it, so that they start as in plain Slurm. Without that script they
start in the reservation, on any nodes, before jobs without one. A reservation that has begun cannot
be put off, so the next pool has another name.

While the pool is in use, the filter (``etc/lua/gpu_aware_defer.lua``) gives new jobs a begin time
some seconds ahead, and records it in AdminComment (``bt``). Before that time the selector moves a
job to the pool, or places it and lets it begin at once.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_gpu_aware.filter_rules import HOLDING_POOL
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.updates import NewReservation

LICENCE = HOLDING_POOL
"""Licence in slurm.conf of which each pool holds one: a reservation must hold something."""
LICENCE_COUNT = 8
"""More than there are pools at a time: one closed, others with running jobs."""
LAST_S = 365 * 86400.0
"""Duration of the pool: Slurm holds a job that waits in a reservation that ends."""
_LOST = re.compile(r"reservation.*(?:invalid|deleted)", re.IGNORECASE)


def create_pool(client: SlurmClient, now: float, opens_s: float) -> str:
    """Create a pool that begins at ``opens_s`` unless it is put off; return its name.

    Raises SourceError if Slurm refuses, as it does if slurm.conf has no licence for it.
    """
    pool = NewReservation(
        f"{HOLDING_POOL}_{int(now)}",
        opens_s + LAST_S,
        start_s=opens_s,
        users="-root",  # it must name its users; root may use every reservation
        licenses=f"{LICENCE}:1",
        flags=frozenset({"ANY_NODES", "NO_HOLD_JOBS_AFTER", "PURGE_COMP"}),
    )
    client.create_reservation(pool)
    return pool.name


def lost_reservation(job: SlurmJob) -> bool:
    """Whether Slurm holds a job because its reservation is gone."""
    return _LOST.search(job.reason) is not None


def leave_pool_fields(job: SlurmJob) -> tuple[tuple[str, str], ...]:
    """Fields of an update that take a job from the holding pool; empty if it is not in one."""
    return (("ReservationName", ""),) if job.holding_pool is not None else ()


def defer_until(file: Path, until_s: float) -> None:
    """Let the filter defer new jobs until ``until_s`` (Unix seconds). Raises OSError.

    ``file``: ``EventsConfig.defer_file``.
    """
    new = file.with_name(f"{file.name}.new")
    new.write_text(f"{int(until_s)}\n")
    new.replace(file)
