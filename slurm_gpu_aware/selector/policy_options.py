"""Policy options from ``[policies.NAME]`` of the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import ConfigError, PolicyError, SourceError
from slurm_gpu_aware.placement.registry import make_policy, option_names, policy_names
from slurm_gpu_aware.selector.interference_file import read_interference

__all__ = ["policy_options"]

log = logging.getLogger(__name__)


def policy_options(config: Config) -> dict[str, dict[str, Any]]:
    """Policy -> its checked options.

    ``interference`` names a file (``selector.interference_file``), relative to the configuration's
    folder; its profile is read.

    Raises
    ------
    ConfigError
        Unknown policy or option, a bad value, or an unreadable profile.
    """
    return {name: _options(config, name, given) for name, given in config.policies.items()}


def _options(config: Config, policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    def wrong(key: str, reason: object) -> ConfigError:
        return ConfigError(f"{config.source}: policies.{key}: {reason}")

    if policy not in policy_names():
        raise wrong(policy, f"unknown policy; known: {', '.join(policy_names())}")
    valid = option_names(policy)
    options: dict[str, Any] = {}
    for name, value in given.items():
        key = f"{policy}.{name}"
        if name not in valid:
            raise wrong(key, f"unknown option; known: {', '.join(sorted(valid)) or 'none'}")
        try:
            options[name] = _profile(config, key, value) if name == "interference" else value
            make_policy(policy, {name: options[name]})
        except (PolicyError, SourceError, TypeError, ValueError, ArithmeticError) as exc:
            raise wrong(key, exc) from None
    try:
        make_policy(policy, options)
    except PolicyError as exc:
        raise wrong(policy, exc) from None
    return options


def _profile(config: Config, key: str, value: object) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected the path of a profile file, not {value!r}")
    folder = config.source.parent if config.source is not None else None
    profile, bad = read_interference(value if folder is None else folder / value)
    if bad:
        log.warning("policies.%s: %d entries left out: %s", key, len(bad), bad[0])
    return profile
