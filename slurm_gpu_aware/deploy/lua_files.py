"""Generated Lua files: the filter's configuration and its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_gpu_aware import filter_rules
from slurm_gpu_aware.config.settings import Config

__all__ = ["lua_conf", "lua_rules", "lua_value"]


def lua_conf(
    config: Config,
    *,
    policies: Sequence[str],
    models: Sequence[str],
    max_gpus_per_node: int,
    max_cpus_per_node: int = 0,
    max_memory_mb_per_node: int = 0,
    operators: Sequence[int] = (),
) -> str:
    """``gpu_aware_conf.lua``: the configuration of the filter in slurmctld.

    Parameters
    ----------
    policies : names that users may give with ``place=``.
    models : GPU models that are node features, so that ``gpu:a100:1`` becomes a constraint.
    max_gpus_per_node, max_cpus_per_node, max_memory_mb_per_node : maxima over the nodes with GPUs;
        0: unknown.
    operators : user ids that pass all checks: root, SlurmUser and others.
    """
    table = {
        "classes": config.site.classes,
        "policies": policies,
        "licence": config.gate.licence,
        "reservation": config.gate.reservation,
        "submit_file": str(config.events.submit_file),
        "models": sorted({m.lower() for m in models}),
        "park_uncommented": config.site.park_uncommented,
        "operators": operators,
        "max_gpus_per_node": max_gpus_per_node,
        "max_cpus_per_node": max_cpus_per_node,
        "max_memory_mb_per_node": max_memory_mb_per_node,
    }
    known = {key: value for key, value in table.items() if value != 0 or value is False}
    head = "-- Written by `gpu-aware setup` from config.toml and the profile. Do not edit.\n"
    return f"{head}return {lua_value(known)}\n"


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
        return '"' + "".join(_lua_byte(byte) for byte in value.encode("utf-8")) + '"'
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


def _lua_byte(byte: int) -> str:
    char = chr(byte)
    return char if 32 <= byte < 127 and char not in '"\\' else f"\\{byte:03d}"
