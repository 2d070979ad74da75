"""Indexing: ``Gres=gpu:v100:4`` to one GRES type per GPU and back, in slurm.conf and gres.conf.

A record of several nodes is split into a record of the plain nodes and one of the indexed nodes;
all other parameters stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.deploy.render import NodeGpus, feature_of, gres_lines, usable_model
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.names import index_type, slot_of
from slurm_gpu_aware.slurm.conffile import (
    ConfFiles,
    Entry,
    Pairs,
    block_alone,
    fields_of,
    pairs_of,
    render_pairs,
)
from slurm_gpu_aware.slurm.gres_line import is_mig, parse_gres
from slurm_gpu_aware.slurm.hostlist import expand_hostlist, hostlist

__all__ = ["NodeForm", "SiteFiles", "read_site"]

_DEVICE = re.compile(r"/dev/nvidia(\d+)\Z")
_PARALLEL = frozenset({"nodeaddr", "nodehostname", "bcastaddr", "port"})
"""Parameters of a NodeName line that hold one value per node."""


@dataclass(frozen=True)
class NodeForm:
    """Form of a node's GPUs in the files."""

    name: str
    count: int
    """GPUs in slurm.conf."""
    indices: tuple[int, ...] = ()
    """Indices of its types; empty: it cannot be indexed, see ``problem``."""
    model: str | None = None
    """In lower case; None: unknown."""
    indexed: bool = False
    """It has one type per GPU now."""
    ours: bool = False
    """A rollout indexed it: the files keep its plain form."""
    problem: str | None = None
    """Why it cannot be indexed."""


@dataclass
class _NodeLinesRead:
    """Lines of one node, collected while the files are read."""

    gres: str = ""
    files: list[int] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    problem: str | None = None


@dataclass(frozen=True)
class SiteFiles:
    """slurm.conf and gres.conf of a site, and the form of each GPU node."""

    slurm: ConfFiles
    gres: ConfFiles
    nodes: Mapping[str, NodeForm]
    profile: Mapping[str, NodeGpus]

    def indexed_by_us(self) -> frozenset[str]:
        """Nodes that a rollout has indexed."""
        return frozenset(name for name, node in self.nodes.items() if node.ours)

    def models(self) -> frozenset[str]:
        """Models that are, or become, features of their nodes."""
        return frozenset(n.model for n in self.nodes.values() if n.model is not None)

    def texts(self, indexed: Iterable[str], *, features: bool) -> dict[Path, str]:
        """The changed files if exactly these nodes are indexed, gres.conf first, slurm.conf last.

        ``features``: plain nodes also get the feature of their GPU model, so that a request by
        model matches both forms.

        Raises SourceError if a record cannot be split.
        """
        chosen = frozenset(indexed)
        out = self._gres_texts(chosen)
        texts = self.slurm.rewrite(_NodeLines(self.nodes, chosen, features).ours)
        main = texts.pop(self.slurm.path)
        out |= texts
        out[self.slurm.path] = main
        old = self.gres.texts | self.slurm.texts
        return {path: text for path, text in out.items() if old.get(path) != text}

    def _gres_texts(self, chosen: frozenset[str]) -> dict[Path, str]:
        described: set[str] = set()
        all_names = list(self.nodes)

        def ours(entry: Entry) -> list[str] | None:
            pairs = pairs_of(entry.text)
            keys = {k.lower(): v for k, v in pairs}
            names = _names(keys["nodename"]) if "nodename" in keys else all_names
            here = [n for n in names if n in chosen]
            if "autodetect" in keys:
                if not here or keys["autodetect"].lower() == "off":
                    return None
                off = f"NodeName={hostlist(here)} AutoDetect=off"
                if "nodename" not in keys:
                    return [entry.text, off]
                return [*_rest(pairs, [n for n in names if n not in chosen]), off]
            if not here or keys.get("name", "").lower() != "gpu" or "file" not in keys:
                return None
            described.update(here)
            rest = [n for n in names if n not in chosen]
            return [*_rest(pairs, rest), *_device_lines(pairs, keys["file"], here)]

        texts = self.gres.rewrite(ours)
        alone = [
            self.profile.get(n, NodeGpus(n, self.nodes[n].indices))
            for n in sorted(chosen - described)
        ]
        if alone:
            text = texts[self.gres.path]
            if text and not text.endswith("\n"):
                text += "\n"
            texts[self.gres.path] = text + block_alone(gres_lines(alone))
        return texts


