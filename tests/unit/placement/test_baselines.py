"""Policies without scores, and the edges that all policies share."""

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import Policy, make_policy

POLICIES = ("best-fit", "lowest-index", "packed", "pal", "pm-first", "random", "topo-aware")


def place(name, request, cluster, **options):
    return make_policy(name, options).place(request, cluster)


def chosen(assignment):
    return assignment.nodes, assignment.slots


def test_random_depends_on_seed_and_job_alone():
    cluster = Cluster.uniform(8, 4)
    one = place("random", Request("1", 2), cluster, seed=1)
    assert one == place("random", Request("1", 2), cluster, seed=1)
    others = {chosen(place("random", Request("1", 2), cluster, seed=s)) for s in range(20)}
    assert len(others) > 10
    jobs = {chosen(place("random", Request(str(j), 2), cluster, seed=1)) for j in range(20)}
    assert len(jobs) > 10


def test_random_gives_every_gpu_its_share():
    cluster = Cluster.uniform(2, 2)
    counts = np.zeros((2, 2), dtype=int)
    for seed in range(400):
        got = place("random", Request("1", 1), cluster, seed=seed)
        counts[got.nodes[0], got.slots[0][0]] += 1
    assert counts.min() > 60  # 100 expected; 60 is more than 4 standard deviations below


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (2, 0)])
@pytest.mark.parametrize("same", [True, False])
def test_no_nodes_or_no_gpus_means_no_place(name, shape, same):
    cluster = Cluster.uniform(*shape, same_indices=same)
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    for request in (
        Request("1", 1),
        Request("2", 4),
        Request("3", 2, gpus_per_node=1),
        job_request("4", 1, whole=True),
        job_request("5", 1, gpu_model="a100"),
    ):
        assert policy.place(request, cluster) is None


@pytest.mark.parametrize("width", [16, 20, 32, 64])
def test_wide_nodes_share_their_slots(width):
    """Exact up to 20 slots; above, the common slots of equal nodes are still found."""
    cluster = Cluster.uniform(3, width)
    for policy in ("topo-aware", "mapa-preserve"):
        assert chosen(place(policy, Request("1", 3), cluster)) == ((0,), ((0, 1, 2),))
    for node in range(3):
        cluster.take(node, [0, width - 1])
    got = place("pal", Request("1", 6, gpus_per_node=3), cluster)
    assert chosen(got) == ((0, 1), ((1, 2, 3), (1, 2, 3)))
