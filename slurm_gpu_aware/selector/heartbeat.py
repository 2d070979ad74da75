"""Heartbeat: a thread that extends the gate's reservation while rounds run.

If no round succeeds for a long time it stops: the gate then opens by itself, and Slurm starts the
parked jobs as if we were not installed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.deferral import defer_until
from slurm_gpu_aware.gate.licence_gate import hold_gate
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.slurm.client import SlurmClient

__all__ = ["Heartbeat"]

log = logging.getLogger(__name__)

STALL_S = 300.0
"""Without a successful round for this long, the heartbeat stops."""
_RETRY_S = 3.0
_CHECK_EVERY = 10
"""One of so many beats, and the first, checks what the reservation holds."""


class Heartbeat:
    """Holds the gate from a thread of its own."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        pool: HoldingPool | None = None,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
    ) -> None:
        self._client = client
        self._config = config
        self._pool = pool
        self._clock = clock
        self._timer = timer
        self._stall_s = stall_s
        self._stop = threading.Event()
        self._held_until = 0.0
        self._last_round = timer()
        self._stalled = False
        self._beats = 0
        self._deferring = True
        self.created: SimpleQueue[float] = SimpleQueue()
        """Times at which the reservation was created, for the main loop to record."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def held_until(self) -> float:
        """Unix time until which the gate is closed for certain."""
        return self._held_until

    def start(self) -> None:
        """Beat once now, then from the thread. Raises SourceError if Slurm does not answer."""
        self._last_round = self._timer()  # the wait for Slurm does not count
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the reservation stays until its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._config.selector.command_timeout_s + 1)

    def round_done(self) -> None:
        """Note that a round succeeded."""
        self._last_round = self._timer()

    def beat(self) -> None:
        """Extend the reservation once; create it if it is gone. Raises SourceError."""
        now = self._clock()
        since_s = self._timer() - self._last_round
        if since_s > self._stall_s:
            if not self._stalled:
                log.error(
                    "no round has succeeded for %.0f s: the heartbeat stops, the gate opens and"
                    " Slurm starts the parked jobs by itself",
                    since_s,
                )
            self._stalled = True
            return
        self._stalled = False
        check = self._beats % _CHECK_EVERY == 0
        end_s, created = hold_gate(self._client, self._config.gate, now, check=check)
        self._beats += 1
        self._held_until = end_s
        if self._pool is not None:
            self._put_off(self._pool, end_s)
            if self._pool.in_use:
                self._defer(end_s)
        if created:
            log.info("gate reservation %s created", self._config.gate.reservation)
            self.created.put(now)

    def _defer(self, until_s: float) -> None:
        """Let the filter defer new jobs while a holding pool takes them."""
        submit_file = self._config.events.submit_file
        if submit_file is None:
            return
        try:
            defer_until(submit_file, until_s)
            self._deferring = True
        except OSError as exc:
            if self._deferring:
                log.warning("Slurm tries new jobs before they are in the holding pool: %s", exc)
            self._deferring = False

    @staticmethod
    def _put_off(pool: HoldingPool, gate_ends_s: float) -> None:
        """Keep the pool closed; a failure must not stop the heartbeat of the gate."""
        try:
            pool.keep_closed(gate_ends_s)
        except SourceError as exc:
            log.warning("the holding pool could not be put off: %s", exc)

    def _run(self) -> None:
        wait_s = self._config.selector.heartbeat_s
        while not self._stop.wait(wait_s):
            try:
                self.beat()
                wait_s = self._config.selector.heartbeat_s
            except SourceError as exc:
                log.warning("heartbeat: %s", exc)
                wait_s = min(_RETRY_S, self._config.selector.heartbeat_s)
            except Exception:
                log.exception("heartbeat failed; it goes on")
                wait_s = self._config.selector.heartbeat_s