def read_site(
    slurm_conf: Path, gres_conf: Path, profile: Mapping[str, NodeGpus] | None = None
) -> SiteFiles:
    """Read both files. Raises SourceError if one cannot be read or one of our blocks was edited.

    Parameters
    ----------
    profile : measured nodes; used for nodes on which Slurm detects the GPUs (AutoDetect).
    """
    slurm = ConfFiles(slurm_conf)
    gres = ConfFiles(gres_conf, missing_ok=True)
    read: dict[str, _NodeLinesRead] = {}
    now: dict[str, str] = {}
    for names, values, entry in _node_records(slurm):
        for name in names:
            read.setdefault(name, _NodeLinesRead()).gres = values.get("gres", "").strip('"')
        for line in entry.ours or ():
            pairs = fields_of(line)
            now.update(dict.fromkeys(_names(pairs["nodename"]), pairs.get("gres", "")))
    _read_devices(gres, read)
    nodes: dict[str, NodeForm] = {}
    for name, lines in read.items():
        form = _form(name, lines, now.get(name), (profile or {}).get(name))
        if form is not None:
            nodes[name] = form
    return SiteFiles(slurm, gres, nodes, profile or {})


def _node_records(conf: ConfFiles) -> Iterable[tuple[list[str], dict[str, str], Entry]]:
    """(names, the site's parameters with defaults, record) of each NodeName line."""
    defaults: dict[str, str] = {}
    for entry in conf.records():
        pairs = pairs_of(entry.text)
        if not pairs or pairs[0][0].lower() != "nodename":
            continue
        values = {k.lower(): v for k, v in pairs}
        if values["nodename"].upper() == "DEFAULT":
            defaults.update({k: v for k, v in values.items() if k != "nodename"})
        else:
            yield _names(values["nodename"]), {**defaults, **values}, entry


def _read_devices(gres: ConfFiles, read: dict[str, _NodeLinesRead]) -> None:
    for entry in gres.records():
        keys = fields_of(entry.text)
        if "name" not in keys:
            continue
        here = _names(keys["nodename"]) if "nodename" in keys else list(read)
        for name in here:
            if name not in read:
                continue
            node = read[name]
            if keys["name"].lower() in ("mps", "shard") or "multiplefiles" in keys:
                node.problem = "its GPUs are shared or partitioned (MPS, shards, MIG)"
            elif keys["name"].lower() == "gpu" and "file" in keys:
                node.types.update(filter(None, [keys.get("type")]))
                try:
                    node.files += _devices(keys["file"]).values()
                except SourceError as exc:
                    node.problem = str(exc)


def _form(
    name: str, read: _NodeLinesRead, now: str | None, known: NodeGpus | None
) -> NodeForm | None:
    types, count, shared = _gpus_of(read.gres)
    if not count:
        return None
    if types and all(slot_of(t) is not None for t in types):
        return NodeForm(name, count, indexed=True, problem="it has one type per GPU already")
    kept = [slot for t in _gpus_of(now or "")[0] if (slot := slot_of(t)) is not None]
    ours = bool(kept)
    models = {t.lower() for t in [*types, *read.types] if t} or {(known and known.model) or ""}
    model = usable_model(next(iter(models))) if len(models) == 1 else None
    indices = tuple(sorted(read.files)) or (known.indices if known else ())
    if shared:
        problem: str | None = "its GPUs are shared (MPS, shards)"
    elif read.problem:
        problem = read.problem
    elif any(map(is_mig, models)):
        problem = "its GPUs are partitioned (MIG)"
    elif len(models) > 1:
        problem = f"it has several GPU types: {', '.join(sorted(models))}"
    elif not indices:
        problem = (
            "gres.conf has no File= for its GPUs, and the store has no profile of it; run"
            " 'gpu-aware-profile sweep'"
        )
    elif indices != tuple(range(count)):
        listed = ", ".join(str(i) for i in indices)
        problem = f"slurm.conf has {count} GPUs, but their devices are /dev/nvidia {listed}"
    else:
        problem = None
    return NodeForm(
        name=name,
        count=count,
        indices=tuple(kept) if ours else () if problem else indices,
        model=model,
        indexed=ours,
        ours=ours,
        problem=problem,
    )


def _gpus_of(gres: str) -> tuple[list[str | None], int, bool]:
    """(types, count, whether GPUs are shared) of a ``Gres=`` value. Raises SourceError."""
    items = parse_gres(gres)
    gpus = [item for item in items if item.name == "gpu"]
    return [item.kind for item in gpus], sum(item.count for item in gpus), len(gpus) < len(items)


