"""Cost of the selector on 2,000 nodes with 8 GPUs each, with 1,000 parked jobs and a trickle.

    python benchmarks/scale.py [--nodes 2000] [--jobs 1000] [--busy 0.75] [--turns 6] [--keep]

Starts one container of the test image with slurmctld and no slurmd: the nodes are CLOUD nodes, on
which slurmctld places jobs that then stay CONFIGURING. Fills a share of the nodes, parks jobs
of many shapes, lets jobs come and end, and prints each cost beside its
target and beside slurmctld's own time per started job. Needs Docker and ``docker/cluster up`` once
(for the image).
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from controller import Controller, own_image

from slurm_gpu_aware.config.settings import Config

HERE = Path(__file__).resolve().parent
PER_START_MS = 8.0
"""slurmctld's own time per started job where the targets are to be met."""
QUEUE_TESTS = Config().gate.queue_tests
"""So many jobs, each of so many nodes, stay in Slurm's queue."""


def submission_rate(controller: Controller, count: int) -> tuple[float, float]:
    """(sbatch per second, slurmctld's own ms per submission) of jobs that cannot start."""
    out = controller.sh(
        f"""
        scontrol show config >/dev/null; sdiag -r
        start=$(date +%s.%N)
        for i in $(seq {count}); do
            sbatch -Q -J turn --gres=gpu:8 --comment=class=A -t 60 --wrap true
        done
        end=$(date +%s.%N)
        echo "took $(echo "$end - $start" | bc -l 2>/dev/null || python3 -c "print($end - $start)")"
        sdiag | grep -A1 REQUEST_SUBMIT_BATCH_JOB | head -1
        scancel -n turn; sleep 4
        """,
        "alice",
    )
    took = re.search(r"took ([0-9.]+)", out)
    own = re.search(r"REQUEST_SUBMIT_BATCH_JOB.*ave_time:([0-9]+)", out)
    if took is None or own is None:
        raise SystemExit(f"no figures in: {out[-500:]}")
    return count / float(took[1]), int(own[1]) / 1000


def queue(controller: Controller, count: int) -> None:
    """Submit jobs that cannot start: each asks for whole nodes, of which none is free."""
    controller.sh(
        f"""
        for i in $(seq {count}); do
            sbatch -Q --gres=gpu:8 -N $((i % 4 + 1)) -t $((60 + i % 50)) --comment=class=A \
                --wrap true
        done
        """,
        "alice",
    )


def settle(controller: Controller, waiting: int, *, ours: bool) -> None:
    """Wait until Slurm's scheduler and the selector have tried all waiting jobs."""
    end = time.monotonic() + 120
    low, most = 0.98 * waiting, QUEUE_TESTS // controller.nodes + 5
    while time.monotonic() < end:
        time.sleep(5)
        reasons = Counter(controller.sh("squeue -h -t PD -o %r").splitlines())
        all_pooled = reasons["Licenses"] <= most and reasons["Reservation"] > low
        if "None" not in reasons and (not ours or all_pooled):
            break
    print(f"  waiting, by reason: {dict(reasons)}")


def compare_submissions(controller: Controller, count: int, waiting: int, turns: int) -> None:
    """Submission rate beside a long queue, with us (filter and selector) and without, in turns."""
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for block in range(4):
        ours = block % 2 == 1
        controller.sh(
            f"services mode {'aware' if ours else 'plain'}; services down selectd; sleep 1"
        )
        with selector(controller) if ours else contextlib.nullcontext():
            controller.sh("squeue -h -t PD -o %i | xargs -r -n 500 scancel; sleep 5", "alice")
            with partition_down(controller):
                queue(controller, waiting)
            await_look(controller)
            settle(controller, waiting, ours=ours)
            for _ in range(turns):
                rates[ours].append(submission_rate(controller, count))
    controller.sh("squeue -h -t PD -o %i | xargs -r -n 500 scancel", "alice")
    aware, plain = (statistics.median(rate for rate, _ in rates[ours]) for ours in (True, False))
    aware_ms, plain_ms = (statistics.median(ms for _, ms in rates[ours]) for ours in (True, False))
    show("submission rate with us / without", aware / plain, ">= 0.97", aware / plain >= 0.97)
    print(
        f"  {aware:.1f} and {plain:.1f} sbatch/s one after the other beside {waiting} waiting jobs;"
        f" slurmctld's own time {aware_ms:.2f} and {plain_ms:.2f} ms, ratio"
        f" {plain_ms / aware_ms:.3f}"
    )
    for ours in (True, False):
        words = " ".join(f"{rate:.1f}" for rate, _ in rates[ours])
        print(f"  each turn {'with us' if ours else 'without'}: {words}")


