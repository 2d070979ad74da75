"""Communication patterns: the pairs of a job's GPUs that communicate (MAPA, section 3.1).

=========== ==========================================================================
ring        0-1-...-(k-1)-0; two GPUs use their link twice
tree        balanced binary tree: GPU i communicates with GPU (i-1)//2
ring+tree   both, embedded separately as in NCCL; a link that both use counts twice
all-to-all  every pair once
none        no links
edge list   ``0-1,1-2,1-3``: the job's GPUs are numbered 0..k-1
=========== ==========================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import RequestError

__all__ = ["NAMED_PATTERNS", "Edges", "Pattern", "heap_children", "parse_pattern"]

NAMED_PATTERNS = ("ring", "tree", "ring+tree", "all-to-all", "none")
Edges = tuple[tuple[int, int], ...]

_EDGE_LIST = re.compile(r"[0-9]{1,2}-[0-9]{1,2}(,[0-9]{1,2}-[0-9]{1,2})*\Z")


_MAX_TEXT = 32_768
"""Longest edge list in characters; all pairs of 100 GPUs, the most that it can number, fit."""


@dataclass(frozen=True)
class Pattern:
    """A named pattern, or an edge list."""

    name: str
    """One of ``NAMED_PATTERNS``, or ``edges``."""
    edges: Edges = ()
    """Only for ``edges``: pairs (a < b), sorted, each once."""

    def edges_for(self, k: int) -> Edges:
        """Edges between positions 0..k-1, each as often as it counts.

        ``ring+tree`` gives the ring, then the tree on the same positions; the matcher embeds them
        separately. An edge list is cut to the job's positions.
        """
        if self.name == "edges":
            return tuple((a, b) for a, b in self.edges if b < k)
        return (_named_edges if k <= _CACHED else _named_edges.__wrapped__)(self.name, k)

    def has_edges(self, k: int) -> bool:
        """Say whether any of ``k`` GPUs communicate. Builds no edges."""
        if self.name == "edges":
            return any(b < k for _, b in self.edges)
        return k > 1 and self.name != "none"


_CACHED = 64
"""Most GPUs for which edges are cached; for more GPUs they can take megabytes."""


@lru_cache(maxsize=len(NAMED_PATTERNS) * (_CACHED + 1))
def _named_edges(name: str, k: int) -> Edges:
    ring = tuple((i, (i + 1) % k) for i in range(k)) if k > 1 else ()
    tree = tuple(((i - 1) // 2, i) for i in range(1, k))
    if name == "ring":
        return ring
    if name == "tree":
        return tree
    if name == "ring+tree":
        return ring + tree
    if name == "all-to-all":
        return tuple((a, b) for a in range(k) for b in range(a + 1, k))
    return ()


@cache
def heap_children(k: int) -> tuple[int, int]:
    """Sizes of the two subtrees below the root of the balanced binary tree on ``k`` nodes."""
    left = right = 0
    stack = [(1, 0), (2, 1)]
    while stack:
        node, side = stack.pop()
        if node < k:
            left, right = left + (side == 0), right + (side == 1)
            stack += [(2 * node + 1, side), (2 * node + 2, side)]
    return left, right


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern's name or an edge list such as ``0-1,1-2``.

    Raises
    ------
    RequestError
        The text is neither; the message lists the valid values.
    """
    if text in NAMED_PATTERNS:
        return Pattern(text)
    if len(text) <= _MAX_TEXT and _EDGE_LIST.match(text):
        pairs = [tuple(int(v) for v in edge.split("-")) for edge in text.split(",")]
        if all(a != b for a, b in pairs):
            return Pattern("edges", tuple(sorted({(min(p), max(p)) for p in pairs})))
    valid = ", ".join(NAMED_PATTERNS)
    raise RequestError(
        f"pattern {quoted(text)} is unknown; valid: {valid}, or edges such as 0-1,1-2"
    )
