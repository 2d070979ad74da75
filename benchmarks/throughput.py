"""One-GPU jobs drained with the selector and on plain Slurm, in turns on the container cluster.

    docker/cluster up; python benchmarks/throughput.py [PART ...] [--jobs 160] [--turns 2] [--json]

Parts: ``single`` jobs, one ``array``, and the jobs of two ``users`` at once, each parked and then
with ``place=off``, which leaves them to Slurm; ``start``: from sbatch to the job's first line on an
idle cluster. Prints the time to drain each queue, the ratio of each pair, and the parts of a job's
time in slurmctld's log. Uses the project $GPU_AWARE_PROJECT, which must not
be in use otherwise.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from submission import SCRIPT, settle

GPUS = 16
"""Of the container cluster."""
PLAIN = "place=off"
DRAINS = ("single", "array", "users")
MOST = {2: 1.15, 10: 1.05}
"""Drain with us / plain at most, by the seconds of a job."""
MOST_START_S = 0.1
"""sbatch to start takes at most so much longer with us."""
SINGLE = "for i in \\$(seq {count}); do {sbatch} || exit 1; done"
ARRAY = "{sbatch} --array=1-{count}"
SUBMIT = """
runuser -u {user} -- bash -c "cd /shared/home/{user}; {script}" 2>/tmp/throughput.{user} &
pids="$pids $!"
"""
DRAIN = """
log=/var/log/cluster/slurmctld.log
# Slurm 26.05 tells of what its backfill starts only with this flag.
scontrol setdebug debug2
scontrol setdebugflags +hetjob
trap 'scontrol setdebug verbose; scontrol setdebugflags -hetjob' EXIT
offset=$(stat -c %s $log)
pids=""
{submissions}
for pid in $pids; do
    wait $pid || {{ cat /tmp/throughput.* >&2; exit 1; }}
done
until=$((SECONDS + {limit_s}))
while left=$(squeue -h -r -o %i | wc -l); [ "$left" -gt 0 ]; do
    printf '\\r  %4d jobs left ' "$left" >&2
    [ $SECONDS -lt $until ] || {{ echo 'throughput: not drained in {limit_s} s' >&2; exit 1; }}
    sleep 0.5
done
tail -c +$((offset + 1)) $log | grep -E '{lines}'
"""
START = """
cd /shared/home/alice
for i in $(seq 0 $(({count} - 1))); do
    for comment in {ours} {plain}; do
        while [ -n "$(squeue -h -o %i)" ]; do sleep 0.2; done
        sleep 2
        rm -f started
        python3 -c "import time; time.sleep((($i + 0.5) / {count} - time.time()) % 1)"
        date +%s%N >asked
        sbatch -Q -o /dev/null --gres=gpu:1 --comment=$comment -t 5 \\
            --wrap 'date +%s%N >started.new; mv started.new started' 2>/dev/null || exit 1
        for try in $(seq 300); do [ -s started ] && break; sleep 0.1; done
        [ -s started ] || {{ echo 'throughput: not started in 30 s' >&2; exit 1; }}
        echo $comment $(($(cat started) - $(cat asked)))
        printf '\\r  %4d of {count} starts ' $((i + 1)) >&2
    done
done
"""
MOMENTS = (
    ("submitted", "_rpc_submit_batch_job: "),
    ("pinned", "_update_job: setting req_nodes to n"),
    ("updated", "_update_job: (setting|changing)"),
    ("allocated", "(Allocate|Started) JobId"),
    ("ready", "_rpc_complete_prolog"),
    ("ended", "_job_complete: .* done"),
    ("gone", "_rpc_epilog_complete: "),
)
"""What a line of the log tells of a job; the first pattern that fits counts."""
LINE = re.compile(r"\[(\S+)\] (.*)")
JOB = re.compile(r"JobId=(\d+)(?:_\S*?\((\d+)\))?")

Times = Mapping[str, float]
"""Moment -> Unix seconds, of one job."""


@dataclass(frozen=True)
class Drained:
    """One queue, from the first submission to the end of the last job."""

    took_s: float
    parts: Mapping[str, Sequence[float]]
    """Part of a job's way -> seconds, of each job that has it."""


def run(user: str, script: str) -> str:
    """Run a bash script on the controller; its progress goes to stderr. Raises SystemExit."""
    argv = [str(SCRIPT), *(["sh", "ctl"] if user == "root" else ["as", user]), "bash", "-s"]
    done = subprocess.run(argv, input=script, stdout=subprocess.PIPE, text=True, check=False)
    print("\r" + " " * 30, end="\r", file=sys.stderr, flush=True)
    if done.returncode != 0:
        raise SystemExit(f"throughput: a script on the controller ended with {done.returncode}")
    return done.stdout


