"""Clocks that save energy, checked on running jobs: what they cost by the marks of a job itself.

A job that `gpu-aware-profile job` measures leaves a record in a folder of the site: the time of an
iteration at each SM clock that it ran at. Once its chosen clock is in it, the job runs at its
default clock for a slice or two; both times together say how much slower it is. One that is slower
than allowed stays at the default clock, and jobs like it get no such clock until their model has
been fitted anew, to both times. The record is the user's own, so it decides on this user's jobs
only.
"""

import logging
import math
import os
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slurm_gpu_aware.bounds import MAX_GPU_W, MAX_GPUS, MAX_MHZ
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.accounts import EnergyComments
from slurm_gpu_aware.features.energy.declared import CHECKED, CHECKING, FITTED
from slurm_gpu_aware.features.energy.refits import Key, Refits, model_name
from slurm_gpu_aware.features.models.live import put_measured
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    TIME_NOISE,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.files import open_plain, user_name
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.live import Live, Site
from slurm_gpu_aware.store.ledger import Event
from slurm_gpu_aware.text_file import Row, decoded, read_table

log = logging.getLogger(__name__)

_SAME = 0.02  # Clocks that differ by a smaller share are one.
_SETTLE_S = 20.0  # Time after the first slice in which a program warms up.
_MOST_S = 60.0  # Time at the default clock after which a check without a slice there ends.
_READ_S = 5.0
_WAIT_S = 0.5  # A round waits so long for the folder, which may be of a file system that hangs.
_HANGS_S = 30.0  # A folder that takes longer is complained of.
_MOST_BYTES = 1 << 16
_NAMES = re.compile(r"gpu-aware-job-([0-9][0-9_+]{0,30})-[0-9a-f]{8}\.csv\Z")
_MOST_FILES = 1_000_000  # Names of the folder that are looked at, in a second or so: users fill it.
_SHARE = 10.0  # Reading takes at most one part in so many of the time.
_KEPT_S = 90 * 86_400.0
"""A job that was slower than allowed counts for so long, unless the models are fitted anew."""
_SLOWEST_S = 1e6
_BATCH = 1e-9, 1e12


class AtClock(NamedTuple):
    """What a job measured at one clock."""

    clock_mhz: float
    time_s: float  # Of an iteration.
    power_w: float | None  # Of all its GPUs; None: not known.
    batch_size: float = 1.0  # Samples of a GPU in an iteration.


def measured(text: str) -> list[AtClock]:
    """The rows of a record with a time. Raises SourceError if it is none."""
    table = read_table("record", text)
    table.require("clock_mhz", "time_s", "power_w")
    return [one for one in table.parse_all(_at_clock) if one is not None]


def _at_clock(row: Row) -> AtClock | None:
    if not row.cells["time_s"]:
        return None
    mhz, time_s = row.number("clock_mhz"), row.number("time_s")
    power_w = row.number("power_w") if row.cells["power_w"] else None
    if not (0 < mhz <= MAX_MHZ and 0 < time_s <= _SLOWEST_S):
        raise ValueError("clock_mhz or time_s is out of range")
    if power_w is not None and not 0 < power_w <= MAX_GPU_W * MAX_GPUS:
        raise ValueError("power_w is out of range")
    batch_size = row.number("batch_size", *_BATCH) if row.cells.get("batch_size") else 1.0
    return AtClock(mhz, time_s, power_w, batch_size)


def at_clock(rows: Sequence[AtClock], clock_mhz: float) -> AtClock | None:
    """What was measured nearest to a clock; None: nothing there."""
    near = [row for row in rows if abs(row.clock_mhz - clock_mhz) <= _SAME * clock_mhz]
    return min(near, key=lambda row: abs(row.clock_mhz - clock_mhz), default=None)


