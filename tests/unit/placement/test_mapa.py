"""MAPA and pal+mapa: the tables of their pages, large machines, several nodes, options."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from make import job_request
from policy_pages import PAGES, numbers, with_columns

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.bipartition import bisect
from slurm_gpu_aware.placement.facts import Chosen, Links
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology import general
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, eq2, fit_eq2
from slurm_gpu_aware.topology.general import mapping_values
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import fitted_ring, match
from slurm_gpu_aware.topology.patterns import Pattern, parse_pattern
from slurm_gpu_aware.topology.subsets import mask_of, slots_of

ROOT = Path(__file__).resolve().parents[3]
PAPERS = ROOT / "benchmarks" / "papers.md"
DGX = machine("dgx-1-v100")
SCORES = np.array([[0.94, 0.89, 0.94, 0.89, 0.94, 1.06, 0.94, 2.55]])


def place_on(
    policy, gpus, *, bw="high", busy=(), scores=None, nodes=1, graph=DGX, options=None, **own
):
    cluster = Cluster.uniform(nodes, graph.n, graph=graph, scores=scores)
    cluster.free[0, list(busy)] = False
    request = job_request("1", gpus, app_class="A", bandwidth_sensitive=bw == "high", **own)
    return make_policy(policy, options).place(request, cluster)


def bandwidths(row, why):
    shown = {"EffBW": "effbw_gbps", "AggBW": "aggbw_gbps", "PreservedBW": "preservedbw_gbps"}
    return [
        (float(row[name]), getattr(why.of(Links), key)) for name, key in shown.items() if row[name]
    ]


def test_page_of_papers_the_eq2_table():
    (rows,) = with_columns(PAPERS, "x", "y", "z")
    assert len(rows) == 9
    for row in rows:
        value = float(eq2(*(int(row[c]) for c in "xyz")))
        assert value == pytest.approx(float(row["eq. 2, GB/s"]), abs=0.05)


def test_page_of_mapa_the_rings_of_three():
    (rows,) = with_columns("mapa.md", "AggBW, GB/s")
    assert [row["AggBW, GB/s"] for row in rows] == ["87", "125"]
    for row in rows:
        found = match(DGX, numbers(row["GPUs"]), Pattern("ring"), BOTTLENECK)
        assert found.links_gbps == numbers(row["links"])
        assert found.agg_gbps == float(row["AggBW, GB/s"])
        assert found.eff_gbps == float(row["bottleneck, GB/s"])


@pytest.mark.parametrize(("table", "busy"), [(0, ()), (1, (0, 5, 6))])
def test_page_of_mapa_the_policies(table, busy):
    rows = with_columns("mapa.md", "policy", "bw", "GPUs")[table]
    assert len(rows) >= 3
    for row in rows:
        got = place_on(row["policy"], len(numbers(row["GPUs"])), bw=row["bw"], busy=busy)
        assert got.slots[0] == numbers(row["GPUs"]), row
        for shown, accounted in bandwidths(row, got.why):
            assert accounted == shown


def test_page_of_pal_mapa():
    text = (PAGES / "pal-mapa.md").read_text()
    assert " ".join(f"{v:.2f}" for v in SCORES[0]) in text
    (rows,) = with_columns("pal-mapa.md", "policy", "V")
    assert len(rows) == 8
    for row in rows:
        got = place_on(row["policy"], int(row["gpus"]), bw=row["bw"], scores={"A": SCORES})
        assert got.slots[0] == numbers(row["GPUs"]), row
        assert got.score == float(row["V"])
        for shown, accounted in bandwidths(row, got.why):
            assert accounted == shown


def test_pages_name_every_registered_policy_of_theirs():
    from slurm_gpu_aware.placement.policy import policy_names

    text = (PAGES / "mapa.md").read_text() + (PAGES / "pal-mapa.md").read_text()
    ours = [name for name in policy_names() if "mapa" in name]
    assert len(ours) == 5
    assert all(f"`{name}`" in text for name in ours)


@pytest.mark.parametrize(
    ("options", "pattern", "model", "gbps"),
    [
        (None, "ring", "bottleneck", 25.0),
        ({"effbw": "paper"}, "ring", "paper", 53.606),
        ({"effbw": "paper"}, "tree", "paper", 53.606),
        ({"effbw": "paper"}, "all-to-all", "paper", 53.606),
    ],
)
def test_the_account_names_the_model_and_that_of_the_paper_scores_rings(
    options, pattern, model, gbps
):
    links = place_on("mapa-preserve", 5, pattern=pattern, options=options).why.of(Links)
    assert (links.effbw_model, links.effbw_gbps) == (model, gbps)


def test_a_refit_decides_by_the_ring_that_it_was_fitted_to():
    """Measured: the slowest link of the best ring, on all sets of two to five GPUs."""
    sets = [s for k in range(2, 6) for s in combinations(range(8), k)]
    measured = {s: match(DGX, s, Pattern("ring"), BOTTLENECK).eff_gbps for s in sets}
    fit = fit_eq2([(*fitted_ring(DGX, s), measured[s]) for s in sets])
    used = {s: match(DGX, s, Pattern("ring"), fit.model).eff_gbps for s in sets}
    errors = np.array([used[s] - measured[s] for s in sets])
    assert np.sqrt((errors**2).mean()) == pytest.approx(fit.rmse)
    assert fit.rmse < 1.0
    got = place_on("mapa-preserve", 4, options={"effbw": list(fit.model.coefficients)})
    assert got.why.of(Links).effbw_model == "refit"
    assert measured[got.slots[0]] == 25.0
    assert got.why.of(Links).effbw_gbps == pytest.approx(used[got.slots[0]], abs=1e-3)


def test_a_fit_to_the_gpus_of_a_node_comes_before_the_option():
    """A fit that likes links through the host, on the second of two nodes; three GPUs have two."""
    slow = [0.0, 0.0, 100.0, *[0.0] * 11]
    graphs = tuple(HardwareGraph.build(DGX.gbps, DGX.classes, DGX.groups, f) for f in (None, slow))
    assert graphs[0] is DGX != graphs[1]
    assert graphs[1].subgraph([0, 1]).effbw == graphs[1].padded(9).effbw == tuple(slow)
    cluster = replace(Cluster.uniform(2, 8), graphs=graphs)
    request = Request("1", 3, bandwidth_sensitive=True)
    got = make_policy("mapa-preserve").place(request, cluster)
    assert (got.nodes, got.why.of(Links).effbw_model, got.why.of(Links).effbw_gbps) == (
        (1,),
        "refit",
        200.0,
    )
    wide = make_policy("mapa-preserve").place(replace(request, gpus=16), cluster)
    assert wide.why.of(Links).effbw_model == "bottleneck, refit"


def test_nodes_without_links_count_as_equal_and_say_so():
    cluster = replace(Cluster.uniform(2, 8), graphs=(None, DGX))
    got = make_policy("mapa-preserve").place(Request("1", 2, bandwidth_sensitive=True), cluster)
    assert (got.nodes, got.slots) == ((1,), ((0, 3),))
    blind = make_policy("pal+mapa").place(
        Request("1", 2, bandwidth_sensitive=True), Cluster.uniform(2, 8)
    )
    assert (blind.nodes, blind.slots) == ((0,), ((0, 1),))
    assert not blind.why.of(Links).links[0].measured
    assert "links not measured" in blind.why.text
    links = blind.why.of(Links)
    assert {links.effbw_gbps, links.aggbw_gbps, links.preservedbw_gbps} == {None}


def test_on_a_plain_node_the_account_has_the_worst_set_that_slurm_may_choose():
    cluster = replace(Cluster.uniform(1, 8, graph=DGX), indexed=np.array([False]))
    why = make_policy("pal+mapa").place(Request("1", 2, bandwidth_sensitive=True), cluster).why
    links = why.of(Links)
    assert links.links[0].order == (links.links[0].worst,)
    assert (links.effbw_gbps, links.aggbw_gbps) == (12.0, 24.0)
    assert "at worst: Slurm chooses the GPUs" in why.text


@pytest.mark.parametrize("policy", ["eft", "pal+mapa", "mapa-preserve"])
@pytest.mark.parametrize(
    ("sensitive", "key"), [(True, "effbw_gbps"), (False, "preservedbw_change_gbps")]
)
def test_the_considered_sets_have_the_value_that_decided(policy, sensitive, key):
    request = Request("1", 2, bandwidth_sensitive=sensitive)
    why = make_policy(policy).place(request, Cluster.uniform(2, 8, graph=DGX)).why
    assert why.of(Chosen).by == key


CUBE = "0-1,1-2,2-3,3-0,4-5,5-6,6-7,7-4,0-4,1-5,2-6,3-7"


def test_a_cube_on_sixteen_gpus_is_searched_completely():
    """12,870 sets of 840 different layouts each."""
    graph = machine("mapa-cubemesh-16")
    got = place_on("mapa-preserve", 8, graph=graph, pattern=CUBE)
    assert not got.why.of(Links).in_part
    edges = parse_pattern(CUBE).edges
    total, slowest = (table.max() for table in mapping_values(graph.gbps, edges, 8))
    assert got.why.of(Links).effbw_gbps == slowest
    ((order,),) = [entry.order for entry in got.why.of(Links).links]
    assert min(graph.gbps[order[a], order[b]] for a, b in edges) == slowest
    rng = np.random.default_rng(5)
    for gpus in (rng.permutation(16)[:8] for _ in range(300)):
        links = [graph.gbps[gpus[a], gpus[b]] for a, b in edges]
        assert min(links) <= slowest
        assert sum(links) <= total


GRID = ",".join(
    [f"{4 * r + c}-{4 * r + c + 1}" for r in range(4) for c in range(3)]
    + [f"{v}-{v + 4}" for v in range(12)]
)


def test_a_grid_of_sixteen_is_searched_in_part_and_accounted():
    """Too wide for an exact search; the account holds the values of the embedding that it shows."""
    torus = machine("mapa-torus-2d")
    got = place_on("mapa-preserve", 16, graph=torus, pattern=GRID)
    assert got.why.of(Links).in_part
    assert "searched in part" in got.why.text
    mesh = machine("mapa-cubemesh-16")
    got = place_on("mapa-greedy", 9, graph=mesh, pattern=GRID, busy=(0, 5))
    assert not {0, 5} & set(got.slots[0])
    assert got.why.of(Chosen).candidate_sets == 2002
    entry = got.why.of(Links).links[0]
    assert sorted(entry.order[0]) == list(got.slots[0])
    assert entry.aggbw_gbps == sum(entry.links_gbps)
    assert entry.effbw_gbps == min(entry.links_gbps)


def test_choices_by_tables_of_wide_patterns_say_that_these_are_in_part(monkeypatch):
    """Plain nodes count as their worst set, and several nodes compare index sets by tables."""
    monkeypatch.setattr(general, "_way", lambda *_: "beam")
    monkeypatch.setattr(general, "_BEAM", 100)
    cluster = Cluster.uniform(2, 10, graph=machine("mapa-cubemesh-16").subgraph(range(3, 13)))
    request = Request("1", 9, bandwidth_sensitive=True, pattern=GRID)
    policy = make_policy("mapa-preserve")
    assert policy.place(request, cluster).why.of(Links).in_part
    plain = replace(cluster, indexed=np.array([False, False]))
    assert policy.place(request, plain).why.of(Links).in_part
    two = replace(request, gpus=18, gpus_per_node=9)
    assert policy.place(two, cluster).why.of(Links).in_part
    assert not policy.place(replace(request, pattern="ring"), plain).why.of(Links).in_part


def test_machines_of_more_than_16_gpus():
    """Two NVLink quads in a machine of 20: exact up to 16 free GPUs, grown above."""
    gbps = np.full((20, 20), 10.0)
    for quad in ([3, 9, 12, 17], [4, 5, 6, 7]):
        gbps[np.ix_(quad, quad)] = 50.0
    graph = HardwareGraph.build(gbps, [["PHB"] * 20 for _ in range(20)])
    for busy in ((), (0, 1, 2, 4)):
        got = place_on("mapa-preserve", 4, graph=graph, busy=busy)
        assert got.slots[0] == (3, 9, 12, 17)
        assert got.why.of(Links).effbw_gbps == 50.0
        kept = place_on("mapa-preserve", 4, bw="low", graph=graph, busy=busy)
        assert not set(kept.slots[0]) & {3, 9, 12, 17}
        assert kept.why.of(Chosen).cut
        assert bool(got.why.of(Chosen).cut) == (not busy)
    assert len(place_on("mapa-greedy", 18, graph=graph).slots[0]) == 18
    assert len(place_on("mapa-topo-aware", 4, graph=graph).slots[0]) == 4


def test_bisection_takes_sockets_first_then_the_least_cut():
    assert [slots_of(half) for half in bisect(DGX, 255)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [slots_of(half) for half in bisect(DGX, mask_of([0, 1, 2, 3]))] == [(0, 3), (1, 2)]
    assert [slots_of(half) for half in bisect(DGX, mask_of([5, 6, 7]))] == [(5, 6), (7,)]


def test_ties_and_candidates_are_counted():
    """C(8, 3) sets on each of two nodes; eight of each node have AggBW 125."""
    got = place_on("mapa-greedy", 3, nodes=2)
    assert got.why.of(Chosen).candidate_sets == 2 * 56
    rivals = [
        match(DGX, slots_of(m), Pattern("ring"), BOTTLENECK).agg_gbps
        for m in range(256)
        if m.bit_count() == 3
    ]
    assert got.why.of(Chosen).ties == 2 * rivals.count(125.0)
    assert "112 sets" in got.why.text