def submissions(kind: str, count: int, seconds: int, comment: str) -> str:
    """Lines of a script that submit ``count`` jobs, each user's beside the others'."""
    users = ("alice", "bob") if kind == "users" else ("alice",)
    sbatch = f"sbatch -Q -o /dev/null --gres=gpu:1 -t 5 --comment={comment}"
    sbatch += f" --wrap 'sleep {seconds}'"
    form = (ARRAY if kind == "array" else SINGLE).format(count=count // len(users), sbatch=sbatch)
    return "".join(SUBMIT.format(user=user, script=form) for user in users)


def moments(log: Iterable[str]) -> list[Times]:
    """Events of each job with their times: of updates the last one before its allocation."""
    jobs: dict[int, dict[str, float]] = {}
    for line in log:
        found, named = LINE.match(line), JOB.search(line)
        what = next((name for name, part in MOMENTS if re.search(part, line)), None)
        if found is None or named is None or what is None:
            continue
        job = jobs.setdefault(int(named[2] or named[1]), {})
        at = datetime.fromisoformat(found[1]).timestamp()
        if what in ("pinned", "updated"):
            if "allocated" in job:
                continue
            if what == "pinned":
                job.setdefault("pinned", at)
            job["updated"] = at
        else:
            job[what] = at
    return list(jobs.values())


def parts(jobs: Sequence[Times], seconds: int) -> dict[str, list[float]]:
    """Parts of the jobs' time. Units: s."""
    after_end = {
        "end of a job to the next one's first update": "pinned",
        "end of a job to the next one's allocation": "allocated",
    }
    ends = sorted(job["ended"] for job in jobs if "ended" in job)
    found: dict[str, list[float]] = {}
    for name, moment in after_end.items():
        # As many jobs as there are GPUs come before the first end; then one for each end.
        then = sorted(job[moment] for job in jobs if moment in job)[GPUS:]
        found[name] = [b - a for a, b in zip(ends, then, strict=False)]
    for name, first, last, less_s in (
        ("first to last update", "pinned", "updated", 0),
        ("last update to allocation", "updated", "allocated", 0),
        ("allocation to the end of the prolog", "allocated", "ready", 0),
        ("from there to its end, less its sleep", "ready", "ended", seconds),
        ("end to the end of the epilog", "ended", "gone", 0),
    ):
        both = [job for job in jobs if first in job and last in job]
        found[name] = [job[last] - job[first] - less_s for job in both]
    return found


def drain(kind: str, count: int, seconds: int, comment: str, limit_s: int) -> Drained:
    """Submit the jobs and wait until all have ended."""
    script = DRAIN.format(
        submissions=submissions(kind, count, seconds, comment),
        limit_s=limit_s,
        lines="|".join(pattern for _, pattern in MOMENTS),
    )
    jobs = moments(run("root", script).splitlines())
    ended = [job["ended"] for job in jobs if "ended" in job]
    if len(ended) != count:
        raise SystemExit(f"throughput: {len(ended)} of {count} jobs ended, by slurmctld's log")
    asked = min(job["submitted"] for job in jobs if "submitted" in job)
    return Drained(round(max(ended) - asked, 3), parts(jobs, seconds))


def starts(count: int, comment: str) -> dict[str, list[float]]:
    """Seconds from sbatch to the job's first line, by its comment.

    Slurm's scheduler tries new jobs at the start of each second, so the submissions are spread
    evenly over a second, the same ones for both.
    """
    found: dict[str, list[float]] = {comment: [], PLAIN: []}
    for line in run("alice", START.format(count=count, ours=comment, plain=PLAIN)).splitlines():
        what, took_ns = line.split()
        found[what].append(int(took_ns) / 1e9)
    return found


def median_of_parts(drained: Sequence[Drained]) -> dict[str, dict[str, float]]:
    """Of each part the median and the ninth decile, of all turns together. Units: s."""
    found = {}
    for name in drained[0].parts:
        values = sorted(value for one in drained for value in one.parts[name])
        if values:
            p90 = values[min(len(values) - 1, int(0.9 * len(values)))]
            found[name] = {
                "median_s": round(statistics.median(values), 3),
                "p90_s": round(p90, 3),
            }
    return found


def measure_drain(kind: str, seconds: int, given: argparse.Namespace) -> dict[str, Any]:
    """Drain with the selector and without, in turns."""
    found: dict[str, list[Drained]] = {given.comment: [], PLAIN: []}
    for turn in range(given.turns):
        for comment, drained in found.items():
            drained.append(drain(kind, given.jobs, seconds, comment, given.limit))
            took = f"{drained[-1].took_s:.1f} s"
            print(f"  {kind}, {seconds} s, turn {turn + 1}, {comment}: {took}", file=sys.stderr)
    ours, plain = found.values()
    ratios = [a.took_s / b.took_s for a, b in zip(ours, plain, strict=True)]
    return {
        "part": kind,
        "jobs": given.jobs,
        "seconds": seconds,
        "ours_s": [one.took_s for one in ours],
        "plain_s": [one.took_s for one in plain],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 3),
        "target": MOST.get(seconds),
        "met": statistics.median(ratios) <= MOST.get(seconds, float("inf")),
        "ours_parts": median_of_parts(ours),
        "plain_parts": median_of_parts(plain),
    }


