"""What the configuration's values must be like; ``config`` reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu_aware.bounds import MAX_PENALTY
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.filter_rules import HOLDING_POOL, in_holding_pool
from slurm_gpu_aware.model.penalties import LEVELS
from slurm_gpu_aware.names import is_name

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config, PlacementConfig

__all__ = ["check"]


def _check_levels(placement: PlacementConfig, require: Callable[[bool, str, str], None]) -> None:
    """Known names; each penalty at least that of the tighter level; 1.0 for the tightest."""
    for name in placement.levels:
        known = f"unknown level; known: {', '.join(LEVELS)}"
        require(name in LEVELS, f"placement.levels.{name}", known)
    tighter = ""
    for name, penalty in placement.penalties.items():
        key = "locality_penalty" if name == "cluster" else f"levels.{name}"
        sound = 1.0 <= penalty <= MAX_PENALTY
        require(sound, f"placement.{key}", f"must be from 1.0 to {MAX_PENALTY:g}")
        if not tighter:
            require(
                penalty == 1.0,
                f"placement.{key}",
                f"must be 1.0: {name} is the tightest level, penalties are relative to it",
            )
        else:
            least = placement.penalties[tighter]
            require(
                penalty >= least,
                f"placement.{key}",
                f"must be at least {least:g}, the penalty of {tighter}, which is tighter",
            )
        tighter = name


def check(config: Config, known_policies: tuple[str, ...]) -> None:
    """Check what needs more than one key or a range. Raises ConfigError."""
    file = config.source or Path("(defaults)")

    def require(condition: bool, key: str, reason: str) -> None:
        if not condition:
            raise ConfigError(f"{file}: {key}: {reason}")

    classes = config.site.classes
    require(bool(classes), "site.classes", "at least one class is needed")
    require(len(set(classes)) == len(classes), "site.classes", "names must differ")
    for name in classes:
        require(is_name(name), "site.classes", f"{name!r} is not a class name")
        require(name != "auto", "site.classes", "'auto' is reserved")
    listed = ", ".join(classes)
    require(
        config.site.default_class in classes,
        "site.default_class",
        f"{config.site.default_class!r} is not one of {listed}",
    )
    for partition, name in config.site.partition_class.items():
        require(
            name in classes, f"site.partition_class.{partition}", f"{name!r} is not one of {listed}"
        )
    for name, entry in config.classes.items():
        require(name in classes, f"classes.{name}", f"not one of site.classes ({listed})")
        require(
            entry.clock_mhz is None or 1 <= entry.clock_mhz <= 10_000,
            f"classes.{name}.clock_mhz",
            "must be between 1 and 10000 MHz",
        )
    _check_levels(config.placement, require)
    require(is_name(config.gate.licence), "gate.licence", "must be a plain licence name")
    require(
        is_name(config.gate.reservation),
        "gate.reservation",
        "must be a plain reservation name",
    )
    require(config.gate.licence_count >= 1, "gate.licence_count", "must be at least 1")
    require(
        config.gate.licence != HOLDING_POOL,
        "gate.licence",
        f"{HOLDING_POOL} is the holding pool's licence",
    )
    require(
        not in_holding_pool(config.gate.reservation),
        "gate.reservation",
        f"names that begin with {HOLDING_POOL} are those of the holding pool",
    )
    require(config.gate.queue_tests >= 0, "gate.queue_tests", "must be at least 0")
    require(
        config.gate.lease_s >= 60,
        "gate.lease_s",
        "must be at least 60: Slurm ends reservations by the minute",
    )
    require(
        0 < config.selector.heartbeat_s * 3 <= config.gate.lease_s,
        "selector.heartbeat_s",
        f"must be at most a third of gate.lease_s ({config.gate.lease_s})",
    )
    for key in ("round_s", "start_timeout_s", "command_timeout_s", "reuse_backoff_s"):
        require(getattr(config.selector, key) > 0, f"selector.{key}", "must be more than 0")
    for key in ("distribute_timeout_s", "register_timeout_s"):
        require(getattr(config.setup, key) > 0, f"setup.{key}", "must be more than 0")
    if known_policies:
        for name in config.policies:
            require(
                name in known_policies,
                f"policies.{name}",
                f"unknown policy; known: {', '.join(known_policies)}",
            )
        for key, names in (
            ("placement.policy", (config.placement.policy,)),
            ("placement.allowed", config.placement.allowed),
        ):
            for name in names:
                require(
                    name in known_policies,
                    key,
                    f"unknown policy {name!r}; known: {', '.join(known_policies)}",
                )
