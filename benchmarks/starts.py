"""Starts with the selector and on plain Slurm, in turns in both orders on the container cluster.

    python benchmarks/starts.py [PART ...] [--turns 3] [--json]

Parts: ``drain``, 160 jobs of 2 s that one user submits one after the other, from the first
submission to the last end; ``apart``, the same, each submitted by a process from outside, so that
the GPUs are mostly free; ``behind``, starts of 5 s jobs from a queue of 3,000 within 90 s: all
GPUs become free at once, so they start in waves, of which a short window counts one more or none;
``limit``, how long a job of another user waits beside 400 that a limit of their account holds;
``keys``, the rounds beside 1,000 jobs with every key of the comment (no plain turn).
Plain turns run without filter, selector and hooks (``services mode plain``). Each
turn has a new cluster of the project $GPU_AWARE_PROJECT, which must be free.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from submission import SCRIPT, settle

LOG = "/var/log/cluster/slurmctld.log"
DRAINED_S = 300
SUBMIT_DOWN = """
scontrol update partitionname=gpu state=down
runuser -u {user} -- bash -c 'cd /shared/home/{user}; {script}' || exit 1
scontrol update partitionname=gpu state=up
"""
KEYS = "class={letter},bw=high,pattern=tree,gpus=1-2,freq=auto,move=ok,due={hours}h,place=pal"
EVENT = re.compile(r"\[(\S+)\] (?:_slurm_rpc_submit_batch_job|_job_complete): JobId=\d+")
START = re.compile(r"\[(\S+)\] (?:sched|backfill): (?:Allocate|Started) JobId=")


def sh(script: str, user: str = "root") -> str:
    """Run a bash script on the controller. Raises SystemExit."""
    argv = [str(SCRIPT), *(["sh", "ctl"] if user == "root" else ["as", user]), "bash", "-s"]
    done = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"starts: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


@dataclass(frozen=True)
class Log:
    """Slurmctld's log from a place on."""

    start: int

    @classmethod
    def here(cls) -> Log:
        """From its present end on."""
        return cls(int(sh(f"stat -c %s {LOG}")))

    def times(self, pattern: re.Pattern[str], what: str = "") -> list[float]:
        """Unix times of the lines that a pattern finds, with ``what`` in them."""
        text = sh(f"tail -c +{self.start + 1} {LOG}")
        found = (pattern.match(line) for line in text.splitlines() if what in line)
        return [datetime.fromisoformat(one[1]).timestamp() for one in found if one]


def await_empty() -> None:
    """Wait until no job is left."""
    until = time.monotonic() + DRAINED_S
    while int(sh("squeue -h -r -o %i | wc -l")):
        if time.monotonic() > until:
            raise SystemExit(f"starts: not drained in {DRAINED_S} s")
        time.sleep(0.5)


def drained_s(log: Log, count: int) -> float:
    """Seconds from the first submission to the last end."""
    await_empty()
    asked = log.times(EVENT, "submit_batch_job")
    ended = log.times(EVENT, " done")
    if len(ended) != count:
        raise SystemExit(f"starts: {len(ended)} of {count} jobs ended, by slurmctld's log")
    return max(ended) - min(asked)


def drain(given: argparse.Namespace, mode: str) -> float:
    """Jobs of 2 s, submitted by one loop of one user."""
    log = Log.here()
    sbatch = f"sbatch -Q -o /dev/null --gres=gpu:1 -t 5 --comment={given.comment} --wrap 'sleep 2'"
    sh(f"for i in $(seq {given.jobs}); do {sbatch} || exit 1; done", "alice")
    return drained_s(log, given.jobs)


def apart(given: argparse.Namespace, mode: str) -> float:
    """Jobs of 2 s, each submitted by a process of its own from outside."""
    log = Log.here()
    words = ["sbatch", "-Q", "-o", "/dev/null", "--gres=gpu:1", "-t5", f"--comment={given.comment}"]
    for _ in range(given.jobs):
        argv = [str(SCRIPT), "as", "alice", *words, "--wrap", "sleep 2"]
        subprocess.run(argv, check=True, capture_output=True)
    return drained_s(log, given.jobs)


