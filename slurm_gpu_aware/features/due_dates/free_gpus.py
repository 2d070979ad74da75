"""Free GPUs of nodes, whole ones and what is left of shared ones, with best fit."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from slurm_gpu_aware.model.arrays import BoolArray

ROUNDING = 1e-9  # Of sums of shares.


@dataclass(frozen=True)
class DueNode:
    """A node, as a source of GPUs for jobs with due dates."""

    model: str  # GPU model.
    gpus: int  # GPUs for these jobs, those that they hold included.


@dataclass(frozen=True)
class Share:
    """GPUs of one node that a job holds."""

    node: int
    gpus: float  # Below 1: a share of one GPU.
    slot: int | None = None  # Number of the shared GPU on its node, if it is a share.


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
        self._places = [(one.gpus > 0, float(one.gpus), node) for node, one in enumerate(nodes)]
        """Of each node: (all its GPUs are free, how many are, its number), the order of filling.

        The last node of a model has free GPUs if any has, so one without GPUs does not come last.
        """
        self._by_model: dict[str, list[tuple[bool, float, int]]] = {}
        for place, one in zip(self._places, nodes, strict=True):
            insort(self._by_model.setdefault(one.model, []), place)

    def take(self, share: Share) -> None:
        """Take GPUs. ValueError: they are not free."""
        node = share.node
        if share.slot is None:
            self.whole[node] -= round(share.gpus)
        else:
            left = self.left[node]
            if share.slot not in left:
                self.whole[node] -= 1
                left[share.slot] = 1.0
            left[share.slot] -= share.gpus
            if left[share.slot] < -ROUNDING:
                raise ValueError(f"GPU {share.slot} of node {node} is shared out")
        if self.whole[node] < 0:
            raise ValueError(f"node {node} has not as many GPUs")
        self._note(node)

    def give_back(self, share: Share) -> None:
        """Give GPUs back that were taken."""
        if share.slot is None:
            self.whole[share.node] += round(share.gpus)
        else:
            left = self.left[share.node]
            left[share.slot] += share.gpus
            if left[share.slot] >= 1 - ROUNDING:
                del left[share.slot]
                self.whole[share.node] += 1
        self._note(share.node)

    def _note(self, node: int) -> None:
        """Put a node whose GPUs have changed at its place among those of its model."""
        one, whole = self.nodes[node], self.whole[node]
        ordered = self._by_model[one.model]
        del ordered[bisect_left(ordered, self._places[node])]
        place = (0 < whole == one.gpus, whole + sum(self.left[node].values()), node)
        self._places[node] = place
        insort(ordered, place)

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

    def best_fit(self, model: str, gpus: float, allowed: BoolArray | None = None) -> Share | None:
        """GPUs of the node of this model that leaves the fewest free; used nodes first.

        A share of a GPU that is shared already comes first. ``allowed``: (N,) nodes that count;
        None: all.
        """
        ordered, opens = self._by_model.get(model, []), None
        used, unused = (bisect_left(ordered, (whole, gpus - ROUNDING)) for whole in (False, True))
        for n in chain(range(used, bisect_left(ordered, (True,))), range(unused, len(ordered))):
            if allowed is not None and not allowed[ordered[n][2]]:
                continue
            found = self.on_node(ordered[n][2], gpus)
            if found is not None and (found.slot is None or found.slot in self.left[found.node]):
                return found
            opens = opens or found
        return opens

    @property
    def any(self) -> bool:
        """Something is free."""
        return any(ordered[-1][1] > ROUNDING for ordered in self._by_model.values())
