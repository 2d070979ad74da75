"""Heartbeat: a thread that extends the gate's reservation while rounds run.

If no round succeeds for a long time it stops: the gate then opens by itself, and Slurm starts the
parked jobs as if we were not installed. It never extends the gate of a selector on another host.

An open gate closes only after a test job could be changed (`gate.trial`). If Slurm refuses the
changes of jobs several times in a row, the heartbeat opens the gate, and tries again later.

Standby: decides whether this selector works or waits for that of another host.

The selector beside the slurmctld in control works: the filter's and jobcomp's files are on its
host. Another takes over only if the holder of the gate is silent. So exactly one works, and after
a takeover by slurmctld that of its host follows within about a second.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.licence_gate import (
    Holder,
    defer_until,
    gate_reservation,
    hold_gate,
    other_holder,
    working_elsewhere,
)
from slurm_gpu_aware.gate.trial import remove_trials, try_changes
from slurm_gpu_aware.selector.backoff import Refusals
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmReservation
from slurm_gpu_aware.time_text import stamp

log = logging.getLogger(__name__)

_RETRY_S = 3.0
_TRY_S = 120.0  # first pause until an open gate closes if it can; it doubles
_LONGEST_TRY_S = 3600.0
WAIT_S = 0.5  # Pause between two decisions.
CALL_S = 2.5
"""Longest call to Slurm until the gate is taken: 2 s to find that the other host is dead
(TCPTimeout), then the answer. While no slurmctld is in control, calls do not end by themselves, and
after a standby's answer libslurm sleeps for half of SlurmctldTimeout before it asks again."""
_LOOK_S = 5.0  # pause between two looks at the gate's reservation


