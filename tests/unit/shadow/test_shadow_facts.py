"""Score, links and broken-up nodes of a set of GPUs."""

import numpy as np

from slurm_gpu_aware.features.shadow.compared import gpu_set
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request

BRIDGED = HardwareGraph.from_links([(0, 1, "NV4", None), (2, 3, "NV4", None)], n=4)
SCORES = np.array([[1.0, 1.2, 1.0, 1.0], [1.0, 1.0, 1.0, 0.9]])
MEASURED = {"A": {(f"n{n}", slot): 1.0 for n in (0, 1) for slot in range(4) if (n, slot) != (1, 3)}}
ONE, PAIR = Request("1", 1, app_class="A"), Request("1", 2, app_class="A")


def small_cluster(graph: HardwareGraph | None = BRIDGED) -> Cluster:
    made = Cluster.uniform(2, 4, graph=graph, scores={"A": SCORES})
    made.take(1, [0])
    return made


def test_a_pair_over_the_bridge_and_one_over_the_host() -> None:
    direct, host = (gpu_set([(0, pair)], PAIR, small_cluster(), {}) for pair in ((0, 1), (2, 0)))
    assert (direct.direct, host.direct) == (True, False)
    assert host.gpus == (("n0", (0, 2)),)
    assert (direct.gbps or 0.0) > 2 * (host.gbps or 0.0) > 0.0


def test_links_that_are_not_known_are_none() -> None:
    assert gpu_set([(0, (0, 1))], PAIR, small_cluster(None), {}).gbps is None
    no_talk = Request("1", 2, app_class="A", pattern="none")
    assert gpu_set([(0, (0, 1))], no_talk, small_cluster(), {}).direct is None
    assert gpu_set([(0, (0,)), (1, (1,))], PAIR, small_cluster(), {}).gbps is None


def test_three_gpus_need_the_host() -> None:
    three = Request("1", 3, app_class="A")
    assert gpu_set([(0, (0, 1, 2))], three, small_cluster(), {}).direct is False


def test_the_worst_gpu_and_the_network_count() -> None:
    found = gpu_set([(0, (0, 1))], PAIR, small_cluster(), MEASURED)
    assert (found.score, found.slowdown, found.level) == (1.2, 1.2, "node")
    apart = gpu_set([(0, (0,)), (1, (1,))], PAIR, small_cluster(), MEASURED)
    assert (apart.score, apart.slowdown, apart.level) == (1.0, 1.5, "cluster")


def test_a_gpu_without_a_measurement_has_no_score() -> None:
    found = gpu_set([(1, (2, 3))], PAIR, small_cluster(), MEASURED)
    assert (found.score, found.slowdown) == (None, None)
    unknown = Request("1", 1, app_class="B")
    assert gpu_set([(1, (2,))], unknown, small_cluster(), MEASURED).score is None


def test_only_a_whole_node_of_which_a_part_is_taken_is_broken_up() -> None:
    assert gpu_set([(0, (0,))], ONE, small_cluster(), {}).broken == ("n0",)
    assert gpu_set([(1, (1,))], ONE, small_cluster(), {}).broken == ()
    whole = Request("1", 4, app_class="A")
    assert gpu_set([(0, (0, 1, 2, 3))], whole, small_cluster(), {}).broken == ()
