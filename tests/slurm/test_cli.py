"""The commands on a live cluster: doctor, setup, explain and queue as an ordinary user, release."""

import json
from typing import Any

import pytest
from cluster import Cluster

from slurm_gpu_aware.cli.job_text import facts_of


@pytest.fixture(scope="module")
def swept(cluster: Cluster) -> Cluster:
    cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm", timeout=300)
    return cluster


def as_json(cluster: Cluster, user: str, command: str) -> Any:
    return json.loads(cluster.sh("ctl", f"{command} --json", user=user, check=False))


def test_doctor_finds_nothing_wrong(swept: Cluster) -> None:
    job = swept.submit("alice", ["--gres=gpu:1"], "true")
    swept.wait(job, "COMPLETED")
    found = as_json(swept, "root", "gpu-aware doctor")
    assert [c for c in found["checks"] if c["status"] == "failed"] == []


def test_setup_agrees_with_the_cluster(swept: Cluster) -> None:
    """What setup would write for slurm.conf and gres.conf is what the cluster already has."""
    text = swept.sh("ctl", "gpu-aware setup", user="root")
    assert "+++ /etc/slurm/slurm.conf" not in text
    assert "/etc/slurm/gres.conf" not in text


def test_explain_names_the_gpus_that_slurm_gave(swept: Cluster) -> None:
    job = swept.running_job("alice", ["--gres=gpu:2", "--comment=class=A"], "sleep 300")
    told: list[Any] = []

    def known() -> bool:  # bob reads the copy, which is a little older
        told[:] = as_json(swept, "bob", f"gpu-aware explain {job}")["decisions"]
        return bool(told)

    swept.wait_until(known, 60, "the decision in the copy for all users")
    newest = told[-1]
    given = dict(zip(newest["nodes"], (tuple(s) for s in newest["slots"]), strict=True))
    assert given == swept.gpus(job)
    assert newest["user"] == "alice"
    assert facts_of(newest["why"]).text


def test_a_waiting_job_tells_why_and_is_let_go_by_hand(swept: Cluster) -> None:
    only = ["--gres=gpu:4", "-w", "n4"]
    first = swept.running_job("alice", only, "sleep 300")
    # Slurm 24.11 counts the tasks of such a job anew at each update, and then refuses its srun.
    per_gpu = ["-N1", "--ntasks-per-gpu=1"]
    second = swept.submit("bob", [*only, *per_gpu], "srun -n4 true")

    def reason() -> str | None:
        queue = as_json(swept, "bob", "gpu-aware queue")
        entry = next((p for p in queue["parked"] if p["job_id"] == second), None)
        return entry["reason"] if entry and "n4 has no free GPU" in entry["reason"] else None

    swept.wait_until(lambda: reason() is not None, 60, "a reason in the queue")
    refused = swept.sh("ctl", f"gpu-aware release {second} 2>&1; echo rc=$?", user="bob")
    assert "rc=1" in refused
    assert "denied" in refused
    assert swept.sh("ctl", f"gpu-aware release {second}", user="root").split() == [second]
    assert "gpuaware" not in swept.job(second)["Licenses"]
    assert swept.job(second)["NumTasks"] == "4"
    swept.sh("ctl", f"scancel {first}", user="alice")
    swept.wait(second, "COMPLETED")


def test_a_job_without_gpus_is_not_ours(swept: Cluster) -> None:
    job = swept.running_job("alice", [], "sleep 300")
    assert as_json(swept, "alice", f"gpu-aware explain {job}")["state"] == "not ours"
