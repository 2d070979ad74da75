"""Loading of the configuration: TOML into typed settings, checked completely; what tune has set.

Precedence of the file: ``--config``, then ``$GPU_AWARE_CONFIG``, then
``/etc/slurm-gpu-aware/config.toml``. Without a file the defaults hold.

The policy that ``gpu-aware tune`` has set is a file beside the store. It counts only with
``tune.apply``, and only within ``tune.allowed`` and ``tune.ranges``. It must belong to root or to
the owner of its folder (SlurmUser), and no other may be able to write it.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.settings import (
    DEFAULT_KINDS,
    DEFAULT_PATH,
    Config,
    File,
    TuneConfig,
)
from slurm_gpu_aware.errors import ConfigError, RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.files import read_owned, write_owned
from slurm_gpu_aware.model.facets import Rules
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.records import MOST, number, text, whole
from slurm_gpu_aware.time_text import stamp

_TUNED_FILE = "tuned.json"  # Name of the file, in the folder of the store.
Name = Annotated[str, text("[a-z0-9_+-]{1,40}", "a name")]
Option = Annotated[int, whole(-MOST, MOST)] | Annotated[float, number(-MOST, MOST)]
Percent = Annotated[float, number(-1e6, 1e6)]
_MAX_BYTES = 1 << 20


def rules_of(config: Config, policies: Collection[str] = ()) -> Rules:
    """The rules of all sections. ``policies``: the known ones; empty: names are not checked."""
    yield from _classes(config)
    yield from _defaults(config)
    yield from config.placement.rules()
    yield from config.gate.rules()
    wrong = f"must be at most a third of gate.lease_s ({config.gate.lease_s})"
    sound = config.selector.heartbeat_s * 3 <= config.gate.lease_s
    yield sound, "selector.heartbeat_s", wrong
    yield from config.tune.rules()
    for section in config.sections.values():
        yield from section.rules()
    if policies:
        yield from _policies(config, policies)


def _classes(config: Config) -> Rules:
    classes, default = config.site.classes, config.site.default_class
    listed = ", ".join(classes)
    yield len(set(classes)) == len(classes), "site.classes", "names must differ"
    yield "auto" not in classes, "site.classes", "'auto' is reserved"
    yield default in classes, "site.default_class", f"{default!r} is not one of {listed}"
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
            wrong = f"expected key=value,... with these keys: {', '.join(by_site)}"
            try:
                hints = parse_comment(comment, HINTS, lists)
            except RequestError as exc:
                hints, wrong = None, str(exc).removeprefix("gpu-aware: ")
            sound = hints is not None and hints.values.keys() <= {*by_site}
            yield sound, f"site.defaults.{kind}.{name}", wrong


def _policies(config: Config, known: Collection[str]) -> Rules:
    listed = ", ".join(known)
    for name in config.policies:
        yield name in known, f"policies.{name}", f"unknown policy; known: {listed}"
    for name in config.tune.ranges:
        yield name in known, f"tune.ranges.{name}", f"unknown policy; known: {listed}"
    named = [("placement.policy", config.placement.policy)]
    named += [("placement.allowed", name) for name in config.placement.allowed]
    named += [("tune.allowed", name) for name in config.tune.allowed]
    for key, name in named:
        yield name in known, key, f"unknown policy {name!r}; known: {listed}"


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

    set_at: Annotated[float, number(0, MAX_TIME_S)]  # Unix time.
    gain_percent: Percent  # Gain in average completion time over packed placement.
    low_percent: Percent  # Ends of its interval.
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
