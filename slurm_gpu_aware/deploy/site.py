"""Site of setup: its files on this host, and its nodes in the profile, slurm.conf and gres.conf.

The GPU of Slurm index K gets the GRES type ``gK``, so that a job can request exactly this GPU.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.bounds import index_type, slot_of
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import gpu_names, seen_only
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import ConfFiles, names_of
from slurm_gpu_aware.slurm.gres import parse_gres
from slurm_gpu_aware.slurm.words import by_number, hostlist
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node."""

    name: str
    indices: tuple[int, ...]  # Slurm's GPU indices = minor numbers of /dev/nvidiaN, ascending.
    model: str | None = None  # Short name (``a100``); None: unknown or mixed.
    cores: tuple[str | None, ...] = ()
    """``Cores=`` of each GPU, parallel to ``indices``; see `cores_of`."""


@dataclass(frozen=True)
class ConfNode:
    """One node of slurm.conf. A number of 0 is not given."""

    has_gpus: bool
    indexed: bool  # It has one GRES type per GPU.
    types: tuple[str, ...]  # GRES types of its GPUs that are no index, as Slurm has them.
    features: tuple[str, ...]
    sockets: int
    cores_per_socket: int
    cpus: int  # At least as many as Slurm derives from the line.
    memory_mb: int
    shards: int  # Of its GPU with the most of them.


@dataclass(frozen=True)
class Site:
    """Configuration, files and nodes of a site."""

    config: Config
    slurm_dir: Path  # Folder of slurm.conf.
    unit_dir: Path
    conf: ConfFiles
    conf_nodes: Mapping[str, ConfNode]  # Nodes of slurm.conf.
    nodes: tuple[NodeGpus, ...]  # Nodes of the profile.
    for_review: bool = False
    """The folders are for review of what we bring, and have nothing of the site."""

    def text(self, name: str) -> str | None:
        """Text of a file in ``slurm_dir``; None: there is none."""
        path = self.slurm_dir / name
        if self.for_review or not path.exists():
            return None
        return path.read_text(encoding="utf-8", errors="surrogateescape")

    @property
    def user(self) -> str:
        """SlurmUser."""
        return self.conf.get("SlurmUser") or "root"


def find_site(config: Config, slurm_dir: Path, unit_dir: Path) -> tuple[Site, str]:
    """The site, and a note on its profile (empty: none). Raises SourceError."""
    conf = ConfFiles(slurm_dir / "slurm.conf", missing_ok=True, checked=False)
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


def conf_nodes(conf: ConfFiles) -> dict[str, ConfNode]:
    """Name -> node, of all NodeName lines. Raises SourceError for an invalid line."""
    return {name: _conf_node(values) for name, values in conf.nodes().items()}


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
        types=tuple(kind for kind in kinds if kind and slot_of(kind) is None),
        features=tuple(record.get("features", "").split(",")),
        sockets=sockets,
        cores_per_socket=cores,
        cpus=max(number("cpus"), number("procs"), (sockets or boards) * threads),
        memory_mb=number("realmemory"),
        shards=max(shards, default=0),
    )


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


def _equal(nodes: Iterable[NodeGpus]) -> list[tuple[str, NodeGpus]]:
    """(host list, GPUs) of each group of nodes with equal GPUs, in order of names."""
    groups: dict[NodeGpus, list[str]] = {}
    for node in sorted(nodes, key=lambda n: by_number(n.name)):
        groups.setdefault(replace(node, name=""), []).append(node.name)
    return [(hostlist(names), node) for node, names in groups.items()]


def devices_of(
    conf: ConfFiles, nodes: Iterable[str], *, of_site: bool = False
) -> dict[str, list[dict[str, str]]]:
    """Node -> values of its GRES in gres.conf, as `ConfFiles.nodes`."""
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
