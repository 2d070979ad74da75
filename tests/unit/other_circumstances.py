"""Plugin of pytest for `test_collection`: another day, machine and order of files than here."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

AHEAD_S = float(os.environ["GPU_AWARE_TESTS_AHEAD_S"])
CPUS = 96

_time, _time_ns, _scandir, _listdir = time.time, time.time_ns, os.scandir, os.listdir


class _Alike(type):
    """So that values of the real class are instances of the other day's class, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _Date(datetime.date, metaclass=_Alike):
    @classmethod
    def today(cls) -> Any:
        return datetime.date.fromtimestamp(time.time())


class _Datetime(datetime.datetime, metaclass=_Alike):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.__mro__[1].fromtimestamp(time.time(), tz)  # type: ignore[attr-defined]


class _Backwards:
    """Entries of a folder, last name first."""

    def __init__(self, *folder: Any) -> None:
        with _scandir(*folder) as found:
            self._entries = iter(sorted(found, key=lambda entry: entry.name, reverse=True))

    def __enter__(self) -> _Backwards:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> _Backwards:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        pass


time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + int(AHEAD_S * 1e9)
datetime.date = _Date  # type: ignore[misc]
datetime.datetime = _Datetime  # type: ignore[misc]
os.scandir = _Backwards  # type: ignore[assignment, misc]
os.listdir = lambda *folder: sorted(_listdir(*folder), reverse=True)
os.cpu_count = lambda: CPUS
os.sched_getaffinity = lambda _: set(range(CPUS))
