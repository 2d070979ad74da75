#!/usr/bin/env python3
"""make demo: sweep a cluster of fake GPUs, run a mix of jobs on it, explain each choice.

KEEP=1 leaves the cluster running. GPU_AWARE_PROJECT and GPU_AWARE_SUITE as in docker/cluster.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLUSTER = Path(__file__).resolve().parent / "cluster"
PROJECT = os.environ.get("GPU_AWARE_PROJECT") or "gpuaware-demo"
START_S = 60
SCORES_S = 6
"""The selector reads new scores within 5 s."""
RUN_S = 180
WIDTH = 100
"""Columns of the output."""
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
sleep 12
"""
NOT_SHOWN = ("-N1", "--ntasks-per-node=1")
MIX: list[tuple[str, str, list[str], int]] = [
    # user, class, options, how often
    ("alice", "A", ["--gres=gpu:1"], 2),
    ("alice", "C", ["--gres=gpu:1"], 2),
    ("bob", "B", ["--gres=gpu:2"], 2),
    ("alice", "A", ["--gpus=2", "-N1"], 2),
    ("bob", "C", ["--gres=gpu:2"], 1),
    ("bob", "B", ["--gres=gpu:1"], 2),
    ("alice", "A", ["-N2", "--gpus-per-node=2", "--ntasks-per-node=1"], 1),
    ("alice", "C", ["--gres=gpu:1", "--array=0-3"], 1),
    ("alice", "A", ["--gres=gpu:4"], 1),
    ("bob", "C", ["--gres=gpu:4"], 1),
    ("bob", "A", ["-n2", "--gpus-per-task=1", "-N1"], 1),
    ("alice", "B", ["--gpus=4", "-N1"], 1),
]


class DemoError(Exception):
    """A step of the demo failed; the text is for the user."""


@dataclass
class Job:
    """One job, or one task of an array."""

    job_id: str
    user: str
    app_class: str
    asked: str
    decision: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)
    """Node -> GPUs in CUDA_VISIBLE_DEVICES of the job's own steps."""
    ended_at: float = math.inf
    """Time at which the selector saw its end: in the next rounds these GPUs are free."""

    def gpus(self) -> set[tuple[str, int]]:
        """(node, GPU index) pairs of its decision."""
        d = self.decision
        return {(n, i) for n, slots in zip(d["nodes"], d["slots"], strict=True) for i in slots}


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
        env={**os.environ, "GPU_AWARE_PROJECT": PROJECT},
        timeout=3000,
        check=False,
    )
    if check and done.returncode != 0:
        raise DemoError(f"docker/cluster {' '.join(args)} failed: {done.stderr or done.stdout}")
    return done.stdout or ""


