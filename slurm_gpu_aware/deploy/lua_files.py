"""Generated Lua files: the filter's configuration and its rules."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from slurm_gpu_aware import filter_rules
from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.errors import ConfigError

__all__ = ["filter_table", "lua_conf", "lua_rules", "lua_value"]


def lua_conf(
    config: Config,
    slurm_user: str,
    models: Iterable[str],
    largest: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """``gpu_aware_conf.lua``: the configuration of the filter in slurmctld; see `filter_table`.

    ``largest``: ``gpus``, ``cpus``, ``memory_mb`` -> maximum of the nodes with GPUs; 0: unknown.
    """
    table = filter_table(config, slurm_user, models)
    table |= {f"max_{what}_per_node": count for what, count in largest.items() if count}
    head = "-- Written by `gpu-aware setup` from config.toml and the profile. Do not edit.\n"
    return f"{head}return {lua_value(table)}\n"


def filter_table(config: Config, slurm_user: str, models: Iterable[str] = ()) -> dict[str, object]:
    """The part of the filter's configuration that does not depend on the nodes.

    ``models`` are node features, so that ``gpu:a100:1`` becomes a constraint. Raises ConfigError
    if an operator or SlurmUser is no user of this host.
    """
    placement = config.placement
    return {
        "classes": config.site.classes,
        "policies": list(dict.fromkeys([placement.policy, *placement.allowed])),
        "licence": config.gate.licence,
        "reservation": config.gate.reservation,
        "submit_file": str(config.events.submit_file),
        "models": sorted(models),
        "park_uncommented": config.site.park_uncommented,
        "operators": _operators(config, slurm_user),
    }


def _operators(config: Config, slurm_user: str) -> list[int]:
    """User ids that pass all checks of the filter: root, SlurmUser (the selector), operators."""
    uids = {0}
    for name in (slurm_user, *config.site.operators):
        try:
            number = name.isascii() and name.isdigit()
            uids.add(int(name) if number else pwd.getpwnam(name).pw_uid)
        except KeyError:
            where = f"{config.source or DEFAULT_PATH}: site.operators"
            if name == slurm_user:
                where = "slurm.conf: SlurmUser"
            raise ConfigError(f"{where}: no such user on this host: {name!r}") from None
    return sorted(uids)


def lua_rules() -> str:
    """``gpu_aware_rules.lua``: the table of `filter_rules`, its names in lower case."""
    rules = {k.lower(): v for k, v in vars(filter_rules).items() if k.isupper() and k[0] != "_"}
    head = "-- Written by docs/generate.py from slurm_gpu_aware/filter_rules.py. Do not edit.\n"
    return f"{head}return {lua_value(rules)}\n"


def lua_value(value: object, indent: str = "") -> str:
    """A Lua 5.1 literal of a text, number, sequence or mapping, on several lines if long.

    In texts, bytes other than printable ASCII become decimal escapes.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        chars = value.encode("utf-8").decode("latin-1")
        plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\{ord(c):03d}" for c in chars)
        return f'"{"".join(plain)}"'
    deeper = indent + "    "
    if isinstance(value, Mapping):
        entries = [f"{key} = {lua_value(entry, deeper)}" for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        entries = [lua_value(entry, deeper) for entry in value]
    else:
        return str(value)
    line = f"{{ {', '.join(entries)} }}" if entries else "{}"
    if not isinstance(value, Mapping) and len(indent + line) <= 96:
        return line
    return "{\n" + "".join(f"{deeper}{entry},\n" for entry in entries) + indent + "}"
