"""Indexing: ``Gres=gpu:v100:4`` to one GRES type per GPU and back, in slurm.conf and gres.conf.

A record of several nodes is split into a record of the plain nodes and one of the indexed nodes;
all other parameters stay.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slurm_gpu_aware.bounds import index_type, slot_of
from slurm_gpu_aware.deploy.site import (
    NodeGpus,
    devices_of,
    feature_of,
    gres_fields,
    gres_lines,
    index_gres,
    usable_model,
    without_features,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conf_grammar import (
    Pairs,
    pairs_of,
    quoted_value,
    render_pairs,
)
from slurm_gpu_aware.slurm.conffile import ConfFiles, Entry, names_of, node_fields, per_node
from slurm_gpu_aware.slurm.gres import is_mig, parse_gres
from slurm_gpu_aware.slurm.words import expand_hostlist, hostlist
from slurm_gpu_aware.time_text import counted

_DEVICE = re.compile(r"/dev/nvidia(\d+)\Z")
_UNREAD = (
    "{file}: nothing was written: Slurm would not read the new lines of {name} as meant; write one"
    " line for the node, without repeated keys"
)


@dataclass(frozen=True)
class NodeForm:
    """Form of a node's GPUs in the files."""

    count: int  # GPUs in slurm.conf.
    indices: tuple[int, ...]  # Indices of its types; empty: it cannot be indexed, see ``problem``.
    model: str | None  # In lower case; None: unknown.
    indexed: bool  # It has one type per GPU now.
    ours: bool  # A rollout indexed it: the files keep its plain form.
    problem: str | None  # Why it cannot be indexed.


