"""The ledger as the daemon keeps it: a store that is damaged or missing stops nothing.

Every call here either writes or, if the store cannot be used, logs that once and goes on. Opening
is tried again from time to time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_gpu_aware.errors import StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.store.database import Store
    from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord
    from slurm_gpu_aware.store.profiles import Profile

__all__ = ["Books"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 60.0
_PUBLISH_S = 2.0
_PROFILE_S = 5.0
_SNAPSHOT_SHARE = 50.0


class Books:
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

    def decide(self, decision: Decision) -> int | None:
        """Write a decision; its number, or None."""
        return self._do(lambda ledger: ledger.add_decision(decision), None, changes=True)

    def outcome(
        self, number: int | None, state: str, at: float, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write what became of a decision."""
        if number is not None:
            self._do(
                lambda ledger: ledger.set_outcome(number, state, at, detail), None, changes=True
            )

    def event(self, job_id: str, kind: str, detail: Mapping[str, Any], at: float) -> None:
        """Write an event."""
        self._do(lambda ledger: ledger.add_event(job_id, kind, detail, at), None, changes=True)

    def round(self, record: RoundRecord) -> None:
        """Write a round."""
        self._do(lambda ledger: ledger.add_round(record), None, changes=True)

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
        return self._do(lambda ledger: any(e.kind == kind for e in ledger.events(job_id)), False)

    def last_event(self, job_id: str) -> Event | None:
        """The newest event of a job; None: none, or the store cannot be used."""
        nothing: list[Event] = []
        found = self._do(lambda ledger: ledger.events(job_id), nothing)
        return found[-1] if found else None

    def forget_waiting(self, before: float) -> None:
        """Drop who waited in rounds that are too old to ask about."""
        self._do(lambda ledger: ledger.forget_waiting(before), None)

    def prune(self, before: float) -> None:
        """Delete what is too old."""
        self._do(lambda ledger: ledger.prune(before), 0)

    def publish(self, *, force: bool = False) -> None:
        """Copy the store to where its readers find it, as often as its size allows.

        At most every other second, and never more than a fiftieth of the time.
        """
        due = self._changed and self._clock() - self._published >= self._publish_s
        if not (due or force) or self._open() is None:
            return
        from slurm_gpu_aware.store.database import publish

        self._published = self._clock()
        self._changed = False
        try:
            assert self._store is not None  # noqa: S101 - _open gave a ledger
            publish(self._store, mode=0o640 if self.private else 0o644)
        except (StoreError, OSError) as exc:
            log.warning("the store cannot be published for readers: %s", exc)
        self._publish_s = max(_PUBLISH_S, 50 * (self._clock() - self._published))

    @property
    def publish_in_s(self) -> float | None:
        """Seconds until what was written since the last publishing is due; None: nothing was."""
        if not self._changed or self._store is None:
            return None
        return max(0.0, self._published + self._publish_s - self._clock())

    def close(self) -> None:
        """Publish and close."""
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
            self._ledger = Ledger(self._store)
        except (StoreError, OSError) as exc:
            log.error(
                "the store cannot be used: all scores count as 1.0 and decisions are not written"
                " down until it can: %s",
                exc,
            )
        return self._ledger

    def _do(self, call: Callable[[Ledger], _T], otherwise: _T, *, changes: bool = False) -> _T:
        ledger = self._open()
        if ledger is None:
            return otherwise
        try:
            result = call(ledger)
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