def wait_for_selector() -> None:
    """Wait until the selector holds the gate: from then on jobs are parked and placed."""
    end = time.monotonic() + START_S
    while not cluster("sh", "ctl", "scontrol", "show", "res", "gpuaware_gate", check=False):
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
    for user, app_class, options, count in MIX:
        for _ in range(count):
            line = cluster(
                *("as", user, "sbatch", "--parsable", "--time=2", "--job-name=demo"),
                *(f"--comment=class={app_class}", "--output=demo-%A_%a.out", *options),
                stdin=SCRIPT,
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


def read_ledger(jobs: Sequence[Job]) -> None:
    """Fill in each job's last decision, the time of its end, and the GPUs of its steps."""
    loop = 'for job in "$@"; do gpu-aware explain "$job" --json || exit 1; done'
    ids = [job.job_id for job in jobs]
    answers = documents(cluster("as", "slurm", "sh", "-c", loop, "sh", *ids))
    for job, answer in zip(jobs, answers, strict=True):
        if not answer["decisions"]:
            raise DemoError(f"the ledger has no decision for job {job.job_id}")
        job.decision = answer["decisions"][-1]
        ends = [event["at"] for event in answer["events"] if event["kind"] == "ended"]
        job.ended_at = max(ends, default=math.inf)
        task = job.job_id if "_" in job.job_id else f"{job.job_id}_4294967294"
        out = cluster("as", job.user, "cat", f"demo-{task}.out", check=False)
        for node, gpus in re.findall(r"^step (\S+) ([\d,]+)$", out, flags=re.MULTILINE):
            job.seen.setdefault(node, set()).update(map(int, gpus.split(",")))


def out_of_reach(job: Job, before: Sequence[Job]) -> set[tuple[str, int]]:
    """(node, GPU index) pairs that the job could not choose; ``before``: jobs decided before it.

    Not those alone that others had: by its ledger the selector also kept free ones for a job ahead
    in the queue. A policy that is asked what it would have done has to keep them, too.
    """
    d = job.decision
    kept = {(node, slot) for node, slots in d["why"].get("kept", {}).items() for slot in slots}
    held = [other.gpus() for other in before if other.ended_at > d["decided_at"]]
    return kept.union(*held) - job.gpus()


def packed_instead(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Ask `gpu-aware place` where packed would have put each job, given the same GPUs."""
    order = sorted(jobs, key=lambda job: job.decision["id"])
    lines = []
    for at, job in enumerate(order):
        d = job.decision
        busy = [f"--busy={node}:{slot}" for node, slot in sorted(out_of_reach(job, order[:at]))]
        gpus = sum(len(slots) for slots in d["slots"])
        nodes = len(d["nodes"])
        lines.append(
            f"gpu-aware place -g {gpus} -N {nodes} -c {job.app_class} --policy packed --json "
            + " ".join(busy)
        )
    answers = documents(cluster("as", "slurm", "sh", "-e", stdin="\n".join(lines) + "\n"))
    return {job.job_id: a["answers"][0] for job, a in zip(order, answers, strict=True)}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns; the last one is wrapped to the terminal's width, 100 columns at most."""
    head = [max(len(str(r[c])) for r in [headers, *rows]) for c in range(len(headers) - 1)]
    longest = max(len(str(r[-1])) for r in [headers, *rows])
    columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    width = max(30, columns - sum(head) - 2 * len(head))
    lines = []
    for row in [headers, ["-" * w for w in [*head, min(width, longest)]], *rows]:
        first, *more = textwrap.wrap(str(row[-1]), width) or [""]
        lead = "  ".join(str(v).ljust(w) for v, w in zip(row, head, strict=False))
        lines.append(f"{lead}  {first}".rstrip())
        lines += [" " * (sum(head) + 2 * len(head)) + text for text in more]
    return "\n".join(lines)


def place_of(nodes: Iterable[str], slots: Iterable[Sequence[int]]) -> str:
    return " ".join(f"{n}:{','.join(map(str, s))}" for n, s in zip(nodes, slots, strict=True))


def report_jobs(jobs: Sequence[Job]) -> None:
    """Print each job's GPUs and the reason, and check that its steps saw the same GPUs."""
    rows, wrong = [], []
    for job in jobs:
        d = job.decision
        wanted = {n: set(s) for n, s in zip(d["nodes"], d["slots"], strict=True)}
        if job.seen != wanted:
            wrong.append(f"job {job.job_id} saw {job.seen}, the ledger says {wanted}")
        rows.append(
            (
                job.job_id,
                job.app_class,
                job.asked,
                place_of(d["nodes"], d["slots"]),
                f"{d['clock_mhz']} MHz" if d["clock_mhz"] else "default",
                str(d["why"].get("summary", d["policy"])),
            )
        )
    print(table(["job", "class", "asked", "GPUs", "clock", "why"], rows))
    if wrong:
        raise DemoError("\n".join(wrong))
    print(f"\nAll {len(jobs)} jobs saw exactly these GPUs (CUDA_VISIBLE_DEVICES of their steps).")


def report_packed(jobs: Sequence[Job], packed: dict[str, dict[str, Any]]) -> None:
    """Print the predicted slowdown beside that of packed placement, and the mean by class."""
    rows = []
    ratios: dict[str, list[float]] = {}
    for job in jobs:
        d, other = job.decision, packed[job.job_id]
        if other["place"] is None:
            raise DemoError(f"packed found no place for job {job.job_id}: {other}")
        ratio = other["slowdown"] / d["slowdown"]
        ratios.setdefault(job.app_class, []).append(ratio)
        rows.append(
            (
                job.job_id,
                job.app_class,
                place_of(d["nodes"], d["slots"]),
                d["level"],
                f"{d['score']:.3f}",
                f"{d['slowdown']:.3f}",
                place_of(other["place"], other["place"].values()),
                f"{other['slowdown']:.3f}",
                f"{100 * (ratio - 1):+.1f}%",
            )
        )
    headers = ["job", "class", "chosen", "level", "score", "slowdown", "packed", "slowdown", "more"]
    print(table(headers, rows))
    print("\nSlowdown: predicted iteration time, the median GPU of one node being 1.")
    print("Packed may choose what the job could: no GPUs that are kept for a job ahead of it.")
    for name in sorted(ratios):
        mean = math.exp(sum(map(math.log, ratios[name])) / len(ratios[name]))
        print(f"class {name}: with packed placement {100 * (mean - 1):+.1f}% (geometric mean)")


def further(job: Job, keep: bool) -> None:
    print("\nLook further" + ("" if keep else " (KEEP=1 make demo leaves the cluster running)"))
    if PROJECT != "gpuaware":
        print(f"  export GPU_AWARE_PROJECT={PROJECT}")
    for command in (
        f"as {job.user} gpu-aware explain {job.job_id}",
        "as alice gpu-aware-profile show --class A",
        "as alice gpu-aware queue",
        "sh ctl gpu-aware doctor",
        "as alice sbatch --gres=gpu:2 --comment=class=A --wrap 'sleep 60'",
        "down",
    ):
        print(f"  docker/cluster {command}")


def run(keep: bool) -> None:
    say("Starting a Slurm cluster: one controller, four nodes with four fake GPUs each.")
    cluster("up", show=True)
    wait_for_selector()
    for node, gpu, *factors in SLOW:
        cluster("sh", "ctl", "fake-gpu", "slow", f"/shared/fakegpu/{node}", gpu, *factors)
    say("\nSweep: how fast is each GPU for each class of application?")
    cluster("as", "slurm", "gpu-aware-profile", "sweep", show=True)
    print(cluster("as", "slurm", "gpu-aware-profile", "show", "--summary"))
    time.sleep(SCORES_S)
    say("Submitting as alice and bob.")
    jobs = submit()
    say(f"{len(jobs)} jobs on 16 GPUs:")
    wait_for_end()
    read_ledger(jobs)
    print("\nWhat each job got\n")
    report_jobs(jobs)
    print("\nThe same jobs, on the GPUs that each could have at that moment, placed by packed\n")
    report_packed(jobs, packed_instead(jobs))
    further(jobs[0], keep)


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
