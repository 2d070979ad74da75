"""Loading of the configuration: TOML into typed settings, checked completely.

Precedence of the file: ``--config``, then ``$GPU_AWARE_CONFIG``, then
``/etc/slurm-gpu-aware/config.toml``. Without a file the defaults hold.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from slurm_gpu_aware.bounds import MAX_PENALTY, quoted
from slurm_gpu_aware.config.settings import (
    DEFAULT_KINDS,
    DEFAULT_PATH,
    Config,
    DueDatesConfig,
    PlacementConfig,
    PowerConfig,
    TuneConfig,
)
from slurm_gpu_aware.errors import ConfigError, RequestError
from slurm_gpu_aware.features.power.power_limit import schedule_faults
from slurm_gpu_aware.filter_rules import COMMENT_KEYS, HOLDING_POOL, MAX_NAME, in_holding_pool
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.model.penalties import LEVELS
from slurm_gpu_aware.names import is_name

_MAX_BYTES = 1 << 20
_MOST = 1e9
"""Limit of any number in the file, in any unit: 30 years in seconds."""
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}

Rules = Iterator[tuple[bool, str, str]]
"""(whether the rule holds, key, error if not)."""


def load_config(path: Path | str | None = None, *, known_policies: tuple[str, ...] = ()) -> Config:
    """Read and check the configuration. Raises ConfigError that names file, key and reason.

    ``path`` None: ``$GPU_AWARE_CONFIG``, or the default path if it exists. ``known_policies``: if
    given, policy names in the file must be among them.
    """
    named = path if path is not None else os.environ.get("GPU_AWARE_CONFIG")
    file = Path(named) if named is not None else DEFAULT_PATH
    if named is None and not file.exists():
        return Config()
    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ConfigError(f"{file}: larger than {_MAX_BYTES >> 20} MiB")
        raw = tomllib.loads(text.decode("utf-8"))
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not valid TOML: nested too deep") from None
    except ValueError as exc:  # a number of thousands of digits, too
        raise ConfigError(f"{file}: not valid TOML: {exc}") from None
    try:
        config = Config(**_entries(Config, raw, ""), source=file)
        policies = _policies(config, known_policies) if known_policies else ()
        rules = chain(
            _classes(config),
            _defaults(config),
            _levels(config.placement),
            _gate_and_times(config),
            _tune(config.tune),
            _moves(config),
            _due_dates(config.due_dates),
            _power(config.power),
            _measurements(config),
            policies,
        )
        for holds, key, wrong in rules:
            if not holds:
                raise _WrongError(key, wrong)
    except _WrongError as exc:
        raise ConfigError(f"{file}: {': '.join(exc.args)}") from None
    return config


class _WrongError(Exception):
    """(key, error)."""


def _entries(section: type, raw: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Field -> value of a section; its keys are ``prefix`` + field."""
    hints = get_type_hints(section)
    hints.pop("source", None)
    noun, end = ("section", ".NAME") if section is Config else ("key", "")
    known = [k + end if get_origin(h) is Mapping else k for k, h in sorted(hints.items())]
    for key in (key for key in raw if key not in hints):
        raise _WrongError(prefix + key, f"unknown {noun}; known: {', '.join(known)}")
    return {key: _value(hints[key], value, prefix + key) for key, value in raw.items()}


def _value(hint: Any, value: Any, key: str) -> Any:
    """Convert a TOML value to the annotated type. Raises _WrongError with the expected type."""
    if get_origin(hint) is UnionType:  # T | None
        hint = get_args(hint)[0]
    if hint is Any:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, dict):
            raise _WrongError(key, f"expected a section [{key}]")
        return hint(**_entries(hint, value, f"{key}."))
    if get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            kind = "a table" if "." in key else f"sections [{key}.NAME]"
            raise _WrongError(key, f"expected {kind}, not {quoted(value)}")
        return {k: _value(get_args(hint)[1], v, f"{key}.{k}") for k, v in value.items()}
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _WrongError(key, f"expected a list of strings, not {quoted(value)}")
        return tuple(value)
    if hint is Path:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise _WrongError(key, f"expected an absolute path, not {quoted(value)}")
        return Path(value)
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or isinstance(value, bool) != (hint is bool):
        raise _WrongError(key, f"expected {_EXPECTED[hint]}, not {quoted(value)}")
    if hint is not str and not abs(value) <= _MOST:  # nor is NaN
        raise _WrongError(key, f"{quoted(value)} is out of range")
    return hint(value)


