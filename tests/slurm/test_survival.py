"""Nothing is lost and nothing runs twice, whoever dies and whenever.

Every job writes a line at its start and one at its end into a file of its own; what really ran
where is read from these, not from what the selector believes.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import ENDED, Cluster, CommandFailed

SEED = 20260101

# $SLURM_JOB_GPUS is set by slurmd from the allocation
RECORDING_JOB = """
mkdir -p /shared/runs
log=/shared/runs/$SLURM_JOB_ID
echo "start $(date +%s.%N) $SLURMD_NODENAME $SLURM_JOB_GPUS" >> $log
sleep {seconds}
echo "end $(date +%s.%N) $SLURMD_NODENAME $SLURM_JOB_GPUS" >> $log
"""

SUBMIT_LOOP = """
i=0
while [ $i -lt {count} ]; do
  gpus=$((1 + (i % 7) / 3)); [ $((i % 11)) -eq 10 ] && gpus=4
  case $((i % 3)) in 0) class=A;; 1) class=B;; *) class=C;; esac
  sed "s/SECONDS_HERE/$((1 + i % 3))/" /shared/record.sh |
    sbatch --parsable -J run$i -t 5 --gres=gpu:$gpus --comment=class=$class &&
    i=$((i + 1))
  sleep 0.1
