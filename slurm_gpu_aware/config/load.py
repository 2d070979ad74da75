"""Loading of the configuration: TOML into typed settings, checked completely; what tune has set.

Types and bounds of single settings stand in `settings`; here is what one says of another, but in
the sections of features.
Precedence of the file: ``--config``, then ``$GPU_AWARE_CONFIG``, then
``/etc/slurm-gpu-aware/config.toml``. Without a file the defaults hold.

The policy that ``gpu-aware tune`` has set is a file beside the store. It counts only with
``tune.apply``, and only within ``tune.allowed`` and ``tune.ranges``. It must belong to root or to
the owner of its folder (SlurmUser), and no other may be able to write it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.settings import (
    DEFAULT_KINDS,
    DEFAULT_PATH,
    Config,
    File,
    PlacementConfig,
    TuneConfig,
)
from slurm_gpu_aware.errors import ConfigError, RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.files import read_owned, write_owned
from slurm_gpu_aware.filter_rules import HOLDING_POOL, in_holding_pool
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.model.penalties import LEVELS
from slurm_gpu_aware.model.section import Rules
from slurm_gpu_aware.records import MOST, number, text, whole
from slurm_gpu_aware.time_text import stamp

_TUNED_FILE = "tuned.json"
"""Name of the file, in the folder of the store."""
Name = Annotated[str, text("[a-z0-9_+-]{1,40}", "a name")]
Option = Annotated[int, whole(-MOST, MOST)] | Annotated[float, number(-MOST, MOST)]
Percent = Annotated[float, number(-1e6, 1e6)]
_MAX_BYTES = 1 << 20


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
        if "source" in raw:
            raise _WrongError("source", "unknown")
        config = Config.of_file(records.read(raw, File, path_of, closed=True), file)
        policies = _policies(config, known_policies) if known_policies else ()
        rules = chain(
            _classes(config),
            _defaults(config),
            _levels(config.placement),
            _gate(config),
            _tune(config.tune),
            *(section.rules() for section in config.sections.values()),
            policies,
        )
        for holds, key, wrong in rules:
            if not holds:
                raise _WrongError(key, wrong)
    except _WrongError as exc:
        raise ConfigError(f"{file}: {': '.join(exc.args)}") from None
    except ValueError as exc:
        raise ConfigError(f"{file}: {exc}") from None
    return config


class _WrongError(Exception):
    """(key, error)."""


def path_of(kind: type, value: object) -> Path:
    """An absolute path. Raises ValueError."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"expected an absolute path, not {quoted(value)}")
    return Path(value)


def _classes(config: Config) -> Rules:
    site, classes = config.site, config.site.classes
    listed = ", ".join(classes)
    yield len(set(classes)) == len(classes), "site.classes", "names must differ"
    yield "auto" not in classes, "site.classes", "'auto' is reserved"
    name = site.default_class
    yield name in classes, "site.default_class", f"{name!r} is not one of {listed}"
    for name in config.classes:
        yield name in classes, f"classes.{name}", f"not one of site.classes ({listed})"


def _defaults(config: Config) -> Rules:
    """Hints in the grammar of the comment, with the keys that a site may give."""
    lists = {"classes": config.site.classes, "policies": config.placement.offered}
    by_site = [hint.key for hint in HINTS if hint.by_site]
    for kind, table in config.site.defaults.items():
        known = ", ".join(DEFAULT_KINDS)
        yield kind in DEFAULT_KINDS, f"site.defaults.{kind}", f"unknown; known: {known}"
        for name, comment in table.items():
            key = f"site.defaults.{kind}.{name}"
            try:
                hints = parse_comment(comment, HINTS, lists)
            except RequestError as exc:
                raise _WrongError(key, str(exc).removeprefix("gpu-aware: ")) from None
            sound = hints is not None and hints.values.keys() <= {*by_site}
            yield sound, key, f"expected key=value,... with these keys: {', '.join(by_site)}"


def _levels(placement: PlacementConfig) -> Rules:
    """Known names; each penalty at least that of the tighter level; 1.0 for the tightest."""
    key = "placement.levels."
    for name in placement.levels:
        yield name in LEVELS, key + name, f"unknown level; known: {', '.join(LEVELS)}"
    penalties = placement.penalties
    tightest = next(iter(penalties))
    wrong = f"must be 1.0: {tightest} is the tightest level, penalties are relative to it"
    yield penalties[tightest] == 1.0, key + tightest, wrong
    for (tighter, least), (name, penalty) in pairwise(penalties.items()):
        wrong = f"must be at least {least:g}, the penalty of {tighter}, which is tighter"
        yield penalty >= least, key + name, wrong


