"""Power limit in force: a limit set at run time, else the schedule, else the configuration.

A limit is ``off``, ``eta=X`` (a share of what all GPUs may draw) or watts. What an operator sets
stands in a file beside the store, which must belong to root or SlurmUser (`files`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.settings import Config, PowerConfig
from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.files import read_owned, write_owned
from slurm_gpu_aware.filter_rules import DUE_UNITS
from slurm_gpu_aware.model.job_hints import duration_s
from slurm_gpu_aware.records import Text, number
from slurm_gpu_aware.time_text import stamp

FILE = "power.json"
"""Name of the file, in the folder of the store."""
MINUTES = 24 * 60
_LIMIT = re.compile(r"off|eta=(?P<eta>0?\.[0-9]{1,6}|1(\.0{1,6})?)|(?P<watts>[1-9][0-9]{0,8})")
_SPAN = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
_CLOCK_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


Time = Annotated[float, number(0, MAX_TIME_S)]


@dataclass(frozen=True)
class PowerLimit:
    """A limit for the power of all GPUs. Neither: there is none."""

    watts: float | None = None
    eta: float | None = None
    """Share of the sum of the power limits of all GPUs."""

    def watts_of(self, max_w: float) -> float:
        """The limit in watts for GPUs that may draw ``max_w`` together; inf: none."""
        if self.eta is not None:
            return self.eta * max_w
        return math.inf if self.watts is None else self.watts

    @property
    def words(self) -> str:
        """``eta=0.7``, ``18000 W`` or ``off``."""
        return str(self) if self.watts is None else f"{self} W"

    def __str__(self) -> str:
        if self.eta is not None:
            return f"eta={self.eta:g}"
        return "off" if self.watts is None else f"{self.watts:.0f}"


OFF = PowerLimit()


def parse_limit(text: str) -> PowerLimit:
    """A limit from ``off``, ``eta=0.7`` or watts. Raises ValueError."""
    found = _LIMIT.fullmatch(text)
    if found is None or (found["eta"] and float(found["eta"]) <= 0):
        raise ValueError(f"{quoted(text)} is not off, watts, or eta=X with X above 0 up to 1")
    eta, watts = found["eta"], found["watts"]
    return PowerLimit(float(watts) if watts else None, float(eta) if eta else None)


def _span(text: str) -> tuple[int, int]:
    """(From, to) of ``22:00-06:00``, minutes of the day. Raises ValueError."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{quoted(text)} is not a time of day like 22:00-06:00")
    hours = [int(part) for part in found.groups()]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if begin == end:
        raise ValueError(f"{quoted(text)} is empty")
    return begin, end


def _minutes(span: tuple[int, int]) -> frozenset[int]:
    """The minutes of the day of a span; one may reach past midnight."""
    begin, end = span
    return frozenset(minute % MINUTES for minute in range(begin, end + MINUTES * (end < begin)))


def parse_until(text: str, now: float) -> float:
    """Unix time of ``18:30`` (the next one) or of a duration, ``90m``, ``8h``, ``2d``.

    Raises ValueError.
    """
    if (after_s := duration_s(text, DUE_UNITS)) is not None:
        return now + after_s
    at = _CLOCK_TIME.fullmatch(text)
    if at is None:
        raise ValueError(f"{quoted(text)} is not a time like 18:30 or a duration like 90m or 8h")
    today = time.localtime(now)

    def on(day: int) -> float:
        return time.mktime((*today[:2], day, int(at[1]), int(at[2]), 0, 0, 0, -1))

    then = on(today.tm_mday)
    return then if then > now else on(today.tm_mday + 1)


@dataclass(frozen=True)
class SetLimit:
    """What an operator has set."""

    limit: Text
    """In the grammar of `parse_limit`."""
    set_at: Time
    """Unix time."""
    until: Time | None = None
    """Unix time; None: until it is set anew."""


@dataclass(frozen=True)
class LimitInForce:
    """The limit that holds now, and where it comes from."""

    limit: PowerLimit
    words: str
    """``eta=0.7, by power.schedule for 22:00-06:00``."""


def power_file(config: Config) -> Path:
    """Path of the file."""
    return config.store.path.with_name(FILE)


def write_set_limit(config: Config, limit: SetLimit) -> None:
    """Replace the file atomically. Raises SourceError."""
    write_owned(power_file(config), asdict(limit))


def unset_limit(config: Config) -> None:
    """Remove what is set. Raises SourceError."""
    path = power_file(config)
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise SourceError(f"{path}: cannot be removed: {exc.strerror}") from None


def read_set_limit(config: Config) -> SetLimit | None:
    """What is set; None: nothing. Raises ConfigError for a file that does not count."""
    return read_owned(power_file(config), _parsed)


def _parsed(content: Any) -> SetLimit:
    own = records.read(content, SetLimit, closed=True)
    parse_limit(own.limit)
    return own


def limit_in_force(config: Config, now: float) -> LimitInForce:
    """The limit that holds at a Unix time. A damaged file does not count, and the words say so."""
    usual = _configured(config.power, now)
    try:
        own = read_set_limit(config)
    except ConfigError as exc:
        return LimitInForce(usual.limit, f"{usual.words}; what was set does not count: {exc}")
    if own is None or (own.until is not None and own.until <= now):
        return usual
    since = f"{parse_limit(own.limit).words}, set at {stamp(own.set_at)}"
    until = "" if own.until is None else f" until {stamp(own.until)}"
    return LimitInForce(parse_limit(own.limit), since + until)


def _configured(power: PowerConfig, now: float) -> LimitInForce:
    at = time.localtime(now)
    minute = 60 * at.tm_hour + at.tm_min
    for span, limit in power.schedule.items():
        if minute in _minutes(_span(span)):
            words = f"{parse_limit(limit).words}, by power.schedule for {span}"
            return LimitInForce(parse_limit(limit), words)
    base = PowerLimit(power.power_budget_watts, power.eta)
    return LimitInForce(base, "no limit" if base == OFF else f"{base.words}, as configured")


def schedule_faults(schedule: Mapping[str, str]) -> Mapping[str, str]:
    """Entry -> what is wrong with it, in order: the grammar of both parts, and overlaps."""
    faults, seen = {}, dict[int, str]()
    for span, limit in schedule.items():
        try:
            minutes = _minutes(_span(span))
            parse_limit(limit)
        except ValueError as exc:
            faults[span] = str(exc)
            continue
        if other := next((seen[minute] for minute in sorted(minutes) if minute in seen), None):
            faults[span] = f"overlaps with {other}"
        seen |= dict.fromkeys(minutes, span)
    return faults
