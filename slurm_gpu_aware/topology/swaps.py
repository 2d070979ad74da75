"""Good mappings of a communication graph onto many sets of GPUs at once, by swaps.

From some starts each, two job GPUs of a mapping change places as long as the best such swap gains
something. A mapping that no swap improves is then shaken by a few swaps, and climbs again, some
times. What comes out is a mapping that exists, often the best; ``bounded`` says whether it is.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.topology.extend import Rows
from slurm_gpu_aware.topology.patterns import Edges

__all__ = ["swapped"]

_AT_ONCE = 1 << 15  # pairs of job GPUs that are looked at in one step


def _mixed(count: int, k: int, seed: int) -> IntArray:
    """(count, k) orders of 0..k-1 that look random and are the same on every computer."""
    first = np.uint64(1 + seed * 0x9E3779B97F4A7C15 % (1 << 64))
    number = np.arange(count * k, dtype=np.uint64).reshape(count, k) + first
    for shift in (30, 27, 31):  # the finalizer of splitmix64
        number = (number ^ (number >> np.uint64(shift))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.argsort(number, axis=1, kind="stable")


def swapped(
    gains: IntArray, edges: Edges, members: IntArray, starts: int, shakes: int = 0, seed: int = 0
) -> tuple[IntArray, IntArray]:
    """Gain of the best mapping found onto each set, and the mapping.

    Parameters
    ----------
    gains : (n, n) whole numbers, symmetric; links with negative ones are avoided if possible.
    edges : pairs of job GPUs 0..k-1, each once.
    members : (k, S) GPUs of each set.
    starts : orders to start from.
    shakes : how often each start is shaken.
    seed : another one, other starts.

    Returns
    -------
    (S,) sums and (S, k) GPU of each job GPU.
    """
    k, sets = members.shape
    orders = _mixed(starts, k, seed << 8)
    orders[0] = np.arange(k)
    most = int(np.abs(gains).max(initial=0)) * 8 * k  # more than any number in between
    whole: Rows = gains.astype(np.float32 if most < 1 << 24 else np.float64)
    seats = members.T[:, orders].reshape(-1, k)
    found = np.empty(len(seats), dtype=np.int64)
    step = max(1, _AT_ONCE // (k * k))
    for start in range(0, len(seats), step):
        part = slice(start, start + step)
        held = seats[part]
        value = _climb(whole, edges, held)
        for shake in range(1, shakes + 1):
            other = _shaken(held, (seed << 8) + shake)
            again = _climb(whole, edges, other)
            better = again >= value
            held[better], value[better] = other[better], again[better]
        found[part] = value
    best = found.reshape(-1, starts).argmax(axis=1) + starts * np.arange(sets)
    return found[best], seats[best]


def _shaken(seats: IntArray, seed: int) -> IntArray:
    """Four job GPUs of every mapping change places in a circle."""
    rows = np.arange(len(seats))[:, None]
    chosen = _mixed(len(seats), seats.shape[1], seed)[:, :4]
    other = seats.copy()
    other[rows, chosen] = seats[rows, np.roll(chosen, 1, axis=1)]
    return other


def _climb(gains: Rows, edges: Edges, seats: IntArray) -> IntArray:
    """Swap in place until no swap gains; return the sums."""
    k = seats.shape[1]
    talks = np.zeros((k, k), gains.dtype)
    for a, b in edges:
        talks[a, b] = talks[b, a] = 1.0
    value = np.zeros(len(seats))
    going = np.arange(len(seats))
    while len(going):
        rows = seats[going]
        links = gains[rows[:, :, None], rows[:, None, :]]
        # there[s, c, a]: what job GPU a would have on the seat of job GPU c.
        there = (links.reshape(-1, k) @ talks).reshape(links.shape)
        own = np.einsum("saa->sa", there)
        value[going] = own.sum(axis=1) / 2
        gain = there + there.transpose(0, 2, 1) + 2 * talks * links
        gain -= own[:, :, None] + own[:, None, :]
        gain[:, np.arange(k), np.arange(k)] = 0
        flat = gain.reshape(len(rows), k * k)
        best = flat.argmax(axis=1)
        better = flat[np.arange(len(rows)), best] > 0
        going, best = going[better], best[better]
        one, other = best // k, best % k
        seats[going, one], seats[going, other] = seats[going, other], seats[going, one]
    return value.astype(np.int64)
