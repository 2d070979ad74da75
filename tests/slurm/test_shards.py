"""Shards on real Slurm: whole-GPU jobs on a node whose GPUs other jobs share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from cluster import OUTRUN, Cluster
from site_files import GRES_CONF, SLURM_CONF, kept, restart
from test_limits import WAIT
from test_way_of_a_job import GATE_LICENCE, decisions, let_go

pytestmark = OUTRUN

TYPES = ",".join(f"shard:g{i}:4" for i in range(4))
ON_N1 = ["-w", "n1", "--mem=100", "-t5"]


@pytest.fixture(scope="module", autouse=True)
def shards(cluster: Cluster) -> Iterator[None]:
    """Four shards of each GPU of n1."""
    with kept(cluster, SLURM_CONF, GRES_CONF):
        text = cluster.sh("ctl", ["cat", SLURM_CONF])
        line = re.search(r"^NodeName=n\[1-4\].*\n", text, re.M)
        assert line is not None
        one = line[0].replace("n[1-4]", "n1").replace("Gres=", f"Gres={TYPES},")
        text = text.replace(line[0], line[0].replace("n[1-4]", "n[2-4]") + one)
        text = text.replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
        cluster.sh("ctl", ["tee", SLURM_CONF], stdin=text)
        files = "\n".join(
            f"NodeName=n1 Name=shard Type=g{i} Count=4 File=/dev/nvidia{i}" for i in range(4)
        )
        cluster.sh("ctl", ["tee", "-a", GRES_CONF], stdin=f"{files}\n")
        restart(cluster)
        yield


def share(cluster: Cluster, number: int, *options: str) -> tuple[str, int]:
    """A running job of bob's with so many shards of a GPU of n1; its id, and the GPU."""
    job_id = cluster.submit("bob", [*ON_N1, f"--gres=shard:{number}", *options], WAIT)
    cluster.wait(job_id, "RUNNING", 40)
    return job_id, shard_of(cluster, job_id)


def shard_of(cluster: Cluster, job_id: str) -> int:
    (slot,) = re.findall(r"shard:g([0-9]):[1-9]", cluster.job(job_id)[""].partition(" GRES=")[2])
    return int(slot)


def test_whole_gpus_beside_shards(cluster: Cluster) -> None:
    """No GPU of which shards are in use is given away; the rest of the node is used."""
    shared, slot = share(cluster, 2)
    whole = [cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT) for _ in range(3)]
    for job_id in whole:
        cluster.wait(job_id, "RUNNING", 40)
    given = {cluster.gpus(job_id)["n1"] for job_id in whole}
    assert given == {(i,) for i in range(4) if i != slot}
    assert all(decisions(cluster, job_id) for job_id in whole)
    waits = cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT)
    time.sleep(4)
    assert GATE_LICENCE in cluster.job(waits)["Licenses"]
    let_go(cluster, "bob", shared)
    cluster.wait(waits, "RUNNING", 40)
    assert cluster.gpus(waits) == {"n1": (slot,)}


def test_a_shard_job_that_starts_between_plan_and_release(cluster: Cluster) -> None:
    """It takes the GPU that an earlier round chose: the job gets another one at its turn."""
    blocked = cluster.submit("alice", ["-w", "n1", "--gres=gpu:3", "--mem=100", "-t5"], WAIT)
    cluster.wait(blocked, "RUNNING", 40)
    (left,) = set(range(4)) - set(cluster.gpus(blocked)["n1"])
    for _ in range(5):
        cluster.kill("ctl", "selectd", "STOP")
        whole = cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT)
        shared = cluster.submit("bob", [*ON_N1, "--gres=shard:1"], WAIT)
        cluster.kill("ctl", "selectd", "CONT")
        both = (whole, shared)
        cluster.wait_until(
            lambda both=both: any(cluster.job(i)["JobState"] == "RUNNING" for i in both), 40
        )
        time.sleep(2)
        runs = [i for i in both if cluster.job(i)["JobState"] == "RUNNING"]
        assert len(runs) == 1, "one GPU as a whole and in shards"
        let_go(cluster, "alice" if runs == [whole] else "bob", runs[0])
        other = shared if runs == [whole] else whole
        cluster.wait(other, "RUNNING", 60)
        got = shard_of(cluster, other) if other == shared else cluster.gpus(other)["n1"][0]
        assert got == left
        let_go(cluster, "alice" if other == whole else "bob", other)
