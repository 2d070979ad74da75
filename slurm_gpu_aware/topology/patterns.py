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
from functools import cache
from itertools import combinations

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.filter_rules import PATTERNS

Edges = tuple[tuple[int, int], ...]

_EDGE_LIST = re.compile(r"[0-9]{1,2}-[0-9]{1,2}(,[0-9]{1,2}-[0-9]{1,2})*\Z")
_MAX_TEXT = 32_768  # characters of an edge list; all pairs of 100 GPUs fit


@dataclass(frozen=True)
class Pattern:
    """A named pattern, or an edge list."""

    name: str
    """One of `filter_rules.PATTERNS`, or ``edges``."""
    edges: Edges = ()
    """Only for ``edges``: pairs (a < b), sorted, each once."""

    def edges_for(self, k: int) -> Edges:
        """Edges between positions 0..k-1, each as often as it counts.

        ``ring+tree`` gives the ring, then the tree on the same positions; the matcher embeds them
        separately. An edge list is cut to the job's positions.
        """
        if self.name == "edges":
            return tuple((a, b) for a, b in self.edges if b < k)
        if self.name == "all-to-all":
            return tuple(combinations(range(k), 2))
        parts = self.name.split("+") if k > 1 else ()
        ring = ((i, (i + 1) % k) for i in range(k) if "ring" in parts)
        tree = (((i - 1) // 2, i) for i in range(1, k) if "tree" in parts)
        return (*ring, *tree)

    def has_edges(self, k: int) -> bool:
        """Say whether any of ``k`` GPUs communicate. Builds no edges."""
        if self.name == "edges":
            return any(b < k for _, b in self.edges)
        return k > 1 and self.name != "none"


@cache
def heap_children(k: int) -> tuple[int, int]:
    """Sizes of the two subtrees below the root of the balanced binary tree on ``k`` nodes."""
    # Counted from 1, node m lies below node 2 or 3: its two leading bits.
    left = sum(m >> (m.bit_length() - 2) == 2 for m in range(2, k + 1))
    return left, max(0, k - 1 - left)


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern's name or an edge list such as ``0-1,1-2``.

    Raises RequestError if the text is neither; the message lists the valid values.
    """
    if text in PATTERNS:
        return Pattern(text)
    if len(text) <= _MAX_TEXT and _EDGE_LIST.match(text):
        pairs = [tuple(int(v) for v in edge.split("-")) for edge in text.split(",")]
        if all(a != b for a, b in pairs):
            return Pattern("edges", tuple(sorted({(min(p), max(p)) for p in pairs})))
    raise RequestError(
        f"pattern {quoted(text)} is unknown; valid: {', '.join(PATTERNS)}, or edges such as 0-1,1-2"
    )
