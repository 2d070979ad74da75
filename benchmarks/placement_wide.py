"""How long edge lists take that are too wide for tables over all sets, and whether they are exact.

Run ``python benchmarks/placement_wide.py [MACHINE ...]``, or call :func:`wide_patterns`. One
decision of a bandwidth sensitive job on an idle machine: ``new``, nothing of the pattern and the
machine is known (``CPU``: processor time of it); ``warm``, the second one. The ratio is against
scoring every order of every set at the speed at which this process scores orders one by one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import combinations
from math import perm

import numpy as np
from placement_mapa import forget, median_ms, order_ms

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.registry import make_policy
from slurm_gpu_aware.topology import bounded, symmetry
from slurm_gpu_aware.topology.machines import machine

MACHINES = ("mapa-torus-2d", "mapa-cubemesh-16", "dgx-2")
Edges = set[tuple[int, int]]


def grid(*sides: int, wrap: bool = False, diagonal: bool = False) -> Edges:
    """Pairs of a grid (``wrap``: a torus); ``diagonal``: also across the squares of a plane."""
    numbers = np.arange(np.prod(sides)).reshape(sides)
    steps = [tuple(int(axis == at) for at in range(len(sides))) for axis in range(len(sides))]
    steps += [(1, 1), (1, -1)] if diagonal else []
    edges = set()
    for place in np.ndindex(*sides):
        for step in steps:
            to = tuple(p + s for p, s in zip(place, step, strict=True))
            if wrap or all(0 <= t < side for t, side in zip(to, sides, strict=True)):
                other = tuple(t % side for t, side in zip(to, sides, strict=True))
                a, b = sorted((int(numbers[place]), int(numbers[other])))
                edges.add((a, b))
    return edges


def at_random(k: int, degree: int) -> Edges:
    """A graph on ``k`` with ``k degree / 2`` edges; always the same one."""
    pairs = list(combinations(range(k), 2))
    chosen = np.random.default_rng(k * 10 + degree).permutation(len(pairs))[: k * degree // 2]
    return {pairs[i] for i in chosen.tolist()}


PATTERNS: dict[str, tuple[int, Edges]] = {
    "3 x 3 torus": (9, grid(3, 3, wrap=True)),
    "3 x 4 grid": (12, grid(3, 4)),
    "3 x 4 torus": (12, grid(3, 4, wrap=True)),
    "2 x 2 x 3 grid": (12, grid(2, 2, 3)),
    "K(4,4) and a ring of 4": (
        12,
        {(a, b) for a in range(4) for b in range(4, 8)}
        | {(8, 9), (9, 10), (10, 11), (8, 11), *((i, i + 8) for i in range(4))},
    ),
    "4 x 4 grid": (16, grid(4, 4)),
    "4 x 4 torus, 4-cube": (16, grid(4, 4, wrap=True)),
    "4 x 4 grid, diagonals": (16, grid(4, 4, diagonal=True)),
}
PATTERNS |= {
    f"random {k}, degree {degree}": (k, at_random(k, degree))
    for k in (10, 12, 14, 16)
    for degree in (3, 4, 6, 8)
}


def forget_all() -> None:
    """Empty the caches of patterns and machines."""
    forget(everything=False)
    for cache in (bounded._pattern_steps, symmetry.lower_than, symmetry.first_of_orbit):
        cache.cache_clear()


def wide_patterns(names: Sequence[str] = MACHINES) -> None:
    """One decision per machine and pattern: new, warm; ratio; exact or not."""
    policy = make_policy("mapa-preserve")
    for name in names:
        graph = machine(name)
        idle = Cluster.uniform(1, graph.n, graph=graph)
        print(f"\n{name}, wide edge lists: one decision, ms (idle, sensitive job)")
        head = f"{'pattern':<24} {'GPUs':>4} {'new':>9} {'CPU':>9} {'warm':>8}"
        print(head + f" {'orders/new':>12}  exact")
        for title, (k, edges) in PATTERNS.items():
            text = ",".join(f"{a}-{b}" for a, b in sorted(edges))
            request = Request("1", k, bandwidth_sensitive=True, pattern=text)
            forget_all()
            start, spent = time.perf_counter(), time.process_time()
            found = policy.place(request, idle)
            new, cpu = time.perf_counter() - start, time.process_time() - spent
            warm = median_ms(lambda: policy.place(request, idle), 5, lambda: None)  # noqa: B023
            exact = "yes" if found is not None and "embeddings" not in found.why else "no"
            ratio = perm(graph.n, k) * order_ms(graph, min(k, 8)) / (new * 1e3)
            print(
                f"{title:<24} {k:>4} {new * 1e3:>9.1f} {cpu * 1e3:>9.1f} {warm:>8.2f} "
                f"{ratio:>11.1e}x  {exact}",
                flush=True,
            )


if __name__ == "__main__":
    wide_patterns(sys.argv[1:] or MACHINES)
