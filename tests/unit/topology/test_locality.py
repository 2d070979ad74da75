"""Locality levels from penalties, sockets, links and Slurm's network; policies with them."""

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology.locality import build_levels, network_of, with_levels
from slurm_gpu_aware.topology.machines import machine

ALL = {
    "nvlink": 1.0,
    "socket": 1.02,
    "node": 1.1,
    "switch": 1.2,
    "rack": 1.3,
    "row": 1.4,
    "cluster": 1.6,
}
NETWORK = {
    "switch": {"n0": "s0", "n1": "s0", "n2": "s1", "n3": "s2"},
    "rack": {"n0": "r0", "n1": "r0", "n2": "r0", "n3": "r1"},
}


def inside(name: str, level: str) -> list[int]:
    """Domain of each GPU of a known machine."""
    cluster = with_levels(Cluster.uniform(1, machine(name).n, graph=machine(name)), ALL)
    return next(found.group[0].tolist() for found in cluster.levels if found.name == level)


def placed_by(cluster: Cluster, gpus: int, policy: str = "pal", nodes: int | None = None):
    request = Request("1", gpus, min_nodes=nodes or 1, max_nodes=nodes, app_class="A")
    found = make_policy(policy).place(request, cluster)
    assert found is not None
    return found


def test_without_more_penalties_there_are_node_and_cluster():
    levels = build_levels({"node": 1.0, "cluster": 1.5}, ["a", "b"], 4, network=NETWORK)
    same = Cluster.uniform(2, 4).levels
    for found, wanted in zip(levels, same, strict=True):
        assert (found.name, found.penalty) == (wanted.name, wanted.penalty)
        assert found.group.dtype == wanted.group.dtype
        assert found.group.tolist() == wanted.group.tolist()


def test_domains_of_known_machines():
    assert inside("ibm-minsky-4xp100", "socket") == [0, 0, 2, 2]
    assert inside("ibm-minsky-4xp100", "nvlink") == [0, 0, 2, 2]
    assert inside("dgx-1-v100", "socket") == [0, 0, 0, 0, 4, 4, 4, 4]
    # NVLinks join all eight, but not every pair: divided by socket.
    assert inside("dgx-1-v100", "nvlink") == [0, 0, 0, 0, 4, 4, 4, 4]
    assert inside("mi300x-8", "nvlink") == [0] * 8


def test_sockets_by_numa_by_links_and_unknown():
    graph = HardwareGraph.from_links([(0, 1, "PHB", None), (2, 3, "NV2", None)], n=4)

    def socket(numa, graphs=()):
        numbers = np.array([numa], dtype=np.int64)
        return build_levels(ALL, ["a"], 4, numa=numbers, graphs=graphs)[1].group[0].tolist()

    assert socket([0, 0, 1, 1]) == [0, 0, 2, 2]
    assert socket([-1, -1, -1, -1]) == [0, 1, 2, 3]
    assert socket([-1, -1, -1, -1], [graph]) == [0, 0, 2, 3]
    assert socket([-1, 0, 1, 1], [graph]) == [0, 0, 2, 2]
    assert socket([0, 1, 1, 1], [graph]) == [0, 1, 1, 1], "a known number goes before the path"
    levels = build_levels(ALL, ["a", "b"], 4, graphs=[graph, None])
    assert levels[0].group.tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]


def test_a_level_of_the_network_needs_groups():
    nodes = ["n0", "n1", "n2", "n3", "n9"]
    levels = build_levels(ALL, nodes, 2, network=NETWORK)
    assert [level.name for level in levels] == [*list(ALL)[:5], "cluster"]
    assert levels[3].group.tolist() == [0, 0, 1, 2, -1]
    assert levels[4].group.tolist() == [0, 0, 0, 1, -1]


@pytest.mark.parametrize("policy", ["pal", "pal+mapa", "packed", "topo-aware"])
@pytest.mark.parametrize("any_indices", [False, True])
def test_a_job_over_nodes_stays_below_one_switch_then_in_one_rack(policy, any_indices):
    nodes = [f"n{i}" for i in range(4)]
    cluster = Cluster.uniform(nodes, 2, same_indices=not any_indices)
    levels = build_levels({**ALL}, nodes, 2, network=NETWORK)
    cluster = Cluster(**{**cluster.__dict__, "levels": levels})
    found = placed_by(cluster, 4, policy, nodes=2)
    assert (found.nodes, found.level, found.slowdown) == ((0, 1), "switch", 1.2)
    cluster.take(1, [0])
    found = placed_by(cluster, 4, policy, nodes=2)
    assert (found.nodes, found.level, found.slowdown) == ((0, 2), "rack", 1.3)
    cluster.take(2, [0])
    found = placed_by(cluster, 4, policy, nodes=2)
    assert (found.nodes, found.level, found.slowdown) == ((0, 3), "cluster", 1.6)


def test_the_socket_goes_before_slightly_better_gpus_across():
    scores = {"A": np.array([[1.0, 1.05, 1.0, 1.05]])}
    graph = machine("ibm-minsky-4xp100")
    base = Cluster.uniform(1, 4, scores=scores, graph=graph)
    across = placed_by(with_levels(base, {"node": 1.0, "cluster": 1.5}), 2)
    assert (across.slots, across.slowdown) == (((0, 2),), 1.0)
    near = {"socket": 1.0, "node": 1.1, "cluster": 1.5}
    found = placed_by(with_levels(base, near), 2)
    assert (found.slots, found.level, found.slowdown) == (((0, 1),), "socket", 1.05)
    worse = {"A": np.array([[1.0, 1.2, 1.0, 1.2]])}
    far = placed_by(with_levels(Cluster.uniform(1, 4, scores=worse, graph=graph), near), 2)
    assert (far.slots, far.level, far.slowdown) == (((0, 2),), "node", 1.1)
    assert placed_by(with_levels(base, near), 1).slowdown == 1.0
    assert placed_by(with_levels(base, near), 4).slowdown == pytest.approx(1.1 * 1.05)


def test_topo_aware_sees_the_same_network():
    nodes = [f"n{i}" for i in range(4)]
    cluster = Cluster.uniform(nodes, 2)
    levels = build_levels(ALL, nodes, 2, network=NETWORK)
    network = network_of(Cluster(**{**cluster.__dict__, "levels": levels}))
    assert network.names == ("switch", "rack", "cluster")
