"""The site's configuration: one TOML file, checked completely before anything starts.

Precedence of the file's place: ``--config``, then ``$GPU_AWARE_CONFIG``, then
``/etc/slurm-gpu-aware/config.toml``. Without a file the defaults below hold.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.config.checks import check
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.filter_rules import LICENCE, RESERVATION
from slurm_gpu_aware.model.penalties import LEVELS, NETWORK_LEVELS, LevelPenalties, combine

__all__ = [
    "DEFAULT_PATH",
    "LEVELS",
    "NETWORK_LEVELS",
    "ClassConfig",
    "Config",
    "EventsConfig",
    "GateConfig",
    "PlacementConfig",
    "SelectorConfig",
    "SetupConfig",
    "SiteConfig",
    "StoreConfig",
    "load_config",
]

DEFAULT_PATH = Path("/etc/slurm-gpu-aware/config.toml")


@dataclass(frozen=True)
class SiteConfig:
    """``[site]``: classes and who gets which by default."""

    classes: tuple[str, ...] = ("A", "B", "C")
    """Application classes, most sensitive to variability first."""
    default_class: str = "B"
    """Class of a job whose comment names none."""
    partition_class: Mapping[str, str] = field(default_factory=dict)
    """Partition -> class, before ``default_class``."""
    park_uncommented: bool = True
    """Park GPU jobs whose comment is not ours, too (with the default class)."""
    operators: tuple[str, ...] = ()
    """Users, by name or id, whom the filter lets change gate, nodes and GRES of jobs, beside root
    and SlurmUser."""


@dataclass(frozen=True)
class ClassConfig:
    """``[classes.NAME]``: what follows from a class."""

    clock_mhz: int | None = None
    """SM clock for jobs of the class that name none; absent: default clock."""
    bandwidth_sensitive: bool = False
    """Default of ``bw`` for the class."""
    application: str | None = None
    """What its jobs are called in an interference profile (``topo-aware``); absent: not known."""


@dataclass(frozen=True)
class PlacementConfig:
    """``[placement]``"""

    policy: str = "pal+mapa"
    allowed: tuple[str, ...] = (
        "pal+mapa",
        "pal",
        "pm-first",
        "packed",
        "mapa-preserve",
        "topo-aware",
    )
    """Policies that users may name with ``place=``."""
    locality_penalty: float = 1.5
    """PAL's L_across, >= 1: factor on the iteration time of a job that spans nodes, where no
    tighter network level holds it. The short form of ``levels.cluster``."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Penalties that the site gives, names out of `LEVELS`; ``cluster`` is among them if the file
    gives it, in either form."""
    backfill: bool = True
    max_clock_mhz: int | None = None
    """What ``freq=max`` locks; absent: the default clock."""

    @property
    def penalties(self) -> dict[str, float]:
        """L of every level in use, tightest first, where nothing was measured; always with
        ``node`` and ``cluster``."""
        given = {"node": 1.0, "cluster": self.locality_penalty, **self.levels}
        return {name: given[name] for name in LEVELS if name in given}

    def penalties_with(self, measured: Mapping[str, Mapping[str, float]]) -> LevelPenalties:
        """L of every level for every class, by what was measured, too (`penalties.combine`).

        ``measured``: class -> level -> time over that of the innermost level, as a profile has it
        in ``level_ratios``. What the file gives wins over it; it wins over the defaults.
        """
        return combine(self.levels, measured, across=self.locality_penalty)

    def with_across(self, penalty: float) -> PlacementConfig:
        """The same with another L of ``cluster``, as if the file gave it."""
        levels = {**self.levels, "cluster": penalty}
        return replace(self, locality_penalty=penalty, levels=levels)


@dataclass(frozen=True)
class GateConfig:
    """``[gate]``: the licence that a reservation holds."""

    licence: str = LICENCE
    licence_count: int = 100_000
    reservation: str = RESERVATION
    lease_s: int = 90
    """The reservation ends this long after the last heartbeat; parked jobs then start as plain
    Slurm would start them."""
    queue_tests: int = 4_000
    """How often one pass of Slurm's main scheduler may look at a node for a parked job; parked jobs
    beyond that wait on the shelf. 12,000 are about 0.1 s of slurmctld's time."""


