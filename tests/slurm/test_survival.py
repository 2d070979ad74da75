"""Nothing is lost and nothing runs twice, whatever is killed whenever."""

import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterator

import pytest
from cluster import ENDED, GATE, NO_ANSWER, Cluster, CommandFailed
from idle_clock import Stopwatch, idle_s
from site_files import configured
from test_way_of_a_job import decisions, expect_kinds, ledger_of, started

STORM_JOBS = int(os.environ.get("GPU_AWARE_STORM_JOBS", "60"))
JOB_EVERY_S = 0.05
"""From one submission of a storm to the next at least, seconds of an idle machine."""
STORM_SEED = int(os.environ.get("GPU_AWARE_STORM_SEED", "1"))
GUARDED = r"""
mark=/shared/home/storm
echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}" >> $mark/runs
# Every GPU that Slurm says it gave to this job, on all of its nodes: "n1-0 n1-3"
for try in $(seq 100); do
  shown=$(scontrol show job -d $SLURM_JOB_ID 2>&1)
  gpus=$(echo "$shown" | /opt/slurm-gpu-aware/bin/python -c "
import re, subprocess, sys
for nodes, gres in re.findall(r' Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)', sys.stdin.read()):
    hosts = subprocess.run(['scontrol', 'show', 'hostnames', nodes], capture_output=True, text=True)
    for part in re.findall(r'IDX:([\d,-]+)', gres):
        for low, high in re.findall(r'(\d+)(?:-(\d+))?', part):
            for gpu in range(int(low), int(high or low) + 1):
                for host in hosts.stdout.split():
                    print(f'{host}-{gpu}')
")
  [ -n "$gpus" ] && break
  sleep 0.2
done
[ -n "$gpus" ] || echo "$SLURM_JOB_ID has no GPUs: $shown" >> $mark/shared
for gpu in $gpus; do
  mkdir $mark/$gpu || echo "$SLURM_JOB_ID $gpu" >> $mark/shared
done
sleep $1
for gpu in $gpus; do rmdir $mark/$gpu; done
"""
"""Runs for ``$1`` seconds and notes it if another job holds one of its GPUs meanwhile."""


def prepare_storm(cluster: Cluster) -> None:
    cluster.sh("ctl", "rm -rf /shared/home/storm; install -d -m 1777 /shared/home/storm")
    cluster.sh("ctl", "touch /shared/home/storm/runs; chmod 666 /shared/home/storm/runs")


NUMBERS = itertools.count()


def submit_storm(cluster: Cluster, rng: random.Random, user: str) -> str:
    options = rng.choice(
        [
            ["--gres=gpu:1"],
            ["--gres=gpu:2"],
            ["--gpus=3"],
            ["--gres=gpu:4"],
            ["-N2", "--gpus-per-node=1"],
            ["-n2", "--gpus-per-task=1"],
        ]
    )
    app_class = rng.choice("ABC")
    script = GUARDED.replace("$1", f"{rng.uniform(0.2, 1.5):.2f}")
    name = f"storm-{next(NUMBERS)}"
    asked = [f"--comment=class={app_class}", "-t5", "-J", name, *options]
    watch = Stopwatch()
    while watch.idle_s < 30:
        try:
            return cluster.submit(user, asked, script)
        except CommandFailed as exc:
            if NO_ANSWER.search(exc.stderr.encode()):
                # slurmctld at its end; it may have taken the job, and not told its number
                cluster.await_answer()
                taken = [job["JobId"] for job in cluster.jobs() if job.get("JobName") == name]
                if taken:
                    return taken[0]
            # slurmctld right after its start, before the nodes have told their GPUs
            elif "node configuration is not available" not in exc.stderr:
                raise
            time.sleep(0.2)
    raise AssertionError("slurmctld refuses all GPU jobs")


