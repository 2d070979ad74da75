"""AdminComment of a job: what squeue shows of a waiting job, and what accounting gets."""

import re

import pytest
from cluster import Cluster
from test_limits import WAIT
from test_way_of_a_job import let_go

FOUR = ["--gres=gpu:4", "-w", "n4"]


def shown(cluster: Cluster, job: str) -> str:
    """The AdminComment, as a user sees it."""
    return cluster.sh("ctl", f"squeue -h -j {job} -O admin_comment:80", user="bob").strip()


def accounted(cluster: Cluster, job: str) -> list[str]:
    """AdminComments of the job's records in accounting."""
    out = cluster.sh("ctl", f"sacct -nPXD -j {job} -o AdminComment,State")
    return [line.split("|")[0] for line in out.splitlines() if "RUNNING" not in line]


def freed(cluster: Cluster, job: str) -> None:
    cluster.wait_until(lambda: "gpuaware/" not in cluster.job(job)[""], 60, f"{job} is free")


def test_a_waiting_job_shows_why_and_a_job_that_runs_is_the_sites(cluster: Cluster) -> None:
    first = cluster.running_job("alice", FOUR, "sleep 600")
    freed(cluster, first)
    second = cluster.submit("bob", FOUR, "sleep 600")
    third = cluster.submit("bob", FOUR, "true")
    cluster.wait_until(
        lambda: "st=next:required-node-n4-has-no-free-GPU" in shown(cluster, second), 60, "why"
    )
    cluster.wait_until(lambda: "st=waits-its-turn;" in shown(cluster, third), 60, "its turn")
    before = cluster.job(second)["TresPerNode"]
    cluster.sh("ctl", f"scancel {first}")
    cluster.wait(second, "RUNNING")
    freed(cluster, second)
    cluster.sh("ctl", f"scontrol update jobid={second} admincomment=JS1:abc")
    cluster.sh("ctl", f"scancel {second}")
    cluster.wait(third, "COMPLETED")
    cluster.wait_until(lambda: accounted(cluster, second) == ["JS1:abc"], 60, "the site's text")
    cluster.wait_until(lambda: accounted(cluster, first) == [""], 60, "nothing of ours")
    assert before == "gres/gpu:4"


def test_a_prepared_job_shows_its_gpus(cluster: Cluster) -> None:
    """It is released into a partition that is down, so that it stays where it was put."""
    job = cluster.running_job("alice", ["--gres=gpu:2", "-w", "n3"], "sleep 600")
    log = cluster.sh("ctl", "cat /var/log/cluster/slurmctld.log")
    told = re.findall(rf"setting admin_comment to (\S+) for JobId={job}\b", log)
    assert re.match(r"gpuaware/1;st=n3:[0-3],[0-3],V=[0-9.]+;tn=gres/gpu:2", told[-2])
    freed(cluster, job)


def test_tasks_of_an_array_are_freed_one_by_one(cluster: Cluster) -> None:
    array = cluster.submit("alice", ["--gres=gpu:1", "--array=0-5%3"], WAIT)
    tasks = [f"{array}_{n}" for n in range(6)]
    for task in tasks:
        running = cluster.wait(task, "RUNNING")
        freed(cluster, task)
        let_go(cluster, "alice", running["JobId"])
    cluster.wait_all(tasks, "COMPLETED")
    cluster.wait_until(lambda: accounted(cluster, array) == [""] * 6, 60, "nothing of ours")


@pytest.mark.parametrize("away", [False, True], ids=["at once", "after a restart"])
def test_a_requeued_job_gets_its_request_back(cluster: Cluster, away: bool) -> None:
    job = cluster.running_job(
        "alice", ["--gres=gpu:2", "--requeue", "--comment=class=A"], "sleep 600"
    )
    freed(cluster, job)
    if away:
        cluster.sh("ctl", "services down selectd KILL")
    cluster.sh("ctl", f"scontrol requeue {job}")
    cluster.wait_until(lambda: cluster.job(job)["JobState"] == "PENDING", 60, "it waits again")
    if away:
        cluster.sh("ctl", "services up selectd")

    def parked() -> bool:
        now = cluster.job(job)
        found = now.get("Licenses"), now["TresPerNode"], now["ReqNodeList"]
        return found == ("gpuaware:1", "gres/gpu:2", "(null)")

    cluster.wait_until(parked, 60, "its own request behind the gate")
    cluster.start_requeued(job)
    cluster.wait(job, "RUNNING", deadline=180)
    freed(cluster, job)
