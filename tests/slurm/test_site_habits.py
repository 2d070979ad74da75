"""What sites do beside us: defaults of partitions, comments of their own, a store that is busy."""

import re
from collections.abc import Iterator

import pytest
from cluster import Cluster
from site_files import SLURM_CONF, configured
from test_limits import WAIT, is_parked
from test_way_of_a_job import (
    decisions,
    end_job,
    expect_kinds,
    let_go,
    placed,
    placed_by_us,
    started,
)

STORE = "/var/lib/slurm-gpu-aware/store.db"


def test_a_site_overwrites_admin_comments(cluster: Cluster) -> None:
    """A job whose AdminComment holds a site's own text, and that is requeued, is not lost."""
    job_id = cluster.running_job("alice", ["--gres=gpu:2", "--comment=class=A"], WAIT)
    started(cluster, job_id)
    freed = lambda: "gpuaware/" not in cluster.job(job_id)[""]  # noqa: E731
    cluster.wait_until(freed, 60, "our record is removed")
    cluster.sh("ctl", ["scontrol", "update", f"jobid={job_id}", "admincomment=JS1:abc"])
    cluster.sh("ctl", ["scontrol", "requeue", job_id])

    def unpinned() -> bool:
        job = cluster.job(job_id)
        return job["ReqNodeList"] == "(null)" and "gpu:g" not in job["TresPerNode"]

    cluster.wait_until(unpinned, 60, lambda: str(cluster.job(job_id)))
    assert cluster.job(job_id)["AdminComment"] == "JS1:abc"
    cluster.start_requeued(job_id)
    cluster.wait(job_id, "RUNNING", 60)
    assert sum(len(slots) for slots in cluster.gpus(job_id).values()) == 2


def test_hints_where_a_tool_owns_the_comment(cluster: Cluster) -> None:
    """Hints after gpu: in the comment, of GPU_AWARE, and of the site's defaults, in this order."""
    with configured(cluster, '[site.defaults.user]\nalice = "class=C,bw=high"\n'):
        for comment, variable, app_class in (
            ("rule 7 of x,class=B", "class=A", "A"),
            ("run 7 gpu:class=B", "class=A", "B"),
            ("run 7", "", "C"),
        ):
            submit = ["env", f"GPU_AWARE={variable}", "sbatch", "--parsable", "--gres=gpu:1"]
            submit += [f"--comment={comment}", "--wrap=true"]
            job_id = cluster.sh("ctl", submit, "alice").strip()
            cluster.wait(job_id, "COMPLETED", 60)
            asked = placed(cluster, job_id)[-1]["asked"]
            assert (asked["class"], asked["bw"]) == (app_class, "high")


def test_a_store_that_another_process_holds(cluster: Cluster) -> None:
    """Jobs start while the store is locked, and the ledger tells of them afterwards."""
    end = "/tmp/end-of-lock"
    lock = (
        "import os, sqlite3, time\n"
        f"store = sqlite3.connect({STORE!r}, 60, isolation_level=None)\n"
        "store.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        f"while not os.path.exists({end!r}): time.sleep(0.1)\n"
    )
    cluster.sh("ctl", ["rm", "-f", end])
    holder = cluster.start_command("ctl", ["python3", "-c", lock])
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        job_id = cluster.submit("alice", ["--gres=gpu:1", "--comment=class=A"], WAIT)
        cluster.wait(job_id, "RUNNING", 12)
        assert holder.poll() is None
    finally:
        cluster.sh("ctl", ["touch", end])
    assert holder.wait(120) == 0
    placed(cluster, job_id)
    expect_kinds(cluster, job_id, ["released", "started"])


