"""The container cluster itself: plain Slurm, exact GPUs by type, both users, accounting."""

from collections.abc import Iterator

import pytest
from cluster import NODES, Cluster
from test_limits import WAIT
from test_way_of_a_job import end_job

SHOW = (
    "echo cuda=$CUDA_VISIBLE_DEVICES; srun --gres=gpu:g3:1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES'"
)


def test_killed_node_comes_back(cluster: Cluster) -> None:
    before = cluster.slurmd_starts()["n2"]
    cluster.stop("n2")
    cluster.start("n2")
    state = ["sinfo", "-h", "-n", "n2", "-o", "%T"]
    cluster.wait_until(
        lambda: (
            cluster.slurmd_starts().get("n2", before) != before
            and cluster.sh("ctl", state).strip() == "idle"
        ),
        90,
        "n2 registers anew and is idle",
    )
    with cluster.plain():
        job = cluster.submit("alice", ["-w", "n2", "--gres=gpu:1"], "true")
        cluster.wait(job, "COMPLETED")


def test_killed_service_is_started_again(cluster: Cluster) -> None:
    before = cluster.service_pid("ctl", "slurmctld")
    cluster.kill("ctl", "slurmctld")
    cluster.wait_until(
        lambda: cluster.service_pid("ctl", "slurmctld") not in (None, before), 60, "new slurmctld"
    )
    cluster.await_answer()
    assert cluster.sh("ctl", ["sinfo", "-h", "-N", "-o", "%N"]).split() == list(NODES)


@pytest.fixture(scope="module")
def without_us(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.plain():
        yield cluster


def test_exact_gpus_by_type(without_us: Cluster) -> None:
    args = ["--gres=gpu:g1:1,gpu:g3:1", "-w", "n3"]
    job = without_us.running_job("alice", args, f"{SHOW}; {WAIT}")
    assert without_us.gpus(job) == {"n3": (1, 3)}
    end_job(without_us, "alice", job)
    assert without_us.output(job, "alice").splitlines() == ["cuda=1,3", "step=3"]


def test_same_indices_on_two_nodes(without_us: Cluster) -> None:
    job = without_us.running_job("bob", ["-N2", "--gres=gpu:g0:1,gpu:g2:1"], "sleep 300")
    given = without_us.gpus(job)
    assert len(given) == 2
    assert set(given.values()) == {(0, 2)}


def test_users_share_and_are_accounted(without_us: Cluster) -> None:
    jobs = {user: without_us.submit(user, ["--gres=gpu:1"], "true") for user in ("alice", "bob")}
    for user, job in jobs.items():
        without_us.wait(job, "COMPLETED")
        # While it waits, sacct lists a job without what it gets.
        sacct = f"sacct -nXP -j {job} -o user,alloctres | grep '^{user}|.*gres/gpu=1'"
        without_us.wait_until(
            lambda sacct=sacct: without_us.run("ctl", sacct).returncode == 0, 90, "accounting"
        )
    fairshare = without_us.sh("ctl", ["sshare", "-n", "-P", "-a", "-o", "user,fairshare"])
    assert "alice|" in fairshare
    assert "bob|" in fairshare