class _Record(NamedTuple):
    """A NodeName line of the site."""

    names: list[str]
    pairs: Pairs
    values: dict[str, str]  # As `node_fields`.


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

        Raises SourceError if a record cannot be split, or if Slurm would not read the result so.
        """
        chosen = frozenset(indexed)
        out = self._gres_texts(chosen) | self._slurm_texts(chosen, features)
        if self.slurm.path in out:
            out[self.slurm.path] = out.pop(self.slurm.path)
        if out:
            self._read_back(out, chosen)
        return out

    def _read_back(self, changed: Mapping[Path, str], chosen: frozenset[str]) -> None:
        """Raise SourceError unless Slurm would read the changed files as meant."""
        slurm = ConfFiles(self.slurm.path, texts={**self.slurm.texts, **changed})
        gres = ConfFiles(self.gres.path, texts={**self.gres.texts, **changed})
        nodes, devices = slurm.nodes(), devices_of(gres, self.nodes)
        former = devices_of(self.gres, self.nodes, of_site=True)
        wanted = self.slurm.nodes(of_site=True)
        for name, node in self.nodes.items():
            if name in chosen and node.indices:
                wanted[name]["gres"] = _with_types(wanted[name].get("gres", ""), node.indices)
                others = [values for values in former[name] if values["name"].lower() != "gpu"]
                indexed = {(index_type(i), f"/dev/nvidia{i}") for i in node.indices}
                gpus = {(d.get("type"), d.get("file")) for d in devices[name] if d not in others}
                wrong = gpus != indexed or [d for d in devices[name] if d in others] != others
            else:
                wrong = devices[name] != former[name]
            if wrong:
                raise SourceError(_UNREAD.format(file=self.gres.path, name=name))
        for name in {**wanted, **nodes}:
            if without_features(nodes.get(name)) != without_features(wanted.get(name)):
                raise SourceError(_UNREAD.format(file=self.slurm.path, name=name))

    def _slurm_texts(self, chosen: frozenset[str], features: bool) -> dict[Path, str]:
        defaults: dict[str, str] = {}

        def wanted(name: str) -> tuple[tuple[int, ...], str | None]:
            """(indices of its types; empty: plain, model for its feature)."""
            node = self.nodes.get(name)
            indices = node.indices if node and name in chosen else ()
            return indices, node.model if node and (features or name in chosen) else None

        def ours(entry: Entry) -> list[str] | None:
            values = node_fields(entry.text, defaults)
            if values is None:  # another line, or one that changes the defaults
                return None
            record = _Record(names_of(values["nodename"]), pairs_of(entry.text)[0], values)
            groups: dict[tuple[tuple[int, ...], str | None], list[str]] = {}
            for name in record.names:
                groups.setdefault(wanted(name), []).append(name)
            lines = [
                _node_pairs(record, group, indices, model)
                for (indices, model), group in sorted(groups.items(), key=lambda g: len(g[0][0]))
            ]
            unchanged = len(groups) == 1 and lines[0][1:] == record.pairs[1:]
            return None if unchanged else [*map(render_pairs, lines)]

        return self.slurm.rewrite(ours)

    def _gres_texts(self, chosen: frozenset[str]) -> dict[Path, str]:
        described: set[str] = set()

        def ours(entry: Entry) -> list[str] | None:
            pairs, keys = pairs_of(entry.text)[0], gres_fields(entry.text)
            names = names_of(keys["nodename"]) if "nodename" in keys else list(self.nodes)
            here = [n for n in names if n in chosen]
            rest = [n for n in names if n not in chosen]
            if not here:
                return None
            off = keys.get("autodetect", "").lower() == "off"
            if off and "file" not in keys:
                return None
            if "autodetect" in keys and not off:
                line = f"NodeName={hostlist(here)} AutoDetect=off"
                return [*(_rest(pairs, rest) if "nodename" in keys else [entry.text]), line]
            if keys.get("name", "").lower() != "gpu":
                return None
            if "file" not in keys:
                return _rest(pairs, rest)
            described.update(here)
            return [*_rest(pairs, rest), *_device_lines(pairs, keys["file"], here)]

        self.gres.rewrite(ours)  # fills described
        alone = [
            self.profile.get(n, NodeGpus(n, self.nodes[n].indices))
            for n in sorted(chosen - described)
        ]
        return self.gres.rewrite(ours, gres_lines(alone))


def read_site(slurm_conf: Path, gres_conf: Path, profile: Mapping[str, NodeGpus]) -> SiteFiles:
    """Read both files. Raises SourceError if one cannot be read or one of our blocks was edited.

    ``profile``: measured nodes, for nodes on which Slurm detects the GPUs (AutoDetect).
    """
    slurm = ConfFiles(slurm_conf)
    gres = ConfFiles(gres_conf, missing_ok=True)
    of_site, now = slurm.nodes(of_site=True), slurm.nodes()
    devices = devices_of(gres, of_site, of_site=True)
    nodes = {}
    for name, values in of_site.items():
        own, has = values.get("gres", ""), now.get(name, {}).get("gres", "")
        form = _form(own, has if has != own else "", devices[name], profile.get(name))
        if form is not None:
            nodes[name] = form
    return SiteFiles(slurm, gres, nodes, profile)


def _form(
    gres: str, ours: str, devices: Sequence[Mapping[str, str]], known: NodeGpus | None
) -> NodeForm | None:
    """Form of a node by its GRES in the site's line and in ours (empty: none), and its devices."""
    types, count, shared = _gpus_of(gres)
    if not count:
        return None
    typed = bool(types) and all(slot_of(t) is not None for t in types)
    kept = tuple(slot for t in _gpus_of(ours)[0] if (slot := slot_of(t)) is not None)
    files: list[int] = []
    unusable = None
    for values in devices:
        if values["name"].lower() in ("mps", "shard") or "multiplefiles" in values:
            unusable = "its GPUs are shared or partitioned (MPS, shards, MIG)"
        elif values["name"].lower() == "gpu" and "file" in values:
            types = [*types, values.get("type")]
            try:
                files += _devices(values["file"]).values()
            except SourceError as exc:
                unusable = str(exc)
    models = {t.lower() for t in types if t} or {(known and known.model) or ""}
    model = usable_model(next(iter(models))) if len(models) == 1 else None
    indices = tuple(sorted(files)) or (known.indices if known else ())
    listed = ", ".join(map(str, indices))
    problems = (
        (typed, "it has one type per GPU already"),
        (shared, "its GPUs are shared (MPS, shards)"),
        (unusable, unusable),
        (any(map(is_mig, models)), "its GPUs are partitioned (MIG)"),
        (len(models) > 1, f"it has several GPU types: {', '.join(sorted(models))}"),
        (
            not indices,
            "gres.conf has no File= for its GPUs, and the store has no profile of it; run"
            " 'gpu-aware-profile sweep'",
        ),
        (
            indices != tuple(range(count)),
            f"slurm.conf has {counted(count, 'GPU')}, which should be /dev/nvidia0 and so on, but"
            f" gres.conf names {listed}",
        ),
    )
    problem = next((text for wrong, text in problems if wrong), None)
    usable = kept or (() if problem else indices)
    return NodeForm(count, usable, model, typed or bool(kept), bool(kept), problem)


