#!/usr/bin/env python3
"""make demo: climb the ladder on a cluster of fake GPUs: watch, shadow, order and exact GPUs.

KEEP=1 leaves the cluster running. GPU_AWARE_PROJECT and GPU_AWARE_SUITE as in docker/cluster.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from demo_report import (
    ORDER,
    PROJECT,
    DemoError,
    Job,
    Place,
    further,
    report_places,
    report_shadow,
    report_times,
    report_watch,
)

CLUSTER = Path(__file__).resolve().parent / "cluster"
START_S = 60
SWEEPS = 3
"""A GPU is slow after three sweeps."""
RUN_S = 180
# Beside the usual spread, as in measured clusters: a few GPUs that are much slower, and only for
# some classes.
SLOW = (
    ("n1", "0", "A=1.35", "B=1.15"),
    ("n1", "1", "A=1.2", "B=1.1"),
    ("n2", "2", "A=1.5", "B=1.25", "C=1.02"),
    ("n3", "0", "A=1.25", "B=1.1"),
)
# The script of a job: print where its steps run and which GPUs they see, then "compute".
SCRIPT = """#!/bin/bash
srun sh -c 'echo "step $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
sleep {}
"""
NAMES = {"train": (20, 2), "test": (4, 1)}
"""Name of a job -> the seconds that it computes, and its time limit in minutes."""
NOT_SHOWN = ("-N1", "--ntasks-per-node=1")
MIX: list[tuple[str, str, str, list[str], int]] = [
    # user, name, class, options, how often
    ("alice", "train", "A", ["--gres=gpu:4"], 1),
    ("alice", "train", "A", ["--gres=gpu:1"], 2),
    ("bob", "train", "A", ["--gpus=2", "-N1"], 1),
    ("bob", "train", "B", ["--gres=gpu:2"], 1),
    ("alice", "train", "C", ["--gres=gpu:1"], 2),
    ("alice", "train", "C", ["-N2", "--gpus-per-node=2", "--ntasks-per-node=1"], 1),
    ("bob", "train", "C", ["--gres=gpu:4"], 2),
    ("alice", "train", "B", ["--gpus=4", "-N1"], 2),
    ("bob", "test", "C", ["--gres=gpu:2"], 1),
    ("bob", "test", "B", ["--gres=gpu:1"], 1),
    ("alice", "test", "C", ["--gres=gpu:1", "--array=0-3"], 1),
    ("bob", "test", "A", ["-n2", "--gpus-per-task=1", "-N1"], 1),
    ("alice", "test", "A", ["--gres=gpu:1"], 1),
]


_GIVEN = """
import json, sqlite3
db = sqlite3.connect("file:/var/lib/slurm-gpu-aware/store.db?mode=ro", uri=True)
print(json.dumps(dict(db.execute("SELECT job_id, sets FROM shadow_jobs"))))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def cluster(*args: str, stdin: str = "", check: bool = True, show: bool = False) -> str:
    """Run docker/cluster; stdout is returned, or shown."""
    done = subprocess.run(
        [str(CLUSTER), *args],
        input=stdin,
        stdout=None if show else subprocess.PIPE,
        stderr=None if show else subprocess.PIPE,
        text=True,
        env={**os.environ, "GPU_AWARE_PROJECT": PROJECT, "GPU_AWARE_MODE": "plain"},
        timeout=3000,
        check=False,
    )
    if check and done.returncode != 0:
        raise DemoError(f"docker/cluster {' '.join(args)} failed: {done.stderr or done.stdout}")
    return done.stdout or ""


def wait_for_selector() -> None:
    """Wait until the selector holds the gate: from then on jobs are parked and placed."""
    end = time.monotonic() + START_S
    gate = "sh", "ctl", "scontrol", "show", "res", "gpuaware_gate"
    while "State=ACTIVE" not in cluster(*gate, check=False):  # else: "not found"
        if time.monotonic() > end:
            log = cluster("sh", "ctl", "tail", "-n20", "/var/log/cluster/selectd.log", check=False)
            raise DemoError(f"the selector did not close its gate within {START_S} s:\n{log}")
        time.sleep(0.5)