@contextlib.contextmanager
def selector(controller: Controller) -> Iterator[None]:
    """The running daemon, with the nice value of its systemd unit."""
    controller.sh(
        "setpriv --reuid slurm --regid slurm --init-groups nice -n 10 gpu-aware selectd "
        ">>/var/log/cluster/selectd.log 2>&1 & echo $! >/run/services/selectd.pid; sleep 3"
    )
    try:
        yield
    finally:
        controller.sh("kill $(cat /run/services/selectd.pid); sleep 2")


def fill(controller: Controller, jobs: int, *, partly: bool = False) -> float:
    """Start whole-node jobs on plain Slurm; slurmctld's own ms per started job.

    ``partly``: as many of them as fit; the rest is cancelled.
    """
    with partition_down(controller):
        controller.sh(f"sbatch -Q --array=1-{jobs} --gres=gpu:8 -t 7-0 --wrap true", "alice")
        controller.sh("sdiag -r")
    end = time.monotonic() + 600
    running = 0
    while time.monotonic() < end:
        time.sleep(5 if partly else 2)
        before, running = running, int(controller.sh("squeue -h -t R,CF -o %i | wc -l"))
        if running >= jobs or (partly and running == before):
            break
    if partly:
        controller.sh("squeue -h -t PD -o %i | xargs -r -n 500 scancel")
    said = controller.sh("sdiag")
    main = re.search(r"Main schedule.*?Total cycles:\s+(\d+).*?Mean cycle:\s+(\d+)", said, re.S)
    back = re.search(r"Backfilling stats.*?Total cycles:\s+(\d+).*?Mean cycle:\s+(\d+)", said, re.S)
    spent = sum(int(m[1]) * int(m[2]) for m in (main, back) if m is not None)
    return spent / 1000 / max(1, running)


@contextlib.contextmanager
def partition_down(controller: Controller) -> Iterator[None]:
    """Slurm's scheduler does not try the jobs of this time, which would take minutes."""
    controller.sh("scontrol update partitionname=gpu state=down")
    try:
        yield
    finally:
        controller.sh("scontrol update partitionname=gpu state=up")


def await_look(controller: Controller) -> None:
    """Wait until Slurm's scheduler has tried all submitted jobs."""
    controller.sh("while squeue -h -t PD -o %r | grep -q PartitionDown; do sleep 1; done")


@contextlib.contextmanager
def trickle(controller: Controller) -> Iterator[None]:
    """Every second a job arrives, every other second one ends."""
    stop = threading.Event()

    def work() -> None:
        tick = 0
        while not stop.wait(1.0):
            tick += 1
            controller.sh("sbatch -Q --gres=gpu:1 --comment=class=B -t 10 --wrap true", "alice")
            if tick % 2:
                controller.sh("squeue -h -t CF,R -o %i | head -1 | xargs -r scancel")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def park(controller: Controller, count: int) -> None:
    """Park jobs of many shapes; most of them do not fit at once."""
    controller.sh(
        f"""
        for i in $(seq {count}); do
            class=$(echo A B C | cut -d' ' -f$((i % 3 + 1)))
            nodes=$((i % 4 + 1)); gpus=$((i % 8 + 1))
            sbatch -Q -N $nodes --gres=gpu:$gpus --comment=class=$class -t $((60 + i % 50)) \
                --wrap true
        done
        """,
        "alice",
    )


def memory_mb(controller: Controller) -> float:
    """Peak resident memory of the selector."""
    text = controller.sh('grep VmHWM "/proc/$(cat /run/services/selectd.pid)/status"')
    return int(re.findall(r"(\d+) kB", text)[0]) / 1024


