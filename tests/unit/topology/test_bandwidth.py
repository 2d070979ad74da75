"""AggBW, EffBW and PreservedBW: worked numbers of the paper, eq. 2 everywhere, the refit."""

from itertools import combinations

import numpy as np
import pytest

from slurm_gpu_aware.topology.bandwidth import (
    PAPER,
    eq2,
    eq2_model,
    fit_bottleneck,
    fit_eq2,
    preserved_bw,
    share_of_best,
)
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import agg_table, fitted_ring
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import mask_of

DGX = machine("dgx-1-v100")
RING = Pattern("ring")


def by_hand(x, y, z):
    """Eq. 2 as it is printed."""
    return (
        16.396 * x + 4.536 * y + 1.556 * z - 20.694 / (x + 1) - 9.467 / (y + 1) + 7.615 / (z + 1)
        - 7.973 * x * y + 12.733 * y * z - 4.195 * z * x
        - 8.413 / (x * y + 1) + 62.851 / (y * z + 1) + 27.418 / (z * x + 1)
        - 5.114 * x * y * z - 46.973 / (x * y * z + 1)
    )  # fmt: skip


def test_aggregate_bandwidths_of_the_paper():
    """Section 2.2, GPUs from 1: {1,2,5} has 12 + 25 + 50 = 87 GB/s, {1,3,4} has 125."""
    assert agg_table(DGX.subgraph((0, 1, 4)), RING, 3)[0] == 87.0
    assert agg_table(DGX.subgraph((0, 2, 3)), RING, 3)[0] == 125.0


@pytest.mark.parametrize(
    ("counts", "gbps"),
    [
        ((2, 0, 0), 58.9),
        ((0, 2, 0), 27.7),
        ((0, 0, 2), 10.4),
        ((1, 0, 0), 39.1),
        ((0, 1, 0), 21.6),
        ((0, 0, 1), 10.1),
        ((0, 0, 0), 12.335),
        ((2, 1, 0), 57.85),
        ((0, 3, 2), 53.6),
        ((4, 0, 1), 53.5),
        ((0, 2, 3), 49.2),
        ((1, 1, 3), 21.3),
    ],
)
def test_eq2_at_the_published_points(counts, gbps):
    assert float(eq2(*counts)) == pytest.approx(gbps, abs=0.05)


def test_eq2_everywhere():
    for x in range(17):
        for y in range(17 - x):
            z = np.arange(17 - x - y)
            assert eq2(x, y, z) == pytest.approx([by_hand(x, y, int(v)) for v in z])


def test_eq2_on_every_ring_set_of_dgx1v_counts_the_ring_not_the_set():
    """Every pair of the machine: a 2-GPU ring counts its link twice."""
    seen = {}
    for pair in combinations(range(8), 2):
        counts = fitted_ring(DGX, pair)
        seen.setdefault(counts, []).append(pair)
    assert {counts: len(pairs) for counts, pairs in seen.items()} == {
        (2, 0, 0): 8,
        (0, 2, 0): 8,
        (0, 0, 2): 12,
    }


def test_preserved_bandwidth_is_the_sum_of_the_remaining_links():
    free = mask_of([0, 1, 3, 4, 6, 7])
    for taken in combinations([0, 1, 3, 4, 6, 7], 2):
        rest = [g for g in (0, 1, 3, 4, 6, 7) if g not in taken]
        expected = sum(DGX.gbps[a, b] for a, b in combinations(rest, 2))
        assert float(preserved_bw(DGX, free, mask_of(list(taken)))) == expected
    masks = np.array([[1, 2], [3, 255]])
    assert preserved_bw(DGX, 255, masks).shape == (2, 2)
    assert preserved_bw(DGX, 255, masks)[1, 1] == 0.0


def test_refit_finds_the_coefficients_that_made_the_samples():
    points = [(x, y, z) for x in range(5) for y in range(5) for z in range(5)]
    fit = fit_eq2([(*p, by_hand(*p)) for p in points])
    assert fit.rank == 14
    assert fit.model.coefficients == pytest.approx(PAPER.coefficients)
    assert max(fit.rmse, fit.left_out_rmse, fit.mae) < 1e-6
    assert float(eq2(1, 2, 3, fit.model)) == pytest.approx(by_hand(1, 2, 3))


def test_refit_with_few_noisy_samples_has_a_large_error():
    rng = np.random.default_rng(7)
    points = [(x, y, 4 - x - y) for x in range(5) for y in range(5 - x)]
    fit = fit_eq2([(*p, by_hand(*p) + rng.normal(0, 8)) for p in points])
    assert fit.samples == len(points)
    assert fit.rank <= 14
    assert fit.left_out_rmse > 2 * fit.rmse


def test_samples_with_equal_counts_are_left_out_together():
    """A twin on another node would predict its sample exactly."""
    points = [(2, 0, 0, 40.0), (0, 2, 0, 20.0), (0, 0, 2, 9.0)]
    once, twice = fit_eq2(points), fit_eq2(points * 2)
    assert twice.left_out_rmse == pytest.approx(once.left_out_rmse)
    assert twice.left_out_rmse > 1.0 > twice.rmse
    assert fit_eq2(points[:1] * 2).left_out_rmse is None


def test_the_bottleneck_is_scaled_to_the_measurements():
    """Least squares through the origin: 0.8 and 1.0 of links of 10 and 30."""
    fit = fit_bottleneck([10.0, 30.0], [8.0, 30.0], [(0, 0, 2), (0, 2, 0)])
    assert fit.coefficients == (pytest.approx((80 + 900) / 1000),)
    assert fit.predicted == (pytest.approx(9.8), pytest.approx(29.4))
    assert fit.mae == pytest.approx((1.8 + 0.6) / 2)
    assert fit.left_out_rmse == pytest.approx((((10 - 8) ** 2 + (24 - 30) ** 2) / 2) ** 0.5)


def test_a_choice_is_compared_with_the_best_set_of_its_machine_and_size():
    measured = [40.0, 20.0, 18.0, 30.0]
    assert share_of_best([3.0, 2.0, 9.0, 1.0], measured, ["a", "a", "b", "c"]) == 1.0
    assert share_of_best([1.0, 2.0, 9.0, 1.0], measured, ["a", "a", "b", "c"]) == 0.5
    assert share_of_best([1.0, 1.0, 9.0, 9.0], measured, ["a", "a", "b", "b"]) == 0.5  # equal
    assert share_of_best([], [], []) == 1.0


def test_refit_and_model_refuse_nonsense():
    with pytest.raises(ValueError, match="at least two finite samples"):
        fit_eq2([(1, 0, 0, 20.0)])
    with pytest.raises(ValueError, match="at least two finite samples"):
        fit_eq2([(1, 0, 0, 20.0), (-1, 0, 2, 20.0)])
    with pytest.raises(ValueError, match="14 finite coefficients, not 3"):
        eq2_model([1.0, 2.0, 3.0])
