"""Hardware graphs: the GPUs of one machine and the best link of every pair.

A graph is a value: two graphs with the same links are equal and, if built by the functions here,
are one shared object. The matcher caches tables per graph, so equal nodes share them.

NICs of a node, and measured bandwidths: of pairs of GPUs and of collectives.

What the product name of a GPU says: its model, its NVLinks, and the board of the model.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.model.arrays import FloatArray

NVLINK_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0, 6: 100.0}
"""Generation of NVLink -> GB/s of one link in one direction."""
_NVLINK_5 = re.compile("g?b[123]00")
_VENDOR_WORDS = {"nvidia", "tesla", "quadro", "geforce", "graphics", "device", "gpu"}
_VENDOR_WORDS |= {"hgx", "dgx", "grid", "amd", "instinct"}
_SERIES_WORDS = {"rtx", "gtx", "titan", "pro", "cmp"}
_VARIANT_WORDS = {"ti", "super", "ada", "nvl", "maxq", "laptop", "d", "v2"}
_BOARD = re.compile(
    r"pcie|(?P<sxm>sxm)\d?|nvl|fhhl|lc|sff|hbm\w{1,3}|3e|server|workstation|(?P<size>\d{1,4})gi?b?"
)
PCIE_GBPS = 12.0  # PCIe gen3 x16 (MAPA, table 1).
# One direct link in one direction. xGMI (Infinity Fabric) of MI200: 16 lanes of 25 GT/s (AMD,
# "MI250 microarchitecture"); MI100 (23 GT/s) has 46, MI300 (32 GT/s) 64.
_DIRECT_GBPS = {"NV": NVLINK_GBPS[4], "XGMI": 50.0}
# nvidia-smi's words from near to far. MAPA has a single PCIe class of 12 GB/s; these steps keep
# near pairs ahead of far ones if only the words are known.
_HOST_GBPS = {"PIX": PCIE_GBPS, "PXB": 11.0, "PHB": 10.0, "NODE": 9.0, "SYS": 8.0}
LINK_CLASS = re.compile(
    rf"(?:(?P<kind>{'|'.join(_DIRECT_GBPS)})(?P<links>[1-9][0-9]?)|{'|'.join(_HOST_GBPS)})\Z"
)
"""Word for the best link of a pair: ``NV2`` or ``XGMI2``, two bonded direct links of NVIDIA or AMD,
or nvidia-smi's word for a path through PCIe or the host."""
ALL_REDUCE = "all_reduce"
OPERATIONS = (ALL_REDUCE, "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall")
"""Collectives in the words of nccl-tests."""


def model_word(name: str) -> str | None:
    """Return the short name of a model: ``Tesla V100-SXM2-16GB`` is ``v100``.

    It is the first word that is neither the vendor's nor a product line's, up to its first hyphen,
    with a leading ``rtx``, ``gtx``, ``titan``, ``cmp`` or ``pro``, because a number alone is not
    specific, and with words that name another chip or limit: ``RTX 6000 Ada Generation`` is
    ``rtx6000ada``.
    """
    plain = name.lower().replace("max-q", "maxq")
    heads = [re.sub(r"[^a-z0-9]", "", word.partition("-")[0]) for word in plain.split()]
    words = [head for head in heads if head and head not in _VENDOR_WORDS]
    end = next((i + 1 for i, word in enumerate(words) if word not in _SERIES_WORDS), len(words))
    variants = [word for word in words[end:] if word in _VARIANT_WORDS]
    return "".join(words[:end] + variants) or None


def nvlink_gbps(model: str | None) -> float:
    """GB/s of one NVLink of a model in one direction; of an unknown one that of NVLink 2 to 4."""
    newest = 5 if _NVLINK_5.match(model or "") else 4
    return NVLINK_GBPS[1 if model == "p100" else newest]


def board_of(name: str | None) -> str:
    """Form and memory as far as a product name has them: ``A100-PCIE-40GB`` is ``40gb pcie``."""
    words = map(_BOARD.fullmatch, re.split(r"[^a-z0-9]+", (name or "").lower()[:200]))
    return " ".join(
        sorted({f"{m['size']}gb" if m["size"] else m["sxm"] or m[0] for m in words if m})
    )