def behind(given: argparse.Namespace, mode: str) -> float:
    """Starts within some seconds from a long queue, after all GPUs were taken."""
    hold = "sbatch -Q -o /dev/null -J fill --array=1-16 --gres=gpu:1 -t 60 --wrap 'sleep 3600'"
    sh(hold, "alice")
    while int(sh("squeue -h -t R -n fill -o %i | wc -l")) < 16:
        time.sleep(0.5)
    words = "-Q -o /dev/null --gres=gpu:1 -t 5 --comment=class=A"
    script = f'for i in $(seq {given.queue}); do sbatch {words} --wrap "sleep 5" || exit 1; done'
    sh(SUBMIT_DOWN.format(user="alice", script=script))
    settled(given.queue)
    log = Log.here()
    sh("scancel -n fill", "alice")
    time.sleep(given.window + 1)
    started = sorted(log.times(START))
    found = [at for at in started if at - started[0] <= given.window]
    sh("squeue -h -t PD,R -o %i | xargs -r -n 500 scancel --quiet")
    return float(len(found))


def settled(count: int) -> None:
    """Wait until Slurm and the selector have looked at all jobs of a queue."""
    until, last = time.monotonic() + 180, ""
    while time.monotonic() < until:
        time.sleep(5)
        text = sh("squeue -h -t PD -o %r | sort | uniq -c")
        if text == last and "None" not in text and "PartitionDown" not in text:
            print("  waiting: " + ", ".join(" ".join(s.split()) for s in text.splitlines()))
            return
        last = text


