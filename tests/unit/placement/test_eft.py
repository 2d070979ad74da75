"""Earliest finish: what fit, scores and neighbours are worth."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.placement.policies import eft
from slurm_gpu_aware.placement.policies.eft import Interference
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology.machines import machine


@pytest.mark.parametrize(("nodes", "chosen"), [(1, (0,)), (2, (2, 3))])
def test_the_tolerance_is_for_one_node(nodes, chosen):
    """Over several nodes the GPUs that are 1% faster count, although nodes are broken up."""
    scores = np.array([[1.01] * 4] * 2 + [[1.0] * 4] * 2)
    cluster = Cluster.uniform(4, 4, scores={"B": scores})
    for node in (0, 1):
        cluster.take(node, (2, 3))
    request = Request("1", 2 * nodes, min_nodes=nodes)
    assert make_policy("eft").place(request, cluster).nodes == chosen


@pytest.mark.parametrize("indexed", [True, False])
def test_rows_that_cost_too_much_change_nothing(monkeypatch, indexed):
    """Also in the account, which counts them."""
    rng = np.random.default_rng(5)
    for gpus in (1, 2, 3, 4) * 20:
        scores = rng.choice([0.95, 1.0, 1.01, 1.1, 1.3], (12, 4))
        fields = {"indexed": np.arange(12) % 3 > 0} if not indexed else {}
        cluster = Cluster.uniform(12, 4, scores={"B": scores}, **fields)
        cluster.free[:] = rng.random((12, 4)) < 0.6
        found = []
        for few in (0, 12):
            monkeypatch.setattr(eft, "_FEW_ROWS", few)
            found.append(make_policy("eft").place(Request("1", gpus, max_nodes=1), cluster))
        assert found[0] == found[1]


def broken_up(*free, width=8, penalty=1.05):
    """Nodes with so many free GPUs; any GPUs of several nodes may be taken."""
    cluster = Cluster.uniform(len(free), width, locality_penalty=penalty, same_indices=False)
    for node, left in enumerate(free):
        cluster.take(node, tuple(range(left, width)))
    return cluster


def test_a_set_over_several_nodes_lies_on_several():
    """Where L is below the price of breaking up the only idle node, two parts cost less."""
    found = make_policy("eft").place(Request("1", 4), broken_up(8, 2, 2))
    assert found.nodes == (1, 2)
    assert "over several nodes" in found.why.text
    assert found.slowdown == pytest.approx(1.05)
    pair = make_policy("eft").place(Request("1", 4), broken_up(8, 1))
    assert len(pair.nodes) == 2  # as it says
    alone = make_policy("eft").place(Request("1", 4), broken_up(8))
    assert alone.nodes == (0,)
    assert "over several nodes" not in alone.why.text


@given(free=st.lists(st.integers(0, 4), min_size=2, max_size=6), gpus=st.integers(2, 16))
def test_a_set_over_several_nodes_leaves_the_fewest_gpus(free, gpus):
    """Of all sets of at least two nodes; of equal ones the fewest nodes."""
    sums = [
        (sum(chosen) - gpus, len(chosen))
        for count in range(2, len(free) + 1)
        for chosen in combinations([n for n in free if n], count)
        if sum(chosen) >= gpus >= count
    ]
    request = Request("1", gpus)
    found = make_policy("eft", {"breaking": 10.0}).place(request, broken_up(*free, width=5))
    if found is None or len(found.nodes) == 1:
        return
    assert sum(map(len, found.slots)) == gpus
    assert (sum(free[n] for n in found.nodes) - gpus, len(found.nodes)) == min(sums)


LOUD = InterferenceProfile(
    {("loud", 1): 10.0, ("job", 1): 10.0},
    {(("job", 1), ("loud", 1)): 15.0, (("loud", 1), ("job", 1)): 15.0},
)
"""Beside a loud one a job takes half as long again."""


def beside_a_loud_job(scores, application="job", **options):
    """Where eft puts a job of one GPU: GPU 0 of two sockets with 0,1 and 2,3 runs a loud one."""
    graph = machine("ibm-minsky-4xp100")
    cluster = Cluster.uniform(1, 4, scores={"B": np.array([scores])}, graph=graph)
    cluster.take(0, (0,))
    running = (RunningJob("9", ((0, (0,)),), 1e9, application="loud"),)
    options = {"interference": LOUD, **options}
    request = Request("1", 1, application=application)
    return make_policy("eft", options).place(request, replace(cluster, running=running))


def test_a_job_keeps_away_from_a_socket_that_would_slow_it():
    """GPU 1 is the fastest, but beside the loud job 1.5 times as slow."""
    away = beside_a_loud_job([1.0, 0.9, 1.0, 1.1])
    assert (away.slots, away.slowdown) == (((2,),), 1.0)
    assert away.why.of(Interference).factor == 1.0
    # An application without measured times, and a GPU that is slower still than the noise.
    assert beside_a_loud_job([1.0, 0.9, 1.0, 1.1], application="other").slots == ((1,),)
    noisy = beside_a_loud_job([1.0, 0.9, 1.6, 1.6])
    assert noisy.slots == ((1,),)
    assert noisy.slowdown == pytest.approx(0.9 * 1.5)


def test_by_machine_all_its_gpus_are_slowed_alike():
    found = beside_a_loud_job([1.0, 0.9, 1.0, 1.1], interference_scope="machine")
    assert found.slots == ((1,),)
    assert found.slowdown == pytest.approx(0.9 * 1.5)
