"""Ledger writer: survives a store that is damaged, missing or busy.

A call writes or, if the store cannot be used, logs that once and returns. While another process
writes (a sweep, an import), entries are queued in order, so that placed jobs do not wait.
"""

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu_aware.errors import StoreBusyError, StoreError
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.selector.waiting_jobs import WaitingJobs
from slurm_gpu_aware.store import database
from slurm_gpu_aware.store.database import POLICY, POWER, Store, put_value
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.shared_copy import SharedCopy, pause_after

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 60.0
_BUSY_WAIT_S = 1.0  # longest wait of a round for another writer
_BUSY_S = 5.0  # pause before the next try at a busy store
_MOST_QUEUED = 10_000  # writes queued for a busy store; beyond it the oldest are lost
_PUBLISH_S = 2.0
_ALIVE_S = 30.0
_PROFILE_S = 5.0
_PRIVATE = 0o640  # mode of the published copy while Slurm hides jobs


@dataclass(eq=False)
class Entry:
    """A decision for the ledger."""

    number: int | None = None  # Its number in the ledger; None: not written yet, or lost.


class LedgerWriter:
    """Ledger and profile of one store, whatever its state."""

    def __init__(
        self,
        path: Path,
        shared: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``shared``: copy for the readers of other hosts."""
        self.path = path
        self._copy_path = published_path(path)
        self._shared = None if shared is None else SharedCopy(self._copy_path, shared)
        self._touched = -math.inf
        self._clock = clock
        self._store: Store | None = None
        self._tried = -math.inf
        self._profile: Profile | None = None
        self._profile_read = -math.inf
        self._kept: dict[str, tuple[float, Any]] = {}
        """What `kept` has read, each with the time of the profile."""
        self._published = -math.inf
        self._publish_s = _PUBLISH_S
        self._copied_s = 0.0
        self._snapshot_due = -math.inf
        self._changed = True
        self._queued: deque[Callable[[Store], object]] = deque()
        self._lost = 0
        self._busy_until = -math.inf
        self._later = 0
        self._publisher: threading.Thread | None = None
        self._owner = threading.current_thread()
        """The thread that uses the store; other threads only queue writes."""
        self._private = True
        """Whether only owner and group may read the published copy: Slurm hides jobs of others."""

    def hide(self, private: bool) -> None:
        """Let only owner and group read the published copies, or every user, from now on."""
        if private == self._private:
            return
        self._private = private
        # A copy that is being made has the old mode: another one follows, here and on other hosts.
        self._changed, self._published = True, -math.inf
        if private:
            with suppress(OSError):
                os.chmod(self._copy_path, _PRIVATE)

    def profile(self) -> Profile | None:
        """The profile, read again every few seconds; None: default scores."""
        if self._clock() - self._profile_read >= _PROFILE_S:
            self._profile_read = self._clock()
            self._profile = self._do(load_profile, self._profile)
        return self._profile

    @contextmanager
    def later(self) -> Iterator[None]:
        """Queue the writes of the block until its end, so that the block does not wait for them."""
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

        def write(store: Store) -> None:
            entry.number = Ledger(store).add_decision(decision)

        self.write(write)
        return entry

    def outcome(
        self, entry: Entry | None, state: str, at: float, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write the outcome of a decision."""

        def write(store: Store) -> None:
            if entry is not None and entry.number is not None:
                Ledger(store).set_outcome(entry.number, state, at, detail)

        self.write(write)

    def event(self, job_id: str, kind: str, detail: Mapping[str, Any], at: float) -> None:
        """Write an event."""
        self.write(lambda store: Ledger(store).add_event(job_id, kind, detail, at))

    def round(self, record: RoundRecord) -> None:
        """Write a round."""
        self.write(lambda store: Ledger(store).add_round(record))

    def policy(self, words: str) -> None:
        """Write the policy in force, for ``gpu-aware status``."""
        self.write(lambda store: put_value(store, POLICY, words))

    def power(self, text: str) -> None:
        """Write the power of the site, for ``gpu-aware status``."""
        self.write(lambda store: put_value(store, POWER, text))

    def snapshot(self, at: float, content: Callable[[], Mapping[str, Any]]) -> None:
        """Write a whole round for ``planning.record``, in at most a fiftieth of the time."""
        started = self._clock()
        if started < self._snapshot_due:
            return
        try:
            self._do(lambda store: Ledger(store).add_snapshot(at, content()), None, changes=True)
        except TypeError as exc:
            log.warning("a round is not written for replay: %s", exc)
        self._snapshot_due = started + pause_after(self._clock() - started)

    def open_decisions(self) -> list[Decision]:
        """Decisions about jobs that have not ended, as far as is known."""
        return self.rows(lambda store: Ledger(store).open_decisions())

    def decisions(self, job_id: str) -> list[Decision]:
        """All decisions about a job, oldest first."""
        return self.rows(lambda store: Ledger(store).decisions(job_id))

    def kept(self, name: str, read: Callable[[Store], _T], otherwise: _T) -> _T:
        """What is read from the store, again when the profile is; else the last under this name."""
        at, last = self._kept.get(name, (math.nan, otherwise))
        found: _T = last if at == self._profile_read else self._do(read, last)
        self._kept[name] = self._profile_read, found
        return found

    def events(self, job_id: str) -> list[Event]:
        """All events of a job, oldest first; none if the store cannot be used."""
        return self.rows(lambda store: Ledger(store).events(job_id))

    def first_event(self, job_id: str, kind: str) -> Event | None:
        """The oldest event of a kind of a job; None: none, or the store cannot be used."""
        return next((event for event in self.events(job_id) if event.kind == kind), None)

    def last_event(self, job_id: str) -> Event | None:
        """The newest event of a job; None: none, or the store cannot be used."""
        return next(iter(self.rows(lambda store: Ledger(store).events(job_id, last=1))), None)

    def last_waiting(self) -> WaitingJobs:
        """The jobs that waited after the last recorded round."""
        rounds = self.rows(lambda store: Ledger(store).last_rounds(limit=1))
        return WaitingJobs(rounds[0].detail.get("waiting") if rounds else ())

    def events_since(self, kinds: Sequence[str], at: float) -> list[Event]:
        """Events of these kinds from a Unix time on; none if the store cannot be used."""
        return self.rows(lambda store: Ledger(store).events_since(kinds, at))

    def prune(self, before: float) -> None:
        """Delete all entries before a Unix time."""
        self._do(lambda store: Ledger(store).prune(before), None)

    def publish(self, *, force: bool = False, beside: bool = False) -> None:
        """Write queued entries; every two seconds or more seldom copy the store for its readers.

        ``beside``: in a thread, one copy at a time. ``force``: copy in any case.
        """
        if not self._later:
            self.flush()
        self._keep_alive()
        renew = self._changed and self._clock() - self._published >= self._publish_s
        store = self._open() if renew or force else None
        if store is None:
            return
        if self._publisher is not None and self._publisher.is_alive():
            if not force:
                return
            self._publisher.join()
        self._published = self._clock()
        self._changed = False
        copy = (store, self._private)
        if beside:
            self._publisher = threading.Thread(target=self._copy, args=copy, name="publish")
            self._publisher.start()
        else:
            self._copy(*copy)

    def _keep_alive(self) -> None:
        """See to the shared copy; note on an unchanged copy now and then that it is still valid."""
        with suppress(OSError):
            if self._shared is not None:
                self._shared.ensure()
            if not self._changed and self._clock() - self._touched >= _ALIVE_S:
                self._touched = self._clock()
                os.utime(self._copy_path)

    def _copy(self, store: Store, private: bool) -> None:
        self._touched = math.inf  # a copy that could not be renewed is not valid any more
        try:
            database.publish(store, mode=_PRIVATE if private else 0o644)
            if self._private and not private:  # since it was begun
                os.chmod(self._copy_path, _PRIVATE)
            self._touched = self._clock()
        except (StoreError, OSError) as exc:
            log.warning("the store cannot be published for readers: %s", exc)
        except Exception:
            log.exception("the store cannot be published for readers")
        before_s, self._copied_s = self._copied_s, self._clock() - self._published
        self._publish_s = max(_PUBLISH_S, pause_after(before_s, self._copied_s))

    @property
    def publish_in_s(self) -> float | None:
        """Seconds until the next copy is due; None: nothing has changed since the last one."""
        if not self._changed or self._store is None:
            return None
        return max(0.0, self._published + self._publish_s - self._clock())

    def close(self, *, publish: bool = True) -> None:
        """Publish and close; another selector that works now publishes its own."""
        self._busy_until = -math.inf
        self.flush()
        if self._publisher is not None:
            self._publisher.join()
        if self._store is not None:
            if publish:
                self.publish(force=self._changed)
            self._close_store()
        if self._shared is not None:
            self._shared.close()

    def _close_store(self) -> None:
        if self._store is not None:
            with suppress(StoreError):
                self._store.close()
            self._store = None

    def _open(self) -> Store | None:
        if self._store is not None or self._clock() - self._tried < _RETRY_S:
            return self._store
        self._tried = self._clock()
        try:
            self._store = database.open_store(self.path)
            self._store.wait_at_most(_BUSY_WAIT_S)
        except (StoreError, OSError) as exc:
            self._close_store()
            log.error(
                "the store cannot be used; until it can, all scores count as 1.0 and decisions are"
                " not written: %s",
                exc,
            )
        return self._store

    def write(self, call: Callable[[Store], object]) -> None:
        """Write by a call, in turn."""
        self._queued.append(call)
        if threading.current_thread() is not self._owner:
            return  # the main thread writes it at its next call
        if len(self._queued) > _MOST_QUEUED and self._clock() < self._busy_until:
            self._queued.popleft()
            self._lost += 1
        if not self._later:
            self.flush()

    @property
    def is_settled(self) -> bool:
        """Whether all entries are in the store."""
        return not self._queued

    def flush(self) -> None:
        """Write the queued entries, in one transaction, while the store is not busy."""
        while self._queued:
            if self._open() is None:
                self._queued.clear()
                return
            calls = list(self._queued)  # other threads may add more
            self._do(partial(_write_all, calls), None, changes=True)
            if self._clock() < self._busy_until:
                return
            for _ in calls:
                self._queued.popleft()
        if self._lost:
            log.error("the store was busy for so long that %d entries were lost", self._lost)
            self._lost = 0

    def rows(self, call: Callable[[Store], list[_T]]) -> list[_T]:
        """What a call reads; empty if the store cannot be used."""
        return self._do(call, [])

    def _do(self, call: Callable[[Store], _T], otherwise: _T, *, changes: bool = False) -> _T:
        store = self._open()
        if store is None or (changes and self._clock() < self._busy_until):
            return otherwise
        try:
            result = call(store)
        except StoreBusyError as exc:
            log.warning("the ledger is written some seconds later: %s", exc)
            self._busy_until = self._clock() + _BUSY_S
            return otherwise
        except StoreError as exc:
            log.error("the store failed; it is opened again in a minute: %s", exc)
            self._close_store()
            self._tried = self._clock()
            return otherwise
        except ValueError as exc:
            log.error("not written to the ledger: %s", exc)
            return otherwise
        self._changed = self._changed or changes
        return result


def _write_all(calls: Sequence[Callable[[Store], object]], store: Store) -> None:
    """Write entries in one transaction; one that cannot be written is dropped alone."""
    with store.write():
        for call in calls:
            try:
                call(store)
            except StoreError:
                raise
            except ValueError as exc:
                log.error("not written to the ledger: %s", exc)
            except Exception:
                log.exception("not written to the ledger")
