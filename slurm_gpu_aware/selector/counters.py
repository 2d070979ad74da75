"""What the selector has counted since its start, in a small file beside the store.

The ledger keeps rounds that change something; these counts are of all of them. The file has no
job's or user's name, so every user may read it. It is written after rounds, every few seconds.
"""

import logging
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import open_plain, write_owned
from slurm_gpu_aware.records import number, whole
from slurm_gpu_aware.selector.round_state import Outcome
from slurm_gpu_aware.slurm.libslurm import CALLS, UPDATES, CallCounts
from slurm_gpu_aware.store.files import counters_path
from slurm_gpu_aware.text_file import decoded, parse_json

log = logging.getLogger(__name__)

ROUND_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the histogram of rounds' durations, without the infinite one."""
_WRITE_S = 5.0
_LONGEST = 16_384
"""Bytes of a file that is read."""

Unix = Annotated[float, number(0, MAX_TIME_S)]
Count = Annotated[int, whole(0, 1 << 53)]


@dataclass(frozen=True)
class Counters:
    """Counts since the start of the selector. Times are Unix seconds."""

    started_at: Unix
    at: Unix
    """When this was written."""
    round_at: Unix = 0.0
    """End of the last round that succeeded; 0: none yet."""
    failed_rounds: Count = 0
    placed: Count = 0
    """Jobs that rounds have placed."""
    round_buckets: tuple[Count, ...] = (0,) * (len(ROUND_BOUNDS_S) + 1)
    """Rounds that succeeded, by `ROUND_BOUNDS_S`; the last ones took longer than all bounds."""
    rounds_s: Annotated[float, number(0, 1e12)] = 0.0
    """Duration of all these rounds."""
    calls: dict[str, Count] = field(default_factory=dict)
    """Outcome (`libslurm.CALLS`) -> calls to Slurm."""
    updates: dict[str, Count] = field(default_factory=dict)
    """Outcome (`libslurm.UPDATES`) -> updates of jobs."""

    @property
    def rounds(self) -> int:
        """Rounds that succeeded."""
        return sum(self.round_buckets)


def read_counters(store: Path) -> Counters:
    """What the selector of this host counted last. Raises OSError and SourceError."""
    path = counters_path(store)
    stream, _ = open_plain(path)
    with stream:
        data = stream.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise SourceError(f"{path}: larger than {_LONGEST} bytes")
    try:
        found = records.read(parse_json(decoded(data, path), path), Counters)
    except ValueError as exc:
        raise SourceError(f"{path}: {exc}") from None
    if len(found.round_buckets) != len(ROUND_BOUNDS_S) + 1:
        raise SourceError(f"{path}: round_buckets: expected {len(ROUND_BOUNDS_S) + 1} numbers")
    # Outcomes become labels.
    calls = {name: found.calls.get(name, 0) for name in CALLS}
    updates = {name: found.updates.get(name, 0) for name in UPDATES}
    return replace(found, calls=calls, updates=updates)


class CounterFile:
    """Counts of this process, and the file that others read."""

    def __init__(
        self,
        store: Path,
        counts: CallCounts,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._counts, self._clock, self._timer = store, counts, clock, timer
        self._now = Counters(clock(), clock())
        self._written = -math.inf
        self._complained = False

    def round_done(self, outcome: Outcome | None) -> None:
        """Count a round; None: it failed."""
        now = self._now
        if outcome is None:
            self._now = replace(now, failed_rounds=now.failed_rounds + 1)
            return
        buckets = list(now.round_buckets)
        buckets[bisect_left(ROUND_BOUNDS_S, outcome.took_s)] += 1
        self._now = replace(
            now,
            round_at=self._clock(),
            placed=now.placed + len(outcome.placed),
            round_buckets=tuple(buckets),
            rounds_s=now.rounds_s + max(0.0, outcome.took_s),
        )

    def write(self, *, force: bool = False) -> None:
        """Write the file, at most every few seconds unless ``force``; a failure is logged once."""
        if not force and self._timer() - self._written < _WRITE_S:
            return
        self._written = self._timer()
        self._now = replace(
            self._now,
            at=self._clock(),
            calls=dict(self._counts.of_calls),
            updates=dict(self._counts.of_updates),
        )
        try:
            write_owned(counters_path(self._path), asdict(self._now))
            self._complained = False
        except SourceError as exc:
            if not self._complained:
                log.warning("metrics of the selector are not written: %s", exc)
            self._complained = True

    def remove(self) -> None:
        """Remove the file: another host's selector works."""
        with suppress(OSError):
            os.unlink(counters_path(self._path))
