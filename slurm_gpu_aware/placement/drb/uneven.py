"""Search for uneven sets of several machines (free choice of GPUs per node).

The search takes as few machines as possible: next the machine that holds all remaining GPUs, else
the one that holds most; of several the cheapest.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.drb.machines import Machines, PlacedSet

__all__ = ["uneven_set"]


def uneven_set(machines: Machines, rows: IntArray) -> PlacedSet | None:
    """A set of some of ``rows``; None if there is none.

    Required nodes come first. Each of them, and each of ``min_nodes``, gives at least one GPU.
    """
    cell = machines.cell
    request = cell.supply.request
    capacity = cell.supply.capacity(cell.units, cell.masks)
    required = [int(row) for row in rows[np.isin(cell.units[rows], list(request.required))]]
    fewest = request.fewest_nodes
    rest = rows[(capacity[rows] > 0) & ~np.isin(rows, required)]

    @cache
    def offers(k: int) -> tuple[list[int | None], FloatArray]:
        """(mask per kind, cost per row) of ``k`` GPUs."""
        masks = machines.masks(k)
        return masks, machines.row_costs(masks)

    def following(among: IntArray, wanted: int) -> tuple[int, int] | None:
        """The next row, and its mask of at most ``wanted`` GPUs."""
        count = int(min(wanted, capacity[among].max(initial=0)))
        while count > 0:
            masks, costs = offers(count)
            able = among[(capacity[among] >= count) & np.isfinite(costs[among])]
            if len(able):
                row = int(able[np.lexsort((able, machines.left[able], costs[able]))[0]])
                mask = masks[int(machines.of_row[row])]
                return None if mask is None else (row, mask)
            count -= 1  # links are too narrow for this many
        return None

    picked: dict[int, int] = {}
    left = request.gpus
    while left > 0:
        first = np.array([r for r in required if r not in picked], dtype=np.int64)
        among = first[:1] if len(first) else rest[~np.isin(rest, list(picked))]
        later = max(fewest - len(picked) - 1, len(first) - 1, 0)  # nodes that still need a GPU
        step = following(among, left - later)
        if step is None:
            return None
        row, mask = step
        picked[row] = mask
        left -= mask.bit_count()
    most = request.max_nodes if request.max_nodes is not None else len(picked)
    if not fewest <= len(picked) <= most:
        return None
    ordered = sorted(picked)
    return machines.placed(np.array(ordered, dtype=np.int64), [picked[row] for row in ordered])