def storm(cluster: Cluster, strike: Callable[[random.Random], bool]) -> list[str]:
    """Submit jobs by two users while ``strike`` breaks something; wait for the end of all.

    The pauses are those of an idle machine: on a busy one, too, what was struck works in between.
    Jobs are submitted until it has broken something three times, at the pace of an idle machine as
    well: else a busy one would get several times as many between two strikes.
    """
    rng = random.Random(STORM_SEED)
    prepare_storm(cluster)
    job_ids: list[str] = []
    next_job = idle_s()
    next_strike, struck = next_job + rng.uniform(0.2, 2.0), 0
    while len(job_ids) < STORM_JOBS or struck < 3:
        while idle_s() < next_job:
            time.sleep(0.02)
        next_job = max(idle_s(), next_job) + JOB_EVERY_S
        job_ids.append(submit_storm(cluster, rng, rng.choice(["alice", "bob"])))
        if idle_s() > next_strike:
            struck += strike(rng)
            next_strike = idle_s() + rng.uniform(0.2, 2.0)

    def all_ended() -> bool:
        nonlocal next_strike
        if idle_s() > next_strike and rng.random() < 0.5:
            strike(rng)
            next_strike = idle_s() + rng.uniform(0.5, 5.0)
        states = {job["JobId"]: job.get("JobState") for job in cluster.jobs()}
        if states:  # slurmctld answers
            lost = set(job_ids) - set(states)
            assert not lost, f"Slurm knows nothing of {sorted(lost)}"
        return all(states.get(job_id) in ENDED for job_id in job_ids)

    cluster.wait_until(all_ended, 60 + 4 * STORM_JOBS, lambda: cluster.sh("ctl", ["squeue"]))
    return job_ids


def check_storm(cluster: Cluster, job_ids: list[str]) -> None:
    states: dict[str, str] = {}

    def known() -> bool:  # slurmctld may have answered last at its end
        states.update({job["JobId"]: job["JobState"] for job in cluster.jobs()})
        return states.keys() >= set(job_ids)

    cluster.wait_until(known, 60, "slurmctld answers and knows every job")
    assert {states[job_id] for job_id in job_ids} == {"COMPLETED"}
    runs = re.findall(r"^(\d+) (\d+)$", cluster.sh("ctl", "cat /shared/home/storm/runs"), re.M)
    assert sorted(job_id for job_id, _ in runs) == sorted(job_ids), "each exactly once"
    assert cluster.sh("ctl", "cat /shared/home/storm/shared 2>/dev/null || true") == ""


def check_ledger(cluster: Cluster, job_ids: list[str]) -> None:
    """The ledger has a decision and the end of every job."""

    def told() -> bool:
        # Of all: they do not end in the order of their numbers.
        return all(
            told_of["decisions"] and told_of["decisions"][-1]["state"] == "ended"
            for told_of in ledger_of(cluster, job_ids).values()
        )

    cluster.wait_until(told, 60, "the ledger knows all ends")
    for job_id, told_of in ledger_of(cluster, job_ids).items():
        found = told_of["decisions"]
        assert found, f"job {job_id} is not in the ledger"
        assert found[-1]["state"] == "ended", (job_id, found)


def storm_without_mercy(cluster: Cluster) -> None:
    """A storm in which the selector is killed again and again; nothing is lost or runs twice."""

    def strike(rng: random.Random) -> bool:
        return cluster.run("ctl", 'kill -9 "$(services pid selectd)"').returncode == 0

    job_ids = storm(cluster, strike)
    check_storm(cluster, job_ids)
    check_ledger(cluster, job_ids)


def test_selector_killed_at_random_moments(cluster: Cluster) -> None:
    storm_without_mercy(cluster)


def test_slurmctld_restarted_at_random_moments(cluster: Cluster) -> None:
    def strike(rng: random.Random) -> bool:
        # Killed with -9, slurmctld itself forgets what it accepted in the last five seconds.
        victim, how = rng.choice([("slurmctld", "TERM"), ("selectd", "KILL")])
        cluster.run("ctl", f'kill -{how} "$(services pid {victim})"')
        cluster.wait_until(
            lambda: b"UP" in cluster.run("ctl", ["scontrol", "ping"]).stdout, 60, "slurmctld"
        )
        return True

    job_ids = storm(cluster, strike)
    check_storm(cluster, job_ids)
    check_ledger(cluster, job_ids)


