"""Loading of the configuration: TOML into typed settings, checked completely.

Precedence of the file: ``--config``, then ``$GPU_AWARE_CONFIG``, then
``/etc/slurm-gpu-aware/config.toml``. Without a file the defaults hold.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.config.checks import check
from slurm_gpu_aware.config.settings import DEFAULT_PATH, ClassConfig, Config
from slurm_gpu_aware.errors import ConfigError

__all__ = ["load_config"]


def load_config(path: Path | str | None = None, *, known_policies: tuple[str, ...] = ()) -> Config:
    """Read and check the configuration.

    Parameters
    ----------
    path : file to read; None: ``$GPU_AWARE_CONFIG``, or the default path if it exists.
    known_policies : if given, policy names in the file must be among them.

    Raises
    ------
    ConfigError
        A named file is missing, the file is not TOML, or a key is unknown or has a bad value. The
        message names file, key and reason.
    """
    named = path if path is not None else os.environ.get("GPU_AWARE_CONFIG")
    file = Path(named) if named is not None else DEFAULT_PATH
    if named is None and not file.exists():
        return Config()
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
    check(config, file, known_policies)
    return config


def _build(raw: Mapping[str, Any], file: Path) -> Config:
    sections: dict[str, Any] = {"source": file}
    kinds: dict[str, Any] = {n: h for n, h in get_type_hints(Config).items() if is_dataclass(h)}
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
        elif name in kinds:
            sections[name] = _section(kinds[name], value, name, file)
        else:
            known = ", ".join([*kinds, "classes.NAME", "policies.NAME"])
            raise ConfigError(f"{file}: {name}: unknown section; known: {known}")
    return Config(**sections)


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
    return kind(**values)


_MOST = 1e9
"""Limit of any number in the file, in any unit: 30 years in seconds."""


def _value(hint: Any, value: Any, where: str) -> Any:
    """Convert a TOML value to the annotated type. Raises ConfigError with the expected type."""
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