_interned: weakref.WeakValueDictionary[bytes, HardwareGraph] = weakref.WeakValueDictionary()


def direct_links(link_class: str) -> int:
    """Bonded direct links of a class word: 2 for ``NV2``, 0 for a path through PCIe or the host.

    Raises ValueError for an unknown word.
    """
    return int(_parsed(link_class)["links"] or 0)


def class_gbps(link_class: str) -> float:
    """Nominal bandwidth of a class in one direction, for pairs without a measurement. GB/s."""
    kind, links = _parsed(link_class).group("kind", "links")
    return int(links) * _DIRECT_GBPS[kind] if kind else _HOST_GBPS[link_class]


def _parsed(link_class: str) -> re.Match[str]:
    match = LINK_CLASS.match(link_class)
    if match is None:
        known = ", ".join([*(f"{kind}1..{kind}99" for kind in _DIRECT_GBPS), *_HOST_GBPS])
        raise ValueError(f"unknown link class {quoted(link_class)}; known: {known}")
    return match


@dataclass(frozen=True, eq=False)
class HardwareGraph:
    """GPUs of a node and the best link of every pair. Immutable.

    Build a graph with :meth:`build`, :meth:`from_links`, :func:`uniform_graph` or by name
    (``machines.machine``). These check the input and return the shared object.
    """

    gbps: FloatArray  # (n, n) GB/s in one direction, symmetric, zero diagonal, read-only.
    classes: tuple[tuple[str, ...], ...]  # (n, n) words of `LINK_CLASS`; ``X`` on the diagonal.
    groups: tuple[int, ...]  # CPU socket of each GPU, length n.
    effbw: tuple[float, ...] | None
    """Coefficients of MAPA's eq. 2, fitted to such GPUs; None: no fit."""
    key: bytes  # Digest of the other fields, for equality and hash.

    @property
    def n(self) -> int:
        """Number of GPUs (slots 0..n-1)."""
        return len(self.groups)

    @cached_property
    def is_uniform(self) -> bool:
        """All pairs have the same bandwidth, so all sets of a size are equal."""
        links = self.gbps[np.triu_indices(self.n, 1)]
        return bool((links == links[:1]).all())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, HardwareGraph) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"HardwareGraph({self.n} GPUs, {self.gbps.sum() / 2:g} GB/s)"

    @classmethod
    def build(
        cls,
        gbps: FloatArray | Sequence[Sequence[float]],
        classes: Sequence[Sequence[str]],
        groups: Sequence[int] | None = None,
        effbw: Sequence[float] | None = None,
    ) -> HardwareGraph:
        """Check the matrices and return the shared graph with these links.

        ``gbps``: (n, n) finite, >= 0, symmetric, GB/s; rounded to 1/1024. ``classes``: (n, n)
        words of `LINK_CLASS`, symmetric. The diagonals are ignored. ``groups``: (n,) socket of each
        GPU; None: one socket. Raises ValueError if a shape, a value or a word is wrong.
        """
        weights = np.array(gbps, dtype=np.float64)
        n = len(classes)
        if weights.shape != (n, n) or any(len(row) != n for row in classes):
            raise ValueError(f"links of {n} GPUs need {n} x {n} matrices, not {weights.shape}")
        np.fill_diagonal(weights, 0.0)
        # Sums of multiples of 1/1024 are exact, so equal sets compare equal in any order.
        weights = np.round(weights * 1024.0) / 1024.0
        if not np.isfinite(weights).all() or (weights < 0).any() or (weights != weights.T).any():
            raise ValueError("link bandwidths must be finite, not negative and symmetric")
        words = tuple(
            tuple("X" if i == j else str(word) for j, word in enumerate(row))
            for i, row in enumerate(classes)
        )
        for j, i in combinations(range(n), 2):
            _parsed(words[i][j])
            if words[i][j] != words[j][i]:
                raise ValueError(f"link {i}-{j} has two classes, {words[i][j]}, {words[j][i]}")
        sockets = tuple(int(g) for g in groups) if groups is not None else (0,) * n
        if len(sockets) != n:
            raise ValueError(f"{n} GPUs need {n} socket numbers, not {len(sockets)}")
        weights.setflags(write=False)
        fit = None if effbw is None else tuple(effbw)
        key = hashlib.blake2b(repr((words, sockets, fit)).encode() + weights.tobytes()).digest()
        return _interned.setdefault(key, cls(weights, words, sockets, fit, key))

    @classmethod
    def from_links(
        cls,
        links: Iterable[tuple[int, int, str, float | None]],
        *,
        n: int,
        groups: Sequence[int] | None = None,
        effbw: Sequence[float] | None = None,
    ) -> HardwareGraph:
        """Graph of n GPUs from a list of pairs, as the probe reports them.

        ``links``: `Link` values or such tuples in any order, each pair at most once. Missing pairs
        are ``SYS``, also those of a GPU that the probe could not read. ``groups``, ``effbw``: as in
        `build`.

        Raises ValueError if a pair is listed twice, joins a GPU with itself or is out of range, or
        if a class is unknown.
        """
        gbps = np.full((n, n), class_gbps("SYS"))
        classes = [["SYS"] * n for _ in range(n)]
        seen: set[tuple[int, int]] = set()
        for a, b, word, value in links:
            pair = (min(a, b), max(a, b))
            if a == b or pair in seen or pair[0] < 0 or pair[1] >= n:
                raise ValueError(f"link {a}-{b}: bad or repeated pair in a machine of {n} GPUs")
            seen.add(pair)
            classes[a][b] = classes[b][a] = word
            gbps[a, b] = gbps[b, a] = class_gbps(word) if value is None else value
        return cls.build(gbps, classes, groups, effbw)

    def subgraph(self, gpus: Sequence[int]) -> HardwareGraph:
        """Graph of these GPUs alone, renumbered in the given order."""
        return HardwareGraph.build(
            self.gbps[np.ix_(gpus, gpus)],
            [[self.classes[i][j] for j in gpus] for i in gpus],
            [self.groups[i] for i in gpus],
            self.effbw,
        )

    def padded(self, n: int) -> HardwareGraph:
        """The same graph with ``n`` slots; new ones have ``SYS`` links and a common new socket."""
        if n <= self.n:
            return self
        pairs = combinations(range(self.n), 2)
        links = [(a, b, self.classes[a][b], self.gbps.item(a, b)) for a, b in pairs]
        new = 1 + max(self.groups, default=-1)
        groups = [*self.groups, *([new] * (n - self.n))]
        return HardwareGraph.from_links(links, n=n, groups=groups, effbw=self.effbw)


