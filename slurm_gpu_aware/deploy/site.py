"""Site of setup: its files on this host, its nodes in slurm.conf and in the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.render import NodeGpus, cores_of, usable_model
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import gpu_names, seen_only
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.conffile import SlurmConf, read_conf
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.values import parse_gres
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile


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
    shards: int
    """Of its GPU with the most of them."""


@dataclass(frozen=True)
class Site:
    """Configuration, files and nodes of a site."""

    config: Config
    slurm_dir: Path
    """Folder of slurm.conf."""
    unit_dir: Path
    conf: SlurmConf
    conf_nodes: Mapping[str, ConfNode]
    """Nodes of slurm.conf."""
    nodes: tuple[NodeGpus, ...]
    """Nodes of the profile."""

    def text(self, name: str) -> str | None:
        """Text of a file in ``slurm_dir``; None: there is none."""
        path = self.slurm_dir / name
        return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else None

    @property
    def user(self) -> str:
        """SlurmUser."""
        return self.conf.get("SlurmUser") or "root"


def find_site(config: Config, slurm_dir: Path, unit_dir: Path) -> tuple[Site, str]:
    """The site, and a note on its profile (empty: none). Raises SourceError."""
    conf_file = slurm_dir / "slurm.conf"
    conf = read_conf(conf_file) if conf_file.exists() else SlurmConf()
    known = conf_nodes(conf)
    nodes, note = _profiled_nodes(config, known)
    return Site(config, slurm_dir, unit_dir, conf, known, nodes), note


def _profiled_nodes(
    config: Config, known: Mapping[str, ConfNode]
) -> tuple[tuple[NodeGpus, ...], str]:
    """Nodes of the profile (none without a store), and a note on it (empty: none)."""
    try:
        with open_store(config.store.path, readonly=True) as store:
            profile, left_out = seen_only(load_profile(store))
    except StoreError as exc:
        return (), f"no profile: {exc}."
    note = ""
    if left_out:
        note = (
            f"note: left out, because no sweep has seen them: {gpu_names(left_out)}. Sweep"
            " these nodes, or remove absent GPUs with 'gpu-aware-profile forget'."
        )
    slots: dict[str, list[int]] = {}
    for node, slot in sorted(profile.gpus):
        slots.setdefault(node, []).append(slot)
    nodes = []
    for name, indices in slots.items():
        records = [profile.gpus[name, slot] for slot in indices]
        models = {usable_model(r.model) for r in records}
        model = models.pop() if len(models) == 1 else None
        cores: tuple[str | None, ...] = ()
        if name in known:
            shape = known[name]
            cores = cores_of([r.numa for r in records], shape.sockets, shape.cores_per_socket)
        nodes.append(NodeGpus(name, tuple(indices), model, cores))
    return tuple(nodes), note


def conf_nodes(conf: SlurmConf) -> dict[str, ConfNode]:
    """Name -> node, of all NodeName lines. Raises SourceError for an invalid line."""
    nodes = {}
    for record in conf.nodes:
        node = _conf_node(record)
        nodes.update(dict.fromkeys(expand_hostlist(record["nodename"]), node))
    return nodes


def _conf_node(record: Mapping[str, str]) -> ConfNode:
    def number(key: str) -> int:
        value = record.get(key, "")
        return int(value) if value.isascii() and value.isdigit() else 0

    gres = parse_gres(record.get("gres", ""))
    kinds = [item.kind for item in gres if item.name == "gpu"]
    gpus = sum(item.count for item in gres if item.name == "gpu") or 1
    shards = [s.count if s.kind else -(-s.count // gpus) for s in gres if s.name == "shard"]
    sockets, cores = number("sockets"), number("corespersocket")
    boards = (number("boards") or 1) * number("socketsperboard")
    threads = (cores or 1) * (number("threadspercore") or 1)
    return ConfNode(
        has_gpus=bool(kinds),
        indexed=bool(kinds) and all(slot_of(kind) is not None for kind in kinds),
        features=tuple(record.get("features", "").split(",")),
        sockets=sockets,
        cores_per_socket=cores,
        cpus=max(number("cpus"), number("procs"), (sockets or boards) * threads),
        memory_mb=number("realmemory"),
        shards=max(shards, default=0),
    )
