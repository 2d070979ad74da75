"""GPUs that Slurm chooses on nodes that a policy has chosen, and what is told of them."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import NodeRules, Request, Wait
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.policy import SLURM, make_policy, policy_names, with_slurms_gpus
from slurm_gpu_aware.topology.machines import machine


@pytest.fixture
def plain() -> Cluster:
    """Three DGX-1 without a GRES type per GPU; GPU 2 of n1 is slow."""
    cluster = Cluster.uniform(["n1", "n2", "n3"], 8, graph=machine("dgx-1-v100"))
    scores = np.ones((3, 8))
    scores[0, 2] = 1.3
    return replace(cluster, scores={"A": scores}, indexed=np.zeros(3, dtype=np.bool_))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_node_is_ours_and_the_gpus_are_slurms(plain: Cluster, number: int) -> None:
    request = Request("7", number, app_class="A", gpus_per_node=number)
    ours = make_policy("eft").place(request, plain)
    assert ours.nodes != (0,)
    found = with_slurms_gpus(ours, request, plain, {})
    only = replace(plain, free=plain.free & (np.arange(3) == ours.nodes[0])[:, None])
    alone = make_policy(SLURM).place(request, only)
    assert (found.nodes, found.slots) == (ours.nodes, alone.slots)
    assert (found.score, found.slowdown, found.why) == (ours.score, ours.slowdown, ours.why)


def test_slurm_takes_the_pair_with_the_fewest_links_where_it_knows_them() -> None:
    bridges = HardwareGraph.from_links([(0, 1, "NV4", None), (2, 3, "NV4", None)], n=4)
    cluster = Cluster.uniform(2, 4, graph=bridges)
    plain = replace(cluster, indexed=np.zeros(2, dtype=np.bool_))
    request = Request("7", 2, gpus_per_node=2)
    ours = Assignment("7", (1,), ((0, 1),), "eft", 1.0, "node", 1.0, exact=False)
    with_links, without = (
        with_slurms_gpus(ours, request, plain, {"links": known}).slots for known in (True, False)
    )
    assert (with_links, without) == (((0, 2),), ((0, 1),))


def test_known_gpus_stay(plain: Cluster) -> None:
    ours = Assignment("7", (1,), ((2, 3),), "eft", 1.0, "node", 1.0)
    request = Request("7", 2)
    assert with_slurms_gpus(ours, request, plain, {}) is ours
    by_slurm = replace(ours, exact=False, policy=SLURM)
    assert with_slurms_gpus(by_slurm, request, plain, {}) is by_slurm
    whole = replace(ours, exact=False)
    rules = NodeRules(whole=True)
    assert with_slurms_gpus(whole, replace(request, nodes=rules), plain, {}) is whole


def test_where_slurms_rules_find_none_the_first_free_ones_count(plain: Cluster) -> None:
    plain.free[1, [0, 3]] = False
    plain.free_cpus[1] = 0
    ours = Assignment("7", (1,), ((6, 7),), "lowest-index", 1.0, "node", 1.0, exact=False)
    assert with_slurms_gpus(ours, Request("7", 2), plain, {}).slots == ((1, 2),)


def test_no_account_names_gpus_that_slurm_chooses(plain: Cluster) -> None:
    for name in policy_names():
        for request in (
            Request("7", 2, app_class="A", bandwidth_sensitive=True),
            Request("7", 4, app_class="A", gpus_per_node=2),
        ):
            request = replace(request, wait=Wait(relaxed=True))
            found = make_policy(name).place(request, plain)
            assert not found.exact
            told = found.why.plain()
            chosen = told.get("chosen", {"nodes": ()})
            assert "considered" not in chosen
            assert all({"slots", "scores"}.isdisjoint(one) for one in chosen["nodes"])
            sets = [one["set"] for one in told.get("utility", {}).get("alternatives", ())]
            assert all(text.startswith("2 GPUs of n") for text in sets), sets


def test_words_name_the_node_and_the_number(plain: Cluster) -> None:
    assert set_words(plain, [0, 2], [(0, 1), (3,)]) == "2 GPUs of n1 + 1 GPU of n3"
    assert set_words(plain, [0, 2], [(0, 1), ()]) == "2 GPUs of n1 + n3"
    mixed = replace(plain, indexed=np.array([True, False, False]))
    assert set_words(mixed, [0, 2], [(0, 1), (3,)]) == "n1 GPUs 0,1 + 1 GPU of n3"
