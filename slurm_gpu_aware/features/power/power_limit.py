"""Power limit in force: a limit set at run time, else the schedule, else the configuration.

A limit is ``off``, ``eta=X`` (a share of what all GPUs may draw) or watts. What an operator sets
stands in a file beside the store, which must belong to root or SlurmUser (`files`).
"""

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.features.power.declared import (
    OFF,
    PowerConfig,
    PowerLimit,
    minutes_of,
    parse_limit,
)
from slurm_gpu_aware.files import read_owned, write_owned
from slurm_gpu_aware.model.job_hints import DURATION
from slurm_gpu_aware.records import Text, number
from slurm_gpu_aware.time_text import stamp

FILE = "power.json"  # Name of the file, in the folder of the store.
_CLOCK_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


Time = Annotated[float, number(0, MAX_TIME_S)]


def parse_until(text: str, now: float) -> float:
    """Unix time of ``18:30`` (the next one) or of a duration, ``90m``, ``8h``, ``2d``.

    Raises ValueError.
    """
    if (after_s := DURATION.read(text)) is not None:
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

    limit: Text  # In the grammar of `parse_limit`.
    set_at: Time  # Unix time.
    until: Time | None = None  # Unix time; None: until it is set anew.


@dataclass(frozen=True)
class LimitInForce:
    """The limit that holds now, and where it comes from."""

    limit: PowerLimit
    words: str  # ``eta=0.7, by power.schedule for 22:00-06:00``.


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
    usual = _configured(config.of(PowerConfig), now)
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
        if minute in minutes_of(span):
            words = f"{parse_limit(limit).words}, by power.schedule for {span}"
            return LimitInForce(parse_limit(limit), words)
    base = PowerLimit(power.power_budget_watts, power.eta)
    return LimitInForce(base, "no limit" if base == OFF else f"{base.words}, as configured")
