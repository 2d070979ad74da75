"""NodeName records of slurm.conf and GRES records of gres.conf, node by node."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_gpu_aware.slurm.conf_grammar import fields_of, unquoted
from slurm_gpu_aware.slurm.conffile import ConfFiles, node_fields
from slurm_gpu_aware.slurm.hostlist import expand_hostlist

_PARALLEL = frozenset({"nodeaddr", "nodehostname", "bcastaddr", "port"})
"""Parameters of a NodeName line that hold one value per node."""


def nodes_of(conf: ConfFiles, *, of_site: bool = False) -> dict[str, dict[str, str]]:
    """Name -> values of each node, as Slurm reads them or (``of_site``) without our lines."""
    found: dict[str, dict[str, str]] = {}
    defaults: dict[str, str] = {}
    records = (entry.text for entry in conf.records()) if of_site else conf.read()
    for values in filter(None, (node_fields(record, defaults) for record in records)):
        names = names_of(values.pop("nodename"))
        lists = {key: per_node(key, value) for key, value in values.items() if key in _PARALLEL}
        for at, name in enumerate(names):
            own = {key: some[at] for key, some in lists.items() if len(some) == len(names)}
            found[name] = values | own
    return found


def devices_of(
    conf: ConfFiles, nodes: Iterable[str], *, of_site: bool = False
) -> dict[str, list[dict[str, str]]]:
    """Node -> values of its GRES in gres.conf, as `nodes_of`."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in nodes}
    for record in (entry.text for entry in conf.records()) if of_site else conf.read():
        values = gres_fields(record)
        names = names_of(values.pop("nodename")) if "nodename" in values else list(found)
        for name in names if "name" in values else ():
            if name in found:
                found[name].append(values)
    return found


def without_features(values: dict[str, str] | None) -> dict[str, str] | None:
    return values and {key: value for key, value in values.items() if key != "features"}


def gres_fields(record: str) -> dict[str, str]:
    """As `fields_of`; ``files`` is ``file``."""
    values = fields_of(record)
    if "files" in values:
        values.setdefault("file", values.pop("files"))
    return values


def per_node(key: str, value: str) -> list[str]:
    """Values of a parameter that can have one per node; none of another one."""
    bare = unquoted(value)
    if key == "port" and "[" not in bare:  # Slurm takes 7001-7004 for a list, too
        bare = f"[{bare}]"
    return names_of(bare) if key in _PARALLEL and ("[" in bare or "," in bare) else []


def names_of(text: str) -> list[str]:
    return list(expand_hostlist(unquoted(text)))