@dataclass(frozen=True)
class SelectorConfig:
    """``[selector]``"""

    round_s: float = 5.0
    """Longest time between two rounds."""
    heartbeat_s: float = 20.0
    start_timeout_s: float = 30.0
    """A placed job that is still pending after this is parked again."""
    command_timeout_s: float = 20.0
    """Limit for one call to Slurm."""
    reuse_backoff_s: float = 60.0
    """A job that was parked again is not planned for this long; doubles up to 16 times."""


@dataclass(frozen=True)
class StoreConfig:
    """``[store]``: SQLite on a local file system."""

    path: Path = Path("/var/lib/slurm-gpu-aware/store.db")
    ledger_days: int = 180
    """Decisions older than this are deleted; 0 keeps all."""


@dataclass(frozen=True)
class EventsConfig:
    """``[events]``: files that start a round at once."""

    submit_file: Path = Path("/var/spool/slurm-gpu-aware/submitted")
    """The filter appends a byte per submission."""
    jobcomp_file: Path | None = None
    """JobCompLoc of jobcomp/filetxt, if the site has it."""


@dataclass(frozen=True)
class SetupConfig:
    """``[setup]``: how ``gpu-aware setup --roll`` changes nodes."""

    distribute: tuple[str, ...] = ()
    """Command and its arguments that copies slurm.conf and gres.conf to all nodes; empty: they
    share the folder, or slurmctld sends them (configless)."""
    distribute_timeout_s: float = 600.0
    """Limit for that command."""
    register_timeout_s: float = 120.0
    """How long a node may take to register after ``scontrol reconfigure``."""