def test_slurmctld_killed_hard_keeps_what_it_had_saved(cluster: Cluster) -> None:
    """Eight jobs run, four are parked. What slurmctld has accepted and not saved yet (it saves
    every five seconds) is lost by a kill -9 with or without us, so the kill comes after that.
    """
    prepare_storm(cluster)
    script = GUARDED.replace("sleep $1", "while [ ! -e $mark/go ]; do sleep 0.2; done")
    users = ["alice", "bob"] * 6
    jobs = [cluster.submit(u, ["--gres=gpu:2", "--comment=class=A"], script) for u in users]

    def running() -> int:
        return sum(job.get("JobState") == "RUNNING" for job in cluster.jobs())

    cluster.wait_until(lambda: running() == 8, 60, lambda: cluster.sh("ctl", ["squeue"]))
    cluster.await_saved()
    for victim in ("slurmctld", "selectd"):
        cluster.kill("ctl", victim)
    cluster.wait_until(
        lambda: {j["JobId"]: j.get("JobState") for j in cluster.jobs()}.keys() >= set(jobs),
        60,
        "slurmctld answers and knows every job",
    )
    cluster.sh("ctl", "touch /shared/home/storm/go")
    cluster.wait_all(jobs, "COMPLETED", 150)
    check_storm(cluster, jobs)


@pytest.fixture
def shortest_lease(cluster: Cluster) -> Iterator[None]:
    """The gate outlives the selector by a minute."""
    with configured(cluster, "[gate]\nlease_s = 60\n"):
        yield


@pytest.mark.usefixtures("shortest_lease")
def test_dead_selector_opens_the_gate(cluster: Cluster) -> None:
    full = [cluster.submit("bob", ["--gres=gpu:4"], "sleep 600") for _ in range(4)]
    cluster.wait_all(full, "RUNNING")
    parked = cluster.submit("alice", ["--gres=gpu:2"], "sleep 600")
    cluster.wait_until(
        lambda: cluster.job(parked)["Reason"] == "Licenses", 60, lambda: str(cluster.job(parked))
    )
    expect_kinds(cluster, parked, ["parked"])  # a round has seen it
    watch = Stopwatch()
    cluster.service_down("ctl", "selectd", "KILL")
    for job_id in full:
        cluster.sh("ctl", ["scancel", job_id])
    new = cluster.submit("bob", ["--gres=gpu:2"], "sleep 600")
    cluster.wait_all((parked, new), "RUNNING", 150)
    assert watch.idle_s < 120
    late = cluster.running_job("bob", ["--gres=gpu:1"], "sleep 600")

    # It takes over without touching what runs, and uses what is left.
    held = {job: cluster.gpus(job) for job in (parked, new, late)}
    cluster.service_up("ctl", "selectd")
    cluster.await_gate()
    fresh = cluster.submit("bob", ["--gres=gpu:1", "--comment=class=A"], "sleep 2")
    cluster.wait(fresh, {"RUNNING", "COMPLETED"})
    assert started(cluster, fresh)["outcome"]["as_planned"]
    assert {job: cluster.gpus(job) for job in held} == held
    assert cluster.job(parked)["Restarts"] == "0"
    expect_kinds(cluster, parked, ["parked", "started"])


def test_requeued_job_is_placed_again(cluster: Cluster) -> None:
    job_id = cluster.running_job("alice", ["--gres=gpu:2", "--comment=class=A"], "sleep 100")
    started(cluster, job_id)
    cluster.sh("ctl", ["scontrol", "requeue", job_id])

    def parked_again() -> bool:
        job = cluster.job(job_id)
        return job["JobState"] == "PENDING" and "gpuaware" in job["Licenses"]

    cluster.wait_until(parked_again, 60, lambda: str(cluster.job(job_id)))
    cluster.wait_until(
        lambda: cluster.job(job_id)["ReqNodeList"] == "(null)", 60, "every pin is cleared"
    )
    assert cluster.job(job_id)["TresPerNode"] == "gres/gpu:2"
    cluster.start_requeued(job_id)
    cluster.wait(job_id, "RUNNING")
    assert cluster.job(job_id)["Restarts"] == "1"

    def as_planned() -> bool:
        found = decisions(cluster, job_id)
        return len(found) == 2 and found[1]["outcome"].get("as_planned") is True

    cluster.wait_until(as_planned, 60, lambda: str(decisions(cluster, job_id)))
    expect_kinds(cluster, job_id, ["started", "parked", "released", "started"])
    cluster.sh("ctl", ["scancel", job_id])


