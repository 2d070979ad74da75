"""Texts of the files that ``gpu-aware setup`` writes.

The GPU of Slurm index K gets the GRES type ``gK``, so that a job can request exactly this GPU.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.clock_conf import ACCOUNTS
from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.deploy.site_scripts import hook_line, runs
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.gate.holding_pool import LICENCE, LICENCE_COUNT
from slurm_gpu_aware.names import index_type, slot_of
from slurm_gpu_aware.slurm.conffile import SlurmConf
from slurm_gpu_aware.slurm.hostlist import by_number, hostlist

SCHEDULER = {
    "default_queue_depth": (5000, "parked jobs of higher priority delay others"),
    "batch_sched_delay": (1, "a placed job waits up to 3 s for Slurm's scheduler"),
}
"""Word of SchedulerParameters -> (our value, effect of Slurm's default)."""

WITHOUT = {
    "Prolog": "clocks are not set",
    "Epilog": "clocks are not reset",
    "ResvProlog": "jobs in the holding pool precede all others while the selector is away",
}
"""Key of a script of ours -> effect of its absence."""


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node."""

    name: str
    indices: tuple[int, ...]
    """Slurm's GPU indices = minor numbers of /dev/nvidiaN, ascending."""
    model: str | None = None
    """Short name (``a100``); None: unknown or mixed."""
    cores: tuple[str | None, ...] = ()
    """``Cores=`` of each GPU, parallel to ``indices``; see `cores_of`."""


class Settings(NamedTuple):
    """Settings of slurm.conf other than node lines."""

    values: dict[str, str]
    """Key in Slurm's spelling -> value, merged with the site's."""
    notes: list[str]
    """Notes for the administrator, one sentence each; further lines are to be copied."""


def cores_of(
    numa: Sequence[int | None], sockets: int, cores_per_socket: int
) -> tuple[str | None, ...]:
    """``Cores=`` of GPUs by their NUMA nodes; None: unknown. ``sockets`` 0: unknown.

    Slurm counts cores by socket, so the range follows from the socket, not from the system's CPU
    numbers. Requires that NUMA nodes and sockets coincide.
    """
    size = cores_per_socket if max((n for n in numa if n is not None), default=0) < sockets else 0
    known = [n if n is not None and n >= 0 and size else None for n in numa]
    return tuple(None if n is None else f"{n * size}-{(n + 1) * size - 1}" for n in known)


def gres_lines(nodes: Iterable[NodeGpus]) -> list[str]:
    """Lines for gres.conf: one per GPU index and group of equal nodes."""
    out: list[str] = []
    for names, node in _equal(nodes):
        # AutoDetect would search the product names for our types.
        out.append(f"NodeName={names} AutoDetect=off")
        for index, cores in zip_longest(node.indices, node.cores):
            line = f"NodeName={names} Name=gpu Type={index_type(index)} File=/dev/nvidia{index}"
            out.append(f"{line} Cores={cores}" if cores else line)
    return out


def node_lines(nodes: Iterable[NodeGpus]) -> list[str]:
    """``Gres=`` and ``Features=`` to merge into the NodeName lines of slurm.conf."""
    return [
        f"NodeName={names} Gres={','.join(index_gres(node.indices))}"
        + (f" Features={feature_of(node.model)}" if node.model else "")
        for names, node in _equal(nodes)
    ]


def index_gres(indices: Iterable[int]) -> list[str]:
    """Entries of ``Gres=`` with one type per GPU."""
    return [f"gpu:{index_type(i)}:1" for i in indices]


def feature_of(model: str) -> str:
    """Node feature of a GPU model: ``A100`` is ``gpu_a100``."""
    return f"gpu_{model.lower()}"


def usable_model(model: str | None) -> str | None:
    """A GPU model in lower case; None if it cannot be a feature, or is the type of a GPU index."""
    lower = (model or "").lower()
    valid = len(lower) <= rules.MAX_NAME and re.fullmatch(rules.FEATURE, lower)
    return lower if valid and slot_of(lower) is None else None


def slurm_settings(config: Config, current: SlurmConf, scripts: Mapping[str, str]) -> Settings:
    """Settings for slurm.conf, merged with those of the site (``current``).

    ``scripts``: ``Prolog``, ``Epilog`` and ``ResvProlog`` -> path of our script; may be empty.
    """
    licences = {config.gate.licence: config.gate.licence_count, LICENCE: LICENCE_COUNT}
    scheduler = {name: f"{name}={value}" for name, (value, _) in SCHEDULER.items()}
    ours = {
        "GresTypes": {"gpu": "gpu"},
        "Licenses": {name: f"{name}:{count}" for name, count in licences.items()},
        "JobSubmitPlugins": {"lua": "lua"},
        "SchedulerParameters": scheduler,
    }
    if config.setup.cli_filter:
        ours["CliFilterPlugins"] = {"lua": "lua"}
    values = {
        key: _merged(current.get(key), words, replacing=key == "Licenses")
        for key, words in ours.items()
    }
    notes: list[str] = []
    if "bf_licenses" in values["SchedulerParameters"].split(","):
        notes.append(
            "SchedulerParameters has bf_licenses: many parked jobs then delay others by many"
            " seconds; remove it if the site can do without"
        )
    for key, path in scripts.items():
        have = current.all(key)
        if not have or path in have:
            values[key] = path
        elif not any(runs(value, Path(path)) for value in have):
            lines = " ".join(f"{key}={value}" for value in have)
            notes.append(
                f"{lines} stays; without a line more {WITHOUT[key]}; after its first line:\n"
                f"{hook_line(Path(path))}"
            )
    wanted = config.events.jobcomp_file
    kind = current.get("JobCompType") or "jobcomp/none"
    if wanted is None:
        notes.append(
            "events.jobcomp_file is not set: after the end of a job, the next round starts within"
            f" {config.selector.round_s:g} s instead of at once"
        )
    elif kind == "jobcomp/none" or (
        kind == "jobcomp/filetxt" and current.get("JobCompLoc") in (None, str(wanted))
    ):
        values |= {"JobCompType": "jobcomp/filetxt", "JobCompLoc": str(wanted)}
        if kind == "jobcomp/none":
            note = f"{wanted} must be writable by SlurmUser, otherwise slurmctld does not start"
            notes.append(note)
    else:
        notes.append(f"JobCompType={kind} stays; events.jobcomp_file has no effect with it")
    return Settings(values, notes)


def _merged(have: str | None, ours: Mapping[str, str], *, replacing: bool) -> str:
    """A list of the site with our entries (name -> entry); ``replacing``: not the site's.

    Slurm takes ``job_submit/lua`` for ``lua``.
    """
    words = [
        (re.split(r"[:*=]", word)[0].rpartition("/")[2], word)
        for word in (have or "").split(",")
        if word
    ]
    kept = [(name, word) for name, word in words if not (replacing and name in ours)]
    missing = {name: entry for name, entry in ours.items() if name not in dict(kept)}
    return ",".join([*(word for _, word in kept), *missing.values()])


def clock_conf(command: Path, slurm_user: str) -> str:
    """``clock.conf`` of the compute nodes: program and folders of prolog, epilog and agent."""
    return (
        "# Read by Slurm's prolog and epilog on compute nodes: gpu-aware-clock.\n"
        f"command = {command}\n"
        "# Folder of the records of clocks. If the controller can read it, explain shows them.\n"
        "# spool = /var/spool/slurm-gpu-aware/clocks\n"
        "# Folder of the notes of locked GPUs: local to the node, for root and these files only.\n"
        "# locks = /var/lib/slurm-gpu-aware/clock-locks\n"
        "# Folder of the accounts of jobs' GPUs, for their energy: local to the node. Without\n"
        "# this line no energy is known, and jobs without a clock start some ms earlier.\n"
        f"accounts = {ACCOUNTS}\n"
        "# Folder of the orders for the clocks of running jobs, which the selector writes and the\n"
        "# agent on the nodes (gpu-aware-clockd) obeys; on a file system that both see. Root or\n"
        "# slurm_user owns it and all folders above, and no other user may write to one.\n"
        "# orders = /etc/slurm/gpu-aware-orders\n"
        f"slurm_user = {slurm_user}\n"
    )


def _equal(nodes: Iterable[NodeGpus]) -> list[tuple[str, NodeGpus]]:
    """(host list, GPUs) of each group of nodes with equal GPUs, in order of names."""
    groups: dict[NodeGpus, list[str]] = {}
    for node in sorted(nodes, key=lambda n: by_number(n.name)):
        groups.setdefault(replace(node, name=""), []).append(node.name)
    return [(hostlist(names), node) for node, names in groups.items()]


# -- Lua ---------------------------------------------------------------------------------------


def lua_conf(
    config: Config,
    slurm_user: str,
    models: Iterable[str],
    largest: Mapping[str, int],
    unknown: list[str] | None = None,
) -> str:
    """``gpu_aware_conf.lua``: the configuration of the filter in slurmctld; see `filter_table`.

    ``largest``: ``gpus``, ``cpus``, ``memory_mb`` -> maximum of the nodes with GPUs, ``shards`` ->
    of their GPUs; 0: unknown.
    """
    table = filter_table(config, slurm_user, models, unknown)
    known = {what: count for what, count in largest.items() if count}
    if shards := known.pop("shards", 0):
        table["max_shards_per_gpu"] = shards
    table |= {f"max_{what}_per_node": count for what, count in known.items()}
    head = "-- Written by `gpu-aware setup` from config.toml and the profile. Do not edit.\n"
    return f"{head}return {lua_value(table)}\n"


def filter_table(
    config: Config,
    slurm_user: str,
    models: Iterable[str] = (),
    unknown: list[str] | None = None,
) -> dict[str, object]:
    """The part of the filter's configuration that does not depend on the nodes.

    ``models`` are node features, so that ``gpu:a100:1`` becomes a constraint. An operator or
    SlurmUser that is no user of this host is appended to ``unknown``, or raises ConfigError.
    """
    return {
        "classes": config.site.classes,
        "policies": config.placement.offered,
        "place_off": config.placement.allow_off,
        "cli_filter": config.setup.cli_filter,
        "partitions": config.site.partitions,
        "licence": config.gate.licence,
        "reservation": config.gate.reservation,
        "submit_file": str(config.events.submit_file),
        "models": sorted(models),
        "park_uncommented": config.site.park_uncommented,
        "operators": _operators(config, slurm_user, unknown),
    }


def _operators(config: Config, slurm_user: str, unknown: list[str] | None) -> list[int]:
    """User ids that pass all checks of the filter: root, SlurmUser (the selector), operators."""
    uids = {0}
    for name in (slurm_user, *config.site.operators):
        try:
            number = name.isascii() and name.isdigit()
            uids.add(int(name) if number else pwd.getpwnam(name).pw_uid)
        except KeyError:
            if unknown is not None:
                unknown.append(name)
                continue
            where = f"{config.source or DEFAULT_PATH}: site.operators"
            if name == slurm_user:
                where = "slurm.conf: SlurmUser"
            raise ConfigError(f"{where}: no such user on this host: {name!r}") from None
    return sorted(uids)


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