def _gate(config: Config) -> Rules:
    gate = config.gate
    wrong = f"{HOLDING_POOL} is the holding pool's licence"
    yield gate.licence != HOLDING_POOL, "gate.licence", wrong
    wrong = f"names that begin with {HOLDING_POOL} are those of the holding pool"
    yield not in_holding_pool(gate.reservation), "gate.reservation", wrong
    wrong = "must be at least 60: Slurm ends reservations by the minute"
    yield gate.lease_s >= 60, "gate.lease_s", wrong
    wrong = f"must be at most a third of gate.lease_s ({gate.lease_s})"
    yield config.selector.heartbeat_s * 3 <= gate.lease_s, "selector.heartbeat_s", wrong


def _tune(tune: TuneConfig) -> Rules:
    yield bool(tune.allowed), "tune.allowed", "at least one policy is needed"
    for policy, ranges in tune.ranges.items():
        for option, ends in ranges.items():
            numbers = isinstance(ends, list) and all(
                type(end) in (int, float) and abs(end) <= MOST for end in ends
            )
            sound = numbers and len(ends) == 2 and ends[0] <= ends[1]
            wrong = f"expected [lowest, highest] of numbers, not {quoted(ends)}"
            yield sound, f"tune.ranges.{policy}.{option}", wrong


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


@dataclass(frozen=True)
class Candidate:
    """A policy, with options that differ from those of the configuration."""

    policy: Name
    options: Mapping[Name, Option] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``eft``, or ``eft:breaking=0.3``."""
        options = ",".join(f"{name}={value:g}" for name, value in self.options.items())
        return f"{self.policy}:{options}" if options else self.policy


@dataclass(frozen=True, kw_only=True)
class Tuned(Candidate):
    """The policy that is set, and what tune found."""

    set_at: Annotated[float, number(0, MAX_TIME_S)]
    """Unix time."""
    gain_percent: Percent
    """Gain in average completion time over packed placement."""
    low_percent: Percent
    """Ends of its interval."""
    high_percent: Percent

    def __str__(self) -> str:
        day = stamp(self.set_at)[:10]
        low, high = self.low_percent, self.high_percent
        gain = f"gain over packed {self.gain_percent:.1f}% ({low:.1f} to {high:.1f})"
        return f"{self.label}, set by tune on {day}: {gain}"


def tuned_path(config: Config) -> Path:
    """Path of the file."""
    return config.store.path.with_name(_TUNED_FILE)


def write_tuned(config: Config, tuned: Tuned) -> None:
    """Replace the file atomically. Raises SourceError."""
    write_owned(tuned_path(config), asdict(tuned))


def with_tuned(config: Config, tuned: Tuned | None) -> Config:
    """The configuration with the policy and options of ``tuned``; None: as it is."""
    if tuned is None:
        return config
    own = {**config.policies.get(tuned.policy, {}), **tuned.options}
    return replace(
        config,
        placement=replace(config.placement, policy=tuned.policy),
        policies={**config.policies, tuned.policy: own},
    )


def out_of_bounds(tune: TuneConfig, candidate: Candidate) -> str | None:
    """Why tune may not set this candidate; None: it may."""
    policy = candidate.policy
    if policy not in tune.allowed:
        return f"{policy} is not in tune.allowed ({', '.join(tune.allowed)})"
    ranges = tune.ranges.get(policy, {})
    for name, value in candidate.options.items():
        if name not in ranges:
            return f"{policy}: {name} is not in tune.ranges.{policy}"
        low, high = ranges[name]
        if not low <= value <= high:
            return f"{policy}: {name} = {value:g} is not within {low:g} to {high:g}"
    return None


def read_tuned(config: Config) -> Tuned | None:
    """What tune has set; None: nothing, or tune may not set anything.

    Raises ConfigError for a file that is not to be trusted, damaged, or out of bounds.
    """
    if not config.tune.apply:
        return None
    path = tuned_path(config)
    tuned = read_owned(path, partial(records.read, kind=Tuned, closed=True))
    if tuned is None:
        return None
    wrong = out_of_bounds(config.tune, tuned)
    if wrong is not None:
        raise ConfigError(f"{path}: {wrong}")
    return tuned
