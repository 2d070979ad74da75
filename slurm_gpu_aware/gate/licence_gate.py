"""Licence gate: a reservation holds the licence that parked jobs ask for, so that they wait.

Every ``selector.heartbeat_s`` the heartbeat moves its end to ``gate.lease_s`` ahead: if the
selector dies, Slurm starts the parked jobs, and the end tells the time of the last heartbeat. (The
ledger does not: it is written only on changes.) To open the gate for one job, its licences are set
to those of its user.

The holder of the gate is the selector that works; all others stand by. The comment of the
reservation names it. Where there is one controller, a gate without a comment is held by the
selector there: slurmctld takes every update of a reservation with a comment for a change of what
slurmdbd counts (its copy of the old record lacks the comment), so each heartbeat would add a row to
slurmdbd's table of reservations.

The holding pool is a reservation in which parked jobs wait outside of Slurm's scheduling passes.

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

import logging
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import HOLDING_POOL
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient, open_client, same_host
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation
from slurm_gpu_aware.slurm.updates import NewReservation
from slurm_gpu_aware.time_text import duration, stamp

log = logging.getLogger(__name__)

POOL_LICENCE = HOLDING_POOL
"""Licence in slurm.conf of which each pool holds one: a reservation must hold something."""
POOL_LICENCES = 8  # More than there are pools at a time: one closed, others with running jobs.
POOL_LAST_S = 365 * 86400.0
"""Its duration: Slurm holds a job that waits in a reservation that ends."""
_LOST = re.compile(r"reservation.*(?:invalid|deleted)", re.IGNORECASE)
_START_S = 30.0  # until a slurmctld that takes over has read its state
_MARGIN_S = 10.0  # delay of a heartbeat that a slow Slurm explains
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


def hold_gate(
    client: SlurmClient, gate: GateConfig, now: float, *, claim: bool = False
) -> tuple[float, bool]:
    """Make the reservation last ``lease_s`` from ``now``; create it if there is none.

    It is created anew, too, if it does not hold all licences and so lets jobs pass
    (`held_licences`). ``claim``: name this process as its holder (`gate_reservation`); one that is
    created names it always.

    Returns (end of the reservation, whether it was created). Raises SourceError.
    """
    end_s = now + gate.lease_s
    comment = holder_comment(client.settings()) if claim else None
    held: int | None = None
    if client.move_reservation(gate.reservation, end_s, comment=comment):
        held = held_licences(client, gate_reservation(client, gate), gate)
        if held is None or held >= gate.licence_count:
            return end_s, False
        log.warning(
            "reservation %s holds %d licences %s instead of %d; it is created anew",
            gate.reservation,
            held,
            gate.licence,
            gate.licence_count,
        )
        client.delete_reservation(gate.reservation)
    try:
        # Slurm can start parked jobs before this command, as it could with too few licences.
        client.create_reservation(_reservation(client, gate, gate.licence_count, end_s))
    except SourceError as exc:
        if held:  # slurm.conf counts fewer licences: the gate is held as it was
            client.create_reservation(_reservation(client, gate, held, end_s))
            log.error(
                "the gate holds only %d jobs; make Licenses in slurm.conf and gate.licence_count"
                " agree: %s",
                held,
                exc,
            )
            return end_s, True
        # A reservation that has ended can be purged between the two calls, or another process
        # can create it.
        if held == 0 or not client.move_reservation(gate.reservation, end_s, comment=comment):
            raise
        return end_s, False
    return end_s, True


def _reservation(client: SlurmClient, gate: GateConfig, count: int, end_s: float) -> NewReservation:
    flags = frozenset({"ANY_NODES"})
    return NewReservation(
        gate.reservation,
        end_s,
        licenses=f"{gate.licence}:{count}",
        flags=flags,
        comment=holder_comment(client.settings()),
    )


def held_licences(
    client: SlurmClient, found: SlurmReservation | None, gate: GateConfig
) -> int | None:
    """Licences of the gate that its reservation holds; None: there is no such reservation.

    After an update that Slurm refused (``scontrol update`` with another start time, say) the
    reservation still names its licences and holds none. What Slurm counts as reserved tells. Raises
    SourceError.
    """
    if found is None:
        return None
    named = sum(count for name, count in found.licenses if name == gate.licence)
    reserved = (one.reserved for one in client.licenses() if one.name == gate.licence)
    return min(named, next(reserved, named))


@dataclass(frozen=True)
class GateState:
    """The reservation that holds the gate's licences."""

    reservation: str
    exists: bool
    end_s: float | None = None
    left_s: float | None = None
    holder: str | None = None  # Host of the selector that works; None: not known.
    why_open: str = ""  # Why the selector itself has opened it; empty: it has not.


