"""Size tables: look-up by GPU count and clock."""

import numpy as np
import pytest

from slurm_gpu_aware.model.size_table import SizeTable

TABLE = SizeTable(
    np.array([1, 2, 4]), np.array([900, 1200, 1410]), np.ones((3, 3)), np.full((3, 3), 100.0)
)


@pytest.mark.parametrize(("gpus", "row"), [(1, 0), (2, 1), (4, 2), (3, None), (8, None)])
def test_only_counts_of_the_table_have_a_row(gpus, row):
    assert TABLE.row(gpus) == row


@pytest.mark.parametrize(
    ("clock", "column"), [(None, 2), (1410, 2), (900, 0), (100, 0), (1049, 0), (1051, 1), (9999, 2)]
)
def test_a_clock_is_the_nearest_and_the_default_is_the_highest(clock, column):
    assert TABLE.column(clock) == column


@pytest.mark.parametrize(
    ("gpus", "clocks"), [([2, 1], [900]), ([1, 1], [900]), ([0, 1], [900]), ([1], [900, 800])]
)
def test_axes_are_positive_and_ascending(gpus, clocks):
    shape = (len(gpus), len(clocks))
    with pytest.raises(ValueError, match="ascending"):
        SizeTable(np.array(gpus), np.array(clocks), np.ones(shape), np.ones(shape))


def test_values_have_one_entry_per_count_and_clock():
    with pytest.raises(ValueError, match="shape"):
        SizeTable(np.array([1, 2]), np.array([900]), np.ones((1, 2)), np.ones((2, 1)))