def measure_starts(given: argparse.Namespace) -> dict[str, Any]:
    """Start single jobs on an idle cluster in turns."""
    ours, plain = starts(given.starts, given.comment).values()
    later_s = statistics.median(ours) - statistics.median(plain)
    return {
        "part": "start",
        "ours_s": ours,
        "plain_s": plain,
        "later_s": round(later_s, 3),
        "target": MOST_START_S,
        "met": later_s <= MOST_START_S,
    }


def span(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def show(found: Mapping[str, Any]) -> None:
    """Print the result of one part."""
    met = "met" if found["met"] else "MISSED"
    ours, plain = found["ours_s"], found["plain_s"]
    if found["part"] == "start":
        print(f"sbatch to start: with us {span(ours, 2)} s, plain {span(plain, 2)} s")
        later = f"difference of the medians {found['later_s']:.2f} s"
        print(f"  {later}, target <= {found['target']} s: {met}")
        return
    head = f"{found['part']}, {found['jobs']} jobs of {found['seconds']} s"
    print(f"{head}: with us {span(ours, 1)} s, plain {span(plain, 1)} s")
    target = f"target <= {found['target']}: {met}" if found["target"] else "no target"
    print(f"  with us / plain {span(found['ratios'], 2)}, {target}")
    print(f"  {'median and ninth decile, s':<46}{'with us':>14}{'plain':>14}")
    for name in {**found["ours_parts"], **found["plain_parts"]}:
        cells = []
        for mode in ("ours_parts", "plain_parts"):
            part = found[mode].get(name)
            cells.append(f"{part['median_s']:.2f} {part['p90_s']:6.2f}" if part else "-")
        print(f"  {name:<46}{cells[0]:>14}{cells[1]:>14}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(DRAINS)}, start")
    parser.add_argument("--jobs", type=int, default=160, help="jobs of one queue")
    parser.add_argument("--turns", type=int, default=2, help="pairs of queues of each kind")
    parser.add_argument("--seconds", type=int, nargs="+", default=[2, 10], help="of a job")
    parser.add_argument("--starts", type=int, default=20, help="pairs of starts")
    parser.add_argument(
        "--comment", default="class=A", help="of our jobs; class=A gets a clock, class=B none"
    )
    parser.add_argument("--limit", type=int, default=600, help="seconds that a queue may take")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    given = parser.parse_args()
    given.parts = given.parts or [*DRAINS, "start"]
    unknown = set(given.parts) - {*DRAINS, "start"}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if min(given.jobs, given.turns, given.starts, given.limit, *given.seconds) < 1:
        parser.error("numbers must be 1 or more")
    if given.jobs <= GPUS or given.jobs % 2:
        parser.error(f"--jobs: an even number above {GPUS}, the GPUs of the cluster")
    if not re.fullmatch(r"[\w=,.+-]+", given.comment) or given.comment == PLAIN:
        parser.error(f"--comment: such as class=A, without blanks, and not {PLAIN}")
    return given


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the requested parts, one result after the other."""
    for part in given.parts:
        if part == "start":
            yield measure_starts(given)
        else:
            for seconds in given.seconds:
                yield measure_drain(part, seconds, given)


def main() -> None:
    given = parse_arguments()
    settle("aware")
    found = []
    try:
        for one in measure(given):
            found.append(one)
            if not given.json:
                show(one)
    finally:
        run("root", "squeue -h -r -o %i | xargs -r scancel --quiet")
    if given.json:
        print(json.dumps(found, indent=1))
    sys.exit(not all(one["met"] for one in found))


if __name__ == "__main__":
    main()
