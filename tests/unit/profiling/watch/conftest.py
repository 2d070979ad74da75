"""Fixtures: fake nodes to watch."""

import pytest
from fake_cluster import FakeCluster


@pytest.fixture
def fleet(library, tmp_path):
    """Three nodes with fake GPUs, and Slurm's commands for them."""
    return FakeCluster(library, tmp_path)
