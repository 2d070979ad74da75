"""gpu_aware_conf.lua as an owned thing: the filter's copy of the configuration."""

import pwd
import re
from collections.abc import Callable, Iterable, Mapping

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok
from slurm_gpu_aware.deploy.files import LUA_CONF, Change
from slurm_gpu_aware.deploy.owned import INSTALL, Owned
from slurm_gpu_aware.deploy.site import Site, feature_of
from slurm_gpu_aware.errors import ConfigError, SourceError
from slurm_gpu_aware.slurm.accounting import clusters
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import names_of

_NAMED = re.compile(f"[!-~]{{1,{rules.MAX_NAME}}}")
"""Types that the filter's configuration can name."""
_OTHERS, _NONE = "partitions_with_others", "partitions_without_gpus"
_MIRRORED = {
    "classes": None,
    "licence": f'"{rules.LICENCE}"',
    "reservation": f'"{rules.RESERVATION}"',
    "submit_file": None,
    "park_uncommented": "true",
    "scrontab": "true",
}
"""Key that the filter's configuration takes from config.toml or Slurm -> default of the filter."""


class FilterConf(Owned):
    """The configuration of the filter, by config.toml, the profile and slurm.conf."""

    def contents(self, site: Site) -> list[Change]:
        """The file; it lacks operators that are no users of this host."""
        models = {n.model for n in site.nodes if n.model} - _unfeatured(site)
        with_gpus = [node for node in site.conf_nodes.values() if node.has_gpus]
        cpus = [node.cpus for node in with_gpus]
        memory_mb = [node.memory_mb for node in with_gpus]
        largest = {
            "max_shards_per_gpu": max((node.shards for node in with_gpus), default=0),
            "max_gpus_per_node": max((len(n.indices) for n in site.nodes), default=0),
            "max_cpus_per_node": max(cpus, default=0) if all(cpus) else 0,
            "max_memory_mb_per_node": max(memory_mb, default=0) if all(memory_mb) else 0,
        }
        types = {kind for node in with_gpus for kind in node.types}
        table = _table(site.config, site.user, site.conf.get, models, types)
        table |= {key: count for key, count in largest.items() if count}  # 0: not known
        table[_OTHERS], table[_NONE] = _partitions(site)
        head = "-- Written by `gpu-aware setup` from config.toml and the profile. Do not edit.\n"
        return [Change(site.slurm_dir / LUA_CONF, f"{head}return {lua_value(table)}\n")]

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """The file. Raises ConfigError for an operator that is no user of this host.

        For review the file lacks it.
        """
        unknown = _operators(site.config, site.user)[1]
        if not site.for_review:
            _check_known(unknown, site.config, site.user)
        elif unknown:
            notes.append(
                f"{', '.join(unknown)}: no user of this host, so {LUA_CONF} lacks the uid among its"
                f" operators; {INSTALL} on the controller writes it"
            )
        return self.contents(site)

    def check(self, g: DoctorContext) -> list[Check]:
        """It agrees with config.toml."""
        return [self._compared(g)]

    def _compared(self, g: DoctorContext) -> Check:
        path = g.folder / LUA_CONF
        cure = f"run {INSTALL} after every change of config.toml"
        if not path.exists():
            return failed("filter config", f"{path} is missing: jobs pass unmodified", cure)
        have = _squeeze(path.read_text(errors="replace"))
        if not have.startswith("return{"):
            found = f"{path} does not return a table: jobs pass unmodified"
            return failed("filter config", found, cure)
        _check_known(_operators(g.config, g.slurm_user)[1], g.config, g.slurm_user)
        kinds = {kind for node in g.nodes for kind, _ in node.gpus if kind}
        types = {kind for kind in kinds if slot_of(kind) is None}
        table = _table(g.config, g.slurm_user, g.slurm.get, types=types)
        wanted = {k: _squeeze(lua_value(v)) for k, v in table.items()}
        wrong = [k for k, default in _MIRRORED.items() if (_entry(have, k) or default) != wanted[k]]
        if _items(wanted["node_types"]) - _items(_entry(have, "node_types")):
            wrong.append("node_types")  # others do no harm
        if (
            _entry(have, "several_clusters") == "false"
            and (_clusters(g.config, g.slurm.get) or 0) > 1
        ):
            wrong.append("several_clusters")  # true does no harm, either
        lists = ("partitions", "policies", "operators", "types")
        wrong += [key for key in lists if _items(_entry(have, key)) != _items(wanted[key])]
        if wrong:
            found = f"{path} differs from config.toml: {', '.join(wrong)}"
            return failed("filter config", found, cure)
        if other := _other_partitions(g, _entry(have, _OTHERS), _items(_entry(have, _NONE))):
            found = f"{path} does not say which nodes Slurm has in {', '.join(other)}: {_OTHERS}"
            cure = f"run {INSTALL}; it reads nodes and partitions in slurm.conf"
            return failed("filter config", found, cure)
        return ok("filter config", f"{path} agrees with config.toml")


FILTER_CONF = FilterConf()


def _unfeatured(site: Site) -> set[str]:
    """Models that stay GRES types in requests, because a plain node lacks their feature.

    ``gpu-aware setup --roll`` adds the feature to all nodes before it adds the model to the filter.
    """
    plain = {n: c for n, c in site.conf_nodes.items() if c.has_gpus and not c.indexed}
    return {
        node.model
        for node in site.nodes
        if node.model is not None
        and node.name in plain
        and feature_of(node.model) not in plain[node.name].features
    }


