"""The shared step of the dynamic programs: exact in single and double precision."""

from itertools import permutations

import numpy as np
import pytest

from slurm_gpu_aware.topology.patterns import Rings
from slurm_gpu_aware.topology.subsets import exact_type


def weights_of(values):
    n = 5
    weights = np.zeros((n, n))
    weights[np.triu_indices(n, 1)] = values
    return weights + weights.T


def test_single_precision_only_where_every_sum_is_exact():
    nvlinks = weights_of([50.0, 25.0, 12.0, 0.0009765625, 0.5] * 2)
    assert exact_type(nvlinks, 16) is np.float32
    assert exact_type(np.where(nvlinks == 12.0, -np.inf, nvlinks), 16) is np.float32
    assert exact_type(nvlinks + 1e-4, 16) is np.float64  # no whole number of 1/1024
    assert exact_type(nvlinks * 400, 16) is np.float64  # 16 x 20,000 GB/s have too many bits


@pytest.mark.parametrize("factor", [1.0, 1.1, 1000.0])
def test_ring_sums_are_those_of_double_precision(factor):
    rng = np.random.default_rng(3)
    weights = weights_of(rng.integers(1, 60_000, 10) / 1024.0 * factor)
    rings = [(0, *rest) for rest in permutations(range(1, 5))]
    sums = [sum(weights[a, b] for a, b in zip(r, (*r[1:], 0), strict=True)) for r in rings]
    total, slowest = Rings(weights, 5, np.add, np.minimum).values()
    assert total[0] == pytest.approx(max(sums), rel=1e-15)
    assert slowest[0] in weights