def limit(given: argparse.Namespace, mode: str) -> float:
    """The longest wait of another user's jobs beside 400 that a limit holds."""
    sh("sacctmgr -i modify user bob set grptres=gres/gpu=2 >/dev/null; sleep 2")
    words = "-Q -o /dev/null --gres=gpu:1 -t 60 --comment=class=A"
    try:
        others = f"""
        for i in $(seq {given.limited}); do sbatch {words} --wrap 'sleep 600' || exit 1; done
        """
        process = subprocess.Popen(
            [str(SCRIPT), "as", "bob", "bash", "-s"], stdin=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(others)
        process.stdin.close()
        waits = []
        for _ in range(12):
            waits.append(one_start())
            time.sleep(1)
        process.wait()
        print(f"  waits {[round(one, 2) for one in waits]}", file=sys.stderr)
        return max(waits)
    finally:
        sh("squeue -h -t PD,R -o %i | xargs -r -n 500 scancel --quiet")
        sh("sacctmgr -i modify user bob set grptres=gres/gpu=-1 >/dev/null")


def one_start() -> float:
    """Seconds from sbatch to a job's first line."""
    out = sh(
        """
        cd /shared/home/alice; rm -f started; asked=$(date +%s%N)
        sbatch -Q -o /dev/null --gres=gpu:1 -t 5 --comment=class=A \
            --wrap 'date +%s%N >started.new; mv started.new started' || exit 1
        for try in $(seq 600); do [ -s started ] && break; sleep 0.05; done
        echo $(($(cat started) - asked))
        """,
        "alice",
    )
    return int(out) / 1e9


def keys(given: argparse.Namespace, mode: str) -> float:
    """The median round beside jobs with every key."""
    sh("sbatch -Q -o /dev/null -J fill --array=1-16 --gres=gpu:1 -t 60 --wrap 'sleep 3600'", "bob")
    lines = []
    for letter, hours in zip("ABC" * 4, range(24, 36), strict=True):
        comment = KEYS.format(letter=letter, hours=hours)
        lines.append(f"sbatch -Q -o /dev/null --gres=gpu:1 -t 60 --comment={comment} --wrap true")
    each = "; ".join(f"{line} || exit 1" for line in lines)
    script = f"for i in $(seq {-(-given.keyed // len(lines))}); do {each}; done"
    sh(SUBMIT_DOWN.format(user="alice", script=script))
    settled(given.keyed)
    time.sleep(30)
    rounds: list[float] = json.loads(sh(ROUNDS))
    print(f"  rounds {[round(one, 3) for one in rounds]}")
    sh("squeue -h -t PD,R -o %i | xargs -r -n 500 scancel --quiet")
    return statistics.median(rounds)


ROUNDS = """
/opt/slurm-gpu-aware/bin/python - <<'END'
import json, time
from slurm_gpu_aware.store.database import open_store
with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:
    rows = store.query('SELECT took_ms FROM rounds WHERE started_at > ?', (time.time() - 30,))
    print(json.dumps([row['took_ms'] / 1000 for row in rows]))
END
"""


@dataclass(frozen=True)
class Part:
    """One measurement with its target."""

    measure: Callable[[argparse.Namespace, str], float]
    unit: str
    target: str
    met: Callable[[float, float], bool]
    """Of the figure with us, and of that without."""
    plain: bool = True


PARTS = {
    "drain": Part(drain, "s", "with us / plain <= 1.10", lambda us, it: us <= 1.10 * it),
    "apart": Part(apart, "s", "with us / plain <= 1.10", lambda us, it: us <= 1.10 * it),
    "behind": Part(behind, "starts", "with us / plain >= 0.95", lambda us, it: us >= 0.95 * it),
    "limit": Part(limit, "s", "with us - plain <= 1 s", lambda us, it: us - it <= 1.0),
    "keys": Part(keys, "s", "a round <= 1 s", lambda us, it: us <= 1.0, plain=False),
}


def run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one part in turns, each turn in the other order."""
    part = PARTS[name]
    found: dict[str, list[float]] = {"aware": [], "plain": []}
    for turn in range(given.turns):
        modes = ["aware", "plain"] if part.plain else ["aware"]
        for mode in modes[:: -1 if turn % 2 else 1]:
            # slurmctld keeps the jobs of all turns, and takes no more at MaxJobCount
            for word in ("down", "up"):
                subprocess.run([str(SCRIPT), word], check=True, capture_output=True)
            settle(mode)
            found[mode].append(round(part.measure(given, mode), 3))
            print(f"  {name}, turn {turn + 1}, {mode}: {found[mode][-1]:g}", file=sys.stderr)
    return {"part": name, **found, **verdict(part, found["aware"], found["plain"])}


def verdict(part: Part, ours: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """Medians and whether the target is met."""
    us = statistics.median(ours)
    it = statistics.median(plain) if plain else 0.0
    ratio = round(us / it, 3) if it else None
    return {"ratio": ratio, "target": part.target, "met": part.met(us, it)}


def show(one: dict[str, Any]) -> None:
    """Print one part."""
    unit = PARTS[one["part"]].unit
    words = {mode: " ".join(f"{v:g}" for v in one[mode]) for mode in ("aware", "plain")}
    verdict = "met" if one["met"] else "MISSED"
    print(f"{one['part']}: with us {words['aware']} {unit}, plain {words['plain']} {unit}")
    print(f"  ratio of the medians {one['ratio']}; target {one['target']}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--turns", type=int, default=3, help="each with us and without")
    parser.add_argument("--jobs", type=int, default=160, help="of drain and apart")
    asked = "of the jobs of drain and apart; class=A has a clock, which its hooks set and reset"
    parser.add_argument("--comment", default="class=A", help=asked)
    parser.add_argument("--queue", type=int, default=3000, help="jobs of behind")
    parser.add_argument("--window", type=int, default=90, help="seconds of behind")
    parser.add_argument("--limited", type=int, default=400, help="jobs of limit")
    parser.add_argument("--keyed", type=int, default=1000, help="jobs of keys")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    found: list[dict[str, Any]] = []
    try:
        for name in given.parts or PARTS:
            found.append(run(name, given))
            show(found[-1]) if not given.json else None
    finally:
        sh("squeue -h -r -o %i | xargs -r -n 500 scancel --quiet; services mode aware")
    if given.json:
        print(json.dumps(found, indent=1))
    sys.exit(not all(one["met"] for one in found))


if __name__ == "__main__":
    main()