def test_job_of_a_dead_node_is_placed_elsewhere(cluster: Cluster) -> None:
    job_id = cluster.running_job("alice", ["--gres=gpu:4", "--comment=class=A"], "sleep 300")
    (node,) = cluster.gpus(job_id)
    started(cluster, job_id)
    cluster.stop(node)
    try:
        cluster.mark_down(node)
        cluster.wait(job_id, "PENDING", 120)
        cluster.wait_until(
            lambda: "gpuaware" in cluster.job(job_id)["Licenses"], 60, "it is parked again"
        )
        cluster.start_requeued(job_id)
        cluster.wait(job_id, "RUNNING", 90)
        assert set(cluster.gpus(job_id)) != {node}
    finally:
        cluster.start(node)


def test_release_by_hand(cluster: Cluster) -> None:
    cluster.service_down("ctl", "selectd", "KILL")
    # Closed for as long as it takes, not for the lease
    cluster.sh("ctl", ["scontrol", "update", f"reservation={GATE}", "endtime=now+1hour"])
    job_id = cluster.submit("alice", ["--gres=gpu:1"], "sleep 2")
    array = cluster.submit("alice", ["--gres=gpu:1", "--array=1-2"], "sleep 2")
    stays = cluster.submit("alice", ["--gres=gpu:1"], "sleep 2")
    cluster.sh("ctl", ["gpu-aware", "release", job_id], "slurm")
    cluster.sh("ctl", ["gpu-aware", "release", f"{array}_1"], "slurm")
    cluster.wait(job_id, "COMPLETED")
    cluster.wait_until(
        lambda: {j["JobState"] for j in cluster.jobs(f"{array}_1")} == {"COMPLETED"}, 60, "task 1"
    )
    assert cluster.job(stays)["JobState"] == "PENDING"
    cluster.sh("ctl", ["gpu-aware", "release", "--all"], "slurm")
    cluster.wait(stays, "COMPLETED")
    cluster.service_up("ctl", "selectd")
    expect_kinds(cluster, stays, ["opened_by_hand"])


@pytest.fixture
def hasty(cluster: Cluster) -> Iterator[None]:
    """A selector that parks a job again sooner that does not start, and tries it again sooner."""
    timers = "[selector]\nstart_timeout_s = 10.0\nreuse_backoff_s = 5.0\n"
    with configured(cluster, timers):
        yield


def test_taken_gpus_bring_the_job_back(cluster: Cluster, hasty: None) -> None:
    """A job that is not ours takes the GPUs between plan and start: parked again, then placed."""
    blocker = cluster.sh(
        "ctl",
        ["sbatch", "--parsable", "-w", "n1", "--gres=gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1",
         "--wrap", "sleep 1000"],
    ).strip()  # fmt: skip
    cluster.wait(blocker, "RUNNING")
    # As if a plan had been made just before: a job pinned to the taken GPUs, its gate open.
    job_id = cluster.submit("alice", ["--gres=gpu:1", "-H"], "sleep 1")
    comment = cluster.job(job_id)["AdminComment"]
    cluster.sh(
        "ctl",
        ["scontrol", "update", f"jobid={job_id}", "reqnodelist=n1", "trespernode=gres/gpu:g0:1",
         "licenses=", f"admincomment={comment};sel=released:0:{int(time.time())}"],
    )  # fmt: skip
    cluster.sh("ctl", ["scontrol", "release", job_id])
    cluster.wait(job_id, "COMPLETED", 150)
    expect_kinds(cluster, job_id, ["parked", "released", "started"])
