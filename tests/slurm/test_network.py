"""Levels above the node, read from a live Slurm: switches (tree) and blocks (block)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cluster import NODES, Cluster
from test_limits import WAIT, is_parked
from test_way_of_a_job import let_go, started

CONF = "/etc/slurm/slurm.conf"
TOPOLOGY = "/etc/slurm/topology.conf"
CONFIG = "/etc/slurm-gpu-aware/config.toml"
# Neighbours by name are never neighbours by network: no order of names gives these pairs.
PAIRS = ({"n1", "n3"}, {"n2", "n4"})
NETWORKS = {
    "tree": (
        "SwitchName=s0 Nodes=n[1,3]\nSwitchName=s1 Nodes=n[2,4]\nSwitchName=r0 Switches=s[0-1]\n"
    ),
    "block": "BlockName=b0 Nodes=n[1,3]\nBlockName=b1 Nodes=n[2,4]\nBlockSizes=2\n",
}


def restart(cluster: Cluster) -> None:
    """A topology plugin changes with new daemons only, the levels with a new selector."""
    cluster.kill("ctl", "slurmctld", "TERM")
    for node in NODES:
        cluster.kill(node, "slurmd", "TERM")
    cluster.kill("ctl", "selectd", "TERM")
    cluster.reset()


@pytest.fixture(params=NETWORKS)
def network(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    plugin: str = request.param
    cluster.sh("ctl", f"cat > {TOPOLOGY}", stdin=NETWORKS[plugin])
    cluster.sh("ctl", f"echo 'TopologyPlugin=topology/{plugin}' >> {CONF}")
    cluster.sh("ctl", f"cp {CONFIG} {CONFIG}.kept")
    cluster.sh("ctl", f"printf '\\n[placement.levels]\\nswitch = 1.2\\n' >> {CONFIG}")
    restart(cluster)
    yield plugin
    cluster.sh("ctl", f"rm {TOPOLOGY}; sed -i '/^TopologyPlugin=/d' {CONF}")
    cluster.sh("ctl", f"mv {CONFIG}.kept {CONFIG}")
    restart(cluster)


def test_two_nodes_below_one_switch(cluster: Cluster, network: str) -> None:
    assert network in cluster.sh("ctl", ["scontrol", "show", "config"])
    small = cluster.submit("bob", ["-w", "n1", "--gres=gpu:1"], WAIT)
    cluster.wait(small, "RUNNING", 40)
    # n2, n3 and n4 are free; n2 and n4 share a switch.
    near = cluster.submit("alice", ["-N2", "--gres=gpu:4", "--comment=class=A"], WAIT)
    cluster.wait(near, "RUNNING", 40)
    assert set(cluster.gpus(near)) == {"n2", "n4"}
    assert started(cluster, near)["outcome"]["as_planned"]
    told = cluster.sh("ctl", ["gpu-aware", "explain", near], "alice")
    assert re.search(r"\bswitch\b", told), told

    # Three GPUs are left on each node of the other switch.
    beside = cluster.submit("alice", ["-N2", "--gres=gpu:3", "--comment=class=A"], WAIT)
    cluster.wait(beside, "RUNNING", 40)
    assert set(cluster.gpus(beside)) == {"n1", "n3"}

    late = cluster.submit("alice", ["-N2", "--gres=gpu:4", "--comment=class=A"], WAIT)
    cluster.wait_until(lambda: is_parked(cluster, late), 10, "it waits")
    for job_id, user in ((near, "alice"), (beside, "alice"), (small, "bob")):
        let_go(cluster, user, job_id)
    cluster.wait(late, "RUNNING", 60)
    assert set(cluster.gpus(late)) in PAIRS
    let_go(cluster, "alice", late)
    cluster.wait(late, "COMPLETED", 40)


def test_nodes_of_two_switches_if_no_switch_has_two(cluster: Cluster, network: str) -> None:
    for node in ("n1", "n4"):
        cluster.wait(cluster.submit("bob", ["-w", node, "--gres=gpu:1"], WAIT), "RUNNING", 40)
    job_id = cluster.submit("alice", ["-N2", "--gres=gpu:4", "--comment=class=A"], "true")
    cluster.wait(job_id, "COMPLETED", 40)
    decision = started(cluster, job_id)
    assert set(decision["nodes"]) == {"n2", "n3"}
    assert "cluster" in cluster.sh("ctl", ["gpu-aware", "explain", job_id], "alice")