def asked_of(options: Sequence[str]) -> str:
    """The options with the number of GPUs, for a table."""
    return " ".join(o for o in options if o not in NOT_SHOWN)


def submit() -> list[Job]:
    """Submit the mix as ordinary users, arrays as one job per task."""
    jobs = []
    for user, name, app_class, options, count in MIX:
        seconds, minutes = NAMES[name]
        for _ in range(count):
            line = cluster(
                *("as", user, "sbatch", "--parsable", f"--time={minutes}", f"--job-name={name}"),
                *(f"--comment=class={app_class}", "--output=demo-%A_%a.out", *options),
                stdin=SCRIPT.format(seconds),
            )
            job_id = line.strip().splitlines()[-1]
            asked = asked_of(options)
            found = re.search(r"--array=0-(\d+)", asked)
            ids = [f"{job_id}_{i}" for i in range(int(found[1]) + 1)] if found else [job_id]
            jobs += [Job(i, user, app_class, asked) for i in ids]
    return jobs


def wait_for_end() -> None:
    """Wait until the queue is empty; progress goes to stderr."""
    end = time.monotonic() + RUN_S
    last = ""
    while True:
        states = cluster("sh", "ctl", "squeue", "-h", "-r", "-o", "%T").split()
        text = f"{states.count('RUNNING')} running, {states.count('PENDING')} waiting"
        if text != last:
            if sys.stderr.isatty():
                print(f"\r  {text}   ", end="", file=sys.stderr, flush=True)
            else:
                say(f"  {text}")
            last = text
        if not states:
            break
        if time.monotonic() > end:
            raise DemoError(f"jobs did not end within {RUN_S} s: {cluster('sh', 'ctl', 'squeue')}")
        time.sleep(1)
    if sys.stderr.isatty():
        say("")


def documents(text: str) -> list[Any]:
    """Parse JSON documents that stand one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def seen_by(job: Job) -> dict[str, set[int]]:
    """Node -> GPUs in CUDA_VISIBLE_DEVICES of the job's own steps."""
    task = job.job_id if "_" in job.job_id else f"{job.job_id}_4294967294"
    out = cluster("as", job.user, "cat", f"demo-{task}.out", check=False)
    seen: dict[str, set[int]] = {}
    for node, gpus in re.findall(r"^step (\S+) ([\d,]+)$", out, flags=re.MULTILINE):
        seen.setdefault(node, set()).update(map(int, gpus.split(",")))
    return seen


def read_shadow(jobs: Sequence[Job]) -> None:
    """Fill in what Slurm gave each job, as the shadow saw it."""
    given = json.loads(cluster("as", "slurm", "python3", "-c", _GIVEN))
    for job in jobs:
        if job.job_id in given and (found := json.loads(given[job.job_id])["given"]):
            gpus = {node: set(slots) for node, slots in found["gpus"]}
            job.place = Place(gpus, found["slowdown"])


def read_ledger(jobs: Sequence[Job]) -> None:
    """Fill in each job's last decision, and check that its steps saw these GPUs."""
    loop = 'for job in "$@"; do gpu-aware explain "$job" --json || exit 1; done'
    ids = [job.job_id for job in jobs]
    end = time.monotonic() + START_S
    while True:  # explain may read a copy of the ledger, which lags
        answers = documents(cluster("as", "slurm", "sh", "-c", loop, "sh", *ids))
        pairs = list(zip(jobs, answers, strict=True))
        missing = [job.job_id for job, answer in pairs if not answer["decisions"]]
        if not missing:
            break
        if time.monotonic() > end:
            raise DemoError(f"the ledger has no decision for jobs {', '.join(missing)}")
        time.sleep(1)
    for job, answer in pairs:
        d = answer["decisions"][-1]
        gpus = {n: set(s) for n, s in zip(d["nodes"], d["slots"], strict=True)}
        job.place = Place(gpus, d["slowdown"])
        if (seen := seen_by(job)) != gpus:
            raise DemoError(f"job {job.job_id} saw {seen}, the ledger says {gpus}")


