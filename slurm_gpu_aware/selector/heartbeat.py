"""The heartbeat: a thread that keeps the gate's reservation alive, whatever a round does.

It stops pushing if no round has succeeded for a long time: then the gate opens by itself, and
Slurm starts the parked jobs as if we were not there.
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
"""Without a successful round for this long, the gate is let go."""
_RETRY_S = 3.0
_CHECK_EVERY = 10
"""Of so many beats one looks at what the reservation holds, the first one, too."""


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
        """Times at which the reservation had to be created; the main loop writes them down."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def held_until(self) -> float:
        """Unix time until which the gate is certainly closed; in the past: it may be open."""
        return self._held_until

    def start(self) -> None:
        """Beat once now, then from the thread. Raises SourceError if Slurm does not answer."""
        self._last_round = self._timer()  # however long we had to wait for Slurm
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the reservation stays until its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._config.selector.command_timeout_s + 1)

    def round_done(self) -> None:
        """The main loop finished a round."""
        self._last_round = self._timer()

    def beat(self) -> None:
        """Push the end of the reservation once; create it if it is gone. Raises SourceError."""
        now = self._clock()
        since_s = self._timer() - self._last_round
        if since_s > self._stall_s:
            if not self._stalled:
                log.error(
                    "no round has succeeded for %.0f s: the gate is let go, parked jobs will"
                    " start as Slurm likes",
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
        """Have the filter give new jobs a begin time while there is a pool for them."""
        submit_file = self._config.events.submit_file
        if submit_file is None:
            return
        try:
            defer_until(submit_file, until_s)
            self._deferring = True
        except OSError as exc:
            if self._deferring:
                log.warning("Slurm tries new jobs before they lie in the holding pool: %s", exc)
            self._deferring = False

    @staticmethod
    def _put_off(pool: HoldingPool, gate_ends_s: float) -> None:
        """Whatever becomes of the pool, the gate comes first: it holds all parked jobs."""
        try:
            pool.keep_closed(gate_ends_s)
        except SourceError as exc:
            log.warning("the pool could not be put off: %s", exc)

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
