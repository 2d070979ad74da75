"""Policies without scores, and the edges that all policies share."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.registry import make_policy

POLICIES = ("best-fit", "lowest-index", "packed", "pal", "pm-first", "random", "topo-aware")


def place(name, request, cluster, **options):
    return make_policy(name, options).place(request, cluster)


def chosen(assignment):
    return assignment.nodes, assignment.slots


def test_packed_takes_the_node_with_the_fewest_gpus_left():
    cluster = Cluster.uniform(3, 4)
    cluster.take(1, [0])
    cluster.take(2, [0, 3])
    assert chosen(place("packed", Request("1", 2), cluster)) == ((2,), ((1, 2),))
    assert chosen(place("lowest-index", Request("1", 2), cluster)) == ((0,), ((0, 1),))


def test_packed_keeps_to_one_socket_where_best_fit_does_not_look():
    base = Cluster.uniform(1, 4)
    sockets = LocalityLevel("socket", 1.0, np.array([[0, 0, 1, 1]]))
    cluster = replace(base, levels=(sockets, *base.levels))
    cluster.take(0, [0])
    assert chosen(place("packed", Request("1", 2), cluster)) == ((0,), ((2, 3),))
    assert chosen(place("best-fit", Request("1", 2), cluster)) == ((0,), ((1, 2),))


def test_packed_keeps_to_one_switch():
    base = Cluster.uniform(4, 2)
    switch = LocalityLevel("switch", 1.2, np.array([0, 1, 1, 0]))
    cluster = replace(base, levels=(base.levels[0], switch, base.levels[1]))
    cluster.take(0, [0])
    assert chosen(place("packed", Request("1", 4), cluster)) == ((1, 2), ((0, 1), (0, 1)))


def test_best_fit_over_nodes_takes_the_fullest_that_fit():
    cluster = Cluster.uniform(3, 4)
    cluster.take(1, [3])
    cluster.take(2, [3])
    got = place("best-fit", Request("1", 6, gpus_per_node=3), cluster)
    assert chosen(got) == ((1, 2), ((0, 1, 2), (0, 1, 2)))


@pytest.mark.parametrize("required", [(), (1,)])
def test_lowest_index_over_nodes_takes_the_first_nodes_before_the_lowest_slots(required):
    cluster = Cluster.uniform(4, 3)
    for node, slot in enumerate((0, 0, 2, 2)):
        cluster.take(node, [slot])
    request = job_request("1", 4, gpus_per_node=2, required=required)
    assert chosen(place("lowest-index", request, cluster)) == ((0, 1), ((1, 2), (1, 2)))
    best = place("best-fit", Request("1", 4, gpus_per_node=2), cluster)
    assert chosen(best) == ((2, 3), ((0, 1), (0, 1)))  # equally full: the lowest index set


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


def test_random_refuses_a_bad_seed():
    with pytest.raises(PolicyError, match="seed must be a whole number >= 0, not 'x'"):
        make_policy("random", {"seed": "x"})


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


@pytest.mark.parametrize("name", POLICIES)
def test_assignment_carries_the_registry_name(name):
    got = place(name, Request("1", 1), Cluster.uniform(1, 1))
    assert got.policy == name


@pytest.mark.parametrize("width", [16, 20, 32, 64])
def test_wide_nodes_share_their_slots(width):
    """Exact up to 20 slots; above, the common slots of equal nodes are still found."""
    cluster = Cluster.uniform(3, width)
    for node in range(3):
        cluster.take(node, [0, width - 1])
    got = place("pal", Request("1", 6, gpus_per_node=3), cluster)
    assert chosen(got) == ((0, 1), ((1, 2, 3), (1, 2, 3)))


def test_plain_and_indexed_nodes_are_not_mixed_in_one_job():
    cluster = replace(Cluster.uniform(3, 2), indexed=np.array([True, False, False]))
    got = place("pal", Request("1", 4, gpus_per_node=2), cluster)
    assert (got.nodes, got.exact) == ((1, 2), False)
    assert place("pal", Request("1", 6, gpus_per_node=2), cluster) is None
    assert place("pal", job_request("1", 3, gpus_per_node=1, whole=True), cluster) is not None


def test_on_plain_nodes_only_the_count_matters():
    cluster = replace(Cluster.uniform(2, 2), indexed=np.array([False, False]))
    cluster.take(0, [0])
    cluster.take(1, [1])
    assert place("pal", Request("1", 2, gpus_per_node=1), cluster).nodes == (0, 1)
    indexed = replace(cluster, indexed=np.array([True, True]))
    assert place("pal", Request("1", 2, gpus_per_node=1), indexed) is None