@dataclass(frozen=True)
class Silence:
    """Silence of the selector that is longer than that of a running one."""

    quiet_s: float | None
    """Time since its last heartbeat; None: not known, as there is no reservation."""
    gate_opens_at: float | None
    """Unix time at which Slurm ends the reservation; None: the gate is open."""
    why_open: str = ""  # Why the selector has opened the gate itself; empty: it has not.

    def sentences(self, what: str = "this job") -> str:
        """What the silence means for ``what``, which is parked."""
        if self.why_open:
            return f"The gate is open, and Slurm starts {what} by itself: {self.why_open}."
        silence = "a while" if self.quiet_s is None else duration(self.quiet_s)
        start = f"The selector has not answered for {silence}"
        if self.gate_opens_at is None:
            return f"{start}, and the gate is open: Slurm starts {what} by itself."
        when = stamp(self.gate_opens_at)[11:]
        return (
            f"{start}. If it does not return, the gate opens by itself at {when} or within a minute"
            f" after that, and Slurm starts {what} as if we were not installed."
        )


def gate_state(config: Config, why_open: str = "") -> GateState | None:
    """State of the gate; None if Slurm does not answer, or hides reservations from this user.

    ``why_open``: of an open gate, by the ledger.
    """
    name = config.gate.reservation
    try:
        client = open_client(config.selector.command_timeout_s)
        lease = gate_reservation(client, config.gate)
        if lease is None and os.geteuid() != 0 and client.config().private_reservations:
            return None
        holder = holder_of(lease, Controllers(client.settings()).only)
    except SourceError:
        return None
    if lease is None:
        return GateState(name, False, why_open=why_open)
    left_s = lease.end_s - time.time()
    host = None if holder is None else holder.host
    return GateState(name, left_s > 0, lease.end_s, max(0.0, left_s), host)


def longest_silence_s(config: Config) -> float:
    """Longest time between two heartbeats of a running selector. Units: s."""
    return config.selector.heartbeat_s + _MARGIN_S


def lease_for_takeover_s(timeout_s: float, config: Config) -> float:
    """Least ``gate.lease_s`` with which another slurmctld takes over before the gate opens.

    ``timeout_s``: SlurmctldTimeout. A backup looks each third of it, and then has to start.
    """
    return math.ceil(timeout_s * 4 / 3 + config.selector.heartbeat_s + _START_S)


def is_silent(end_s: float, config: Config, now: float) -> bool:
    """Whether a gate that ends then was last extended longer ago than by a running selector."""
    return now - end_s + config.gate.lease_s > longest_silence_s(config)


def working_elsewhere(
    found: SlurmReservation | None, only: str | None, config: Config, now: float
) -> Holder | None:
    """Selector of another host that holds the gate, ``found``, and is not silent; None: none.

    ``only``: the controller, if there is one only.
    """
    if found is None or is_silent(found.end_s, config, now):
        return None
    return other_holder(found, only)


def selector_silence(gate: GateState | None, config: Config) -> Silence | None:
    """The selector's silence; None if it runs, or Slurm does not answer."""
    if gate is None:
        return None
    if gate.end_s is None:
        return Silence(None, None, gate.why_open)
    now = time.time()
    if not is_silent(gate.end_s, config, now):
        return None
    quiet_s = now - gate.end_s + config.gate.lease_s
    return Silence(quiet_s, gate.end_s if gate.exists else None)


def create_pool(client: SlurmClient, now: float, opens_s: float) -> str:
    """Create a pool that begins at ``opens_s`` unless it is put off; return its name.

    Raises SourceError if Slurm refuses, as it does if slurm.conf has no licence for it.
    """
    pool = NewReservation(
        f"{HOLDING_POOL}_{int(now)}",
        opens_s + POOL_LAST_S,
        start_s=opens_s,
        users="-root",  # it must name its users; root may use every reservation
        licenses=f"{POOL_LICENCE}:1",
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

    ``file``: ``EventsConfig.defer_file`` or ``waiting_file``.
    """
    new = file.with_name(f"{file.name}.new")
    new.write_text(f"{int(until_s)}\n")
    new.replace(file)