@dataclass(frozen=True)
class Config:
    """Everything that a site can set; see ``etc/config.toml`` for the text an admin reads."""

    site: SiteConfig = field(default_factory=SiteConfig)
    classes: Mapping[str, ClassConfig] = field(default_factory=dict)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy -> its options, as they stand in the file; ``config.policy_options`` checks them."""
    gate: GateConfig = field(default_factory=GateConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    setup: SetupConfig = field(default_factory=SetupConfig)
    source: Path | None = None
    """File that it came from; None: defaults."""

    def for_class(self, name: str) -> ClassConfig:
        """Settings of a class; defaults if the file has no section for it."""
        return self.classes.get(name, ClassConfig())

    @property
    def applications(self) -> dict[str, str]:
        """Class -> what its jobs are called in an interference profile, where that is known."""
        known = {name: entry.application for name, entry in self.classes.items()}
        return {name: application for name, application in known.items() if application}


def load_config(path: Path | str | None = None, *, known_policies: tuple[str, ...] = ()) -> Config:
    """Read and check the configuration.

    Parameters
    ----------
    path : file to read; None: ``$GPU_AWARE_CONFIG`` or the default place if it exists.
    known_policies : if given, policy names in the file must be among them.

    Raises
    ------
    ConfigError
        The file is missing (when named), is no TOML, or a key is unknown or has a bad value;
        names file, key and reason.
    """
    named = path if path is not None else os.environ.get("GPU_AWARE_CONFIG")
    file = Path(named) if named is not None else DEFAULT_PATH
    if named is None and not file.exists():
        config = Config()
    else:
        try:
            with file.open("rb") as stream:
                raw = tomllib.load(stream)
        except OSError as exc:
            raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from None
        except RecursionError:
            raise ConfigError(f"{file}: not valid TOML: nested too deep") from None
        except ValueError as exc:  # a number of thousands of digits, too
            raise ConfigError(f"{file}: not valid TOML: {exc}") from None
        config = _build(raw, file)
    check(config, known_policies)
    return config


_SECTIONS: dict[str, type] = {
    "site": SiteConfig,
    "placement": PlacementConfig,
    "gate": GateConfig,
    "selector": SelectorConfig,
    "store": StoreConfig,
    "events": EventsConfig,
    "setup": SetupConfig,
}


def _build(raw: Mapping[str, Any], file: Path) -> Config:
    sections: dict[str, Any] = {"source": file}
    for name, value in raw.items():
        if name == "classes":
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: classes: expected sections [classes.NAME]")
            sections["classes"] = {
                key: _section(ClassConfig, entry, f"classes.{key}", file)
                for key, entry in value.items()
            }
        elif name == "policies":
            if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
                raise ConfigError(f"{file}: policies: expected sections [policies.NAME]")
            sections["policies"] = value
        elif name in _SECTIONS:
            sections[name] = _section(_SECTIONS[name], value, name, file)
        else:
            known = ", ".join([*_SECTIONS, "classes.NAME", "policies.NAME"])
            raise ConfigError(f"{file}: {name}: unknown section; known: {known}")
    return Config(**sections | {"placement": _short_form(sections.get("placement"), raw, file)})


def _short_form(
    placement: PlacementConfig | None, raw: Mapping[str, Any], file: Path
) -> PlacementConfig:
    """``levels.cluster`` and ``locality_penalty`` made one, whichever the file gives."""
    if placement is None:
        return PlacementConfig()
    short = placement.locality_penalty if "locality_penalty" in raw["placement"] else None
    cluster = placement.levels.get("cluster", short)
    if cluster is None:
        return placement
    if short is not None and short != cluster:
        raise ConfigError(
            f"{file}: placement.levels.cluster: {cluster:g} is not placement.locality_penalty "
            f"({short:g}), its short form; give one of them"
        )
    return placement.with_across(cluster)


def _section(kind: type, raw: Any, name: str, file: Path) -> Any:
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: {name}: expected a section [{name}]")
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where = f"{file}: {name}.{key}"
        if key not in known:
            raise ConfigError(f"{where}: unknown key; known: {', '.join(sorted(known))}")
        values[key] = _value(hints[key], value, where)
    missing = [f.name for f in fields(kind) if _required(f) and f.name not in values]
    if missing:
        raise ConfigError(f"{file}: {name}.{missing[0]}: missing")
    return kind(**values)


def _required(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


_MOST = 1e9
"""Of any number in the file, in whatever unit: 30 years in seconds."""


def _value(hint: Any, value: Any, where: str) -> Any:
    """Convert a TOML value to the annotated type, or say what was expected."""
    options = [h for h in get_args(hint) if h is not type(None)]
    if get_origin(hint) not in (tuple, Mapping) and type(None) in get_args(hint):
        hint = options[0]
    origin = get_origin(hint)
    if origin is tuple:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise ConfigError(f"{where}: expected a list of strings, not {quoted(value)}")
    if origin is not None:  # Mapping[str, str] or Mapping[str, float]
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a table, not {quoted(value)}")
        return {k: _value(options[-1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is bool and isinstance(value, bool):
        return value
    numbers = {int: (int,), float: (int, float)}.get(hint, ())
    if isinstance(value, numbers) and not isinstance(value, bool):
        if not abs(value) <= _MOST:  # nor is NaN
            raise ConfigError(f"{where}: {quoted(value)} is out of range")
        return hint(value)
    if hint is str and isinstance(value, str):
        return value
    if hint is Path and isinstance(value, str):
        if not value.startswith("/") or "\0" in value:
            raise ConfigError(f"{where}: expected an absolute path, not {quoted(value)}")
        return Path(value)
    expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(
        hint, "a string"
    )
    raise ConfigError(f"{where}: expected {expected}, not {quoted(value)}")