def _partitions(site: Site) -> tuple[list[str], list[str]]:
    """Partitions of slurm.conf: with a node without GPUs or one that it does not name; without
    any that has GPUs."""
    found: dict[str, str] = {}
    sets = {"ALL": set(site.conf_nodes)}
    records = [fields_of(record) for record in site.conf.read()]
    for values in (one for one in records if "nodeset" in one):
        wanted = values.get("feature")
        inside = {name for name, node in site.conf_nodes.items() if wanted in node.features}
        sets[values["nodeset"]] = inside.union(names_of(values.get("nodes", "")))
    for values in (one for one in records if "partitionname" in one):
        nodes = values.get("nodes", found.get("DEFAULT", ""))
        found[values["partitionname"]] = "ALL" if nodes.upper() == "ALL" else nodes
    gpus = {name for name, node in site.conf_nodes.items() if node.has_gpus}
    names = found.keys() - {"DEFAULT"}
    nodes_of = {n: [sets.get(one, {one}) for one in names_of(found[n])] for n in names}
    named = {n: set().union(*nodes_of[n]) for n in sorted(names) if _NAMED.fullmatch(n)}
    others = [name for name, nodes in named.items() if not nodes <= gpus]
    return others, [name for name in others if named[name] <= site.conf_nodes.keys() - gpus]


def _other_partitions(g: DoctorContext, entry: str | None, none: set[str]) -> list[str]:
    """Partitions of Slurm that are not as the filter's configuration says, where Slurm tells.

    ``entry``: the partitions with nodes without GPUs; None: it does not name them. ``none``: those
    without nodes with GPUs.
    """
    gpus = {node.name for node in g.nodes if node.gpus}
    others = {node.name for node in g.nodes if not node.gpus}
    listed, found = _items(entry), []
    for one in g.client.partitions():  # its nodes of state FUTURE are not among those of Slurm
        is_listed = lua_value(one.name) in listed
        wrong = one.nodes <= gpus if is_listed else bool(one.nodes & others)
        wrong |= lua_value(one.name) in none and bool(one.nodes & gpus)
        if _NAMED.fullmatch(one.name) and (wrong or entry is None):
            found.append(one.name)
    return sorted(found)


def _squeeze(lua: str) -> str:
    """Lua source of plain values without comments and blanks."""
    return re.sub(r"\s+", "", re.sub(r"--.*", "", lua))


def _entry(table: str, key: str) -> str | None:
    match = re.search(rf"[{{,]{key}=(\{{[^}}]*\}}|[^,}}]*)", table)
    return match[1] if match else None


def _items(entry: str | None) -> set[str]:
    """Values of a list, in any order; without root, which is always an operator."""
    return set((entry or "").strip("{}").split(",")) - {"", "0"}


def _table(
    config: Config,
    slurm_user: str,
    setting: Callable[[str], str | None],
    models: Iterable[str] = (),
    types: Iterable[str] = (),
) -> dict[str, object]:
    """The part of the filter's configuration that does not depend on the nodes.

    ``setting``: key of slurm.conf -> value. ``models`` are node features, so that ``gpu:a100:1``
    becomes a constraint. ``types``: of the nodes; they stay in requests where only nodes are
    chosen. Elsewhere a job that asks for one waits at the gate: Slurm does not refuse it.
    """
    return {
        "classes": config.site.classes,
        "policies": config.placement.offered,
        "place_off": config.placement.allow_off,
        "cli_filter": config.setup.cli_filter,
        "scrontab": "enable" in (setting("ScronParameters") or "").lower(),  # as Slurm looks for it
        "several_clusters": _clusters(config, setting) not in (0, 1),
        "partitions": config.site.partitions,
        "licence": config.gate.licence,
        "reservation": config.gate.reservation,
        "submit_file": str(config.events.submit_file),
        "models": sorted(models),
        "types": sorted({t.lower() for t in types}) if config.placement.gpus == "nodes" else (),
        "node_types": [t for t in sorted(types) if _NAMED.fullmatch(t)],
        "park_uncommented": config.site.park_uncommented,
        "operators": _operators(config, slurm_user)[0],
    }


def _clusters(config: Config, setting: Callable[[str], str | None]) -> int | None:
    """Clusters that ``sbatch -M`` knows: those of slurmdbd. None: it does not answer."""
    if "slurmdbd" not in (setting("AccountingStorageType") or "").lower():
        return 0
    try:
        return len(clusters(config.selector.command_timeout_s))
    except SourceError:
        return None


def _operators(config: Config, slurm_user: str) -> tuple[list[int], list[str]]:
    """(users that pass all checks of the filter: root, SlurmUser, operators; those not known)."""
    uids, unknown = {0}, []
    for name in (slurm_user, *config.site.operators):
        try:
            number = name.isascii() and name.isdigit()
            uids.add(int(name) if number else pwd.getpwnam(name).pw_uid)
        except KeyError:
            unknown.append(name)
    return sorted(uids), unknown


def _check_known(unknown: Iterable[str], config: Config, slurm_user: str) -> None:
    for name in unknown:
        where = f"{config.source or DEFAULT_PATH}: site.operators"
        if name == slurm_user:
            where = "slurm.conf: SlurmUser"
        raise ConfigError(f"{where}: no such user on this host: {name!r}")


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
