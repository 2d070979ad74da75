"""Earliest finish: what fit and scores are worth."""

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.registry import make_policy


@pytest.mark.parametrize(("nodes", "chosen"), [(1, (0,)), (2, (2, 3))])
def test_the_tolerance_is_for_one_node(nodes, chosen):
    """Over several nodes the GPUs that are 1% faster count, although nodes are broken up."""
    scores = np.array([[1.01] * 4] * 2 + [[1.0] * 4] * 2)
    cluster = Cluster.uniform(4, 4, scores={"B": scores})
    for node in (0, 1):
        cluster.take(node, (2, 3))
    request = Request("1", 2 * nodes, min_nodes=nodes)
    assert make_policy("eft").place(request, cluster).nodes == chosen