class _NodeLines:
    """Lines in place of a NodeName record; considers ``NodeName=DEFAULT``."""

    def __init__(
        self, nodes: Mapping[str, NodeForm], chosen: frozenset[str], features: bool
    ) -> None:
        self._nodes = nodes
        self._chosen = chosen
        self._features = features
        self._defaults: dict[str, str] = {}

    def ours(self, entry: Entry) -> list[str] | None:
        pairs = pairs_of(entry.text)
        if not pairs or pairs[0][0].lower() != "nodename":
            return None
        if pairs[0][1].upper() == "DEFAULT":
            self._defaults.update({k.lower(): v for k, v in pairs[1:]})
            return None
        names = _names(pairs[0][1])
        groups: dict[tuple[tuple[int, ...], str | None], list[str]] = {}
        for name in names:
            groups.setdefault(self._wanted(name), []).append(name)
        lines = [
            self._line(pairs, names, group, indices, model)
            for (indices, model), group in sorted(groups.items(), key=lambda g: len(g[0][0]))
        ]
        if len(groups) == 1 and pairs_of(lines[0])[1:] == pairs[1:]:
            return None
        return lines

    def _wanted(self, name: str) -> tuple[tuple[int, ...], str | None]:
        """(indices of its types; empty: plain, model for its feature)."""
        node = self._nodes.get(name)
        if node is None:
            return (), None
        if name in self._chosen:
            return node.indices, node.model
        return (), node.model if self._features else None

    def _line(
        self,
        pairs: Pairs,
        names: Sequence[str],
        group: Sequence[str],
        indices: tuple[int, ...],
        model: str | None,
    ) -> str:
        out = [("NodeName", _short(group) if len(group) < len(names) else pairs[0][1])]
        out += _part(pairs[1:], names, group)
        if indices:
            others = [i for i in self._value(out, "gres").split(",") if not _is_gpu(i)]
            types = [f"gpu:{index_type(i)}:1" for i in indices]
            _set(out, ("gres",), "Gres", ",".join([*types, *filter(None, others)]))
        if model is not None:
            have = self._value(out, "features") or self._value(out, "feature")
            words = [w for w in have.split(",") if w]
            if feature_of(model) not in words:
                words.append(feature_of(model))
                _set(out, ("feature", "features"), "Features", ",".join(words))
        return render_pairs(out)

    def _value(self, pairs: Pairs, key: str) -> str:
        own = {k.lower(): v for k, v in pairs}
        return own.get(key, self._defaults.get(key, "")).strip('"')


def _is_gpu(item: str) -> bool:
    return item.split(":", 1)[0].lower() == "gpu"


def _set(pairs: Pairs, keys: tuple[str, ...], new_key: str, value: str) -> None:
    for i, (key, _) in enumerate(pairs):
        if key.lower() in keys:
            pairs[i] = (key, value)
            return
    pairs.append((new_key, value))


def _part(pairs: Pairs, names: Sequence[str], group: Sequence[str]) -> Pairs:
    """The parameters for some nodes of a record; lists with one value per node are cut."""
    if len(group) == len(names):
        return list(pairs)
    out: Pairs = []
    for key, value in pairs:
        if key.lower() in _PARALLEL and ("[" in value or "," in value):
            values = _names(value)
            if len(values) != len(names):
                raise SourceError(
                    f"slurm.conf: NodeName={hostlist(names)}: {key}={value} has {len(values)}"
                    f" values for {len(names)} nodes; write one line per node"
                )
            out.append((key, _short([values[names.index(n)] for n in group])))
        else:
            out.append((key, value))
    return out


def _short(names: Sequence[str]) -> str:
    """A host list in exactly this order."""
    text = hostlist(names)
    return text if expand_hostlist(text) == tuple(names) else ",".join(names)


def _names(text: str) -> list[str]:
    return list(expand_hostlist(text.strip('"')))


def _devices(files: str) -> dict[str, int]:
    """``/dev/nvidia[0-1],/dev/nvidia3`` -> device and minor number. Raises SourceError."""
    devices = {}
    marked = files.strip('"').replace("/", "..")  # a host list must not contain slashes
    for name in expand_hostlist(marked):
        path = name.replace("..", "/")
        match = _DEVICE.match(path)
        if match is None:
            raise SourceError(f"gres.conf has {path} for it, not /dev/nvidiaN")
        devices[path] = int(match[1])
    return devices


def _rest(pairs: Pairs, names: Sequence[str]) -> list[str]:
    """The record for the unchanged nodes."""
    if not names:
        return []
    own = [(k, v) for k, v in pairs if k.lower() != "nodename"]
    return [render_pairs([("NodeName", _short(names)), *own])]


def _device_lines(pairs: Pairs, files: str, names: Sequence[str]) -> list[str]:
    """One line with its own type per device."""
    devices = _devices(files)
    single = len(devices) == 1
    out = []
    for device, minor in devices.items():
        line = [("NodeName", _short(names)), ("Name", "gpu"), ("Type", index_type(minor))]
        line.append(("File", device))
        for key, value in pairs:
            lower = key.lower()
            if lower in ("nodename", "name", "type", "file", "count"):
                continue
            if lower != "links" or single:  # a list of links applies to one device
                line.append((key, value))
        out.append(render_pairs(line))
    return out
