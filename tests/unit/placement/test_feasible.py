"""Reasons for no place; shares of CPUs and memory; bit masks."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Memory, Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.placement.feasible import common_reason
from slurm_gpu_aware.placement.level_views import pack, popcount, sets_of, unpack
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.placement.shapes import splits


def busy(cluster, *gpus):
    for node, slot in gpus:
        cluster.take(node, [slot])
    return cluster


CASES = {
    "uneven": (
        Request("1", 3, gpus_per_node=2),
        Cluster.uniform(2, 2),
        "3 GPUs (2 per node) cannot be split evenly over nodes of at most 2 GPUs",
    ),
    "model": (
        job_request("1", 1, gpu_model="h100"),
        replace(Cluster.uniform(2, 2), model=("a100", "a100")),
        "no node that the job may use has GPU model h100",
    ),
    "too large for a node": (
        Request("1", 3, max_nodes=1),
        Cluster.uniform(2, 4),
        "needs 3 free GPUs on one node; the most on any node it may use is 2",
    ),
    "too few nodes": (
        Request("1", 4, gpus_per_node=2),
        Cluster.uniform(2, 2),
        "needs 2 nodes with 2 free GPUs each; 1 node has that many",
    ),
    "cpus": (
        job_request("1", 1, cpus=9),
        Cluster.uniform(2, 2, cpus_per_node=8),
        "GPUs are free, but too few nodes have 9 free CPUs",
    ),
    "one cpu": (
        job_request("1", 1, cpus=1),
        Cluster.uniform(2, 2, cpus_per_node=0),
        "GPUs are free, but too few nodes have 1 free CPU",
    ),
    "memory": (
        Request("1", 1, memory=Memory(per_gpu_mb=2000)),
        Cluster.uniform(2, 2, memory_mb_per_node=1000),
        "GPUs are free, but too few nodes have 2000 MB of memory",
    ),
    "same slots": (
        Request("1", 2, gpus_per_node=1),
        Cluster.uniform(2, 2),
        "no 2 nodes have the same GPU index free, as Slurm needs",
    ),
    "required": (
        job_request("1", 2, required=(1,)),
        Cluster.uniform(2, 2),
        "required node n1 has no free GPU that the job may use",
    ),
}
TAKEN = {
    "too large for a node": [(0, 0), (0, 1), (1, 2), (1, 3)],
    "too few nodes": [(0, 0)],
    "same slots": [(0, 0), (1, 1)],
    "required": [(1, 0), (1, 1)],
}


@pytest.mark.parametrize("name", CASES)
def test_why_not(name):
    request, cluster, sentence = CASES[name]
    cluster = busy(cluster.copy(), *TAKEN.get(name, []))
    assert make_policy("pal").place(request, cluster) is None
    assert common_reason(request, cluster) == sentence


def test_splits_stand_fewest_nodes_first():
    cluster = Cluster.uniform(4, 4)
    assert [(s.nodes, s.per_node) for s in splits(Request("1", 4), cluster)] == [
        (1, 4),
        (2, 2),
        (4, 1),
    ]
    free = replace(cluster, same_indices=False)
    assert [s.uneven for s in splits(Request("1", 4), free)] == [False, True]
    assert [s.uneven for s in splits(Request("1", 4, max_nodes=1), free)] == [False]


def test_demand_is_slurms_even_share_or_follows_the_gpus():
    request = job_request("1", 4, cpus=6, memory=Memory(per_cpu_mb=100))
    assert node_demand(request, 2, 2) == (3, 300)
    assert node_demand(request, 2, 3) == (5, 500)
    assert node_demand(request, 2, 1) == (2, 200)
    assert node_demand(Request("1", 4, memory=Memory(per_gpu_mb=10)), 2, 3) == (1, 30)
    assert node_demand(job_request("1", 1, cpus=8, whole=True), 1, 4) == (8, 0)


@pytest.mark.parametrize("width", [1, 4, 6, 8, 9, 16, 17, 33, 64])
def test_masks_hold_what_was_packed(width):
    bits = np.random.default_rng(width).random((50, width)) < 0.5
    masks = pack(bits)
    assert (unpack(masks, width) == bits).all()
    assert popcount(masks).tolist() == bits.sum(axis=1).tolist()
    assert int(masks[0]) == sum(1 << s for s in np.flatnonzero(bits[0]).tolist())


def test_sets_stand_lowest_indices_first():
    assert sets_of(3, 2).tolist() == [0b011, 0b101, 0b110]


def test_scores_cannot_be_changed_under_a_policy():
    """A write fails, because the cached table would miss it."""
    scores = np.ones((1, 2))
    cluster = Cluster.uniform(1, 2, scores={"B": scores})
    make_policy("pal").place(Request("1", 1), cluster)
    with pytest.raises(ValueError, match="read-only"):
        scores[0, 0] = 2.0


def test_a_score_that_is_no_number_counts_as_the_median():
    cluster = Cluster.uniform(1, 2, scores={"B": np.array([[np.nan, 1.1]])})
    got = make_policy("pal").place(Request("1", 1), cluster)
    assert (got.slots, got.score) == (((0,),), 1.0)
