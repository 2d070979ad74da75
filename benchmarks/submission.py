"""Submission and start, with the selector and on plain Slurm, in turns on the container cluster.

    docker/cluster up; python benchmarks/submission.py [--jobs 200] [--turns 4]

Prints the rate of sbatch (with the filter against without, and with the selector beside it on the
same CPUs), the time from sbatch to the job's first line on an idle cluster, and the time of each
decision in the ledger. Rates of single turns scatter by a fifth on a small virtual machine.
Uses the project $GPU_AWARE_PROJECT, which must be free.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "docker/cluster"
RATE = """
start=$(date +%s%N)
for i in $(seq {count}); do
    sbatch -Q -o /dev/null --gres=gpu:1 -C gpu_v100 --comment=class=A -t 5 -d singleton -J rate \
        --hold --wrap true
done
echo $(( ($(date +%s%N) - start) / 1000 ))
"""
LATENCY = """
rm -f started
date +%s%N >asked
sbatch -Q -o /dev/null --gres=gpu:1 --comment=class=A -t 5 --wrap 'date +%s%N >started'
for i in $(seq 200); do [ -s started ] && break; sleep 0.05; done
echo $(( ($(cat started) - $(cat asked)) / 1000 ))
"""

DECISIONS = """
python3 - <<'END'
import statistics
from slurm_gpu_aware.store.database import open_store
with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:
    rows = store.query("SELECT took_ms FROM decisions ORDER BY id DESC LIMIT {count}")
took = [row[0] for row in rows]
print(statistics.median(took), max(took), len(took))
END
"""


def sh(user: str, script: str) -> str:
    """Run a bash script on the controller. Raises SystemExit with its output."""
    argv = [str(SCRIPT), *(["sh", "ctl"] if user == "root" else ["as", user]), "bash", "-s"]
    done = subprocess.run(
        argv, input=script, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise SystemExit((done.stderr or done.stdout).strip()[-500:])
    return done.stdout


def settle(mode: str) -> None:
    """An idle cluster, aware or plain."""
    sh("root", f"squeue -h -r -o %i | xargs -r scancel --quiet; services mode {mode}")
    for _ in range(100):
        if sh("root", "squeue -h | wc -l; sinfo -h -t idle -o %D").split() == ["0", "4"]:
            break
        time.sleep(0.5)
    time.sleep(3)


def settle_for(mode: str) -> None:
    """``plain``, ``aware``, or ``filter``: the filter alone, its selector stopped."""
    settle("plain" if mode == "plain" else "aware")
    if mode == "filter":
        sh("root", "services down selectd")
        time.sleep(2)


def rate(count: int) -> float:
    """Submissions per second, one after the other."""
    took_us = int(sh("alice", RATE.format(count=count)).split()[-1])
    sh("root", "squeue -h -o %i | xargs -r scancel --quiet")
    return count / (took_us / 1e6)


def latency() -> float:
    """Seconds from sbatch to the first command of the job."""
    return int(sh("alice", LATENCY).split()[-1]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="submissions per turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--starts", type=int, default=5, help="jobs started per turn")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"plain": [], "filter": [], "aware": []}
    starts: dict[str, list[float]] = {"plain": [], "aware": []}
    print(f"{os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}")
    try:
        for turn in range(given.turns):
            for mode in list(rates)[:: -1 if turn % 2 else 1]:
                settle_for(mode)
                rates[mode].append(rate(given.jobs))
                if mode == "filter":
                    sh("root", "services up selectd")
                    continue
                settle(mode)
                for _ in range(given.starts):
                    starts[mode].append(latency())
                    time.sleep(2)
    finally:
        sh("root", "services up selectd || true")
        settle("aware")
    middle = {mode: statistics.median(values) for mode, values in rates.items()}
    ratio = middle["filter"] / middle["plain"]
    met = "met" if ratio >= 0.95 else "MISSED"
    print(f"submission rate with the filter / without  {ratio:.3f}  target >= 0.95  {met}")
    print("  " + ", ".join(f"{mode} {value:.1f}/s" for mode, value in middle.items()))
    print(f"  with the selector on the same CPUs  {middle['aware'] / middle['plain']:.3f}")
    ours, theirs = statistics.median(starts["aware"]), statistics.median(starts["plain"])
    met = "met" if ours - theirs <= 1.5 else "MISSED"
    print(f"sbatch to start, with us           {ours:.2f} s  plain {theirs:.2f} s")
    print(f"  difference of the medians {ours - theirs:.2f} s  target <= 1.5 s  {met}")
    text = sh("root", DECISIONS.replace("{count}", str(len(starts["aware"]))))
    median, most, count = (float(word) for word in text.split())
    met = "met" if median < 5 else "MISSED"
    print(f"decision, by the ledger            {median:.2f} ms  target < 5 ms  {met}")
    print(f"  median of {count:.0f}, the longest {most:.1f} ms")
    sys.exit(ratio < 0.95 or ours - theirs > 1.5 or median >= 5)


if __name__ == "__main__":
    main()
