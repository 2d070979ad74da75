"""Nodes of the NodeName lines of a slurm.conf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.conffile import SlurmConf
from slurm_gpu_aware.slurm.gres_line import parse_gres
from slurm_gpu_aware.slurm.hostlist import expand_hostlist

__all__ = ["ConfNode", "conf_nodes"]


@dataclass(frozen=True)
class ConfNode:
    """One node of slurm.conf. A number of 0 is not given."""

    has_gpus: bool
    indexed: bool
    """It has one GRES type per GPU."""
    features: tuple[str, ...]
    sockets: int
    cores_per_socket: int
    cpus: int
    """At least as many as Slurm derives from the line."""
    memory_mb: int


def conf_nodes(conf: SlurmConf) -> dict[str, ConfNode]:
    """Name -> node, of all NodeName lines. Raises SourceError for an invalid line."""
    nodes = {}
    for record in conf.nodes:
        node = _conf_node(record)
        nodes.update(dict.fromkeys(expand_hostlist(record["nodename"]), node))
    return nodes


def _conf_node(record: Mapping[str, str]) -> ConfNode:
    kinds = [item.kind for item in parse_gres(record.get("gres", "")) if item.name == "gpu"]
    sockets, cores = _number(record, "sockets"), _number(record, "corespersocket")
    boards = (_number(record, "boards") or 1) * _number(record, "socketsperboard")
    threads = (cores or 1) * (_number(record, "threadspercore") or 1)
    return ConfNode(
        has_gpus=bool(kinds),
        indexed=bool(kinds) and all(slot_of(kind) is not None for kind in kinds),
        features=tuple((record.get("features") or record.get("feature") or "").split(",")),
        sockets=sockets,
        cores_per_socket=cores,
        cpus=max(_number(record, "cpus"), _number(record, "procs"), (sockets or boards) * threads),
        memory_mb=_number(record, "realmemory"),
    )


def _number(record: Mapping[str, str], key: str) -> int:
    value = record.get(key, "")
    return int(value) if value.isascii() and value.isdigit() else 0
