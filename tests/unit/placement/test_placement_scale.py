"""Choices that must not depend on the number of groups or the width of nodes."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement import index_sets
from slurm_gpu_aware.placement.facts import Chosen, Links
from slurm_gpu_aware.placement.index_sets import _common_sets, _lowest_common
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.placement.selection import by_links as by_links_same
from slurm_gpu_aware.topology.subsets import slots_of


def switched(nodes, width, per_switch=2, **kwargs):
    """Nodes in pairs below switches."""
    cluster = Cluster.uniform(nodes, width, **kwargs)
    switch = LocalityLevel("switch", 1.2, np.arange(nodes) // per_switch)
    return replace(cluster, levels=(cluster.levels[0], switch, cluster.levels[1]))


def equal_links(gbps):
    """Eight GPUs with equal links."""
    return HardwareGraph.build(np.full((8, 8), gbps), [["PHB"] * 8 for _ in range(8)])


@pytest.mark.parametrize("last", [0, 31, 32, 39])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("bw", [True, False])
def test_the_best_links_are_found_in_whatever_switch_they_are(last, same, bw):
    """40 idle switches of two nodes; the links of one pair differ from all others."""
    pcie, better = equal_links(12.0), equal_links(300.0 if bw else 6.0)
    graphs = tuple(better if node // 2 == last else pcie for node in range(80))
    cluster = replace(switched(80, 8, same_indices=same), graphs=graphs)
    request = Request("1", 16, gpus_per_node=8, bandwidth_sensitive=bw)
    for policy in ("pal+mapa", "mapa-preserve", "mapa-greedy"):
        if policy == "mapa-greedy" and not bw:
            continue
        got = make_policy(policy).place(request, cluster)
        assert got.nodes == (2 * last, 2 * last + 1), policy
        assert got.why.of(Links).effbw_gbps == (300.0 if bw else 6.0)


@pytest.mark.parametrize("last", [0, 32, 39])
@pytest.mark.parametrize("same", [True, False])
def test_the_least_sum_of_scores_is_found_in_whatever_switch_it_is(last, same):
    """Every switch needs its GPU of 1.1; one has 0.9 beside it, the others 1.0."""
    scores = np.tile([1.0, 1.1, 1.1, 1.1], (80, 1))
    scores[2 * last : 2 * last + 2, 0] = 0.9
    cluster = switched(80, 4, scores={"A": scores}, same_indices=same)
    request = Request("1", 4, gpus_per_node=2, min_nodes=2, app_class="A")
    wanted = [request] if same else [request, replace(request, gpus_per_node=None)]
    for asked in wanted:
        got = make_policy("pal").place(asked, cluster)
        assert got.nodes == (2 * last, 2 * last + 1)
        assert [slots[0] for slots in got.slots] == [0, 0]


@pytest.mark.parametrize("policy", ["pal", "pal+mapa", "packed"])
def test_of_equally_good_switches_the_fullest_is_taken_then_the_lowest(policy):
    cluster = switched(120, 4)
    cluster.free[90, :] = False  # its switch has no pair left
    cluster.free[[100, 101], 3] = False
    cluster.free[[110, 111], 3] = False
    got = make_policy(policy).place(Request("1", 6, gpus_per_node=3), cluster)
    assert got.nodes == (100, 101)


@pytest.mark.parametrize("policy", ["pal", "pal+mapa", "packed", "mapa-preserve", "pm-first"])
def test_nodes_of_24_slots_find_the_indices_that_they_share(policy):
    cluster = Cluster.uniform(2, 24)
    cluster.free[:] = False
    cluster.free[0, [0, 2, 3]] = True
    cluster.free[1, [1, 2, 3]] = True
    request = Request("1", 4, gpus_per_node=2, bandwidth_sensitive=True)
    got = make_policy(policy).place(request, cluster)
    assert got.slots == ((2, 3), (2, 3))


def test_the_sets_that_wide_nodes_share_are_those_of_brute_force():
    rng = np.random.default_rng(3)
    for _ in range(60):
        count, nodes, size = (int(v) for v in rng.integers(2, 6, 3))
        masks = rng.integers(0, 1 << 10, count) & rng.integers(0, 1 << 10, count)
        expected = []
        for slots in combinations(range(10), size):
            mask = sum(1 << s for s in slots)
            if int(((masks & mask) == mask).sum()) >= nodes:
                expected.append(slots)
        common = _lowest_common(masks, size, nodes, 1 << 20)
        assert common.complete
        assert list(map(slots_of, common.sets.tolist())) == sorted(expected)


def wide_masks(nodes, width, share, seed=0):
    """Which slots are free, as masks, each with a probability."""
    free = np.random.default_rng(seed).random((nodes, width)) < share
    return free, free.astype(np.int64) @ (np.int64(1) << np.arange(width))


def test_the_work_on_wide_nodes_does_not_grow_with_the_groups():
    _, masks = wide_masks(1152, 24, 0.75)
    for groups in (1, 16, 64):
        found = dict(_common_sets(masks, np.arange(1152) % groups, groups, 8, 6))
        assert sum(one.work for one in found.values()) < 1.5 * index_sets._MOST_WORK
        for number, one in found.items():
            own = masks[np.arange(1152) % groups == number]
            assert len(one.sets) <= index_sets._MOST_SETS + 1
            for mask in one.sets.tolist():
                assert mask.bit_count() == 8
                assert int((own & mask == mask).sum()) >= 6
            slots = [slots_of(mask) for mask in one.sets.tolist()]
            assert slots == sorted(set(slots))


def test_a_set_far_up_the_order_needs_no_search(monkeypatch):
    """Half of the nodes share their upper slots; lower slots give no set for a long time."""
    monkeypatch.setattr(index_sets, "_MOST_WORK", 0)
    upper = 0xFF << 16
    _, masks = wide_masks(18, 24, 0.6)
    masks[::2] |= upper
    found = dict(_common_sets(masks, np.zeros(18, dtype=np.int64), 1, 8, 9))[0]
    assert found.sets.tolist() == [upper]


@pytest.mark.parametrize("policy", ["pal", "pal+mapa", "packed", "mapa-preserve"])
def test_an_account_says_that_the_search_on_wide_nodes_ended_early(policy):
    """Cut by work: far fewer sets are found than the limit."""
    cluster = Cluster.uniform(100, 24)
    cluster.free[:], _ = wide_masks(100, 24, 0.6)
    request = Request("1", 40, gpus_per_node=10, min_nodes=4, max_nodes=4)
    got = make_policy(policy).place(request, cluster)
    assert "ended early" in got.why.of(Chosen).cut
    assert got.why.text.endswith(got.why.of(Chosen).cut)


def test_an_account_says_what_was_not_compared():
    """C(24, 12) index sets fit idle nodes: the lowest are compared."""
    got = make_policy("pal").place(Request("1", 24, gpus_per_node=12), Cluster.uniform(2, 24))
    assert got.slots[0] == tuple(range(12))
    assert got.why.of(Chosen).cut.endswith("ended early: 512 index sets compared")
    assert got.why.text.endswith(got.why.of(Chosen).cut)
    small = make_policy("pal").place(Request("1", 4, gpus_per_node=2), Cluster.uniform(2, 4))
    assert not small.why.of(Chosen).cut


def many_kinds():
    """40 switches of two nodes: kinds that differ in links and free GPUs, two in each switch."""
    cluster = switched(80, 4)
    cluster.free[:, 2:] = np.random.default_rng(5).random((80, 2)) < 0.7
    uneven = HardwareGraph.build(
        50.0 - 10.0 * np.abs(np.subtract.outer(np.arange(4), np.arange(4))),
        [["PHB"] * 4 for _ in range(4)],
    )
    pcie = HardwareGraph.build(np.full((4, 4), 12.0), [["PHB"] * 4 for _ in range(4)])
    return replace(cluster, graphs=tuple(uneven if n % 3 else pcie for n in range(80)))


@pytest.mark.parametrize("bw", [True, False])
def test_a_limit_on_the_kinds_of_one_switch_cuts_nothing_in_many(monkeypatch, bw):
    cluster = many_kinds()
    request = Request("1", 4, gpus_per_node=2, min_nodes=2, bandwidth_sensitive=bw)
    free = make_policy("pal+mapa").place(request, cluster)
    monkeypatch.setattr(by_links_same, "_MOST_WORK", 12)  # two kinds, six index sets
    got = make_policy("pal+mapa").place(request, cluster)
    assert not got.why.of(Chosen).cut
    assert (got.nodes, got.slots) == (free.nodes, free.slots)


def test_index_sets_beyond_the_limit_are_cut_and_accounted(monkeypatch):
    """MAPA ignores switches: all kinds are in one group."""
    monkeypatch.setattr(by_links_same, "_MOST_WORK", 12)
    request = Request("1", 4, gpus_per_node=2, min_nodes=2, bandwidth_sensitive=True)
    got = make_policy("mapa-preserve").place(request, many_kinds())
    assert got.why.of(Chosen).cut == "1 of the 6 index sets compared"
    assert got.slots == ((0, 1), (0, 1))


def test_an_account_names_every_cut():
    """Nodes of 24 GPUs with unequal links: the search ends early and compares sums of links."""
    gbps = np.random.default_rng(2).integers(1, 9, (24, 24)) * 10.0
    graph = HardwareGraph.build(np.triu(gbps, 1) + np.triu(gbps, 1).T, [["PHB"] * 24] * 24)
    cluster = replace(Cluster.uniform(4, 24), graphs=(graph,) * 4)
    request = Request("1", 24, gpus_per_node=12, bandwidth_sensitive=True)
    cut = make_policy("pal+mapa").place(request, cluster).why.of(Chosen).cut
    assert "ended early" in cut
    assert "sum of all their links" in cut


def test_topo_aware_says_what_it_did_not_compare():
    request = Request("1", 8, gpus_per_node=4)
    got = make_policy("topo-aware").place(request, switched(80, 8))
    assert got.why.of(Chosen).cut == (
        "the 32 fullest of 40 groups compared; the 32 nearest of 70 index sets compared"
    )
    assert got.why.text.endswith(got.why.of(Chosen).cut)
    alone = make_policy("topo-aware").place(request, switched(80, 8, same_indices=False))
    assert alone.why.of(Chosen).cut == "the 32 fullest of 40 groups compared"
    few = make_policy("topo-aware").place(request, switched(4, 4))
    assert not few.why.of(Chosen).cut


@pytest.mark.parametrize("policy", ["pal", "pal+mapa"])
def test_one_gpu_in_no_known_domain_counts_as_in_one(policy):
    """As in the account: the tightest level holds any single GPU."""
    cluster = Cluster.uniform(1, 4, scores={"A": np.array([[1.0, 1.0, 1.0, 0.95]])})
    domain = LocalityLevel("nvlink", 1.0, np.array([[0, 0, 1, -1]]))
    node = replace(cluster.levels[0], penalty=1.1)
    cluster = replace(cluster, levels=(domain, node, *cluster.levels[1:]))
    got = make_policy(policy).place(Request("1", 1, app_class="A"), cluster)
    assert got.slots == ((3,),)
    assert got.level == "nvlink"
    two = make_policy(policy).place(Request("1", 2, app_class="A"), cluster)
    assert two.slots == ((0, 1),)