done
"""


@pytest.fixture(autouse=True)
def no_runs(clean: None, cluster: Cluster) -> None:
    """Start with an empty folder of records, writable by everyone."""
    cluster.sh("ctl", "rm -rf /shared/runs; mkdir -m 1777 /shared/runs")
    script = "#!/bin/bash" + RECORDING_JOB.format(seconds="SECONDS_HERE")
    cluster.sh("ctl", "cat > /shared/record.sh; chmod a+r /shared/record.sh", stdin=script)


def records(cluster: Cluster) -> dict[str, list[tuple[str, float, str, tuple[int, ...]]]]:
    """Job id -> its lines (what, when, node, GPUs), in the order written."""
    out = cluster.sh("ctl", "cd /shared/runs && grep -H . * || true")
    found = defaultdict(list)
    for line in out.splitlines():
        job, what, when, node, gpus = re.fullmatch(
            r"(\d+):(start|end) (\S+) (\S+) (\S*)", line
        ).groups()
        slots = tuple(int(g) for g in gpus.split(",") if g)
        found[job].append((what, float(when), node, slots))
    return dict(found)


def assert_each_ran_once(found, jobs):
    for job in jobs:
        assert [line[0] for line in found.get(job, [])] == ["start", "end"], f"job {job}"


def assert_no_gpu_shared(found):
    held = defaultdict(list)
    for job, lines in found.items():
        starts = [line for line in lines if line[0] == "start"]
        ends = [line for line in lines if line[0] == "end"]
        for (_, begin, node, slots), (_, end, _, _) in zip(starts, ends, strict=False):
            for slot in slots:
                held[node, slot].append((begin, end, job))
    for gpu, spans in held.items():
        spans.sort()
        for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
            assert begin >= end, f"GPU {gpu} had jobs {one} and {other} at once"


def assert_all_ended(cluster: Cluster, jobs, deadline: float) -> None:
    left: list[str] = []

    def nothing_left() -> bool:
        try:
            out = cluster.sh("ctl", "squeue -h -r -o '%i %T %r'")
        except CommandFailed:
            return False
        left[:] = out.splitlines()
        return not left

    cluster.wait_until(nothing_left, deadline, lambda: f"{len(left)} jobs left: {left[:5]}")
    out = cluster.sh("ctl", f"sacct -X -n -P -o JobID,State -j {','.join(jobs)}")
    states = dict(line.split("|") for line in out.splitlines())
    assert {job: states.get(job) for job in jobs if states.get(job) != "COMPLETED"} == {}


def ledger(cluster: Cluster, job: str) -> dict:
    import json

    return json.loads(cluster.sh("ctl", ["gpu-aware", "explain", job, "--json"]))


@contextmanager
def killing(cluster: Cluster, service: str, least: float, most: float, seed: int) -> Iterator[list]:
    """Kill a service of ctl with -9 again and again, at random moments, until the block ends."""
    stop = threading.Event()
    kills: list[int] = []
    dice = random.Random(seed)

    def run() -> None:
        while not stop.wait(dice.uniform(least, most)):
            pid = cluster.service_pid("ctl", service)
            if pid is not None:
                cluster.run("ctl", ["kill", "-9", str(pid)])
                kills.append(pid)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        stop.set()
        thread.join(timeout=60)


def submit_all(cluster: Cluster, count: int) -> list[str]:
    """Let both users submit ``count`` jobs each, side by side; return the ids."""
    loop = SUBMIT_LOOP.format(count=count)
    running = [
        cluster.start_command("ctl", ["bash", "-c", loop], user) for user in ("alice", "bob")
    ]
    jobs: list[str] = []
    for process in running:
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err.decode()
        jobs += out.decode().split()
    assert len(jobs) == 2 * count
    return jobs


def test_300_submissions_while_the_selector_and_slurmctld_are_killed(cluster):
    print("seed", SEED)
    with (
        killing(cluster, "selectd", 1, 5, SEED) as selector_kills,
        killing(cluster, "slurmctld", 15, 25, SEED + 1) as controller_kills,
    ):
        jobs = submit_all(cluster, 150)
    assert len(selector_kills) >= 5
    assert len(controller_kills) >= 1
    assert_all_ended(cluster, jobs, deadline=300)
    found = records(cluster)
    assert_each_ran_once(found, jobs)
    assert_no_gpu_shared(found)
    # the ledger tells where each job ran: check it against what the job itself saw
    for job in random.Random(SEED).sample(jobs, 25):
        told = ledger(cluster, job)["decisions"][-1]
        _, _, node, slots = found[job][0]
        assert told["nodes"] == [node], job
        assert told["slots"] == [list(slots)], job


def test_a_dead_node_gives_its_job_to_another(cluster):
    job = cluster.submit("alice", ["--gres=gpu:4", "--comment=class=A"], "sleep 300")
    before = cluster.wait(job, "RUNNING")["NodeList"]
    cluster.stop(before)
    cluster.sh("ctl", ["scontrol", "update", f"nodename={before}", "state=down", "reason=dead"])

    def elsewhere() -> bool:
        state = cluster.job(job)
        return state["JobState"] == "RUNNING" and state["NodeList"] != before

    cluster.wait_until(elsewhere, 240, lambda: str(cluster.job(job)[""]))
    kinds = [event["kind"] for event in ledger(cluster, job)["events"]]
    assert "requeued" in kinds or "reparked" in kinds, kinds


def test_without_a_selector_jobs_start_within_two_minutes_and_it_takes_over_again(cluster):
    blocker = cluster.submit("alice", ["-N4", "--gres=gpu:3", "--comment=class=B"], "sleep 400")
    cluster.wait(blocker, "RUNNING")
    parked = cluster.submit("bob", ["-N4", "--gres=gpu:4", "--comment=class=A"], "sleep 1")
    small = ["--gres=gpu:1", "--comment=class=C"]
    cluster.service_down("ctl", "selectd", "KILL")
    new = cluster.submit("bob", small, "sleep 400")
    cluster.wait(new, "RUNNING", deadline=120)
    cluster.service_up("ctl", "selectd")
    after = cluster.submit("alice", small, "sleep 1")
    cluster.wait(after, "COMPLETED", deadline=60)
    for job in (blocker, new):
        state = cluster.job(job)
        assert state["JobState"] == "RUNNING"
        assert state["Restarts"] == "0"
    assert ledger(cluster, after)["decisions"]
    for job in (blocker, new):
        cluster.sh("ctl", ["scancel", job])
    cluster.wait(parked, "COMPLETED", deadline=120)


def test_the_gate_opens_by_hand(cluster):
    cluster.service_down("ctl", "selectd", "KILL")
    one = cluster.submit("alice", ["--gres=gpu:1", "--comment=class=A"], "sleep 1")
    rest = [cluster.submit("bob", ["--gres=gpu:2"], "sleep 1") for _ in range(2)]
    assert cluster.job(one)["JobState"] == "PENDING"
    cluster.sh("ctl", ["gpu-aware", "release", one])
    cluster.wait(one, "COMPLETED", deadline=30)
    assert cluster.job(rest[0])["JobState"] == "PENDING"
    cluster.sh("ctl", ["gpu-aware", "release", "--all"])
    for job in rest:
        cluster.wait(job, "COMPLETED", deadline=30)


def test_an_ordinary_user_cannot_open_the_gate_by_hand(cluster):
    cluster.service_down("ctl", "selectd", "KILL")
    job = cluster.submit("alice", ["--gres=gpu:1", "--comment=class=A"], "sleep 1")
    refused = cluster.run("ctl", ["gpu-aware", "release", job], "alice")
    assert refused.returncode == 1
    assert b"Traceback" not in refused.stderr
    assert cluster.job(job)["JobState"] not in ENDED
