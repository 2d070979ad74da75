"""The machines in code against the measured and published link lists."""

import json
from itertools import combinations

import numpy as np
import pytest
from needs import shared_data

from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import agg_table, eff_table, match
from slurm_gpu_aware.topology.patterns import Pattern

CLASSES = {"NV-double": "NV2", "NV-single": "NV1", "PCIe": "SYS"}
# Links that the authors' tables have wrong, from 0, and what they should be.
CORRECTED = {
    "mapa-torus-2d": {(0, 4): 25.0},
    "mapa-cubeMesh-16": {
        **dict.fromkeys([(0, 11), (1, 5), (3, 8), (4, 5), (9, 13), (12, 13)], 50.0),
        (10, 11): 25.0,
    },
}


def data(name):
    described = json.loads(shared_data(f"topologies/{name}.json").read_text())
    first = min(edge["a"] for edge in described["edges"])
    host = 10.0 if name.startswith("mapa") else 12.0
    links = {
        (edge["a"] - first, edge["b"] - first): (
            CLASSES.get(edge["class"], edge["class"]),
            host if edge["gbps"] is None else float(edge["gbps"]),
        )
        for edge in described["edges"]
    }
    groups = {gpu - first: i for i, group in enumerate(described["groups"]) for gpu in group}
    return described, links, groups, host


def with_host(graph, gbps):
    """The graph with another bandwidth of the paths through the host."""
    pairs = combinations(range(graph.n), 2)
    links = [
        (a, b, word, gbps if word == "SYS" else graph.gbps.item(a, b))
        for a, b in pairs
        for word in [graph.classes[a][b]]
    ]
    return HardwareGraph.from_links(links, n=graph.n, groups=graph.groups)


def of_code(graph):
    n = graph.n
    return {
        (a, b): (graph.classes[a][b], float(graph.gbps[a, b]))
        for a in range(n)
        for b in range(a + 1, n)
    }


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        *("dgx-1-p100", "dgx-1-v100", "dgx-2", "dgx-a100", "dgx-h100", "hgx-a100-4"),
        *("ibm-ac922-4xv100", "ibm-ac922-6xv100", "ibm-minsky-4xp100"),
        *("mapa-dgx-p", "mapa-dgx-v", "mapa-summit"),
    ],
)
def test_machine_agrees_with_the_data(name):
    _, links, groups, host = data(name)
    graph = with_host(machine(name), host)
    assert graph.n == len(groups)
    assert of_code(graph) == links
    assert {gpu: graph.groups[gpu] for gpu in groups} == groups


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(CORRECTED))
def test_corrected_machine_differs_only_where_the_tables_are_wrong(name):
    _, links, _, host = data(name)
    code = of_code(with_host(machine(name), host))
    different = {pair: code[pair][1] for pair in links if code[pair][1] != links[pair][1]}
    assert different == CORRECTED[name]


@pytest.mark.shared
@pytest.mark.parametrize("name", ["mapa-dgx-p", "mapa-dgx-v", "mapa-summit"])
def test_best_ring_aggregate_is_the_published_optimum(name):
    described, _, _, host = data(name)
    graph = with_host(machine(name), host)
    optimum = {int(k): v for k, v in described["ring_aggbw_true_optimum"].items()}
    assert {k: agg_table(graph, Pattern("ring"), k).max() for k in optimum} == optimum


def test_links_per_gpu():
    """NVLinks that leave each GPU: 6 on a V100, 4 on a P100; the corrected torus is regular."""

    def per_gpu(name):
        words = machine(name).classes
        return {sum(int(w[2:]) for w in row if w.startswith("NV")) for row in words}

    assert per_gpu("dgx-1-v100") == {6}
    assert per_gpu("dgx-1-p100") == {4}
    assert per_gpu("ibm-ac922-6xv100") == {4}
    assert per_gpu("hgx-a100-4") == {12}
    torus = machine("mapa-torus-2d")
    assert int((torus.gbps >= 25).sum()) // 2 == 32
    assert (torus.gbps >= 25).sum(axis=1).tolist() == [4] * 16


def test_amd_nodes():
    graph = machine("hpe-ex235a-mi250x")
    # ``xgmi_num_links`` of the driver on a node of Frontier (ROCm/rocm-systems, issue 5763).
    table = """00 04 01 00 00 00 02 00
               04 00 00 01 00 01 00 00
               01 00 00 04 02 00 00 00
               00 01 04 00 00 00 00 01
               00 00 02 00 00 04 01 00
               00 01 00 00 04 00 00 01
               02 00 00 00 01 00 00 04
               00 00 00 01 00 01 04 00"""
    links = np.array([[int(n) for n in line.split()] for line in table.split("\n")])
    assert [[0 if w == "X" else direct_links(w) for w in row] for row in graph.classes] == (
        links.tolist()
    )
    assert np.array_equal(graph.gbps[links > 0], 50.0 * links[links > 0])
    # The best ring of four: two packages, joined by two links here and by one there.
    best = eff_table(graph, Pattern("ring"), 4, BOTTLENECK)
    assert best.max() == 50.0
    assert match(graph, (0, 1, 4, 5), Pattern("ring"), BOTTLENECK).eff_gbps < 50.0
    assert machine("mi300x-8").is_uniform
    assert machine("mi300x-8").gbps.sum(axis=1).tolist() == [7 * 64.0] * 8


def test_torus_is_the_same_from_both_ends():
    """Turning the torus by half a turn maps it onto itself."""
    gbps = machine("mapa-torus-2d").gbps
    turned = [15 - i for i in range(16)]
    assert np.array_equal(gbps, gbps[np.ix_(turned, turned)])


def test_host_paths_are_below_every_link():
    gbps = machine("dgx-1-v100").gbps
    assert gbps.min(where=~np.eye(8, dtype=bool), initial=99) == 12.0


@pytest.mark.parametrize(
    ("name", "n", "word", "gbps"),
    [
        ("dgx-h200", 8, "NV18", 450.0),
        ("dgx-b200", 8, "NV18", 900.0),
        ("dgx-b300", 8, "NV18", 900.0),
        ("gb200-nvl72", 4, "NV18", 900.0),
        ("GB300-NVL72", 4, "NV18", 900.0),
    ],
)
def test_switched_machines_have_their_nvlink_generation(name, n, word, gbps):
    graph = machine(name)
    assert graph.n == n
    assert set(of_code(graph).values()) == {(word, gbps)}
    assert graph.groups == tuple(i // (n // 2) for i in range(n))


def test_pcie_machines_keep_near_pairs_ahead():
    links = of_code(machine("rtx-pro-8"))
    assert links[0, 1] == links[6, 7] == ("PIX", 63.0)
    assert links[1, 2] == ("NODE", 47.25)
    assert links[3, 4] == ("SYS", 42.0)
    bridged = of_code(machine("h100-nvl-8"))
    assert bridged[2, 3] == ("NV12", 300.0)
    assert bridged[1, 2][0] == "NODE"
    assert of_code(machine("pcie-gen4-4")) == {
        pair: ("NODE" if pair in ((0, 1), (2, 3)) else "SYS", gbps)
        for pair, gbps in {
            (0, 1): 23.625, (0, 2): 21.0, (0, 3): 21.0, (1, 2): 21.0, (1, 3): 21.0, (2, 3): 23.625
        }.items()
    }  # fmt: skip