def test_in_a_maintenance_reservation(cluster: Cluster) -> None:
    """Jobs of a running maintenance are placed on its nodes, others elsewhere."""
    cluster.sh(
        "ctl",
        ["scontrol", "create", "reservation", "reservationname=maint", "users=alice",
         "nodes=n[1-3]", "flags=maint,ignore_jobs", "starttime=now", "duration=60"],
    )  # fmt: skip
    cluster.wait_until(
        lambda: "maint" in cluster.sh("ctl", "sinfo -h -N -n n1 -o %T"), 60, "n1 is in maintenance"
    )
    inside = cluster.submit("alice", ["--gres=gpu:2", "--reservation=maint", "-t", "10"], WAIT)
    outside = cluster.submit("bob", ["--gres=gpu:2", "-t", "10"], WAIT)
    for job_id in (inside, outside):
        cluster.wait(job_id, "RUNNING", 60)
        assert started(cluster, job_id)["outcome"]["as_planned"]
    assert set(cluster.gpus(inside)) < {"n1", "n2", "n3"}
    assert set(cluster.gpus(outside)) == {"n4"}


def test_the_ledger_itself_is_not_for_everybody(cluster: Cluster) -> None:
    listed = cluster.sh("ctl", f"ls -l {STORE}*", check=False)  # some of them come and go
    assert re.findall(r"^-rw-r-----", listed, re.M)
    assert cluster.run("ctl", ["head", "-c1", STORE], "alice").returncode != 0
    assert cluster.run("ctl", ["gpu-aware", "status"], "alice").returncode == 0


@pytest.fixture(scope="module")
def three_cpus(cluster: Cluster) -> Iterator[None]:
    """Each GPU brings three CPUs, from the first test that wants it to the end of the file."""
    cluster.sh("ctl", f"sed -i 's/^PartitionName=gpu .*/& DefCpuPerGPU=3/' {SLURM_CONF}")
    cluster.sh("ctl", ["scontrol", "reconfigure"])
    cluster.reset()
    yield
    cluster.sh("ctl", f"sed -i 's/ DefCpuPerGPU=3//' {SLURM_CONF}")
    cluster.sh("ctl", ["scontrol", "reconfigure"])
    cluster.reset()


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        (["--gres=gpu:2"], 6),
        (["-N2", "--gpus=4"], 12),
        (["-n4", "--gpus-per-task=1"], 12),
        (["--gres=gpu:2", "--cpus-per-gpu=2"], 4),
        (["--gres=gpu:2", "-c2"], 2),
        (["--gres=gpu:1"], 3),
    ],
)
def test_cpus_that_come_with_gpus(
    cluster: Cluster, three_cpus: None, options: list[str], cpus: int
) -> None:
    full = cluster.running_job("bob", ["-N4", "--gres=gpu:4", "--exclusive"], WAIT)
    job_id = cluster.submit("alice", [*options, "--comment=class=A"], WAIT)
    cluster.wait_until(lambda: is_parked(cluster, job_id), 60, "it is parked")
    # Slurm has looked at it and written its default into it.
    cluster.wait_until(lambda: cluster.job(job_id)["Reason"] != "None", 60, "Slurm looks at it")
    let_go(cluster, "bob", full)
    cluster.wait(job_id, "RUNNING", 40)
    assert started(cluster, job_id)["outcome"]["as_planned"]
    assert cluster.job(job_id)["NumCPUs"] == str(cpus)
    assert len(decisions(cluster, job_id)) == 1
    end_job(cluster, "alice", job_id, 30)


def test_what_is_left_to_slurm_gets_its_default(cluster: Cluster, three_cpus: None) -> None:
    job_id = cluster.submit("alice", ["-n4", "--gres=gpu:2"], "true")
    assert cluster.wait(job_id, "COMPLETED", 40)["NumCPUs"] == "6"
    assert not placed_by_us(cluster, job_id)


def test_a_requeued_job_has_its_own_cpus_again(cluster: Cluster, three_cpus: None) -> None:
    job_id = cluster.running_job("alice", ["--gres=gpu:2"], WAIT)
    assert cluster.job(job_id)["CPUs/Task"] == "6"
    cluster.sh("ctl", ["scontrol", "requeuehold", job_id])
    own = lambda: cluster.job(job_id)["CPUs/Task"] in ("1", "N/A")  # noqa: E731
    restored = lambda: is_parked(cluster, job_id) and own()  # noqa: E731
    cluster.wait_until(restored, 60, lambda: str(cluster.job(job_id)))
