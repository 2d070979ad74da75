"""A job that only indexed and plain nodes together can hold is left to Slurm."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.admission.fitting import needs_both_kinds
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmNode

INDEXED = tuple((f"g{i}", 1) for i in range(4))
PLAIN = (("v100", 4),)


def cluster(*kinds: tuple[tuple[str, int], ...]) -> Cluster:
    nodes = [
        SlurmNode(f"n{i}", frozenset({"IDLE"}), frozenset(), kind, frozenset(), cpus=16)
        for i, kind in enumerate(kinds)
    ]
    slurm = SlurmConfig(version=(24, 11), cluster="c", counts_memory=False, counts_cpus=True)
    return build_cluster(nodes, [], slurm, SiteProfile(Config(), {"node": 1.0, "cluster": 1.5}))


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [(3, 3, True), (2, 2, False), (4, 1, False), (5, 5, False), (8, 2, False), (16, 4, True)],
)
def test_two_indexed_and_two_plain(gpus: int, nodes: int, expected: bool):
    mixed = cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    request = Request("1", gpus, min_nodes=nodes, max_nodes=nodes)
    assert needs_both_kinds(request, mixed) is expected
    assert not needs_both_kinds(request, cluster(*[INDEXED] * 4))
    assert not needs_both_kinds(request, cluster(*[PLAIN] * 4))


def test_required_nodes_of_both_kinds():
    mixed = cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    assert needs_both_kinds(Request("1", 2, 2, 2, required=(0, 2)), mixed)
    assert not needs_both_kinds(Request("1", 2, 2, 2, required=(2, 3)), mixed)


def test_only_nodes_that_it_may_use_count():
    mixed = cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    one_of_each = np.array([True, False, True, False])
    assert needs_both_kinds(Request("1", 2, 2, 2, eligible=one_of_each), mixed)


def test_a_required_node_that_is_away_says_nothing_of_kinds():
    """Its GPUs do not exist while it is drained or restarts: the job waits for it."""
    mixed = cluster(INDEXED, PLAIN, PLAIN)
    away = replace(mixed, exists=mixed.exists & np.array([[False], [True], [True]]))
    assert not needs_both_kinds(Request("1", 2, 1, 1, required=(0,)), away)
    assert not needs_both_kinds(Request("1", 2, 2, 2, required=(0,)), away)
    assert needs_both_kinds(Request("1", 2, 2, 2, required=(0,)), mixed)
