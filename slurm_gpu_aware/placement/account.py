"""Account of a placement (``Assignment.why``), and the assignment with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.evaluate import level_of, worst_score
from slurm_gpu_aware.placement.selection.base import Choice

__all__ = ["assignment", "cells_tried", "set_words"]

MOST_CELLS = 24  # cells in an account, which also has the number of tried cells
MOST_NODES = 16  # nodes in an account


@lru_cache(maxsize=1 << 12)
def _short(value: float) -> float:
    """Round to four decimals; cached because binned scores have few distinct values."""
    return round(value, 4)


def assignment(
    policy: str,
    cell: Cell,
    choice: Choice,
    *,
    why: Mapping[str, Any] | None = None,
    rule: str,
    by: str = "mean_score",
) -> Assignment:
    """Build the assignment of a choice. Its score and slowdown are those of the job's class.

    Parameters
    ----------
    why : additions of the policy to the account (cells tried, ...).
    rule : rule of the choice, one sentence without a full stop.
    by : key for the values of the considered sets.
    """
    cluster, request = cell.supply.cluster, cell.supply.request
    score = worst_score(cluster, request.app_class, choice.nodes, choice.slots)
    level = level_of(cluster, choice.nodes, choice.slots)
    penalty, source = level.of(request.app_class)
    account = {
        "class": request.app_class,
        **({"penalty_from": source} if source else {}),
        **(why or {}),
        **_account(cell, choice, by),
        "summary": "; ".join(filter(None, (rule, choice.cut))),
    }
    return Assignment(
        job_id=request.job_id,
        nodes=choice.nodes,
        slots=choice.slots,
        policy=policy,
        score=score,
        level=level.name,
        slowdown=penalty * score,
        exact=not request.whole_node and all(map(cluster.indexed.item, choice.nodes)),
        why=account,
    )


def _account(cell: Cell, choice: Choice, by: str) -> dict[str, Any]:
    """The chosen set and the candidates."""
    cluster, free = cell.supply.cluster, cell.supply.free
    scores = cluster.score(cell.supply.request.app_class)
    listed = list(zip(choice.nodes, choice.slots, strict=True))[:MOST_NODES]
    account: dict[str, Any] = {
        "candidate_nodes": len(cell.units),
        "ties": choice.ties,
        "chosen": [
            {
                "node": cluster.nodes[node],
                "slots": list(slots),
                "scores": [_short(scores.item(node, s)) for s in slots],
                "left_free": int(free[node]).bit_count() - len(slots),
            }
            for node, slots in listed
        ],
    }
    if choice.sets is not None:
        account["candidate_sets"] = choice.sets
    if choice.cut:
        account["cut"] = choice.cut
    if choice.considered:
        account["considered"] = [
            {"node": cluster.nodes[c.node], "slots": list(c.slots), by: _short(c.value)}
            for c in choice.considered
        ]
    return account


def set_words(names: Sequence[str], nodes: Sequence[int], slots: Sequence[Sequence[int]]) -> str:
    """Name a set in words: ``n1 GPUs 0,2`` or ``3 nodes from n1 to n7, 6 GPUs``."""
    if len(nodes) > 3:
        total = sum(len(s) for s in slots)
        return f"{len(nodes)} nodes from {names[nodes[0]]} to {names[nodes[-1]]}, {total} GPUs"
    return " + ".join(
        f"{names[node]} GPU{'s' if len(chosen) != 1 else ''} {','.join(map(str, chosen))}"
        for node, chosen in zip(nodes, slots, strict=True)
    )


def cells_tried(cell: Cell) -> dict[str, Any]:
    """The cells that the search tested, in ascending product; the first with a set is the chosen.

    Of equal products the tighter level comes first. The search bisects the bounds of a level, so it
    does not test a cell if a larger one of the level holds no set or a smaller one holds a set. At
    most ``MOST_CELLS`` cells are listed, the chosen one among them.
    """
    value = cell.supply.table.values.item
    tried = [(one.level.penalty * value(one.bound_index), one) for one in cell.tried]
    tried.sort(key=itemgetter(0))  # stable: the search tests tighter levels first
    if len(tried) > MOST_CELLS:
        chosen = next(place for place, (_, one) in enumerate(tried) if one.found)
        start = max(0, chosen + 1 - MOST_CELLS)
        tried = tried[start : start + MOST_CELLS]
    listed = [
        {
            "level": one.level.name,
            "V": _short(value(one.bound_index)),
            "LxV": _short(product),
            "found": one.found,
        }
        for product, one in tried
    ]
    return {"cells": listed, "cells_tried": len(cell.tried)}
