"""Time of exact matching on one machine, and of the alternatives.

Run ``python benchmarks/placement_mapa.py [MACHINE ...]``, or call :func:`mapa_matching`. One
decision of a bandwidth sensitive job on an idle machine, per job size:

first  all caches are empty, those of the combinatorics of n GPUs, too
new    a new machine; the combinatorics of its size are cached
warm   a known machine: the time from the second job of that size on

Times are medians of some repetitions. ``first`` and ``new`` are both compared with the target of
issue 3; if one misses it, its profile follows. Ratios are against scoring
every distinct ring of every set with NumPy, and against scoring every order of every set, as the
authors' code does, at the speed at which this process scores orders one by one.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from math import comb, factorial, perm

import numpy as np
from placement_profile import show_profile

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb import bipartition as topo_split
from slurm_gpu_aware.placement.policies import mapa
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.placement.selection import links
from slurm_gpu_aware.topology import general, matching, patterns, subsets
from slurm_gpu_aware.topology import patterns as rings
from slurm_gpu_aware.topology import patterns as trees
from slurm_gpu_aware.topology.machines import machine

MACHINES = ("dgx-1-v100", "dgx-1-p100", "dgx-a100", "mapa-torus-2d", "mapa-cubemesh-16")
PATTERNS = ("ring", "tree", "ring+tree", "all-to-all")
MODULES = (subsets, patterns, rings, trees, general, matching, links, mapa, topo_split)


def target_ms(gpus: int, k: int) -> float:
    """Targets of issue 3."""
    if gpus <= 8:
        return 1.0
    return 10.0 if k <= 6 else 200.0


def forget(*, everything: bool) -> None:
    """Empty the caches: of machines, or also of what depends on n and k alone."""
    by_size = {"_all_masks", "masks_of_size", "rank_of_mask", "members_of_size", "without_each"}
    by_size |= {"slots_of", "_pairs", "_closing", "_splits", "_steps", "_unmeasured", "_way"}
    by_size |= {"_orders", "_edges_of", "heap_children"}
    for module in MODULES:
        for name, value in vars(module).items():
            if (
                hasattr(value, "cache_clear")
                and not isinstance(value, type)
                and (everything or name not in by_size)
            ):
                value.cache_clear()
    matching._tables.clear()


def median_ms(action: Callable[[], object], repetitions: int, before: Callable[[], None]) -> float:
    """Median time of ``action`` over some repetitions, ``before`` not counted."""
    spent = []
    for _ in range(repetitions):
        before()
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e3


def distinct_rings(graph: HardwareGraph, k: int) -> float:
    """Best ring aggregate by scoring every distinct ring of every set, vectorised."""
    orders = [(0, *p) for p in permutations(range(1, k)) if k < 3 or p[0] < p[-1]]
    sets = np.array(list(combinations(range(graph.n), k)))
    best = 0.0
    for order in orders:
        gpus = sets[:, order]
        best = max(best, float(graph.gbps[gpus, np.roll(gpus, -1, axis=1)].sum(axis=1).max()))
    return best


def order_ms(graph: HardwareGraph, k: int) -> float:
    """Time to score one order of ``k`` GPUs in plain Python. Units: ms."""
    rows = graph.gbps.tolist()
    orders = [p for p, _ in zip(permutations(range(graph.n), k), range(2000), strict=False)]
    start = time.perf_counter()
    max(sum(rows[a][b] for a, b in zip(p, (*p[1:], p[0]), strict=True)) for p in orders)
    return (time.perf_counter() - start) * 1e3 / len(orders)


def mapa_matching(names: Sequence[str] = MACHINES, patterns: Sequence[str] = PATTERNS) -> None:
    """One decision per machine, pattern and job size: first, new, warm; target; ratios."""
    for name in names:
        graph = machine(name)
        idle = Cluster.uniform(1, graph.n, graph=graph)
        for pattern in patterns:
            print(f"\n{name}, {pattern}: one decision, ms (idle, sensitive job, exact)")
            head = f"{'GPUs':>5} {'first':>9} {'new':>9} {'warm':>9} {'target':>8}"
            print(head + (f"{'rings/new':>11} {'orders/new':>12}" if pattern == "ring" else ""))
            for k in range(1, graph.n + 1):
                _one_size(graph, idle, pattern, k)


def _one_size(graph: HardwareGraph, idle: Cluster, pattern: str, k: int) -> None:
    request = Request("1", k, bandwidth_sensitive=True, pattern=pattern)
    policy = make_policy("mapa-preserve")

    def decide() -> object:
        return policy.place(request, idle)

    few = 7 if graph.n > 8 else 30
    first = median_ms(decide, few, lambda: forget(everything=True))
    new = median_ms(decide, few, lambda: forget(everything=False))
    warm = median_ms(decide, 15, lambda: None)
    target = target_ms(graph.n, k)
    line = f"{k:>5} {first:>9.2f} {new:>9.2f} {warm:>9.2f} {target:>8.0f}"
    if pattern == "ring":
        rings_of_all = comb(graph.n, k) * max(1, factorial(k - 1) // 2)
        ratio = "-"
        if k >= 3 and rings_of_all <= 6_000_000:
            slow = median_ms(lambda: distinct_rings(graph, k), 1, lambda: None)
            ratio = f"{slow / new:,.0f}x"
        orders = perm(graph.n, k) * order_ms(graph, k)
        line += f"{ratio:>11} {orders / new:>11,.0f}x"
    missed = [name for name, ms in (("first", first), ("new", new)) if ms > target]
    print(line + (f"   over target: {', '.join(missed)}" if missed else ""))
    for name in missed:
        print(f"{'':>5} where {name} is spent:")
        forget(everything=name == "first")
        show_profile(decide)


if __name__ == "__main__":
    mapa_matching(sys.argv[1:] or MACHINES)
