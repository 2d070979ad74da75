"""Waiting that pays, on a real Slurm: a job waits for GPUs on which it ends sooner."""

from collections.abc import Iterator

import pytest
from cluster import Cluster
from test_way_of_a_job import NO_HISTORY, one_fast_node


@pytest.fixture(autouse=True, scope="module")
def one_fast(cluster: Cluster) -> Iterator[None]:
    """The default policy, and n4 is twice as fast as the other nodes."""
    with one_fast_node(cluster, NO_HISTORY):
        yield


def holding(cluster: Cluster) -> str:
    """A job of bob that holds all of n4 for five minutes at most."""
    options = ["--gres=gpu:4", "--comment=class=A", "--time=5"]
    job_id = cluster.running_job("bob", options, "sleep 600")
    assert list(cluster.gpus(job_id)) == ["n4"]
    return job_id


def test_a_job_waits_for_the_faster_node_and_starts_there(cluster: Cluster) -> None:
    before = holding(cluster)
    options = ["--gres=gpu:2", "--comment=class=A", "--time=30"]
    job_id = cluster.submit("alice", options, "sleep 2")
    # A job that ends sooner on the slow nodes does not wait, and does not touch the reserved GPUs.
    beside = cluster.submit("alice", ["--gres=gpu:2", "--comment=class=A", "--time=1"], "sleep 2")
    weighed = r"postponed: expected at .* on\s+n4(.|\n)*sooner\s+than\s+now\s+on\s+n[123]"
    cluster.wait_told(job_id, weighed)
    assert cluster.job(job_id)["JobState"] == "PENDING"
    cluster.wait(beside, "COMPLETED", 60)
    assert "n4" not in cluster.gpus(beside)
    # The selector forgets nothing when it dies.
    cluster.kill("ctl", "selectd", "KILL")
    cluster.sh("ctl", ["scancel", before])
    cluster.wait(job_id, "COMPLETED", 60)
    assert list(cluster.gpus(job_id)) == ["n4"]
    assert cluster.explained(job_id)["policy"] == "eft"


def test_a_job_that_gains_nothing_by_waiting_starts_at_once(cluster: Cluster) -> None:
    holding(cluster)
    job_id = cluster.submit("alice", ["--gres=gpu:2", "--comment=class=A", "--time=1"], "sleep 1")
    cluster.wait(job_id, "COMPLETED", 60)
    assert "n4" not in cluster.gpus(job_id)