def read_times(jobs: Sequence[Job]) -> None:
    """Fill in how long each job took, as Slurm's accounting says."""
    ids = ",".join(job.job_id for job in jobs)
    ask = "sh", "ctl", "sacct", "-XnPj", ids, "-o", "JobID,Submit,End"
    end = time.monotonic() + START_S
    while True:  # accounting lags
        told = cluster(*ask)
        rows = {job: span for job, *span in (line.split("|") for line in told.split())}
        if all("Unknown" not in rows.get(job.job_id, ["Unknown"]) for job in jobs):
            break
        if time.monotonic() > end:
            raise DemoError(f"accounting has no end of some jobs:\n{told}")
        time.sleep(0.5)
    for job in jobs:
        submit, end_at = map(datetime.fromisoformat, rows[job.job_id])
        job.took_s = (end_at - submit).total_seconds()


def watch() -> list[dict[str, Any]]:
    """The GPUs after three sweeps."""
    for number in range(SWEEPS):
        say(f"  sweep {number + 1} of {SWEEPS}")
        options = ["--older-than", "0", "--json"]
        told = cluster("as", "slurm", "gpu-aware-profile", "watch", *options, check=False)
    if not told.strip():
        raise DemoError("watch said nothing; try: docker/cluster as slurm gpu-aware-profile watch")
    gpus: list[dict[str, Any]] = json.loads(told)["gpus"]
    return gpus


def start_shadow() -> str:
    """Start the shadow and wait for its first look; its process id."""
    start = "setsid gpu-aware selectd --shadow >/tmp/shadow.log 2>&1 & echo $!"
    pid = cluster("as", "slurm", "sh", "-c", start).strip()
    end = time.monotonic() + START_S
    while not shadow_report()["since"]:
        if time.monotonic() > end:
            raise DemoError(f"no shadow: {cluster('sh', 'ctl', 'cat', '/tmp/shadow.log')}")
        time.sleep(0.5)
    return pid


def shadow_report() -> dict[str, Any]:
    """``gpu-aware report --shadow --json``."""
    found: dict[str, Any] = json.loads(
        cluster("as", "slurm", "gpu-aware", "report", "--shadow", "--json")
    )
    return found


def run_mix() -> list[Job]:
    """Submit the mix and wait for its end."""
    jobs = submit()
    say(f"  {len(jobs)} jobs of alice and bob on 16 GPUs:")
    wait_for_end()
    read_times(jobs)
    return jobs


def run(keep: bool) -> None:
    say("Starting a Slurm cluster: one controller, four nodes with four fake GPUs each.")
    cluster("up", show=True)
    for node, gpu, *factors in SLOW:
        cluster("sh", "ctl", "fake-gpu", "slow", f"/shared/fakegpu/{node}", gpu, *factors)
    print("\n1. Watch: which GPUs are slow? Slurm runs alone.\n", flush=True)
    report_watch(watch())
    print("\n2. Shadow: what do Slurm's own choices cost? It still runs alone.\n", flush=True)
    shadow = start_shadow()
    alone = run_mix()
    report_shadow(shadow_report())
    read_shadow(alone)
    cluster("sh", "ctl", "kill", shadow)
    print("\n3. Order and exact GPUs: the same jobs, and now we choose.\n", flush=True)
    order = f'\n[queue]\norder = "{ORDER}"\n'
    cluster("sh", "ctl", "tee", "-a", "/etc/slurm-gpu-aware/config.toml", stdin=order)
    cluster("sh", "ctl", "services", "mode", "aware")
    wait_for_selector()
    placed = run_mix()
    read_ledger(placed)
    report_times(alone, placed)
    print(f"Exact GPUs: all {len(placed)} jobs saw those that we chose (CUDA_VISIBLE_DEVICES).\n")
    report_places(alone, placed)
    further(placed[0], keep)


def main() -> int:
    keep = os.environ.get("KEEP") == "1"
    began = time.monotonic()
    try:
        run(keep)
        say(f"\nThe demo took {time.monotonic() - began:.0f} s.")
    except DemoError as exc:
        say(f"demo: {exc}")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not keep:
            say("Removing the cluster.")
            cluster("down", check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
