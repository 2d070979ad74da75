"""Free GPUs of nodes, whole ones and what is left of shared ones, with best fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DueNode", "FreeGpus", "Share"]

ROUNDING = 1e-9
"""Of sums of shares."""


@dataclass(frozen=True)
class DueNode:
    """A node, as a source of GPUs for jobs with due dates."""

    model: str
    """GPU model."""
    gpus: int
    """GPUs for these jobs, those that they hold included."""


@dataclass(frozen=True)
class Share:
    """GPUs of one node that a job holds."""

    node: int
    gpus: float
    """Below 1: a share of one GPU."""
    slot: int | None = None
    """Number of the shared GPU on its node, if it is a share."""


class FreeGpus:
    """What is free; GPUs are taken and given back one job at a time.

    Shared GPUs of a node have numbers of their own, from 0: which GPUs of the node they are is for
    placement to say.
    """

    def __init__(self, nodes: Sequence[DueNode]) -> None:
        self.nodes = nodes
        self.whole = [node.gpus for node in nodes]
        """GPUs of each node that no job uses."""
        self.left: list[dict[int, float]] = [{} for _ in nodes]
        """Of each node: number of a shared GPU -> the share that is left."""

    def take(self, share: Share) -> None:
        """Take GPUs. ValueError: they are not free."""
        if share.slot is None:
            self.whole[share.node] -= round(share.gpus)
        else:
            left = self.left[share.node]
            if share.slot not in left:
                self.whole[share.node] -= 1
                left[share.slot] = 1.0
            left[share.slot] -= share.gpus
            if left[share.slot] < -ROUNDING:
                raise ValueError(f"GPU {share.slot} of node {share.node} is shared out")
        if self.whole[share.node] < 0:
            raise ValueError(f"node {share.node} has not as many GPUs")

    def give_back(self, share: Share) -> None:
        """Give GPUs back that were taken."""
        if share.slot is None:
            self.whole[share.node] += round(share.gpus)
            return
        left = self.left[share.node]
        left[share.slot] += share.gpus
        if left[share.slot] >= 1 - ROUNDING:
            del left[share.slot]
            self.whole[share.node] += 1

    def on_node(self, node: int, gpus: float) -> Share | None:
        """GPUs of one node; a share on the fullest GPU that has room. None: too few are free."""
        if gpus < 1:
            room = [
                (left, slot) for slot, left in self.left[node].items() if left >= gpus - ROUNDING
            ]
            if room:
                return Share(node, gpus, min(room)[1])
            unused = next(n for n in range(len(self.left[node]) + 1) if n not in self.left[node])
            return Share(node, gpus, unused) if self.whole[node] else None
        return Share(node, gpus) if self.whole[node] >= gpus else None

    def best_fit(self, model: str, gpus: float) -> Share | None:
        """GPUs of the node of this model that leaves the fewest free; used nodes first."""
        best: tuple[tuple[bool, bool, float, int], Share] | None = None
        for node, one in enumerate(self.nodes):
            if one.model != model or (found := self.on_node(node, gpus)) is None:
                continue
            opens = found.slot is not None and found.slot not in self.left[node]
            rest = self.whole[node] + sum(self.left[node].values())
            key = (opens, self.whole[node] == one.gpus, rest, node)
            if best is None or key < best[0]:
                best = key, found
        return best[1] if best else None

    @property
    def any(self) -> bool:
        """Something is free."""
        return any(self.whole) or any(self.left)
