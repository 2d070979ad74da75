"""The container cluster itself: plain Slurm, exact GPUs by type, both users, accounting."""

import pytest
from cluster import NODES, Cluster
from test_limits import WAIT
from test_way_of_a_job import let_go

SHOW = (
    "echo cuda=$CUDA_VISIBLE_DEVICES; srun --gres=gpu:g3:1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES'"
)


@pytest.fixture
def without_us(cluster: Cluster):
    with cluster.plain():
        yield cluster


def test_exact_gpus_by_type(without_us: Cluster) -> None:
    args = ["--gres=gpu:g1:1,gpu:g3:1", "-w", "n3"]
    job = without_us.submit("alice", args, f"{SHOW}; {WAIT}")
    without_us.wait(job, "RUNNING")
    assert without_us.gpus(job) == {"n3": (1, 3)}
    let_go(without_us, "alice", job)
    without_us.wait(job, "COMPLETED")
    assert without_us.output(job, "alice").splitlines() == ["cuda=1,3", "step=3"]


def test_same_indices_on_two_nodes(without_us: Cluster) -> None:
    job = without_us.submit("bob", ["-N2", "--gres=gpu:g0:1,gpu:g2:1"], "sleep 300")
    without_us.wait(job, "RUNNING")
    given = without_us.gpus(job)
    assert len(given) == 2
    assert set(given.values()) == {(0, 2)}


def test_users_share_and_are_accounted(without_us: Cluster) -> None:
    jobs = {user: without_us.submit(user, ["--gres=gpu:1"], "true") for user in ("alice", "bob")}
    for user, job in jobs.items():
        without_us.wait(job, "COMPLETED")
        sacct = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "user,alloctres"]
        without_us.wait_until(
            lambda sacct=sacct, user=user: without_us.sh("ctl", sacct).startswith(user),
            20,
            "accounting",
        )
        assert "gres/gpu=1" in without_us.sh("ctl", sacct)
    fairshare = without_us.sh("ctl", ["sshare", "-n", "-P", "-a", "-o", "user,fairshare"])
    assert "alice|" in fairshare
    assert "bob|" in fairshare


def test_killed_node_comes_back(cluster: Cluster) -> None:
    cluster.stop("n2")
    cluster.start("n2")
    cluster.wait_until(
        lambda: cluster.sh("ctl", ["sinfo", "-h", "-n", "n2", "-o", "%T"]).strip() == "idle",
        60,
        "n2 idle",
    )
    with cluster.plain():
        job = cluster.submit("alice", ["-w", "n2", "--gres=gpu:1"], "true")
        cluster.wait(job, "COMPLETED")


def test_killed_service_is_started_again(cluster: Cluster) -> None:
    before = cluster.service_pid("ctl", "slurmctld")
    cluster.kill("ctl", "slurmctld")
    cluster.wait_until(
        lambda: cluster.service_pid("ctl", "slurmctld") not in (None, before), 10, "new slurmctld"
    )
    cluster.wait_until(cluster.answers, 30, "slurmctld answers")
    assert cluster.sh("ctl", ["sinfo", "-h", "-N", "-o", "%N"]).split() == list(NODES)