@dataclass
class Heartbeat:
    """Holds the gate from a thread of its own."""

    client: SlurmClient
    config: Config
    pool: HoldingPool
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    stall_s: float = 300.0  # Without a successful round for this long, the heartbeat stops.
    held_until: float = 0.0  # Unix time until which the gate is closed for certain.
    events: SimpleQueue[tuple[str, dict[str, Any], float]] = field(default_factory=SimpleQueue)
    """What happened to the gate (kind, detail, Unix time), for the main loop to record."""
    refusals: Refusals = field(default_factory=Refusals)  # Of the selector's changes.
    other: Holder | None = None
    """Selector of another host that has taken the gate since; this one must stand by."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _controllers: Controllers | None = None
    _stalled: bool = False
    _deferring: bool = True
    _open: bool = False  # The gate is open, and closes only after a trial.
    _open_why: str = ""
    _try_at: float = -math.inf
    _pause_s: float = _TRY_S

    def __post_init__(self) -> None:
        self._last_round = self.timer()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self, client: SlurmClient | None = None) -> None:
        """Claim the gate now, beat from the thread. Raises SourceError if Slurm is silent.

        ``client``: makes the claim, with a time limit of its own.
        """
        self._last_round = self.timer()  # the wait for Slurm does not count
        self.beat(claim=True, client=client)
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the reservation stays until its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.config.selector.command_timeout_s + 1)

    def round_done(self) -> None:
        """Note that a round succeeded."""
        self._last_round = self.timer()

    def is_ours(self, reservations: Iterable[SlurmReservation] | None = None) -> bool:
        """Whether no other selector has taken the gate. Raises SourceError.

        ``reservations``: those that Slurm has now; None: it is asked for them.
        """
        if self.other is None:
            if self._controllers is None:
                self._controllers = Controllers(self.client.settings())
            if reservations is None:
                reservations = self.client.reservations()
            name = self.config.gate.reservation
            held = next((one for one in reservations if one.name == name), None)
            self.other = other_holder(held, self._controllers.only)
        if self.other is not None:
            self.held_until = 0.0
        return self.other is None

    def check(self, reservations: Iterable[SlurmReservation]) -> None:
        """Raise SourceError if another selector has taken the gate, by Slurm's reservations."""
        if not self.is_ours(reservations) and self.other is not None:
            raise SourceError(f"the selector of host {self.other.host} works")

    def beat(self, *, claim: bool = False, client: SlurmClient | None = None) -> None:
        """Extend the reservation once; create it if it is gone. Raises SourceError.

        ``claim``: take it from the selector of another host; otherwise, leave that one's alone.
        ``client``: instead of the usual one.
        """
        if not claim and not self.is_ours():
            return
        now = self.clock()
        since_s = self.timer() - self._last_round
        if since_s > self.stall_s:
            if not self._stalled:
                log.error(
                    "no round has succeeded for %.0f s: the heartbeat stops, the gate opens and"
                    " Slurm starts the parked jobs by itself",
                    since_s,
                )
            self._stalled = True
            return
        self._stalled = False
        if claim:
            held = gate_reservation(client or self.client, self.config.gate)
            self._open = held is None or held.end_s <= now
        if self.refusals.too_many and not self._open and self._concern_all(client or self.client):
            self._open_gate(now)
        if self._open and not self._may_close(client or self.client, now):
            return
        end_s, created = hold_gate(client or self.client, self.config.gate, now, claim=claim)
        self.held_until = end_s
        try:
            self.pool.keep_closed(end_s)
        except SourceError as exc:  # it must not stop the heartbeat of the gate
            log.warning("the holding pool could not be put off: %s", exc)
        if self.pool.in_use:
            self._defer(end_s)
        if created:
            log.info("gate reservation %s created", self.config.gate.reservation)
            detail = {"reservation": self.config.gate.reservation}
            self.events.put(("gate_created", detail, now))

    def _open_gate(self, now: float) -> None:
        """Open the gate because changes are refused, for longer each time. Raises SourceError."""
        self.held_until = 0.0
        self.client.delete_reservation(self.config.gate.reservation)
        self._open = True
        self._postpone()
        cure = "'gpu-aware doctor' names what refuses, and the cure"
        self._say_open(f"Slurm refuses the selector's changes: {self.refusals.why}", cure, now)
        self.pool.keep_closed(now)
        if self.pool.in_use:
            self._defer(now)

    def _concern_all(self, client: SlurmClient) -> bool:
        """Whether the refusals are not of one user's jobs alone: no user opens it for all others.

        Raises SourceError.
        """
        if len(self.refusals.who) > 1 or try_changes(client, self.config).passed is not True:
            return True
        log.warning(
            "the gate stays closed: Slurm lets a test job be changed, and refuses changes of user"
            " %s alone: %s",
            *(*self.refusals.who, self.refusals.why),
        )
        self.refusals.forget()
        return False

    def _may_close(self, client: SlurmClient, now: float) -> bool:
        """Whether an open gate may close: no test job is refused. Raises SourceError."""
        if self.timer() < self._try_at:
            return False
        trial = try_changes(client, self.config)
        if trial.passed is False:
            self._postpone()
            self._say_open(trial.why, trial.cure, now)
            return False
        if trial.passed is None:
            log.warning("the gate closes untested: %s; %s", trial.why, trial.cure)
        self._open, self._open_why = False, ""
        self.refusals.try_again()
        return True

    def _postpone(self) -> None:
        """Keep the gate open for a while, twice as long each time until a job gets through."""
        first, self.refusals.through = self.refusals.through, False
        self._pause_s = _TRY_S if first else min(2 * self._pause_s, _LONGEST_TRY_S)
        self._try_at = self.timer() + self._pause_s

    def _say_open(self, why: str, cure: str, now: float) -> None:
        again_at = now + self._pause_s
        if why != self._open_why:
            log.error("the gate is open, and Slurm starts all jobs by itself: %s; %s", why, cure)
        log.info("the gate stays open until %s at least", stamp(again_at))
        self.events.put(("gate_lost", {"why": why, "cure": cure, "again_at": again_at}, now))
        self._open_why = why

    def _defer(self, until_s: float) -> None:
        try:
            defer_until(self.config.events.defer_file, until_s)
            self._deferring = True
        except OSError as exc:
            if self._deferring:
                log.warning("Slurm tries new jobs before they are in the holding pool: %s", exc)
            self._deferring = False

    def _run(self) -> None:
        usual_s = wait_s = self.config.selector.heartbeat_s
        try:
            remove_trials(self.client)  # of a process that was killed
        except SourceError as exc:
            log.warning("test jobs of an earlier process are not cancelled: %s", exc)
        while not self._stop.wait(wait_s):
            wait_s = usual_s
            try:
                self.beat()
            except SourceError as exc:
                log.warning("heartbeat: %s", exc)
                wait_s = min(_RETRY_S, usual_s)
            except Exception:
                log.exception("heartbeat failed; it goes on")


class Standby:
    """Decides whether this selector may take the gate.

    ``client``: its calls should take at most `CALL_S`.
    """

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._config = config
        self._clock, self._timer = clock, timer
        self._controllers: Controllers | None = None
        self._looked = -float("inf")
        self._standing_by_for = ""

    def may_work(self) -> bool:
        """Whether this selector may take the gate now. Raises SourceError."""
        if self._controllers is None:
            self._controllers = Controllers(self.client.settings(), self._timer)
        if self._controllers.here():
            self._working("slurmctld of this host is in control")
            return True
        if self._controllers.gone or self._timer() - self._looked < _LOOK_S:
            return False
        found = gate_reservation(self.client, self._config.gate)
        self._looked = self._timer()
        other = working_elsewhere(found, self._controllers.only, self._config, self._clock())
        if other is None:
            self._looked = -float("inf")
            self._working("no other selector holds the gate")
            return True
        if other.host != self._standing_by_for:
            log.info("stands by: the selector of host %s works", other.host)
            self._standing_by_for = other.host
        return False

    def _working(self, why: str) -> None:
        if self._standing_by_for:
            log.info("takes over from the selector of host %s: %s", self._standing_by_for, why)
        self._standing_by_for = ""
