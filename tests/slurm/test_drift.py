"""A GPU that becomes slower between two sweeps is named, and the alarm hears of it once."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster
from site_files import SLURM_CONF, kept, restart

SLOW, UNLUCKY = ("n2", 1), ("n3", 2)


class Sweeps:
    """Sweeps into a store of their own, with an alarm that writes down what it hears."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.sh("ctl", ["mktemp", "-d"]).strip()
        alarm = f'#!/bin/sh\n(echo "$GPU_AWARE_SLOW_GPUS"; cat; echo) >>{self.folder}/heard\n'
        cluster.sh("ctl", f"cat >{self.folder}/alarm", stdin=alarm)
        cluster.sh("ctl", ["chmod", "+x", f"{self.folder}/alarm"])

    def call(self, command: str, *options: str, code: int = 0) -> Any:
        argv = ["gpu-aware-profile", command, "--json", "--store", f"{self.folder}/store.db"]
        done = self.cluster.run("ctl", [*argv, *options], timeout=300)
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout)

    def sweep(self, *options: str, code: int = 0) -> Any:
        return self.call("sweep", "--on-slow", f"{self.folder}/alarm", *options, code=code)

    def heard(self) -> list[str]:
        """The GPUs of each alarm."""
        said = self.cluster.sh("ctl", f"cat {self.folder}/heard 2>/dev/null || true")
        return re.findall(r"^n\d:\d.*$", said, flags=re.M)


@pytest.fixture
def sweeps(cluster: Cluster) -> Iterator[Sweeps]:
    made = Sweeps(cluster)
    yield made
    cluster.sh("ctl", ["rm", "-rf", made.folder])


def slowness(cluster: Cluster, node: str, gpu: int) -> float:
    """Of class A, by the file of the machine."""
    text = cluster.sh(node, f"cat /etc/gpu-aware-fake/{node}.json")
    return float(
        next(g for g in json.loads(text)["gpus"] if g["minor"] == gpu)["slowness"].get("A", 1.0)
    )


def test_one_gpu_became_slower_and_one_was_unlucky(cluster: Cluster, sweeps: Sweeps) -> None:
    assert sweeps.sweep()["slower"] == []
    (node, gpu), (other, unlucky) = SLOW, UNLUCKY
    factor = 1.15 * slowness(cluster, node, gpu)
    state = "/shared/fakegpu"
    cluster.sh("ctl", ["fake-gpu", "slow", f"{state}/{node}", str(gpu), f"A={factor}"])
    cluster.sh("ctl", ["fake-gpu", "slow-run", f"{state}/{other}", str(unlucky), "0", "A=1.15"])
    found = sweeps.sweep()
    assert [(g["node"], g["gpu"], g["class"]) for g in found["slower"]] == [(*SLOW, "A")]
    assert [(g["node"], g["gpu"]) for g in found["reported"]] == [SLOW]

    drift = sweeps.call("drift", "--since", "1d", code=3)
    assert [(g["node"], g["gpu"], g["class"]) for g in drift["slower"]] == [(*SLOW, "A")]
    assert 0.12 < drift["slower"][0]["rise"] < 0.18
    assert drift["compared"] == 48

    assert sweeps.heard() == ["n2:1"]
    again = sweeps.sweep("--node", node)
    assert [(g["node"], g["gpu"]) for g in again["slower"]] == [SLOW]
    assert again["reported"] == []
    assert sweeps.heard() == ["n2:1"]


def test_only_idle_nodes_with_an_old_probe(cluster: Cluster, sweeps: Sweeps) -> None:
    sweeps.sweep("--node", "n1")
    cluster.running_job("alice", ["-w", "n2", "--gres=gpu:1", "--comment=place=off"], "sleep 600")
    found = sweeps.sweep("--older-than", "1", "--idle-only", "--background", "--budget", "600")
    states = {node["node"]: node["state"] for node in found["nodes"]}
    assert states == {"n2": "skipped", "n3": "done", "n4": "done"}
    assert found["complete"]
    cluster.cancel_all()


def test_a_preempted_probe_is_reported_and_resumed(cluster: Cluster, sweeps: Sweeps) -> None:
    """Slurm itself says that it took the node: another release may say it differently."""
    with kept(cluster, SLURM_CONF):
        lines = [
            "PreemptType=preempt/partition_prio",
            "PreemptMode=CANCEL",
            "PartitionName=idle Nodes=n[1-4] PriorityTier=0 PreemptMode=CANCEL DefaultTime=60",
        ]
        cluster.sh("ctl", f"cat >>{SLURM_CONF}", stdin="\n".join([*lines, ""]))
        restart(cluster)
        script = '#!/bin/sh\nsleep 300\nexec gpu-aware-profile "$@"\n'
        cluster.sh("ctl", "cat >/shared/slow-probe && chmod +x /shared/slow-probe", stdin=script)
        argv = ["gpu-aware-profile", "sweep", "--json", "--store", f"{sweeps.folder}/store.db"]
        argv += ["--node", "n1", "--background", "--srun-option=--partition=idle"]
        with cluster.start_command("ctl", [*argv, "--command", "/shared/slow-probe"]) as running:
            # The step: before it runs, srun calls a taken node one that did not boot
            probe = "squeue -h -s -o '%j %N' | grep gpu-aware-probe || true"
            cluster.wait_until(lambda: "n1" in cluster.sh("ctl", probe), 60, "the probe runs")
            job = cluster.submit(
                "alice", ["-w", "n1", "--gres=gpu:1", "--comment=place=off"], "true"
            )
            cluster.wait(job, "COMPLETED", 120)
            out, _ = cluster.finish(running, 120)
        (n1,) = json.loads(out)["nodes"]
        assert (n1["state"], n1["reason"]) == ("preempted", "Slurm gave the node to another job")
        cluster.sh("ctl", ["rm", "/shared/slow-probe"])
        sweep_id = json.loads(out)["sweep"]
        done = sweeps.sweep("--resume", sweep_id, "--command", "gpu-aware-profile")
        assert [node["state"] for node in done["nodes"]] == ["done"]
