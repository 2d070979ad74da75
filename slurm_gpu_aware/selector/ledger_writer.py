"""Ledger writer: a store that is damaged, missing or busy stops nothing.

Every call here either writes or, if the store cannot be used, logs that once and goes on. Opening
is tried again from time to time. While another process writes to it (a sweep, an import) what is
to be written is kept, in its order, and written later: placed jobs do not wait for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_gpu_aware.errors import StoreBusyError, StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.model.profile import Profile
    from slurm_gpu_aware.store.database import Store
    from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord

__all__ = ["Entry", "LedgerWriter"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 60.0
_BUSY_WAIT_S = 1.0
"""So long a round may wait for another writer."""
_BUSY_S = 5.0
"""After that nothing is tried for so long."""
_MOST_KEPT = 10_000
"""Writes kept for a store that is busy; of more, the oldest are lost."""
_PUBLISH_S = 2.0
_PROFILE_S = 5.0
_SNAPSHOT_SHARE = 50.0


@dataclass(eq=False)
class Entry:
    """A decision that was handed to the ledger."""

    number: int | None = None
    """Its number there; None: it is not written, or not yet."""


class LedgerWriter:
    """Ledger and profile of one store, by whatever state the store is in."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._store: Store | None = None
        self._ledger: Ledger | None = None
        self._tried = -float("inf")
        self._profile: Profile | None = None
        self._profile_read = -float("inf")
        self._published = -float("inf")
        self._publish_s = _PUBLISH_S
        self._snapshot_due = -float("inf")
        self._changed = True
        self._kept: deque[Callable[[Ledger], object]] = deque()
        self._lost = 0
        self._busy_until = -float("inf")
        self._later = 0
        self._publisher: threading.Thread | None = None
        self._owner = threading.current_thread()
        """The thread that opens the store; others only hand over what is to be written."""
        self.private = True
        """Only the owner and the group may read what is published; so until Slurm has told that
        users may see each other's jobs."""

    @property
    def usable(self) -> bool:
        """Whether decisions are being written down."""
        return self._open() is not None

    def profile(self) -> Profile | None:
        """Scores and graphs, read again every few seconds; None: default scores."""
        if self._clock() - self._profile_read < _PROFILE_S:
            return self._profile
        self._profile_read = self._clock()

        def read(ledger: Ledger) -> Profile:
            from slurm_gpu_aware.store.profiles import load_profile

            assert self._store is not None  # noqa: S101 - set together with the ledger
            return load_profile(self._store)

        self._profile = self._do(read, self._profile)
        return self._profile

    @contextmanager
    def later(self) -> Iterator[None]:
        """What is written in here is written at the end, so that nothing in here waits for it."""
        self._later += 1
        try:
            yield
        finally:
            self._later -= 1
            if not self._later:
                self.flush()

    def decide(self, decision: Decision) -> Entry:
        """Write a decision."""
        entry = Entry()

        def write(ledger: Ledger) -> None:
            entry.number = ledger.add_decision(decision)

        self._write(write)
        return entry

    def outcome(
        self, entry: Entry | None, state: str, at: float, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write what became of a decision."""

        def write(ledger: Ledger) -> None:
            if entry is not None and entry.number is not None:
                ledger.set_outcome(entry.number, state, at, detail)

        self._write(write)

    def event(self, job_id: str, kind: str, detail: Mapping[str, Any], at: float) -> None:
        """Write an event."""
        self._write(lambda ledger: ledger.add_event(job_id, kind, detail, at))

    def round(self, record: RoundRecord) -> None:
        """Write a round."""
        self._write(lambda ledger: ledger.add_round(record))

    def snapshot(self, at: float, content: Callable[[], Mapping[str, Any]]) -> None:
        """Write a whole round down, so that it can be planned again (``simulator.replay``).

        On a large cluster that takes a while: it never takes more than a fiftieth of the time, and
        rounds in between are not kept.
        """
        started = self._clock()
        if started < self._snapshot_due:
            return

        def write(ledger: Ledger) -> None:
            from slurm_gpu_aware.store.snapshots import add_snapshot

            assert self._store is not None  # noqa: S101 - set together with the ledger
            add_snapshot(self._store, at, content())

        try:
            self._do(write, None, changes=True)
        except TypeError as exc:
            log.warning("a round is not kept for replay: %s", exc)
        took = self._clock() - started
        self._snapshot_due = started + took * _SNAPSHOT_SHARE

    def open_decisions(self) -> list[Decision]:
        """Decisions whose job may still run or wait."""
        nothing: list[Decision] = []
        return self._do(lambda ledger: ledger.open_decisions(), nothing)

    def decisions(self, job_id: str) -> list[Decision]:
        """All decisions about a job, oldest first."""
        nothing: list[Decision] = []
        return self._do(lambda ledger: ledger.decisions(job_id), nothing)

    def has_event(self, job_id: str, kind: str) -> bool:
        """Whether an event of a kind was written for a job."""
        return self.first_event(job_id, kind) is not None

    def first_event(self, job_id: str, kind: str) -> Event | None:
        """The oldest event of a kind of a job; None: none, or the store cannot be used."""
        nothing: list[Event] = []
        found = self._do(lambda ledger: ledger.events(job_id), nothing)
        return next((event for event in found if event.kind == kind), None)

    def last_event(self, job_id: str) -> Event | None:
        """The newest event of a job; None: none, or the store cannot be used."""
        nothing: list[Event] = []
        found = self._do(lambda ledger: ledger.events(job_id, last=1), nothing)
        return found[0] if found else None

    def forget_waiting(self, before: float) -> None:
        """Drop who waited in rounds that are too old to ask about."""
        self._do(lambda ledger: ledger.forget_waiting(before), None)

    def prune(self, before: float) -> None:
        """Delete what is too old."""
        self._do(lambda ledger: ledger.prune(before), 0)

    def publish(self, *, force: bool = False, beside: bool = False) -> None:
        """Copy the store to where its readers find it, as often as its size allows.

        At most every other second, and never more than a fiftieth of the time. ``beside``: in a
        thread, one copy at a time, because a large store takes seconds. What a busy store has kept
        waiting is written first.
        """
        if not self._later:
            self.flush()
        due = self._changed and self._clock() - self._published >= self._publish_s
        if not (due or force) or self._open() is None or self._store is None:
            return
        if self._publisher is not None and self._publisher.is_alive():
            if not force:
                return
            self._publisher.join()
        self._published = self._clock()
        self._changed = False
        if beside:
            self._publisher = threading.Thread(
                target=self._copy, args=(self._store, self.private), name="publish"
            )
            self._publisher.start()
        else:
            self._copy(self._store, self.private)

    def _copy(self, store: Store, private: bool) -> None:
        from slurm_gpu_aware.store.database import publish

        try:
            publish(store, mode=0o640 if private else 0o644)
        except (StoreError, OSError) as exc:
            log.warning("the store cannot be published for readers: %s", exc)
        except Exception:
            log.exception("the store cannot be published for readers")
        self._publish_s = max(_PUBLISH_S, 50 * (self._clock() - self._published))

    @property
    def publish_in_s(self) -> float | None:
        """Seconds until what was written since the last publishing is due; None: nothing was."""
        if not self._changed or self._store is None:
            return None
        return max(0.0, self._published + self._publish_s - self._clock())

    def close(self) -> None:
        """Publish and close."""
        self._busy_until = -float("inf")
        self.flush()
        if self._publisher is not None:
            self._publisher.join()
        if self._store is not None:
            self.publish(force=self._changed)
            with suppress(StoreError):
                self._store.close()
            self._store = self._ledger = None

    def _open(self) -> Ledger | None:
        if self._ledger is not None or self._clock() - self._tried < _RETRY_S:
            return self._ledger
        self._tried = self._clock()
        from slurm_gpu_aware.store.database import open_store
        from slurm_gpu_aware.store.ledger import Ledger

        try:
            self._store = open_store(self._path)
            self._store.wait_at_most(_BUSY_WAIT_S)
            self._ledger = Ledger(self._store)
        except (StoreError, OSError) as exc:
            log.error(
                "the store cannot be used: all scores count as 1.0 and decisions are not written"
                " down until it can: %s",
                exc,
            )
        return self._ledger

    def _write(self, call: Callable[[Ledger], object]) -> None:
        self._kept.append(call)
        if threading.current_thread() is not self._owner:
            return  # the main thread writes it at its next call
        if len(self._kept) > _MOST_KEPT and self._clock() < self._busy_until:
            self._kept.popleft()
            self._lost += 1
        if not self._later:
            self.flush()

    def flush(self) -> None:
        """Write what was kept, as far as the store is not busy."""
        while self._kept:
            if self._open() is None:
                self._kept.clear()
                return
            try:
                self._do(self._kept[0], None, changes=True)
            except Exception:  # one entry that cannot be written must not keep all behind it
                log.exception("not written to the ledger")
            if self._clock() < self._busy_until:
                return
            self._kept.popleft()
        if self._lost:
            log.error("the store was busy for so long that %d entries were lost", self._lost)
            self._lost = 0

    def _do(self, call: Callable[[Ledger], _T], otherwise: _T, *, changes: bool = False) -> _T:
        ledger = self._open()
        if ledger is None or (changes and self._clock() < self._busy_until):
            return otherwise
        try:
            result = call(ledger)
        except StoreBusyError as exc:
            log.warning("written down in some seconds: %s", exc)
            self._busy_until = self._clock() + _BUSY_S
            return otherwise
        except StoreError as exc:
            log.error("the store failed and is left alone for a minute: %s", exc)
            if self._store is not None:
                with suppress(StoreError):
                    self._store.close()
            self._store = self._ledger = None
            self._tried = self._clock()
            return otherwise
        except ValueError as exc:
            log.error("not written to the ledger: %s", exc)
            return otherwise
        self._changed = self._changed or changes
        return result
