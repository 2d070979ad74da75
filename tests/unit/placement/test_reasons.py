"""Reasons for no place from the options of a policy."""

from pathlib import Path
from typing import Any

import pytest
from make import job_request, plan_round
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import uniform_graph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy, policy_names
from slurm_gpu_aware.planning.plan import PlanSettings, Waiting
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

PCIE = uniform_graph(8, "PIX")
NARROW = {"min_bandwidth_gbps": 25.0}
ALONE = {"single_node": True}
APART = {"anti_collocation": True}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "links": (
        NARROW,
        {"gpus": 4},
        "no set that would fit has links of at least 25 GB/s between all its GPUs "
        "(min_bandwidth_gbps of policy topo-aware)",
    ),
    "wider than a node": (
        ALONE,
        {"gpus": 16},
        "single_node of policy topo-aware keeps it on one node: nodes have at most 8 GPUs",
    ),
    "several nodes": (
        ALONE,
        {"gpus": 4, "gpus_per_node": 2},
        "single_node of policy topo-aware keeps it on one node: it asks for 2 nodes",
    ),
    "network": (
        {**NARROW, "network_gbps": 12.5},
        {"gpus": 4, "min_nodes": 2},
        "min_bandwidth_gbps 25 of policy topo-aware keeps it on one node (network_gbps 12.5): "
        "it asks for 2 nodes",
    ),
    "nodes": (
        APART,
        {"gpus": 3},
        "anti_collocation of policy topo-aware gives each GPU a node of its own: "
        "needs 3 nodes with 1 GPU each; 2 nodes have that many",
    ),
    "most nodes": (
        APART,
        {"gpus": 2, "max_nodes": 1},
        "anti_collocation of policy topo-aware gives each GPU a node of its own: "
        "it asks for 1 node at most",
    ),
    "per node": (
        APART,
        {"gpus": 4, "gpus_per_node": 2},
        "anti_collocation of policy topo-aware gives each GPU a node of its own: "
        "it asks for 2 GPUs per node",
    ),
}


def waits(cluster: Cluster, options: dict[str, Any], **asked: Any) -> Waiting:
    settings, given = PlanSettings(policy="topo-aware"), {"topo-aware": options}
    plan = plan_round([job_request("1", **asked)], cluster, settings, 0.0, policy_options=given)
    (entry,) = plan.waiting
    return entry


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("same_indices", [True, False])
def test_the_reason_names_the_option(name: str, same_indices: bool) -> None:
    options, asked, sentence = CASES[name]
    cluster = Cluster.uniform(2, 8, graph=PCIE, same_indices=same_indices)
    entry = waits(cluster, options, **asked)
    assert entry.reason == f"cannot start even on an idle cluster: {sentence}"
    assert (entry.infeasible, entry.by_policy) == (True, True)


def test_one_node_and_links_that_no_gpus_have() -> None:
    entry = waits(Cluster.uniform(1, 8, graph=PCIE), NARROW, gpus=4)
    assert CASES["links"][2] in entry.reason
    assert "indices" not in entry.reason


def test_the_reason_names_a_full_node_and_the_option() -> None:
    cluster = Cluster.uniform(2, 4)
    cluster.take(0, [0, 1])
    cluster.take(1, [2, 3])
    entry = waits(cluster, ALONE, gpus=4)
    assert entry.reason.endswith(
        "keeps it on one node: needs 4 free GPUs on one node; the most on any node it may use is 2"
    )
    assert (entry.infeasible, entry.by_policy) == (False, False)


def test_where_no_option_matters_the_common_reason_stands() -> None:
    cluster = Cluster.uniform(1, 4, graph=uniform_graph(4, "NV2", 50.0))
    for options in ({}, ALONE, NARROW):
        entry = waits(cluster, options, gpus=5, max_nodes=1)
        assert "cannot be split evenly" in entry.reason
        assert (entry.infeasible, entry.by_policy) == (True, False)


@pytest.mark.parametrize("name", policy_names())
def test_only_policies_with_rules_have_reasons_of_their_own(name: str) -> None:
    policy = make_policy(name)
    assert policy.has_rules == name.startswith("topo-aware")
    cluster = Cluster.uniform(2, 2)
    cluster.free[0, 0] = cluster.free[1, 1] = False
    request = Request("1", 2, gpus_per_node=1)
    if name == "slurm":  # its own choice is bound to no common index
        assert policy.place(request, cluster) is not None
        return
    assert policy.place(request, cluster) is None
    found = policy.why_not(request, cluster)
    assert found.text.startswith("no 2 nodes have the same GPU index free")
    assert not found.own


def test_a_reason_that_fails_stops_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_gpu_aware.placement.policies import topo_aware

    def broken(*_: object) -> str:
        raise RuntimeError("broken")

    monkeypatch.setattr(topo_aware.TopoAware, "own_reason", broken)
    entry = waits(Cluster.uniform(2, 8), ALONE, gpus=32)
    assert "needs 32 GPUs; the nodes it may use have 16 GPUs" in entry.reason


def test_the_simulator_tells_it_too() -> None:
    jobs = [TraceJob("wide", 0, 8, 10, options=ALONE)]
    cluster = Cluster.uniform(2, 4, same_indices=False)
    infeasible = simulate(Trace.of("t", jobs), cluster, SimSettings(policy="topo-aware")).infeasible
    assert infeasible == (("wide", CASES["wider than a node"][2].replace("8", "4")),)


def test_a_job_that_the_sites_option_forbids_stays_parked_with_the_reason(tmp_path: Path) -> None:
    """The GPUs are enough, but Slurm would use two nodes, which the site forbids."""
    slurm = SlurmFolder(tmp_path)
    text = '[placement]\npolicy = "topo-aware"\n[policies.topo-aware]\nsingle_node = true\n'
    slurm.config.write_text(slurm.config.read_text() + text)
    comment = "gpuaware/1;tn=gres/gpu:2;nn=2-2;mc=2"
    wide = parked("98", admin_comment=comment, num_nodes=2, num_cpus=2)
    slurm.write([wide, parked("8")], ["n1", "n2"])
    bench = RoundsBench(slurm, load_config(slurm.config))
    bench.rounds.run()
    (entry,) = bench.rounds.run().waiting  # the second reading confirms it
    assert slurm.jobs["98"]["licenses"] == "gpuaware:1"
    assert slurm.jobs["8"]["state"] == "RUNNING"
    assert entry["job_id"] == "98"
    assert entry["reason"].endswith(CASES["several nodes"][2])
