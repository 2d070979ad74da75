"""Loading of the configuration: TOML into typed settings, checked completely; what tune has set.

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
from pathlib import Path
from typing import Annotated

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.rules import rules_of
from slurm_gpu_aware.config.settings import (
    DEFAULT_PATH,
    Config,
    File,
    TuneConfig,
)
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.files import read_owned, write_owned
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
            raise ConfigError(f"{file}: source: unknown")
        config = Config.of_file(records.read(raw, File, path_of, closed=True), file)
        for holds, key, wrong in rules_of(config, known_policies):
            if not holds:
                raise ConfigError(f"{file}: {key}: {wrong}")
    except ValueError as exc:
        raise ConfigError(f"{file}: {exc}") from None
    return config


def path_of(kind: type, value: object) -> Path:
    """An absolute path. Raises ValueError."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"expected an absolute path, not {quoted(value)}")
    return Path(value)


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