def both_clocks(
    rows: Sequence[AtClock], clock_mhz: float, limit_w: int = 0
) -> tuple[AtClock, AtClock] | None:
    """What was measured at a clock, and at the highest one; None: no two clocks.

    ``limit_w``: power limit, which may have kept the GPUs below the clock: then the median time of
    what is below the highest clock counts.
    """
    slow = at_clock(rows, clock_mhz)
    fast = max(rows, key=lambda row: row.clock_mhz, default=None)
    if limit_w and fast is not None:
        below = [row for row in rows if fast.clock_mhz > (1.0 + _SAME) * row.clock_mhz]
        below.sort(key=lambda row: row.time_s)
        slow = below[(len(below) - 1) // 2] if below else None
    if slow is None or fast is None or fast.clock_mhz <= (1.0 + _SAME) * slow.clock_mhz:
        return None
    return slow, fast


def compared(slow: AtClock, fast: AtClock) -> tuple[float, float | None]:
    """(Slower, saves): shares against the second one; ``saves`` None: the power is not known."""
    longer, saves = slow.time_s / fast.time_s, None
    if slow.power_w is not None and fast.power_w is not None:
        saves = 1.0 - longer * slow.power_w / fast.power_w
    return longer - 1.0, saves


class Watched(NamedTuple):
    """A running job at a clock that saves energy."""

    user: str
    application: str | None
    app_class: str
    gpu_model: str
    clock_mhz: int = 0
    allowed: float = math.inf  # How much slower it may be.
    limit_w: int = 0  # Power limit that was chosen with the clock; 0: none was.
    gpus: int = 1
    nodes: int = 1

    @property
    def key(self) -> Key:
        """What a verdict counts for: jobs of a user of one application, else of one class."""
        name = self.application or ""
        return self.user, name, "" if name else self.app_class, self.gpu_model

    def samples(self, slow: AtClock, fast: AtClock, at: float) -> list[NamedSample]:
        """What it measured at its clock and at the default one, for its model."""
        return [
            NamedSample(
                *(model_name(self.key), self.gpu_model, at),
                PerformanceSample(
                    *(self.gpus, self.nodes, one.batch_size, mhz, one.time_s, one.power_w)
                ),
                self.app_class,
            )
            for one, mhz in ((slow, slow.clock_mhz), (fast, NOT_LOCKED))
        ]


@dataclass
class _Check:
    of: Watched
    seen_at: float | None = None  # When its first iterations at its clock were known.
    begun_at: float | None = None  # Since when it runs at the default clock.
    read_at: float = 0.0
    before: frozenset[AtClock] = frozenset()
    """What was measured when it began to run at the default clock."""


class _Reading(threading.Thread):
    """Reads the records of some jobs once; the round does not depend on its end."""

    def __init__(self, folder: Path, users: Mapping[str, str]) -> None:
        """``users``: job -> its user."""
        super().__init__(name="records", daemon=True)
        self.folder, self.users = folder, users
        self.rows: dict[str, Sequence[AtClock]] = {}
        """Job -> what it has measured so far, if it has a sound record of its user."""
        self.faults: dict[str, str] = {}
        """Job, or empty for the folder -> what is wrong."""
        self.began, self.took_s = time.monotonic(), 0.0

    def run(self) -> None:
        """Read them."""
        for job_id, name in self._newest().items():
            try:
                self.rows[job_id] = self._rows(name, self.users[job_id])
            except (OSError, SourceError) as exc:
                self.faults[job_id] = f"the record of job {job_id} is not used: {exc}"
        self.took_s = time.monotonic() - self.began

    def _newest(self) -> dict[str, str]:
        """Job -> name of the newest record of its user."""
        newest: dict[str, tuple[float, str]] = {}
        try:
            with os.scandir(self.folder) as entries:
                for number, entry in enumerate(entries):
                    if number == _MOST_FILES:
                        self.faults[""] = (
                            f"{self.folder}: above {number} files; others are not seen"
                        )
                        break
                    job_id = found[1] if (found := _NAMES.match(entry.name)) else ""
                    if job_id not in self.users:
                        continue
                    with suppress(FileNotFoundError):  # its job may replace it meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if user_name(status.st_uid) == self.users[job_id]:
                            one = status.st_mtime, entry.name
                            newest[job_id] = max(one, newest.get(job_id, one))
        except OSError as exc:
            self.faults[""] = f"{self.folder}: cannot be read: {exc.strerror}"
        return {job_id: name for job_id, (_, name) in newest.items()}

    def _rows(self, name: str, user: str) -> Sequence[AtClock]:
        """The rows of a record. Raises OSError or SourceError."""
        stream, status = open_plain(self.folder / name)
        with stream:
            data = stream.read(_MOST_BYTES + 1)
        if status.st_nlink != 1 or user_name(status.st_uid) != user or len(data) > _MOST_BYTES:
            return ()
        return measured(decoded(data, name))


class ClockChecks:
    """The checks of running jobs. Times are Unix s."""

    def __init__(self, folder: Path | None, ledger: LedgerWriter) -> None:
        """``folder``: that of the records; None: no job is checked."""
        self.folder = folder
        self._ledger = ledger
        self._refits = Refits(ledger)
        self._checks: dict[str, _Check] = {}
        self._done: dict[str, bool] = {}
        """Job that was checked -> whether it was slower than allowed."""
        self._wrong: dict[Key, float] = {}
        """Key of jobs that are slower than allowed -> since when."""
        self._reading: _Reading | None = None
        self._every_s = _READ_S
        self._complained: set[str] = set()
        """Jobs whose records were found wrong; empty: the folder."""

    def load(self, now: float) -> None:
        """Take up which jobs were slower than allowed."""
        kinds = (CHECKED, FITTED)
        events = [] if self.folder is None else self._ledger.events_since(kinds, now - _KEPT_S)
        for event in events:
            with suppress(LookupError, ValueError):
                user, name, app_class, gpu_model = map(str, event.detail["key"])
                key = user, name, app_class, gpu_model
                if event.kind == FITTED:
                    # A verdict that came while the model was being fitted is not in it.
                    if self._wrong.get(key, -math.inf) <= float(event.detail["began"]):
                        self._refits.drop(key)
                elif event.detail.get("slow") is True:
                    self._wrong[key] = event.at
                    self._refits.want(key, event.job_id)

    def restore(self, job_id: str, events: Sequence[Event]) -> None:
        """Take up what a previous selector found; a check that it only began begins anew."""
        for event in events:
            if event.kind == CHECKED:
                self._done[job_id] = event.detail.get("slow") is True

    def forget(self, job_id: str) -> None:
        """Forget the earlier run of a job."""
        self._checks.pop(job_id, None)
        self._done.pop(job_id, None)

    def follow(self, jobs: Mapping[str, Watched], held: Collection[str]) -> None:
        """Check these jobs and no others, of those that hold GPUs (``held``)."""
        self._done = {job_id: slow for job_id, slow in self._done.items() if job_id in held}
        known, self._checks = self._checks, {}
        for job_id, of in jobs.items():
            if job_id not in self._done and self.folder is not None:
                self._checks[job_id] = known.get(job_id) or _Check(of)

    def is_slow(self, job_id: str) -> bool:
        """Whether a job is slower than allowed, so that it stays at its default clock."""
        return self._done.get(job_id, False)

    def at_default(self, job_id: str) -> bool:
        """Whether a job should run at its default clock now."""
        check = self._checks.get(job_id)
        return self.is_slow(job_id) or (check is not None and check.begun_at is not None)

    def is_wrong(self, of: Watched, fitted_at: float, now: float) -> bool:
        """Whether a job like this was slower than allowed, by a model that was fitted then."""
        return self._wrong.get(of.key, -math.inf) > max(fitted_at, now - _KEPT_S)

    def looks(self, now: float) -> bool:
        """Read the records whose time has come; whether a job should get another clock."""
        self._refits.step(now)
        read = self._checks.items()
        unread = {i: one for i, one in read if not 0 <= now - one.read_at < self._every_s}
        wait_s = 0.0
        if unread and self._reading is None and self.folder is not None:
            wait_s = _WAIT_S
            self._reading = _Reading(self.folder, {i: one.of.user for i, one in unread.items()})
            self._reading.start()
        done = self._reading
        if done is None:
            return False
        done.join(wait_s)
        if done.is_alive():
            if time.monotonic() - done.began > _HANGS_S:
                self._complain({"": f"{done.folder}: it does not answer"})
            return False
        self._reading, self._every_s = None, max(_READ_S, _SHARE * done.took_s)
        self._complain(done.faults)
        found = [(i, one, done.rows.get(i, ())) for i, one in unread.items() if i in done.users]
        changed = [self._looked(*one, now) for one in found]
        return any(changed)

    def _looked(self, job_id: str, check: _Check, rows: Sequence[AtClock], now: float) -> bool:
        check.read_at = now
        if check.begun_at is not None:
            # Under a limit the clock wanders: the highest one must have been measured since.
            fast = max(rows, key=lambda row: row.clock_mhz, default=None)
            known = not check.of.limit_w or fast not in check.before
            found = both_clocks(rows, check.of.clock_mhz, check.of.limit_w) if known else None
            if found is None and now - check.begun_at < _MOST_S:
                return False
            self._end(job_id, check.of, found, now)
            return True
        if not rows or (not check.of.limit_w and at_clock(rows, check.of.clock_mhz) is None):
            return False
        check.seen_at = check.seen_at or now
        if now - check.seen_at < _SETTLE_S:
            return False
        check.begun_at, check.before = now, frozenset(rows)
        self._ledger.event(job_id, CHECKING, {"clock_mhz": check.of.clock_mhz}, now)
        return True

    def _end(
        self, job_id: str, of: Watched, found: tuple[AtClock, AtClock] | None, now: float
    ) -> None:
        slower, saves = (0.0, None) if found is None else compared(*found)
        slow = slower > of.allowed + TIME_NOISE
        del self._checks[job_id]
        self._done[job_id] = slow
        if slow and found is not None:
            self._wrong[of.key] = now
            # A moment of its own: by it those of one job are told from those of the same round.
            samples = of.samples(*found, now - 1e-3 * len(self._checks))
            put_measured(self._ledger, samples)
            self._refits.want(of.key, job_id)
        detail: dict[str, Any] = {"clock_mhz": of.clock_mhz, "allowed": of.allowed, "slow": slow}
        detail |= {"limit_w": of.limit_w} if of.limit_w else {}
        if found is None:
            detail["error"] = f"it marked no iteration at its default clock within {_MOST_S:.0f} s"
        else:
            detail |= {"slower": round(slower, 4), "key": list(of.key)}
            detail["saves"] = None if saves is None else round(saves, 4)
        self._ledger.event(job_id, CHECKED, detail, now)

    def _complain(self, faults: Mapping[str, str]) -> None:
        """Log what is new: once of each job, whatever its user writes."""
        for job_id, text in faults.items():
            if job_id not in self._complained:
                log.warning("%s", text)
        self._complained = self._complained.intersection(self._checks).union(faults)


class JobEnergies(Live):
    """Writes the energy of ended jobs into Slurm's accounting."""

    name = "energy of jobs"

    def __init__(self, site: Site) -> None:
        self._comments = EnergyComments(site.ledger.events, site.ledger.decisions, site.config)

    def heard(self, job_id: str) -> None:
        """A node has recorded energy of a job."""
        self._comments.heard(job_id)

    def after_round(self) -> Mapping[str, float | None]:
        """Hand over the jobs whose records have settled."""
        self._comments.hand_over()
        return {}


LIVES = (JobEnergies,)