def show(what: str, value: float, target: str, met: bool, unit: str = "", scaled: str = "") -> None:
    verdict = "met" if met else "MISSED"
    print(f"{what:<42} {value:8.3f}{unit:<3} target {target:<9} {verdict}{scaled}")


def show_time(what: str, value: float, most: float, unit: str, per_start_ms: float) -> None:
    """A time, and its equivalent on a machine of the targets' speed."""
    at_speed = value * PER_START_MS / per_start_ms
    verdict = "met" if at_speed <= most else "missed"
    scaled = f"; at {PER_START_MS:g} ms per start {at_speed:.3f}{unit}: {verdict}"
    show(what, value, f"<= {most:g}{unit}", value <= most, unit, scaled)


def measure(controller: Controller, parked: int, occupied: int, turns: int) -> None:
    per_start = fill(controller, occupied)
    print(f"slurmctld's own time per started job       {per_start:8.3f} ms (plain)")
    controller.sh("services mode aware; services down selectd; sleep 35")
    controller.sh(
        "scontrol delete reservationname=gpuaware_gate 2>/dev/null; "
        "scontrol create reservation reservationname=gpuaware_gate licenses=gpuaware:100000 "
        "starttime=now duration=3600 users=root flags=ANY_NODES nodecnt=0"
    )
    with partition_down(controller):
        park(controller, parked)
    await_look(controller)
    found = json.loads(controller.python(HERE / "scale_inside.py"))
    print(
        f"{found['jobs']} jobs known, {found['queued']} planned, {found['assigned']} of them placed"
    )
    show_time("state read and parsed", found["read_s"], 0.3, " s", per_start)
    print("  " + ", ".join(f"{k} {1000 * v:.0f} ms" for k, v in found["read_parts_s"].items()))
    print(f"  of which CPU time {found['read_cpu_s']:.3f} s")
    show_time("a round planned", found["plan_s"], 1.5, " s", per_start)
    print(f"  of which CPU time {found['plan_cpu_s']:.3f} s; waiting: {found['waiting']}")
    print(
        f"  and beside it {1000 * found['rest_s']:.0f} ms (snapshot, translation, watch); "
        f"CPU time of it and of parsing {found['rest_cpu_s']:.3f} s"
    )
    with selector(controller):
        with trickle(controller):
            time.sleep(45)
        settle(controller, 0, ours=True)
        mb = memory_mb(controller)
    controller.sh("sdiag -r")
    sent = json.loads(controller.python(HERE / "scale_inside.py", "updates"))
    own = re.search(r"REQUEST_UPDATE_JOB .*ave_time:([0-9]+)", controller.sh("sdiag"))
    show_time(f"one of {sent['updates']} updates", 1000 * sent["update_s"], 2.0, " ms", per_start)
    own_ms = f"{int(own[1]) / 1000:.2f}" if own is not None else "?"
    where = f"{sent['pooled']} of them in the holding pool"
    print(f"  of parked jobs, {where}; slurmctld's own time {own_ms} ms")
    show("memory of the daemon", mb, "< 300 MB", mb < 300, " MB")
    print(controller.sh("grep -c ' -> ' /var/log/cluster/selectd.log || true").strip(), "placed")
    controller.sh("services mode plain; squeue -h -t PD -o %i | xargs -r -n 500 scancel")
    fill(controller, controller.nodes, partly=True)
    compare_submissions(controller, 100, parked, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--busy", type=float, default=0.75, help="share of nodes that are taken")
    parser.add_argument("--turns", type=int, default=3, help="rates in each of four blocks")
    parser.add_argument("--keep", action="store_true", help="leave the container running")
    suite = os.environ.get("GPU_AWARE_SUITE") or "trixie"
    parser.add_argument("--image", help="default: the one that this checkout built")
    given = parser.parse_args()
    image = given.image or own_image(suite)
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    print(f"{given.nodes} nodes, {8 * given.nodes} GPUs; {cores} CPUs, load before {load:.1f}")
    controller = Controller(image, given.nodes)
    try:
        controller.refresh()
        measure(controller, given.jobs, int(given.nodes * given.busy), given.turns)
    finally:
        if given.keep:
            print(f"container {controller.id[:12]} is left running")
        else:
            controller.close()


if __name__ == "__main__":
    main()