def _classes(config: Config) -> Rules:
    site, classes = config.site, config.site.classes
    listed = ", ".join(classes)
    yield bool(classes), "site.classes", "at least one class is needed"
    yield len(set(classes)) == len(classes), "site.classes", "names must differ"
    for name in classes:
        yield is_name(name), "site.classes", f"{name!r} is not a class name"
        yield name != "auto", "site.classes", "'auto' is reserved"
    for name in site.partitions:  # the filter refuses its whole configuration for a wrong one
        sound = len(name) <= MAX_NAME and re.fullmatch("[!-+.-~-]+", name) is not None
        yield sound, "site.partitions", f"{name!r} is not a partition name"
    name = site.default_class
    yield name in classes, "site.default_class", f"{name!r} is not one of {listed}"
    for name, entry in config.classes.items():
        yield name in classes, f"classes.{name}", f"not one of site.classes ({listed})"
        sound = entry.clock_mhz is None or 1 <= entry.clock_mhz <= 10_000
        yield sound, f"classes.{name}.clock_mhz", "must be between 1 and 10000 MHz"


def _defaults(config: Config) -> Rules:
    """Hints in the grammar of the comment; ``gpus`` is a job's own."""
    for kind, table in config.site.defaults.items():
        known = ", ".join(DEFAULT_KINDS)
        yield kind in DEFAULT_KINDS, f"site.defaults.{kind}", f"unknown; known: {known}"
        for name, text in table.items():
            key = f"site.defaults.{kind}.{name}"
            try:
                hints = parse_comment(text, config.site.classes, config.placement.offered)
            except RequestError as exc:
                raise _WrongError(key, str(exc).removeprefix("gpu-aware: ")) from None
            listed = ", ".join(k for k in COMMENT_KEYS if k != "gpus")
            sound = hints is not None and hints.gpus is None
            yield sound, key, f"expected key=value,... with these keys: {listed}"


def _levels(placement: PlacementConfig) -> Rules:
    """Known names; each penalty at least that of the tighter level; 1.0 for the tightest."""
    key = "placement.levels."
    for name in placement.levels:
        yield name in LEVELS, key + name, f"unknown level; known: {', '.join(LEVELS)}"
    penalties = placement.penalties
    for name, penalty in penalties.items():
        bounds = f"must be from 1.0 to {MAX_PENALTY:g}"
        yield 1.0 <= penalty <= MAX_PENALTY, key + name, bounds
    tightest = next(iter(penalties))
    wrong = f"must be 1.0: {tightest} is the tightest level, penalties are relative to it"
    yield penalties[tightest] == 1.0, key + tightest, wrong
    for (tighter, least), (name, penalty) in pairwise(penalties.items()):
        wrong = f"must be at least {least:g}, the penalty of {tighter}, which is tighter"
        yield penalty >= least, key + name, wrong


def _gate_and_times(config: Config) -> Rules:
    gate = config.gate
    yield is_name(gate.licence), "gate.licence", "must be a plain licence name"
    yield is_name(gate.reservation), "gate.reservation", "must be a plain reservation name"
    yield gate.licence_count >= 1, "gate.licence_count", "must be at least 1"
    wrong = f"{HOLDING_POOL} is the holding pool's licence"
    yield gate.licence != HOLDING_POOL, "gate.licence", wrong
    wrong = f"names that begin with {HOLDING_POOL} are those of the holding pool"
    yield not in_holding_pool(gate.reservation), "gate.reservation", wrong
    yield gate.queue_tests >= 0, "gate.queue_tests", "must be at least 0"
    wrong = "must be at least 60: Slurm ends reservations by the minute"
    yield gate.lease_s >= 60, "gate.lease_s", wrong
    wrong = f"must be at most a third of gate.lease_s ({gate.lease_s})"
    yield 0 < config.selector.heartbeat_s * 3 <= gate.lease_s, "selector.heartbeat_s", wrong
    days = config.estimates.history_days
    yield 0 <= days <= 3650, "estimates.history_days", "must be from 0 to 3650"
    limits = [f"selector.{name}_s" for name in ("round", "start_timeout", "command_timeout")]
    limits += ["selector.reuse_backoff_s", "setup.distribute_timeout_s", "setup.register_timeout_s"]
    for key in limits:
        yield attrgetter(key)(config) > 0, key, "must be more than 0"
    yield 0 <= config.selector.ahead_s <= 300, "selector.ahead_s", "must be from 0 to 300"


