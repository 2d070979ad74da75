"""Levels above the node, read from a live Slurm: switches (tree) and blocks (block)."""

import json
from collections.abc import Iterator

import pytest
from cluster import Cluster
from site_files import CONFIG, SLURM_CONF, TOPOLOGY, kept, restart
from test_limits import WAIT, is_parked
from test_way_of_a_job import decisions, end_job, let_go, started

# Neighbours by name are never neighbours by network: no order of names gives these pairs.
NETWORKS = {
    "tree": (
        "SwitchName=s0 Nodes=n[1,3]\nSwitchName=s1 Nodes=n[2,4]\nSwitchName=r0 Switches=s[0-1]\n"
    ),
    "block": "BlockName=b0 Nodes=n[1,3]\nBlockName=b1 Nodes=n[2,4]\nBlockSizes=2\n",
}


@pytest.fixture(params=NETWORKS, scope="module")
def network(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    plugin: str = request.param
    with kept(cluster, SLURM_CONF, TOPOLOGY, CONFIG):
        cluster.sh("ctl", f"cat > {TOPOLOGY}", stdin=NETWORKS[plugin])
        cluster.sh("ctl", f"echo 'TopologyPlugin=topology/{plugin}' >> {SLURM_CONF}")
        cluster.sh("ctl", f"sed -i 's/^levels = {{/& switch = 1.2,/' {CONFIG}")
        restart(cluster)  # a topology plugin changes with new daemons only
        yield plugin


def test_two_nodes_below_one_switch(cluster: Cluster, network: str) -> None:
    assert network in cluster.sh("ctl", ["scontrol", "show", "config"])
    cluster.running_job("bob", ["-w", "n1", "--gres=gpu:1"], WAIT)
    # n2, n3 and n4 are free; n2 and n4 share a switch.
    near = cluster.running_job("alice", ["-N2", "--gres=gpu:4", "--comment=class=A"], WAIT)
    assert set(cluster.gpus(near)) == {"n2", "n4"}
    assert started(cluster, near)["outcome"]["as_planned"]
    cluster.wait_told(near, r"\bswitch\b")

    # Three GPUs are left on each node of the other switch.
    beside = cluster.running_job("alice", ["-N2", "--gres=gpu:3", "--comment=class=A"], WAIT)
    assert set(cluster.gpus(beside)) == {"n1", "n3"}

    late = cluster.submit("alice", ["-N2", "--gres=gpu:4", "--comment=class=A"], WAIT)
    cluster.wait_until(lambda: is_parked(cluster, late), 60, "it waits")
    # One pair at a time: of both, one node of each may be free first.
    let_go(cluster, "alice", near)
    cluster.wait(late, "RUNNING", 60)
    assert set(cluster.gpus(late)) == {"n2", "n4"}
    end_job(cluster, "alice", late)


def test_no_switch_has_two_nodes(cluster: Cluster, network: str) -> None:
    """A tree lets a job reach over; a job that fits into a block waits for one, as without us."""
    small = [
        cluster.submit("bob", ["-w", node, "--gres=gpu:1", "-t60"], WAIT) for node in ("n1", "n4")
    ]
    cluster.wait_all(small, "RUNNING")
    job = ["-t1", "--comment=class=A"]
    wide = cluster.submit("alice", [*job, "-N2", "--gres=gpu:4"], "true")
    three = cluster.submit("alice", [*job, "-N3", "--gres=gpu:3"], "true")
    if network == "block":
        cluster.wait(three, "COMPLETED", 60)  # more nodes than a block has
        assert is_parked(cluster, wide)
        assert not decisions(cluster, wide)
        let_go(cluster, "bob", small[0])
    cluster.wait(wide, "COMPLETED", 60)
    cluster.wait(three, "COMPLETED", 60)
    nodes = set(started(cluster, wide)["nodes"])
    assert nodes == ({"n1", "n3"} if network == "block" else {"n2", "n3"})
    cluster.wait_told(wide, r"\bswitch\b" if network == "block" else r"\bcluster\b")


def test_measured_bandwidths_and_penalties(cluster: Cluster, network: str) -> None:
    """Ranks on two nodes join by srun's input and output; a job does not leave its block."""
    cluster.sh("ctl", "gpu-aware-profile sweep --links", user="slurm", timeout=300)
    shown = cluster.sh("ctl", "gpu-aware-profile show --topology --node n1 --json", user="slurm")
    (node,) = json.loads(shown)["nodes"]
    assert all(link["measured"]["ab_gbps"] > 0 for link in node["links"])
    assert node["collectives"]

    answer = json.loads(
        cluster.sh("ctl", "gpu-aware-profile levels --json", user="slurm", timeout=300)
    )
    runs = {(run["level"], *sorted(run["nodes"])) for run in answer["runs"]}
    assert ("switch", "n1", "n3") in runs
    assert {level for level, *_ in runs} == (
        {"node", "switch"} if network == "block" else {"node", "switch", "rack"}
    )
    ratios = {(row["class"], row["level"]): row["ratio"] for row in answer["penalties"]}
    assert ratios["C", "node"] == 1.0
    assert ratios["C", "switch"] == pytest.approx(1.05, rel=0.02)  # as in the machine files
    assert ratios["B", "switch"] == pytest.approx(1.2, rel=0.1)
    cluster.sh("ctl", "gpu-aware-profile forget --levels A", user="slurm")
    cluster.sh("ctl", "gpu-aware-profile forget --levels B", user="slurm")
    cluster.sh("ctl", "gpu-aware-profile forget --levels C", user="slurm")
