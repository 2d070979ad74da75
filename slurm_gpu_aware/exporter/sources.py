"""Sources of metrics: the published copy of the store, Slurm's last answer, the counters.

slurmctld is asked by a thread of its own: nothing that is exported waits for it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.selector.live_jobs import SlurmView, slurm_view
from slurm_gpu_aware.selector.round_state import Counters, read_counters
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.store.database import (
    Store,
    copies_of,
    open_copy,
    open_for_reading,
    renewed_at,
)
from slurm_gpu_aware.store.watch_state import FILE, WatchState, read_state

log = logging.getLogger(__name__)

OLD_S = 120.0
"""An answer of Slurm, or counters, that are older are not exported, or 8 refreshes if that is
longer."""


class Complaints:
    """Logs each failure once until it changes."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def failed(self, what: str, why: object) -> None:
        """Log a failure unless it is the last one of its kind."""
        if self._said.get(what) != str(why):
            log.warning("%s: %s", what, why)
        self._said[what] = str(why)

    def well(self, what: str) -> None:
        """It works again."""
        self._said.pop(what, None)


def open_published(settings: StoreConfig) -> Store:
    """Open the newest published copy of the store; without one, the store. Raises StoreError."""
    for copy in sorted(copies_of(settings), key=renewed_at, reverse=True):
        with suppress(StoreError):
            return open_copy(copy)
    return open_for_reading(settings)


def has_store(settings: StoreConfig) -> bool:
    """Whether there is a published copy, even one that cannot be read, or a store for this user.

    A store without a copy is for its owner alone.
    """
    readable = os.access(settings.path, os.R_OK)
    return readable or not all(map(_is_missing, copies_of(settings)))


def _is_missing(file: Path) -> bool:
    try:
        file.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def counters_of(config: Config, now: float, oldest_s: float) -> Counters | None:
    """The selector's counters; None: no selector has worked on this host.

    Raises SourceError, also if they are older than ``oldest_s``.
    """
    try:
        found = read_counters(config.store.path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SourceError(f"the selector's counters cannot be read: {exc.strerror}") from None
    if now - found.at > max(oldest_s, 4 * config.selector.round_s):
        raise SourceError("the selector has not written its counters for a while")
    return found


class WatchFile:
    """What ``gpu-aware-profile watch`` found, from its file beside the store."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(FILE)
        self._last: tuple[object, WatchState] | None = None

    def read(self) -> WatchState | None:
        """The state; None: there is no file. It is read when it has changed. Raises SourceError."""
        try:
            status = self._path.stat()
            key = status.st_ino, status.st_mtime_ns, status.st_size, status.st_uid
            if self._last is None or self._last[0] != key:
                found = read_state(self._path)
                self._last = None if found is None else (key, found)
        except FileNotFoundError:
            self._last = None
        except OSError as exc:
            raise SourceError(f"{self._path}: cannot be read: {exc.strerror}") from None
        return None if self._last is None else self._last[1]


class SlurmWatch:
    """Asks Slurm again and again; `last` never waits."""

    def __init__(
        self,
        config: Config,
        interval_s: float,
        opened: Callable[[float], SlurmClient] = open_client,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._interval_s = config, interval_s
        self._opened, self._clock = opened, clock
        self._client: SlurmClient | None = None
        self._last: SlurmView | None = None
        self._complaints = Complaints()
        self._stop = threading.Event()

    def start(self) -> None:
        """Ask from a thread, which ends with the process."""
        threading.Thread(target=self._run, name="slurm", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def ask(self) -> None:
        """Ask once; a failure is logged, and the last answer stays."""
        try:
            if self._client is None:
                self._client = self._opened(self._config.selector.command_timeout_s)
            self._last = slurm_view(self._client, self._config, self._clock)
            self._complaints.well("Slurm")
        except SourceError as exc:
            self._complaints.failed("Slurm", exc)
        except Exception as exc:
            log.exception("Slurm's answer cannot be used")
            self._complaints.failed("Slurm", exc)

    def last(self, oldest_s: float) -> SlurmView | None:
        """The last answer; None: there is none, or it is older than ``oldest_s``."""
        found = self._last
        if found is None or self._clock() - found.at > oldest_s:
            return None
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self.ask()
            # slurmctld has other work: at most a twentieth of the time
            cost_s = time.monotonic() - began
            self._stop.wait(max(self._interval_s, 20 * cost_s))
