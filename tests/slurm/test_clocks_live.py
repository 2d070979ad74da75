"""Clocks on real Slurm: just the GPUs of a job are locked and reset, and no failure fails a job."""

import json
import re

from cluster import NODES, Cluster
from test_limits import WAIT
from test_way_of_a_job import end_job


def locked(cluster: Cluster) -> dict[tuple[str, int], int]:
    """(node, GPU) -> locked clock in MHz, as the fake driver keeps it."""
    out = cluster.sh("ctl", "cd /shared/fakegpu && grep -H . */gpu*.locked_clocks || true")
    found = re.findall(r"^(n\d)/gpu(\d)\.locked_clocks:(\d+) \d+$", out, flags=re.M)
    return {(node, int(gpu)): int(mhz) for node, gpu, mhz in found}


def kinds(cluster: Cluster, job: str) -> list[str]:
    told = json.loads(cluster.sh("ctl", ["gpu-aware", "explain", job, "--json"], check=False))
    return [event["kind"] for event in told["events"]]


def test_exactly_the_gpus_of_the_job_run_at_its_clock(cluster: Cluster) -> None:
    """Regression: on 24.11 SLURM_JOB_GPUS names only the last GRES type of the job."""
    job = cluster.running_job("alice", ["--gres=gpu:3", "--comment=class=A,freq=900"], WAIT)
    cluster.wait_until(lambda: len(locked(cluster)) >= 3, 30, lambda: str(locked(cluster)))
    given = cluster.gpus(job)
    clocks = locked(cluster)
    assert set(clocks) == {(node, slot) for node, slots in given.items() for slot in slots}
    assert max(clocks.values()) - min(clocks.values()) == 0
    assert 850 <= min(clocks.values()) <= 950
    assert cluster.job(job)["TresFreq"].startswith("gpu:900")
    end_job(cluster, "alice", job)
    cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))
    cluster.wait_until(lambda: "clock_set" in kinds(cluster, job), 60, "the ledger knows")


def test_a_clock_that_cannot_be_set_leaves_the_job_alone(cluster: Cluster) -> None:
    for node in NODES:
        fault = ["--call", "nvmlDeviceSetGpuLockedClocks", "--error", "NO_PERMISSION"]
        cluster.sh("ctl", ["fake-gpu", "fault", f"/shared/fakegpu/{node}", *fault])
    job = cluster.submit("bob", ["--gres=gpu:2", "--comment=class=C"], "sleep 2")
    cluster.wait(job, "COMPLETED", 60)
    assert locked(cluster) == {}
    cluster.wait_until(lambda: "clock_failed" in kinds(cluster, job), 60, "the ledger knows")


def test_a_sweep_finds_the_slow_gpus_and_class_a_stays_off_them(cluster: Cluster) -> None:
    """The whole way: slowness of the machine -> sweep -> scores -> placement."""
    fast = ("n3", (1, 2))
    for node in NODES:
        for gpu in range(4):
            slow = 1.0 if (node, gpu) in [(fast[0], g) for g in fast[1]] else 1.4
            cluster.sh(
                "ctl", ["fake-gpu", "slow", f"/shared/fakegpu/{node}", str(gpu), f"A={slow}"]
            )
    cluster.sh("ctl", ["gpu-aware-profile", "sweep"], timeout=180)
    rows = json.loads(cluster.sh("ctl", ["gpu-aware-profile", "show", "--json"]))
    assert rows
    cluster.kill("ctl", "selectd", "TERM")  # it reads scores when it starts
    job = cluster.running_job("alice", ["--gres=gpu:2", "--comment=class=A"], WAIT)
    assert cluster.gpus(job) == {fast[0]: fast[1]}
    end_job(cluster, "alice", job)


def test_a_user_on_a_node_keeps_no_clock_from_being_set_and_reset(cluster: Cluster) -> None:
    """Regression: a user's lock on our folder cost each job 14 s, and its clock stayed."""
    asked = ["--gres=gpu:1", "-w", "n1", "--comment=class=A,freq=900"]
    job = cluster.submit("alice", asked, "sleep 2")
    cluster.wait(job, "COMPLETED")  # all folders are there
    ours = "/var/lib/slurm-gpu-aware/clock-locks /shared/gpu-aware/clocks"
    attack = f"find {ours} -readable -print0 | xargs -0 -P0 -I@ flock -s -n @ sleep 60"
    with cluster.start_command("n1", ["sh", "-c", attack], user="alice") as attacker:
        job = cluster.submit("bob", ["--gres=gpu:1", "-w", "n1", "--comment=freq=900"], WAIT)
        cluster.wait_until(lambda: len(locked(cluster)) == 1, 20, lambda: str(locked(cluster)))
        end_job(cluster, "bob", job)
        cluster.wait_until(lambda: locked(cluster) == {}, 20, lambda: str(locked(cluster)))
        attacker.kill()
    cluster.sh("n1", "pkill -x flock || true")


def test_only_slurm_says_that_a_step_runs(cluster: Cluster) -> None:
    job = cluster.running_job("alice", ["--gres=gpu:1", "-w", "n1"], WAIT)
    titles = ["ps", "-eo", "args"]
    fake = "exec -a 'slurmstepd: [777.batch]' sleep 120"
    with cluster.start_command("n1", ["bash", "-c", fake], user="alice") as process:
        both = ("[777.batch]", f"[{job}.batch]")
        cluster.wait_until(lambda: all(t in cluster.sh("n1", titles) for t in both), 60, "steps")
        code = "from slurm_gpu_aware.clocks.job import has_step; print(has_step({}))"
        for number, runs in ((job, True), ("777", False)):
            python = ["/opt/slurm-gpu-aware/bin/python3", "-c", code.format(repr(number))]
            assert cluster.sh("n1", python).strip() == str(runs)
        process.kill()