def uniform_graph(n: int, link_class: str = "PHB", gbps: float = PCIE_GBPS) -> HardwareGraph:
    """Graph of equal pairs: GPUs behind a switch, or without measured links."""
    return HardwareGraph.build(np.full((n, n), gbps), [[link_class] * n for _ in range(n)])


class Nic(NamedTuple):
    """A network adapter with its place in the PCIe tree."""

    name: str  # Its InfiniBand device, ``mlx5_0``, else its network interface.
    pci: str  # ``0000:1a:00.0``
    numa: int | None  # NUMA node; None: not known.
    gpus: Mapping[int, str]
    """Slurm's index of a GPU -> class of the path, in nvidia-smi's words (PIX .. SYS)."""
    nics: Mapping[str, str]  # Name of another NIC of the node -> class of the path.


class PairBandwidth(NamedTuple):
    """One measurement between two GPUs of a node. None: not measured. Units: GB/s."""

    node: str
    a: int
    b: int  # ``a < b``, Slurm's indices.
    taken_at: float  # Unix time.
    ab_gbps: float | None = None  # From ``a`` to ``b``.
    ba_gbps: float | None = None
    both_gbps: float | None = None  # Sum of both directions at once.
    latency_us: float | None = None  # One way, mean of both directions.


class Collective(NamedTuple):
    """Bandwidth of one collective operation over GPUs of one node."""

    node: str
    gpus: tuple[int, ...]  # Slurm's indices, ascending; two or more.
    operation: str  # One of ``OPERATIONS``.
    taken_at: float  # Unix time.
    gbps: float
    """Bus bandwidth as nccl-tests defines it; of a ring: that of its slowest link. GB/s."""
    size_bytes: int | None = None  # Size of the message; None: not known.
