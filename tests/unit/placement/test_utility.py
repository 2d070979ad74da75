"""Worked numbers of the three terms and of the utility."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel, RunningJob
from slurm_gpu_aware.placement.drb.utility import (
    InterferenceProfile,
    Scale,
    Terms,
    Weights,
    extremes,
    free_shares,
    interference,
    neighbours_on,
)
from slurm_gpu_aware.topology.locality import network_of, path_sum, with_known_sockets
from slurm_gpu_aware.topology.machines import machine

MINSKY = machine("ibm-minsky-4xp100")
ALL = 0b1111


@pytest.mark.parametrize(
    ("gpus", "t"),
    [(0b0001, 0), (0b0011, 1), (0b1100, 1), (0b0101, 20), (0b1001, 20), (0b0111, 41), (ALL, 82)],
)
def test_t_of_sets_within_and_across_sockets(gpus, t):
    assert path_sum(MINSKY, gpus) == t


def test_a_direct_link_is_short_even_across_sockets():
    dgx = machine("dgx-1-v100")
    assert path_sum(dgx, 1 << 0 | 1 << 4) == 1  # NVLink between the sockets
    assert path_sum(dgx, 1 << 0 | 1 << 5) == 20  # no path leads through GPU 1 or 4


@pytest.mark.parametrize(
    ("free", "chosen", "w"),
    [
        (ALL, 0b0001, 0.5),
        (0b1101, 0b0001, 0.0),
        (ALL, 0b0101, 0.5),
        (ALL, 0b0111, 0.25),
        (ALL, 0b0011, 0.0),
    ],
)
def test_w_counts_what_stays_free_beside_the_job(free, chosen, w):
    total, sockets = free_shares(MINSKY, ALL, free, chosen)
    assert total / sockets == w


def test_extremes_of_an_idle_machine():
    assert extremes(MINSKY, ALL, 1) == (0, 0, 0.5)
    assert extremes(MINSKY, ALL, 2) == (1, 20, 0.5)
    assert extremes(MINSKY, ALL, 3) == (41, 41, 0.25)
    assert extremes(MINSKY, 0b0111, 2) == (1, 20, 0.25)


def test_path_lengths_over_the_network():
    base = Cluster.uniform(4, 2)
    switch = LocalityLevel("switch", 1.1, np.array([0, 0, 1, -1]))
    cluster = replace(base, levels=(base.levels[0], switch, base.levels[1]))
    network = network_of(cluster)
    assert network.names == ("switch", "cluster")

    def t(nodes, gpus):
        return network.path_sum(np.array(nodes), np.array(gpus))

    assert t([0, 1], [2, 2]) == 4 * 100
    assert t([0, 2], [2, 1]) == 2 * 200
    assert t([0, 1, 3], [1, 1, 1]) == 100 + 2 * 200
    assert network_of(base).names == ("cluster",)


def test_sockets_from_a_level_where_no_links_were_measured():
    base = Cluster.uniform(3, 4)
    assert with_known_sockets(base) is base
    groups = np.array([[0, 0, 2, 2], [5, 5, 3, 3], [1, 1, -1, -1]])
    socket = LocalityLevel("socket", 1.0, groups)
    known = with_known_sockets(replace(base, levels=(socket, *base.levels)))
    assert known.graphs[0] is known.graphs[1]
    assert known.graphs[0].groups == (0, 0, 2, 2)
    assert known.graphs[2].groups == (0, 0, 2, 3)
    assert with_known_sockets(replace(base, levels=(socket, *base.levels))).graphs is known.graphs


PROFILE = InterferenceProfile(
    solo={("a", 1): 100.0, ("b", 1): 50.0},
    together={
        (("a", 1), ("b", 1)): 110.0,
        (("b", 1), ("a", 1)): 75.0,
        (("a", 1), ("a", 1)): 90.0,
    },
)


def cluster_with(*jobs):
    cluster = Cluster.uniform(3, 4)
    for job in jobs:
        for node, slots in job.gpus:
            cluster.take(node, slots)
    return replace(cluster, running=jobs)


def on_gpu(name, node, slot, application):
    return RunningJob(name, ((node, (slot,)),), 1e9, application=application)


SOCKETS = np.array([[0b0011, 0b0011, 0b1100, 0b1100]] * 3, dtype=np.uint64)
MACHINE = np.full((3, 4), 0b1111, dtype=np.uint64)


def interference_of(cluster, chosen=0b1111, sockets=MACHINE):
    """I of each machine for a job "a" on these GPUs."""
    number, known = neighbours_on(PROFILE, ("a", 1), cluster, sockets)
    return [interference(known[i], chosen) for i in number]


def test_only_jobs_on_the_sockets_of_the_set_interfere():
    both = RunningJob("3", ((1, (1, 2)),), 1e9, application="none")
    cluster = cluster_with(
        on_gpu("1", 0, 0, "b"), on_gpu("2", 0, 2, "b"), both, on_gpu("4", 1, 0, "b")
    )
    alone = (1.5 + 1.1) / 2
    beside = (1.5 + 1.1 + 1.0) / 3
    assert interference_of(cluster, 0b0010, SOCKETS) == pytest.approx([alone, beside, 1.0])
    assert interference_of(cluster, 0b1000, SOCKETS) == pytest.approx([alone, 1.0, 1.0])
    assert interference_of(cluster, 0b1010, SOCKETS) == pytest.approx(
        [(1.5 + 1.5 + 1.2) / 3, beside, 1.0]
    )
    assert interference_of(cluster, 0b1000) == pytest.approx([(1.5 + 1.5 + 1.2) / 3, beside, 1.0])


def test_interference_rises_when_jobs_hurt_each_other():
    """Eq. 4 as printed falls below 1 here: 100/110 and 50/75."""
    assert PROFILE.slowdown(("a", 1), ("b", 1)) == pytest.approx(1.1)
    cluster = cluster_with(on_gpu("1", 0, 0, "b"), on_gpu("2", 1, 0, "a"))
    assert interference_of(cluster) == pytest.approx([(1.5 + 1.1) / 2, 1.0, 1.0])
    assert PROFILE.worst == 1.5


def test_a_gain_beside_a_neighbour_counts_as_scatter():
    assert PROFILE.slowdown(("a", 1), ("a", 1)) == 1.0
    assert PROFILE.slowdown(("a", 2), ("b", 1)) is None


def test_several_neighbours_add_up_and_unknown_ones_count_as_undisturbed():
    cluster = cluster_with(on_gpu("1", 0, 0, "b"), on_gpu("2", 0, 1, "b"), on_gpu("3", 0, 2, None))
    assert interference_of(cluster)[0] == pytest.approx((1.5 + 1.5 + 1.0 + 1.2) / 4)


def test_a_job_whose_gpus_are_free_again_is_no_neighbour():
    cluster = cluster_with(on_gpu("1", 0, 0, "b"))
    cluster.give_back(0, [0])
    assert interference_of(cluster) == [1.0, 1.0, 1.0]


def test_profiles_name_their_content_and_refuse_bad_times():
    assert repr(PROFILE) == repr(InterferenceProfile(PROFILE.solo, PROFILE.together))
    assert repr(PROFILE) != repr(InterferenceProfile(PROFILE.solo))
    with pytest.raises(ValueError, match="must be positive, not 0"):
        InterferenceProfile({("a", 1): 0.0})


SCALE = Scale(t_best=1, t_worst=20, i_worst=1.5, w_worst=0.5)


@pytest.mark.parametrize(
    ("t", "i", "w", "utility"),
    [
        (1, 1.0, 0.0, 1.0),
        (20, 1.0, 0.0, 2 / 3),
        (20, 1.5, 0.0, 1 / 3),
        (20, 1.5, 0.5, 0.0),
        (1, 1.25, 0.25, 2 / 3),
        (400, 1.0, 0.0, 0.0),
    ],
)
def test_utility_loses_a_third_for_the_worst_in_each_respect(t, i, w, utility):
    cost = float(SCALE.cost(Weights(), float(t), i, w))
    assert Terms(t, i, w, cost).utility == pytest.approx(utility, abs=1e-8)


def test_terms_that_cannot_differ_cost_nothing():
    alone = Scale(t_best=0, t_worst=0, i_worst=1.0, w_worst=0.0)
    assert alone.cost(Weights(), 0.0, 1.0, 0.0) == 0.0
    assert alone.cost(Weights(), 100.0, 1.0, 0.0) > 1.0  # more machines than needed


def test_weights_sum_to_one():
    known = Weights(0.6, 0.2, 0.2).without_interference()
    assert (known.communication, known.interference) == pytest.approx((0.75, 0.0))
    assert Weights(0.0, 1.0, 0.0).without_interference() == Weights(0.5, 0.0, 0.5)
    for bad in ((0.5, 0.5, 0.5), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)):
        with pytest.raises(ValueError, match="sum 1"):
            Weights(*bad)
