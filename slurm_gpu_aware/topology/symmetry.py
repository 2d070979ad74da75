"""Symmetries of a communication graph: which of many equal mappings is the one to look at.

A chain of stabilizers gives the conditions: with the symmetries that leave the job GPUs before it
where they are, a job GPU can be exchanged for each one of its orbit, so it may be asked to take
the lowest GPU of them all. Exactly one mapping of each class of equal ones meets all conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from slurm_gpu_aware.topology.patterns import Edges

__all__ = ["first_of_orbit", "lower_than"]


@lru_cache(maxsize=256)
def lower_than(edges: Edges, k: int, order: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    """Return the job GPUs that may be asked to take a GPU of higher index than each one takes.

    Parameters
    ----------
    edges : pairs of job GPUs 0..k-1, each once.
    order : all job GPUs; the conditions of one hold with those before it left where they are.

    Returns
    -------
    Entry v: the other job GPUs of the orbit of v.
    """
    near = _neighbours(edges, k)
    conditions: list[frozenset[int]] = [frozenset()] * k
    for at, vertex in enumerate(order):
        conditions[vertex] = frozenset(x for x in order[at + 1 :] if _exchanges(near, order, at, x))
    return tuple(conditions)


@lru_cache(maxsize=256)
def first_of_orbit(edges: Edges, k: int) -> tuple[int, ...]:
    """Return the lowest job GPU of each orbit: the others are like one of these."""
    near, found = _neighbours(edges, k), list[int]()
    for vertex in range(k):
        order = tuple(sorted(range(k), key=lambda v: v != vertex))
        if not any(_exchanges(near, order, 0, known) for known in found):
            found.append(vertex)
    return tuple(found)


def _neighbours(edges: Edges, k: int) -> list[int]:
    near = [0] * k
    for a, b in edges:
        near[a] |= 1 << b
        near[b] |= 1 << a
    return near


def _exchanges(near: Sequence[int], order: Sequence[int], fixed: int, image: int) -> bool:
    """Is there a symmetry that fixes the first of ``order`` and takes the next one to ``image``?"""
    taken = {v: v for v in order[:fixed]}

    def fits(v: int, to: int) -> bool:
        return near[v].bit_count() == near[to].bit_count() and all(
            (near[v] >> u & 1) == (near[to] >> at & 1) for u, at in taken.items()
        )

    def extend(at: int) -> bool:
        if at == len(order):
            return True
        v, used = order[at], set(taken.values())
        for to in (image,) if at == fixed else order:
            if to not in used and fits(v, to):
                taken[v] = to
                if extend(at + 1):
                    return True
                del taken[v]
        return False

    return extend(fixed)
