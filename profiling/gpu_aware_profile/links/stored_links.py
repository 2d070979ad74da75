"""Stored links: the topology of a node for users, and measured all-reduces for a fit of EffBW.

The topology is the matrix of ``nvidia-smi topo -m``, and measured bandwidths.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

from slurm_gpu_aware.cli.output import clean, pairs, table
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.hardware_graph import (
    ALL_REDUCE,
    OPERATIONS,
    Collective,
    HardwareGraph,
    Nic,
    PairBandwidth,
)
from slurm_gpu_aware.model.profile import GpuRecord, Link, Profile
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    listed,
    newest_bandwidths,
    newest_collectives,
    nics_of,
)
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import fitted_ring, match
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT

_LEGEND = {
    "X": "itself",
    "NV#": "# bonded NVLinks",
    "XGMI#": "# bonded xGMI links",
    "PIX": "at most one PCIe bridge or switch",
    "PXB": "several PCIe bridges, below one host bridge",
    "PHB": "a PCIe host bridge (usually the CPU)",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the interconnect between NUMA nodes",
}
_MEASURED = PairBandwidth._fields[3:]
_RING = Pattern("ring")


@dataclass(frozen=True)
class NodeTopology:
    """GPUs, NICs and links of a node, and what was measured between them."""

    node: str
    gpus: Mapping[int, GpuRecord]
    links: tuple[Link, ...]
    nics: Sequence[Nic]
    bandwidths: Sequence[PairBandwidth]
    collectives: Sequence[Collective]
    typical: Mapping[str, float]
    """Link class -> median bandwidth of a copy over such links of this GPU model, on all nodes."""

    def matrix(self) -> list[list[str | None]]:
        """Class of the path of each device to each other, GPUs first; None: not known."""
        classes: dict[frozenset[int | str], str] = {
            frozenset((link.a, link.b)): link.link_class for link in self.links
        }
        ids: list[int | str] = [*self.gpus, *(nic.name for nic in self.nics)]
        for nic in self.nics:
            classes |= {frozenset((nic.name, slot)): word for slot, word in nic.gpus.items()}
            classes |= {frozenset((nic.name, other)): word for other, word in nic.nics.items()}
        return [
            ["X" if row == column else classes.get(frozenset((row, column))) for column in ids]
            for row in ids
        ]

    def record(self) -> dict[str, Any]:
        """The same for JSON."""
        names = [*(f"GPU{slot}" for slot in self.gpus), *(nic.name for nic in self.nics)]
        return {
            "node": self.node,
            "gpus": [
                {"gpu": slot, "pci": gpu.pci, "cpus": gpu.cpus, "numa": gpu.numa}
                | {"nvlink_version": gpu.nvlink_version, "nvlinks": gpu.nvlinks}
                | {"nvswitch_links": gpu.nvswitch_links}
                for slot, gpu in self.gpus.items()
            ],
            "nics": [{"name": nic.name, "pci": nic.pci, "numa": nic.numa} for nic in self.nics],
            "devices": names,
            "matrix": self.matrix(),
            "links": [
                {"a": link.a, "b": link.b, "class": link.link_class, "nominal_gbps": link.gbps}
                | {"measured": dict(zip(_MEASURED, pair[3:], strict=True)) if pair else None}
                | {"of_median": self._of_median(link, pair)}
                for link, pair in self._measured()
            ],
            "collectives": [
                dict(zip(Collective._fields[1:], one[1:], strict=True)) for one in self.collectives
            ],
        }

    def text(self) -> str:
        """Tables: the matrix with its legend, NVLinks, and what was measured."""
        parts = [f"{self.node}:\n{self._matrix_table()}", self._legend()]
        nvlinks = [self._nvlinks(gpu) for gpu in self.gpus.values()]
        if any(nvlinks):
            one = f"each GPU: {nvlinks[0]}"
            several = "; ".join(
                f"GPU{s}: {w or '-'}" for s, w in zip(self.gpus, nvlinks, strict=True)
            )
            parts.append(f"NVLinks of {one if len(set(nvlinks)) == 1 else several}")
        if self.bandwidths:
            parts.append(f"Measured bandwidth between GPUs:\n{self._bandwidth_table()}")
        if self.collectives:
            rows = [
                (one.operation, " ".join(map(str, one.gpus)), f"{one.gbps:.1f}")
                for one in self.collectives
            ]
            parts.append(table(("collective", "GPUs", "bus GB/s"), rows, right=("bus GB/s",)))
        return "\n\n".join(parts)

    def _matrix_table(self) -> str:
        names = [f"GPU{slot}" for slot in self.gpus] + [f"NIC{i}" for i in range(len(self.nics))]
        rows: list[list[object]] = [
            [name, *row] for name, row in zip(names, self.matrix(), strict=True)
        ]
        for row, gpu in zip(rows, self.gpus.values(), strict=False):
            row += [gpu.cpus, _known(gpu.numa)]
        for row, nic in zip(rows[len(self.gpus) :], self.nics, strict=True):
            row += [None, _known(nic.numa)]
        # Not `table`: a long row must not wrap, as nvidia-smi's does not.
        cells: list[list[object]] = [["", *names, "CPU Affinity", "NUMA Affinity"], *rows]
        texts = [[clean(cell) if cell != "" else "" for cell in row] for row in cells]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in texts
        )

    def _legend(self) -> str:
        shown = {re.sub("[0-9]+", "#", word or "") for row in self.matrix() for word in row}
        words = [(word, what) for word, what in _LEGEND.items() if word in shown]
        return pairs([*words, *((f"NIC{i}", nic.name) for i, nic in enumerate(self.nics))])

    @staticmethod
    def _nvlinks(gpu: GpuRecord) -> str:
        if not gpu.nvlinks:
            return ""
        to = f", {gpu.nvswitch_links} of them to switches" if gpu.nvswitch_links else ""
        return f"{gpu.nvlinks} x NVLink {gpu.nvlink_version or '?'}{to}"

    def _measured(self) -> list[tuple[Link, PairBandwidth | None]]:
        """Each link with its measurement; None: not measured."""
        found = {(pair.a, pair.b): pair for pair in self.bandwidths}
        return [(link, found.get((link.a, link.b))) for link in self.links]

    def _of_median(self, link: Link, pair: PairBandwidth | None) -> float | None:
        """The slower direction over the median of such links; None: not measured."""
        slower, typical = _slower(pair), self.typical.get(link.link_class)
        return slower / typical if slower is not None and typical else None

    def _bandwidth_table(self) -> str:
        headers = ("GPUs", "link", "nominal", "a to b", "b to a", "both", "latency us", "of median")
        rows = [
            (
                f"{link.a} - {link.b}",
                link.link_class,
                *map(_number, (link.gbps, *pair[4:])),
                "" if (share := self._of_median(link, pair)) is None else f"{share:.0%}",
            )
            for link, pair in self._measured()
            if pair is not None
        ]
        return table(headers, rows, right=headers[2:]) + (
            "\nUnits: GB/s; nominal: one direction. Of median: the slower direction over the median"
            "\nof such links of this GPU model on all nodes."
        )


def _known(numa: int | None) -> int | None:
    """The NUMA node; None: the machine has only one, and Linux says -1."""
    return None if numa is None or numa < 0 else numa


def _slower(pair: PairBandwidth | None) -> float | None:
    """Bandwidth of the slower direction."""
    known = [] if pair is None else [v for v in (pair.ab_gbps, pair.ba_gbps) if v is not None]
    return min(known, default=None)


def _typical(profile: Profile, pairs: Sequence[PairBandwidth]) -> dict[tuple[str, str], float]:
    """(GPU model, link class) -> median bandwidth of a copy. GB/s."""
    classes = {
        (node, link.a, link.b): link.link_class
        for node, links in profile.links.items()
        for link in links
    }
    found: dict[tuple[str, str], list[float]] = {}
    for pair in pairs:
        slower, key = _slower(pair), (pair.node, pair.a, pair.b)
        if slower is not None and key in classes:
            model = profile.gpus[pair.node, pair.a].model or ""
            found.setdefault((model, classes[key]), []).append(slower)
    return {key: median(values) for key, values in found.items()}


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def topologies(store: Store, nodes: Sequence[str]) -> list[NodeTopology]:
    """Topology of these nodes, or of all with GPUs. Raises StoreError for an unknown node."""
    profile = load_profile(store)
    of_node: dict[str, dict[int, GpuRecord]] = {}
    for (node, slot), gpu in profile.gpus.items():
        of_node.setdefault(node, {})[slot] = gpu
    for name in nodes:
        if name not in of_node:
            raise StoreError(f"no GPUs of node {name!r}; known: {listed(sorted(of_node), 20)}")
    typical = _typical(profile, newest_bandwidths(store))
    return [
        NodeTopology(
            node,
            gpus,
            profile.links.get(node, ()),
            nics_of(store, node),
            newest_bandwidths(store, node),
            [one for name in OPERATIONS for one in newest_collectives(store, name, node)],
            {
                word: gbps
                for (model, word), gbps in typical.items()
                if model == (next(iter(gpus.values())).model or "")
            },
        )
        for node, gpus in of_node.items()
        if not nodes or node in nodes
    ]


class MeasuredRing(NamedTuple):
    """One measured set of GPUs."""

    graph: HardwareGraph  # Links of its node.
    gpus: tuple[int, ...]
    counts: tuple[int, int, int]  # x, y, z of eq. 2 for the fitted ring.
    slowest_gbps: float  # Nominal bandwidth of the slowest link of the best ring.
    gbps: float  # Measured bus bandwidth.


def measured_rings(store: Store, model: str | None) -> tuple[str, list[MeasuredRing]]:
    """The name of a GPU model, and the newest all-reduce of each set of its GPUs.

    Sets of several models, and of GPUs whose links are not known, are left out. ``model``: as
    `GpuRecord.model`; None: the only one. Raises StoreError if there is no
    measurement of it, or if ``model`` is None and several were measured.
    """
    profile = load_profile(store)
    graphs = {node: _graph(links) for node, links in profile.links.items()}
    of_model: dict[str, list[MeasuredRing]] = {}
    for one in newest_collectives(store, ALL_REDUCE):
        found = [profile.gpus.get((one.node, slot), GpuRecord()).model for slot in one.gpus]
        name, graph = found[0], graphs.get(one.node)
        if name is None or len(set(found)) > 1 or len(one.gpus) > MAX_EXACT:
            continue
        if graph is None or one.gpus[-1] >= graph.n:
            continue
        sample = MeasuredRing(graph, one.gpus, *_nominal(graph, one.gpus), one.gbps)
        of_model.setdefault(name, []).append(sample)
    known = listed(sorted(of_model), 20)
    if not of_model:
        raise StoreError("no all-reduce was measured: 'gpu-aware-profile sweep --links'")
    if model is None and len(of_model) > 1:
        raise StoreError(f"several GPU models were measured ({known}); choose one by --model")
    if model is not None and model not in of_model:
        raise StoreError(f"no all-reduce was measured on model {model!r}; measured: {known}")
    name = model or next(iter(of_model))
    return name, of_model[name]


@lru_cache(maxsize=1 << 16)
def _nominal(graph: HardwareGraph, gpus: tuple[int, ...]) -> tuple[tuple[int, int, int], float]:
    """Counts of the fitted ring, and the slowest link of the best one; equal on equal nodes."""
    return fitted_ring(graph, gpus), match(graph, gpus, _RING, BOTTLENECK).eff_gbps


def _graph(links: Sequence[Link]) -> HardwareGraph:
    return HardwareGraph.from_links(links, n=1 + max(link.b for link in links))
