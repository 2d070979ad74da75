"""Random small clusters and requests, and a placement oracle over all sets."""

from itertools import combinations, product

import numpy as np
from hypothesis import strategies as st
from make import job_request

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.request import Memory

BINS = (0.89, 0.94, 1.06, 2.55)


@st.composite
def clusters(draw, most_nodes=4, most_slots=4, most_gpus=12, plain=True):
    """Clusters of up to 12 GPUs: holes, busy GPUs, sockets, switches, models, plain nodes."""
    width = draw(st.integers(1, most_slots))
    n = draw(st.integers(1, min(most_nodes, most_gpus // width)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    exists = rng.random((n, width)) < draw(st.sampled_from([1.0, 0.8]))
    free = exists & (rng.random((n, width)) < draw(st.sampled_from([1.0, 0.7, 0.4])))
    scores = {c: rng.choice(BINS, (n, width)) for c in ("A", "B")}
    levels = []
    node_penalty = 1.0
    if draw(st.booleans()):
        group = np.arange(width)[None, :] // max(1, width // 2) + 10 * np.arange(n)[:, None]
        levels.append(LocalityLevel("socket", 1.0, group))
        node_penalty = draw(st.sampled_from([1.0, 1.04, 1.2]))
    levels.append(LocalityLevel("node", node_penalty, np.arange(n)))
    if draw(st.booleans()):
        levels.append(LocalityLevel("switch", 1.25, rng.integers(0, 2, n)))
    levels.append(
        LocalityLevel("cluster", draw(st.sampled_from([1.25, 1.5, 3.0])), np.zeros(n, dtype=int))
    )
    indexed = rng.random(n) < 0.6 if plain and draw(st.booleans()) else np.ones(n, dtype=bool)
    return Cluster.build(
        [f"n{i}" for i in range(n)],
        exists,
        free=free,
        scores=scores,
        levels=tuple(levels),
        free_cpus=rng.integers(0, 9, n),
        free_memory_mb=rng.integers(0, 9, n),
        indexed=indexed,
        model=tuple(rng.choice(["a100", "v100"], n)),
        same_indices=draw(st.booleans()),
    )


@st.composite
def requests(draw, cluster, job_id="1", app_class="A"):
    """Requests of every form for this cluster."""
    n, width = cluster.shape
    per_node = draw(st.none() | st.integers(1, width))
    gpus = per_node * draw(st.integers(1, n)) if per_node else draw(st.integers(1, 6))
    eligible = None
    if draw(st.integers(0, 3)) == 0:
        eligible = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    required = ()
    if draw(st.integers(0, 4)) == 0:
        required = tuple(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=2))))
    return job_request(
        job_id,
        gpus,
        min_nodes=draw(st.sampled_from([1, 1, 1, 2])),
        max_nodes=draw(st.sampled_from([None, None, 1, 2, 3])),
        gpus_per_node=per_node,
        app_class=app_class,
        gpu_model=draw(st.sampled_from([None, None, None, "a100"])),
        eligible=eligible,
        required=required,
        whole=draw(st.integers(0, 4)) == 0,
        cpus=draw(st.sampled_from([0, 1, 4, 8])),
        memory=Memory(per_gpu_mb=draw(st.sampled_from([0, 0, 2]))),
    )


def all_sets(request, cluster):
    """Every set that satisfies the request: tuples of (node, slots)."""
    n, width = cluster.shape
    per_node = [[] for _ in range(n)]
    for node in range(n):
        if request.nodes.eligible is not None and not request.nodes.eligible[node]:
            continue
        if request.nodes.gpu_model is not None and cluster.model[node] != request.nodes.gpu_model:
            continue
        there = [s for s in range(width) if cluster.exists[node, s]]
        free = [s for s in there if cluster.free[node, s]]
        if request.nodes.whole:
            per_node[node] = [tuple(there)] if there and free == there else []
        elif not cluster.indexed[node]:  # Slurm chooses: only the count is ours
            per_node[node] = [tuple(free[:c]) for c in range(1, len(free) + 1)]
        else:
            per_node[node] = [
                c for size in range(1, len(free) + 1) for c in combinations(free, size)
            ]
    most = min(n, request.max_nodes or request.gpus, request.gpus)
    for count in range(request.min_nodes, most + 1):
        for nodes in combinations(range(n), count):
            if not set(request.nodes.required) <= set(nodes):
                continue
            for slots in product(*(per_node[node] for node in nodes)):
                chosen = tuple(zip(nodes, slots, strict=True))
                if _allowed(request, cluster, chosen):
                    yield chosen


def _allowed(request, cluster, chosen):
    count = len(chosen)
    sizes = [len(slots) for _, slots in chosen]
    total_cpus = request.cpus.per_gpu * request.gpus if request.cpus.per_gpu else request.cpus.total
    even = request.gpus % count == 0
    share = request.gpus // count
    if request.gpus_per_node is not None and (not even or share != request.gpus_per_node):
        return False
    if request.nodes.whole:
        if not even or any(size < share for size in sizes):
            return False
        wanted = [share] * count
    else:
        if sum(sizes) != request.gpus:
            return False
        free_choice = not cluster.same_indices and request.gpus_per_node is None and count > 1
        if not free_choice:
            if not even or any(size != share for size in sizes):
                return False
            indexed = [bool(cluster.indexed[node]) for node, _ in chosen]
            if count > 1 and cluster.same_indices:
                if len(set(indexed)) > 1:
                    return False
                if indexed[0] and len({slots for _, slots in chosen}) > 1:
                    return False
        wanted = sizes
    for (node, _), size in zip(chosen, wanted, strict=True):
        cpus = -(-total_cpus * size // request.gpus)
        if cluster.free_cpus[node] < cpus:
            return False
        if cluster.free_memory_mb[node] < request.memory.per_gpu_mb * size:
            return False
        if request.memory.whole and cluster.free_memory_mb[node] < cluster.memory_mb[node]:
            return False
    return True


def cost(request, cluster, chosen, scores):
    """(worst score, sum of scores) by ``scores``; on plain nodes any free GPU may come."""
    worst, total = 0.0, 0
    for node, slots in chosen:
        values = [scores[node, s] for s in slots]
        if not cluster.indexed[node] and not request.nodes.whole:
            values = [max(scores[node, s] for s in np.flatnonzero(cluster.free[node]))] * len(slots)
        worst = max(worst, *values)
        total += sum(round(v * 1e5) for v in values)
    return worst, total


def level_index(request, cluster, chosen):
    """Tightest level that holds the set; below the node only where its GPUs are exact.

    One GPU lies in one domain, whichever GPU Slurm chooses.
    """
    if sum(len(slots) for _, slots in chosen) == 1:
        return 0
    for index, level in enumerate(cluster.levels):
        if level.group.ndim == 2:
            node, slots = chosen[0]
            exact = cluster.indexed[node]
            if len(chosen) == 1 and exact and len({level.group[node, s] for s in slots}) == 1:
                return index
        elif len({int(level.group[node]) for node, _ in chosen}) == 1:
            return index
    raise AssertionError("the last level holds everything")


@st.composite
def cases(draw):
    """(request, cluster)"""
    cluster = draw(clusters())
    return draw(requests(cluster)), cluster