def _tune(tune: TuneConfig) -> Rules:
    yield bool(tune.allowed), "tune.allowed", "at least one policy is needed"
    for policy, ranges in tune.ranges.items():
        for option, ends in ranges.items():
            numbers = isinstance(ends, list) and all(
                type(end) in (int, float) and abs(end) <= _MOST for end in ends
            )
            sound = numbers and len(ends) == 2 and ends[0] <= ends[1]
            wrong = f"expected [lowest, highest] of numbers, not {quoted(ends)}"
            yield sound, f"tune.ranges.{policy}.{option}", wrong


def _moves(config: Config) -> Rules:
    moves = config.moves
    for name in ("margin_s", "restart_s", "first_s", "last_s", "again_s"):
        yield getattr(moves, name) >= 0, f"moves.{name}", "must be at least 0"
    for name in ("per_round", "per_hour"):
        yield getattr(moves, name) >= 1, f"moves.{name}", "must be at least 1"
    for name, entry in config.classes.items():
        sound = entry.restart_s is None or entry.restart_s >= 0
        yield sound, f"classes.{name}.restart_s", "must be at least 0"


def _due_dates(due_dates: DueDatesConfig) -> Rules:
    sound = due_dates.order in ("slurm", "pressure")
    yield sound, "due_dates.order", f"{quoted(due_dates.order)} is not slurm or pressure"
    for qos, weight in due_dates.weights.items():
        yield 0 < weight <= _MOST, f"due_dates.weights.{qos}", "must be more than 0"


def _power(power: PowerConfig) -> Rules:
    watts, eta = power.power_budget_watts, power.eta
    yield watts is None or watts > 0, "power.power_budget_watts", "must be more than 0"
    yield eta is None or 0 < eta <= 1, "power.eta", "must be more than 0 and at most 1"
    yield watts is None or eta is None, "power.eta", "power_budget_watts is set, too: keep one"
    sound = power.clocks in ("auto", "default")
    yield sound, "power.clocks", f"{quoted(power.clocks)} is not auto or default"
    yield 0 <= power.margin < 1, "power.margin", "must be from 0 to less than 1"
    yield power.gpu_watts > 0, "power.gpu_watts", "must be more than 0"
    wrong = f"must be from 0 to less than power.gpu_watts ({power.gpu_watts:g})"
    yield 0 <= power.idle_watts < power.gpu_watts, "power.idle_watts", wrong
    sound = power.explore_s == 0 or 100 <= power.explore_s <= 3600
    yield sound, "power.explore_s", "must be 0, or from 100 to 3600"
    yield power.model_error > 0, "power.model_error", "must be more than 0"
    for span, wrong in schedule_faults(power.schedule).items():
        yield False, f"power.schedule.{span}", wrong


def _measurements(config: Config) -> Rules:
    kept, least = config.store.measurements, config.profiling.slower_percent
    yield 2 <= kept <= 10_000, "store.measurements", "must be from 2 to 10000"
    yield 0 <= least <= 1000, "profiling.slower_percent", "must be from 0 to 1000"
    qos = config.profiling.qos
    sound = qos is None or re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", qos) is not None
    yield sound, "profiling.qos", f"{quoted(qos)} is not the name of a QOS"


def _policies(config: Config, known: tuple[str, ...]) -> Rules:
    placement = config.placement
    listed = ", ".join(known)
    for name in config.policies:
        yield name in known, f"policies.{name}", f"unknown policy; known: {listed}"
    for name in config.tune.ranges:
        yield name in known, f"tune.ranges.{name}", f"unknown policy; known: {listed}"
    named = [("placement.policy", placement.policy)]
    named += [("placement.allowed", name) for name in placement.allowed]
    named += [("tune.allowed", name) for name in config.tune.allowed]
    for key, name in named:
        yield name in known, key, f"unknown policy {name!r}; known: {listed}"