def _gpus_of(gres: str) -> tuple[list[str | None], int, bool]:
    """(types, count, whether GPUs are shared) of a ``Gres=`` value. Raises SourceError."""
    items = parse_gres(gres)
    gpus = [item for item in items if item.name == "gpu"]
    return [item.kind for item in gpus], sum(item.count for item in gpus), len(gpus) < len(items)


def _node_pairs(
    record: _Record, group: Sequence[str], indices: tuple[int, ...], model: str | None
) -> Pairs:
    """The keys and values for some nodes of a record, with their index types and feature."""
    out = _part(record, group)
    if indices:
        _set(out, ("gres",), "Gres", _with_types(record.values.get("gres", ""), indices))
    if model is not None:
        words = [w for w in record.values.get("features", "").split(",") if w]
        if feature_of(model) not in words:
            value = ",".join([*words, feature_of(model)])
            _set(out, ("feature", "features"), "Features", value)
    return out


def _with_types(gres: str, indices: Sequence[int]) -> str:
    """A value of ``Gres=`` with one type per GPU."""
    others = [item for item in gres.split(",") if item and item.split(":")[0].lower() != "gpu"]
    return ",".join([*index_gres(indices), *others])


def _set(pairs: Pairs, keys: tuple[str, ...], new_key: str, value: str) -> None:
    """Set the value in the place of the first of the keys, and drop the others."""
    there = [pair for pair in pairs if pair[0].lower() in keys]
    at = pairs.index(there[0]) if there else len(pairs)
    pairs[at : at + 1] = [(there[0][0] if there else new_key, quoted_value(value))]
    for pair in there[1:]:
        pairs.remove(pair)


def _part(record: _Record, group: Sequence[str]) -> Pairs:
    """The parameters for some nodes of a record; lists with one value per node are cut."""
    names = record.names
    if len(group) == len(names):
        return [("NodeName", record.pairs[0][1]), *record.pairs[1:]]
    out = [("NodeName", _short(group))]
    for key, value in record.pairs[1:]:
        part = value
        values = per_node(key.lower(), value)
        if len(values) > 1:
            if len(values) != len(names):
                raise SourceError(
                    f"slurm.conf: NodeName={hostlist(names)}: {key}={value} has {len(values)}"
                    f" values for {len(names)} nodes; write one line per node"
                )
            part = _short([values[names.index(n)] for n in group])
        out.append((key, part))
    return out


def _short(names: Sequence[str]) -> str:
    """A host list in exactly this order."""
    text = hostlist(names)
    return text if expand_hostlist(text) == tuple(names) else ",".join(names)


def _devices(files: str) -> dict[str, int]:
    """``/dev/nvidia[0-1],/dev/nvidia3`` -> device and minor number. Raises SourceError."""
    devices = {}
    marked = files.replace("/", "..")  # a host list must not contain slashes
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
    dropped = {"nodename", "name", "type", "file", "files", "count"}
    if len(devices) > 1:  # a list of links applies to one device
        dropped |= {"link", "links"}
    others = [(key, value) for key, value in pairs if key.lower() not in dropped]
    head = [("NodeName", _short(names)), ("Name", "gpu")]
    return [
        render_pairs([*head, ("Type", index_type(minor)), ("File", device), *others])
        for device, minor in devices.items()
    ]
