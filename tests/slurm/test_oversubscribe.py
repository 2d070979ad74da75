"""Partitions of which jobs share CPUs (OverSubscribe), beside others on the same nodes."""

import time
from collections.abc import Iterator

import pytest
from cluster import NODES, Cluster
from test_limits import WAIT, is_parked
from test_way_of_a_job import decisions, let_go

PARTITIONS = {"force": "FORCE:4", "forced": "FORCE:2", "single": "FORCE:1", "yes": "YES:4"}
SHARING, OTHERS = ("force", "forced", "single", "yes -s"), ("gpu", "yes")
"""Partition and option of a job that shares its CPUs, and of one that does not."""
CLOSED = {(other, shares) for other in OTHERS for shares in SHARING} | {
    *(("force", "gpu"), ("force", "yes"), ("forced", "gpu"), ("forced", "yes"), ("yes -s", "gpu"))
}
"""(job that runs, job that Slurm does not start on its node)."""
CLOSED_TOO = {("single", "gpu"), ("single", "yes"), ("yes -s", "yes")}
"""Before 25.11, where another such partition once had a job on the node."""


@pytest.fixture(autouse=True, scope="module")
def partitions(cluster: Cluster) -> Iterator[None]:
    for name, share in PARTITIONS.items():
        new = f"partitionname={name} nodes=n[1-4] oversubscribe={share} defaulttime=60"
        cluster.sh("ctl", ["scontrol", "create", *new.split()])
    yield
    cluster.cancel_all()
    for name in PARTITIONS:
        cluster.sh("ctl", ["scontrol", "delete", f"partitionname={name}"])


def beside(cluster: Cluster, running: str, new: str, node: str) -> list[str]:
    """Two jobs on one node, as Slurm starts them: an operator's that name a GPU pass the gate."""
    found = []
    for slot, kind in enumerate((running, new)):
        asked = ["-w", node, f"--gres=gpu:g{slot}:1", *f"-p{kind}".split()]
        found.append(cluster.submit("root", [*asked, "-t5", "-o/dev/null"], "sleep 60"))
        if not slot:
            cluster.wait(found[0], "RUNNING", 30)
    return found


def test_which_jobs_slurm_starts_on_no_node_of_each_other(cluster: Cluster) -> None:
    pairs = [(one, other) for one in (*OTHERS, *SHARING) for other in (*OTHERS, *SHARING)]
    closed = set()
    for at in range(0, len(pairs), len(NODES)):
        here = dict(zip(pairs[at:], NODES, strict=False))
        jobs = {pair: beside(cluster, *pair, node) for pair, node in here.items()}
        time.sleep(4)
        closed |= {p for p, (_, new) in jobs.items() if cluster.job(new)["JobState"] == "PENDING"}
        cluster.cancel_all()
    assert closed - (CLOSED_TOO if cluster.suite == "trixie" else set()) == CLOSED


@pytest.mark.parametrize(
    ("running", "new"), [("force", "gpu"), ("gpu", "force"), ("yes -s", "gpu")]
)
def test_no_job_is_placed_where_slurm_would_not_start_it(
    cluster: Cluster, running: str, new: str
) -> None:
    def submit(user: str, kind: str, gpus: int, *more: str) -> str:
        asked = [*f"-p{kind}".split(), f"--gres=gpu:{gpus}", "-t60", *more]
        return cluster.submit(user, asked, WAIT)

    cluster.wait(submit("bob", running, 1, "-wn1"), "RUNNING", 60)
    full = [submit("bob", new, 4) for _ in range(3)]
    for job_id in full:
        cluster.wait(job_id, "RUNNING", 60)
    head = submit("alice", new, 1)
    cluster.wait_told(head, r"jobs\s+that\s+run\s+on\s+n1\s+keep\s+others\s+off")
    assert is_parked(cluster, head)
    assert decisions(cluster, head) == []
    let_go(cluster, "bob", full[0])
    cluster.wait(head, "RUNNING", 60)
    assert "n1" not in cluster.gpus(head)
    cluster.cancel_all()
