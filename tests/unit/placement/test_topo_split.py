"""mapa-topo-aware with plain nodes, where Slurm chooses the GPUs."""

import pytest
from make import with_fields

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology.machines import machine

SLOTS = range(8)
DGX = machine("dgx-1-v100")  # sockets 0..3 and 4..7


def split(gpus: int, free: list[set[int]], plain: set[int]) -> Assignment | None:
    cluster = Cluster.uniform(len(free), 8, graph=DGX)
    for node, slots in enumerate(free):
        cluster.take(node, [s for s in SLOTS if s not in slots])
        cluster.indexed[node] = node not in plain
    return make_policy("mapa-topo-aware").place(Request("1", gpus), cluster)


@pytest.mark.parametrize("plain", [set(), {1}])
def test_a_plain_node_elsewhere_changes_nothing(plain: set[int]) -> None:
    found = split(2, [{3, 4, 7}, {0, 1, 2, 3, 4, 5, 6, 7}], plain)
    assert (found.nodes, found.slots) == ((0,), ((4, 7),))


def test_a_plain_node_counts_with_the_most_sockets_that_slurm_may_use() -> None:
    both, one = {0, 1, 4}, {4, 5, 6, 7}
    found = split(2, [both, one], {0})
    assert (found.nodes, found.slots, found.exact) == ((1,), ((4, 7),), True)
    found = split(2, [{1, 4}, {0, 1, 2}], {0, 1})
    assert (found.nodes, found.slots, found.exact) == ((1,), ((0, 1),), False)


def test_whole_nodes_are_chosen_by_best_fit() -> None:
    cluster = Cluster.uniform(2, 8, graph=DGX)
    cluster.take(0, [0])
    request = with_fields(Request("1", 1), whole=True)
    found = make_policy("mapa-topo-aware").place(request, cluster)
    assert found.nodes == (1,)
