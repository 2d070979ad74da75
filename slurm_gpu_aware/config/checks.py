"""Checks of settings that need a range or more than one key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_gpu_aware.bounds import MAX_PENALTY
from slurm_gpu_aware.config.settings import Config, GateConfig, PlacementConfig
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.filter_rules import HOLDING_POOL, in_holding_pool
from slurm_gpu_aware.model.penalties import LEVELS
from slurm_gpu_aware.names import is_name

__all__ = ["check"]

Rules = Iterator[tuple[bool, str, str]]
"""(whether the rule holds, key, error if not)."""


def check(config: Config, file: Path, known_policies: tuple[str, ...]) -> None:
    """Raise ConfigError, with the name of ``file``, for the first rule that does not hold.

    ``known_policies`` empty: names of policies are not checked.
    """
    for rules in (
        _classes(config),
        _levels(config.placement),
        _gate(config.gate),
        _times(config),
        _policies(config, known_policies) if known_policies else (),
    ):
        for holds, key, wrong in rules:
            if not holds:
                raise ConfigError(f"{file}: {key}: {wrong}")


def _classes(config: Config) -> Rules:
    site, classes = config.site, config.site.classes
    listed = ", ".join(classes)
    yield bool(classes), "site.classes", "at least one class is needed"
    yield len(set(classes)) == len(classes), "site.classes", "names must differ"
    for name in classes:
        yield is_name(name), "site.classes", f"{name!r} is not a class name"
        yield name != "auto", "site.classes", "'auto' is reserved"
    chosen = {"site.default_class": site.default_class}
    chosen |= {f"site.partition_class.{p}": name for p, name in site.partition_class.items()}
    for key, name in chosen.items():
        yield name in classes, key, f"{name!r} is not one of {listed}"
    for name, entry in config.classes.items():
        yield name in classes, f"classes.{name}", f"not one of site.classes ({listed})"
        sound = entry.clock_mhz is None or 1 <= entry.clock_mhz <= 10_000
        yield sound, f"classes.{name}.clock_mhz", "must be between 1 and 10000 MHz"


def _levels(placement: PlacementConfig) -> Rules:
    """Known names; each penalty at least that of the tighter level; 1.0 for the tightest."""
    for name in placement.levels:
        known = f"unknown level; known: {', '.join(LEVELS)}"
        yield name in LEVELS, f"placement.levels.{name}", known
    tighter, least = "", 1.0
    for name, penalty in placement.penalties.items():
        key = f"placement.levels.{name}"
        yield 1.0 <= penalty <= MAX_PENALTY, key, f"must be from 1.0 to {MAX_PENALTY:g}"
        if tighter:
            wrong = f"must be at least {least:g}, the penalty of {tighter}, which is tighter"
            yield penalty >= least, key, wrong
        else:
            wrong = f"must be 1.0: {name} is the tightest level, penalties are relative to it"
            yield penalty == 1.0, key, wrong
        tighter, least = name, penalty


def _gate(gate: GateConfig) -> Rules:
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


def _times(config: Config) -> Rules:
    lease_s, heartbeat_s = config.gate.lease_s, config.selector.heartbeat_s
    wrong = f"must be at most a third of gate.lease_s ({lease_s})"
    yield 0 < heartbeat_s * 3 <= lease_s, "selector.heartbeat_s", wrong
    for key in ("round_s", "start_timeout_s", "command_timeout_s", "reuse_backoff_s"):
        yield getattr(config.selector, key) > 0, f"selector.{key}", "must be more than 0"
    for key in ("distribute_timeout_s", "register_timeout_s"):
        yield getattr(config.setup, key) > 0, f"setup.{key}", "must be more than 0"


def _policies(config: Config, known: tuple[str, ...]) -> Rules:
    listed = ", ".join(known)
    for name in config.policies:
        yield name in known, f"policies.{name}", f"unknown policy; known: {listed}"
    placement = config.placement
    named = [("placement.policy", placement.policy)]
    named += [("placement.allowed", name) for name in placement.allowed]
    for key, name in named:
        yield name in known, key, f"unknown policy {name!r}; known: {listed}"
