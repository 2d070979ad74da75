"""One rule for the most efficient clock: planner, allocator, views and Zeus name the same one."""

import numpy as np
import pytest

from slurm_gpu_aware.features.baselines.afs_and_zeus import zeus_clock
from slurm_gpu_aware.features.models.tables import efficient_point, points
from slurm_gpu_aware.features.power.menu import SizingJob, clock_ladder
from slurm_gpu_aware.model.size_table import SizeTable, least_energy

NAN = float("nan")


@pytest.mark.parametrize("seed", range(30))
def test_all_parts_name_the_same_clock(seed: int) -> None:
    draw = np.random.default_rng(seed)
    clocks = np.arange(600, 1800, 150)
    time_s = draw.uniform(0.5, 2.0, (1, len(clocks)))
    power_w = draw.uniform(50, 400, (1, len(clocks)))
    time_s[draw.random((1, len(clocks))) < 0.2] = NAN
    time_s[0, -1] = 0.4
    table = SizeTable(np.array([2]), clocks, time_s, power_w)
    found = table.efficient_clock(2)
    best = efficient_point(points(table))
    ladder = clock_ladder(SizingJob("1", (2,), 800.0, table), 2)
    assert best is not None
    assert ladder is not None
    assert found == best.clock_mhz == zeus_clock(table, 2, 800.0, eta=1.0)
    assert found == ladder.clocks_mhz[ladder.efficient]
    assert table.efficient_clock(4) is None


@pytest.mark.parametrize(
    ("times", "powers", "best"),
    [
        ([2.0, 1.0], [100.0, 200.0], 1),  # equal energies: the faster one
        ([1.0, 1.0], [100.0, 100.0], 0),
        ([NAN, 1.0, 2.0], [1.0, 400.0, 100.0], 2),
        ([1.0, 1.0], [-5.0, 100.0], 1),
        ([0.0, np.inf], [1.0, 1.0], None),
        ([], [], None),
    ],
)
def test_what_counts(times: list[float], powers: list[float], best: int | None) -> None:
    assert least_energy(np.array(times), np.array(powers)) == best
