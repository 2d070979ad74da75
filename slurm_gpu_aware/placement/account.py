"""Cost of a set of GPUs for a job, the account of a placement, and the assignment with both."""

from collections.abc import Sequence
from functools import lru_cache, partial
from math import isfinite
from operator import itemgetter

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.facts import Fact, Facts
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.facts import Cells, Chosen, ChosenNode, ConsideredSet, TriedCell
from slurm_gpu_aware.placement.selection.base import Choice

MOST_CELLS = 24  # cells in an account, which also has the number of tried cells
MOST_NODES = 16  # nodes in an account

_short = lru_cache(maxsize=1 << 12)(partial(round, ndigits=4))  # binned scores are few values


def assignment(
    policy: str, cell: Cell, choice: Choice, *facts: Fact, by: str = "mean_score"
) -> Assignment:
    """Build the assignment of a choice. Its score and slowdown are those of the job's class.

    ``facts``: what the policy says of it. ``by``: what the values of the considered sets are.
    """
    cluster, request = cell.supply.cluster, cell.supply.request
    score = worst_score(cluster, request.app_class, choice.nodes, choice.slots)
    level = level_of(cluster, choice.nodes, choice.slots)
    penalty, source = level.of(request.app_class)
    return Assignment(
        job_id=request.job_id,
        nodes=choice.nodes,
        slots=choice.slots,
        policy=policy,
        score=score,
        level=level.name,
        slowdown=penalty * score,
        exact=not request.nodes.whole and all(map(cluster.indexed.item, choice.nodes)),
        why=Facts((*facts, _chosen(cell, choice, by, source))),
    )


def _chosen(cell: Cell, choice: Choice, by: str, penalty_from: str | None) -> Chosen:
    """The chosen set and the candidates."""
    cluster, free = cell.supply.cluster, cell.supply.free
    app_class, names = cell.supply.request.app_class, cluster.nodes
    scores = cluster.score(app_class)
    listed = list(zip(choice.nodes, choice.slots, strict=True))[:MOST_NODES]
    named = cell.supply.request.nodes.whole or bool(cluster.indexed[list(choice.nodes)].all())

    def taken(node: int, slots: tuple[int, ...]) -> ChosenNode:
        left = int(free[node]).bit_count() - len(slots)
        if not named:
            return ChosenNode(names[node], left, gpus=len(slots))
        of_slots = tuple(_short(scores.item(node, slot)) for slot in slots)
        return ChosenNode(names[node], left, slots, of_slots)

    considered = choice.considered if named else ()  # else Slurm chooses the GPUs of the nodes
    return Chosen(
        nodes=tuple(taken(*one) for one in listed),
        by=by,
        app_class=app_class,
        penalty_from=penalty_from or "",
        candidate_nodes=len(cell.units),
        candidate_sets=choice.sets,
        ties=choice.ties,
        considered=tuple(
            ConsideredSet(names[c.node], tuple(c.slots), _short(c.value)) for c in considered
        ),
        cut=choice.cut or "",
    )


def set_words(cluster: Cluster, nodes: Sequence[int], slots: Sequence[Sequence[int]]) -> str:
    """Name a set in words: ``n1 GPUs 0,2`` or ``3 nodes from n1 to n7, 6 GPUs``.

    On plain nodes Slurm chooses the GPUs, so only their number is told: ``2 GPUs of n1``; of a node
    that gives none, only its name.
    """
    names = cluster.nodes
    if len(nodes) > 3:
        total = sum(len(s) for s in slots)
        return f"{len(nodes)} nodes from {names[nodes[0]]} to {names[nodes[-1]]}, {total} GPUs"
    parts = []
    for node, chosen in zip(nodes, slots, strict=True):
        gpus = "GPU" if len(chosen) == 1 else "GPUs"
        named = cluster.indexed.item(node)
        numbers = ",".join(map(str, chosen))
        text = (
            f"{names[node]} {gpus} {numbers}" if named else f"{len(chosen)} {gpus} of {names[node]}"
        )
        parts.append(text if chosen else names[node])
    return " + ".join(parts)


def cells_tried(cell: Cell, *, several_nodes: bool = False) -> Cells:
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
    listed = tuple(
        TriedCell(one.level.name, _short(value(one.bound_index)), _short(product), one.found)
        for product, one in tried
    )
    return Cells(listed, len(cell.tried), several_nodes)


def level_of(
    cluster: Cluster, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> LocalityLevel:
    """Return the tightest level that holds all GPUs of the set.

    On plain nodes Slurm chooses the GPUs, so only a single GPU gets a level below the node there.
    """
    first = nodes[0]
    if len(nodes) == 1 and len(slots[0]) == 1:
        return cluster.levels[0]
    for level in cluster.levels:
        if level.group.ndim == 2:
            if len(nodes) > 1 or not cluster.indexed[first]:
                continue
            numbers = {level.group.item(first, slot) for slot in slots[0]}
        elif len(nodes) == 1:
            return level
        else:
            numbers = set(map(level.group.item, nodes))
        if len(numbers) == 1 and min(numbers) >= 0:
            return level
    return cluster.levels[-1]


def worst_score(
    cluster: Cluster, app_class: str, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> float:
    """max V over the GPUs of the set.

    On a plain node Slurm may choose any free GPU, so free GPUs count as well. 1.0 where no GPU is
    known: of a job that runs on a plain node, if none is free there.
    """
    scores = cluster.score(app_class)
    values: list[float] = []
    for node, chosen in zip(nodes, slots, strict=True):
        values += [scores.item(node, slot) for slot in chosen]
        if not cluster.indexed.item(node):
            values += scores[node][cluster.free[node]].tolist()
    return float(max([v if isfinite(v) else 1.0 for v in values], default=1.0))


def predicted_slowdown(
    cluster: Cluster, app_class: str, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> tuple[float, str, float]:
    """Predict what a set of GPUs costs a job of a class.

    Returns the worst binned PM score, the name of the tightest level that holds the set, and
    t_iter / t_orig = L x max V (PAL, eq. 1).

    Examples
    --------
    >>> cluster = Cluster.uniform(2, 2, locality_penalty=1.5)
    >>> predicted_slowdown(cluster, "A", [0, 1], [[0], [0]])
    (1.0, 'cluster', 1.5)
    """
    score = worst_score(cluster, app_class, nodes, slots)
    level = level_of(cluster, nodes, slots)
    return score, level.name, level.of(app_class).value * score
