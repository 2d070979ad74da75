"""Nodes of two GPU models in one cluster: ``gpu:a100:2`` is a feature, others take any model."""

from collections.abc import Iterator

import pytest
from cluster import Cluster, CommandFailed
from site_files import FILTER_CONF, SLURM_CONF, kept, restart
from test_limits import WAIT, is_parked
from test_nodes import node_of
from test_way_of_a_job import let_go


@pytest.fixture(scope="module")
def two_models(cluster: Cluster) -> Iterator[None]:
    """n3 and n4 have another model than n1 and n2."""
    with kept(cluster, SLURM_CONF, FILTER_CONF):
        cluster.sh(
            "ctl",
            f"sed -i -e '/^NodeName=n.1-4. /{{h; s/n.1-4./n[1-2]/; p; g; s/n.1-4./n[3-4]/;"
            f" s/gpu_v100/gpu_a100/}}' {SLURM_CONF};"
            f' sed -i \'s/"v100"/"v100", "a100"/\' {FILTER_CONF}',
        )
        restart(cluster)
        yield


def test_a_model_is_where_it_was_asked_for(cluster: Cluster, two_models: None) -> None:
    one = cluster.submit("alice", ["--gres=gpu:a100:2"], WAIT)
    assert node_of(cluster, one) in ("n3", "n4")
    two = cluster.running_job("alice", ["-N2", "--gpus-per-node=v100:4"], WAIT)
    assert set(cluster.gpus(two)) == {"n1", "n2"}
    # The other models are free, and are not given; a job without a model takes them.
    waits = cluster.submit("alice", ["--gres=gpu:v100:1", "-t", "5"], "true")
    other = cluster.submit("alice", ["--gres=gpu:1", "-t", "5"], WAIT)
    assert node_of(cluster, other) in ("n3", "n4")
    assert is_parked(cluster, waits)
    let_go(cluster, "alice", two)
    cluster.wait(waits, "COMPLETED", 60)


def test_a_job_over_nodes_of_both_models(cluster: Cluster, two_models: None) -> None:
    """Slurm gives such a job any nodes, and so do we."""
    job_id = cluster.running_job("alice", ["-N4", "--gres=gpu:4"], WAIT)
    assert set(cluster.gpus(job_id)) == {"n1", "n2", "n3", "n4"}


def test_a_model_that_no_node_has(cluster: Cluster, two_models: None) -> None:
    with pytest.raises(CommandFailed, match="h100"):
        cluster.submit("alice", ["--gres=gpu:h100:1"], "true")
