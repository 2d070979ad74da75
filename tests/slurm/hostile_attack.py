"""Attacks of one user: runs in the controller's container as that user, with seed and counts.

``python - SEED JOBS UPDATES OTHERS...`` submits so many jobs with hostile options by sbatch, then
sends so many raw updates of its own jobs and of those named. Prints JSON: ``jobs``, ``updated`` and
``refused`` (updates), ``trespassed`` (updates of others' jobs that Slurm took).

``python - comments SECONDS`` changes the comments of all jobs of the user, over and over.
"""

import getpass
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.libslurm_fields import UPDATE_NUMBERS, UPDATE_TEXTS

BORDERS = [b + d for b in (0, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63) for d in (-2, -1, 0, 1)]
RECORD = (
    "x\nJobId=999999 ArrayJobId={0} ArrayTaskId=2 JobName=x UserId=bob(2002) Priority=4294967290"
    " JobState=PENDING Reason=Reservation_is_invalid Restarts=0 BatchFlag=1 TimeLimit=01:00:00"
    " SubmitTime=1 Partition=gpu ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1"
    " NumCPUs=1 NumTasks=1 ReqTRES=cpu=1 Features=(null) OverSubscribe=OK Licenses=gpuaware:1"
    " Network=(null) Command=x WorkDir=/ AdminComment=gpuaware/1;tn=gres/gpu:1;nn=1-1"
    " TresPerNode=gres/gpu:1"
)
LONGEST_ARGUMENT = 60_000


def text(rng: random.Random) -> str:
    """A value for a free field. Bytes that are not UTF-8 are surrogates, as in argv."""
    return rng.choice(TEXTS)(rng)[:LONGEST_ARGUMENT]


TEXTS: list[Callable[[random.Random], str]] = [
    lambda rng: RECORD.format(rng.randrange(1, 100)),
    lambda rng: "x JobState=RUNNING " + str(rng.random()),
    lambda rng: bytes(rng.choices(range(1, 256), k=rng.randrange(1, 200))).decode(
        "utf-8", "surrogateescape"
    ),
    lambda rng: rng.choice(",;|%'\"\\\n\t &()[]:=") * rng.choice([1, 7, 1000, 5000, 60_000]),
    lambda rng: rng.choice(["%s%n", "%", "%00", "$(id)", "`id`", "';--", "\x1b[31m\x07", "\x7f"]),
    lambda rng: rng.choice(
        ["Ω≈ç", "\u202etxt", "𝔘" * 100, "\ufeff", "\udcff\udcfe", "(null)", "N/A"]
    ),
    lambda rng: str(rng.choice(BORDERS)),
    lambda rng: rng.choice(["class=A", "class=A,gpus=1-4", "class=Z", "gpu:class=A", "place=off"]),
    lambda rng: "gpuaware/1;tn=gres/gpu:1;sel=released:0:1",
    lambda rng: "x" * rng.choice([1023, 1024, 1025, 4096, 4097, 60_000]),
]


LICENCES = [
    "matlab@x",
    "matlab@x:1",
    "matlab@x:1k",
    "matlab@x:-1",
    "matlab@x:0",
    "matlab@x,matlab@x",
    "matlab@x|matlab@x",
    "gpuaware",
    "gpuaware:1",
    "gpuaware_pool",
]
NODES = ["n1", "n[1-4]", "n1,,n2", "n1 n2", "n[0-99999999]", "n[", "n[1-", "all"]
GRES = [
    "gpu:1",
    "gpu",
    "gpu:0",
    "gpu:v100:1",
    "gpu:g1:1",
    "gpu:xfUUwfUUxfUU:1",
    "GPU:1",
    "gpu:1k",
    "gpu:1,gpu:1",
    "gpu=1",
    "gpu::1",
    "gpu,,,",
    "none",
]
ARRAYS = ["0", "1-3", "1-9:2", "5,3,1", "0-1000%1", "1,2,4,7,11,16,22,29,37,46,56,67,79,92,106,121"]
DEPENDENCIES = ["afterok:1", "singleton", "after:1+5", "afterany" + ":7" * 900, "?"]
FEATURES = ["gpu_v100", "gpu_v100*2", "[gpu_v100]", "[gpu_v100*1]", "gpu_v100&!x", "(gpu_v100)"]


def licences(rng: random.Random) -> str:
    return rng.choice(
        [*LICENCES, "matlab@x:\\t1", "," * 5000, f"matlab@x:{rng.choice(BORDERS)}", text(rng)]
    )


def node_list(rng: random.Random) -> str:
    return rng.choice([*NODES, "n1" + "," * 30_000, "n[" + "1-4," * 3000 + "1]", text(rng)])


def gres(rng: random.Random) -> str:
    return rng.choice([*GRES, "gpu:" + "9" * 30, text(rng)])


def numbers(rng: random.Random) -> str:
    return str(rng.choice(BORDERS))


OPTIONS: dict[str, Callable[[random.Random], str]] = {
    "--job-name": text,
    "--comment": text,
    "--extra": text,
    "--account": text,
    "--wckey": text,
    "--chdir": text,
    "--output": text,
    "--mail-user": text,
    "--container": text,
    "--network": text,
    "--cluster-constraint": text,
    "--bb": text,
    "--reservation": text,
    "--tres-bind": text,
    "--licenses": licences,
    "--nodelist": node_list,
    "--exclude": node_list,
    "--gres": gres,
    "--gpus": gres,
    "--gpus-per-node": gres,
    "--gpus-per-task": gres,
    "--tres-per-task": gres,
    "--gpu-freq": lambda rng: rng.choice(["high", "900", "memory=1", numbers(rng), text(rng)]),
    "--array": lambda rng: rng.choice([*ARRAYS, text(rng)]),
    "--dependency": lambda rng: rng.choice([*DEPENDENCIES, text(rng)]),
    "--constraint": lambda rng: rng.choice(
        [*FEATURES, "(" * 500, "gpu_v100" + "|gpu_v100" * 90, text(rng)]
    ),
    "--prefer": lambda rng: rng.choice(["gpu_v100", "(((", text(rng)]),
    "--partition": lambda rng: rng.choice(["gpu", "gpu,gpu", "gpu," * 100 + "gpu", text(rng)]),
    "--begin": lambda rng: rng.choice(["now+1hour", "2100-01-01", "now+60", numbers(rng)]),
    "--time": numbers,
    "--time-min": numbers,
    "--nodes": lambda rng: rng.choice(["1-4", "1,3", "2-2", numbers(rng)]),
    "--ntasks": numbers,
    "--cpus-per-task": numbers,
    "--cpus-per-gpu": numbers,
    "--mem": numbers,
    "--mem-per-gpu": numbers,
    "--tmp": numbers,
    "--core-spec": numbers,
    "--switches": numbers,
    "--nice": numbers,
    "--mincpus": numbers,
}
"""Option of sbatch -> hostile value of it."""
LIKELY = ("--job-name", "--comment", "--extra")
VALUES: dict[str, Callable[[random.Random], str]] = {
    "licenses": licences,
    "req_nodes": node_list,
    "exc_nodes": node_list,
    "partition": OPTIONS["--partition"],
    "features": OPTIONS["--constraint"],
    "tres_freq": OPTIONS["--gpu-freq"],
    **dict.fromkeys(("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket"), gres),
}
"""Text of an update -> hostile value of it; any other: `text`."""


def submit(seed: int) -> str | None:
    """Submit a job; its number, or None if it was refused. Held, or for the full node n1."""
    rng = random.Random(seed)
    asked = {name: OPTIONS[name](rng) for name in rng.sample(list(OPTIONS), rng.randrange(0, 3))}
    asked |= {name: OPTIONS[name](rng) for name in rng.sample(LIKELY, 2)}
    kept = ["--hold"]
    if rng.random() < 0.3:
        asked.pop("--nodelist", None)
        kept = ["--gres=gpu:1", "--nodelist=n1"]
    options = [f"{name}={value}".replace("\0", "") for name, value in asked.items()]
    done = subprocess.run(
        ["sbatch", "--parsable", *options, *kept, "--wrap=sleep 1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        errors="replace",
    )
    number = done.stdout.strip()
    return number if done.returncode == 0 and number.isdigit() else None


def attack(seed: int, jobs: int, updates: int, others: list[str]) -> dict[str, object]:
    """See above."""
    with ThreadPoolExecutor(4) as pool:
        seeds = (seed * 1_000_003 + number for number in range(jobs))
        own = [job for job in pool.map(submit, seeds) if job is not None]
    client, rng = SlurmClient(60), random.Random(seed)
    counts = {"updated": 0, "refused": 0}
    trespassed = []
    for _ in range(updates if own else 0):
        job = rng.choice(own + others)
        texts, numbers = {}, {}
        if rng.random() < 0.8:
            name = rng.choice(UPDATE_TEXTS)
            texts[name] = VALUES.get(name, text)(rng).replace("\0", "")
        else:
            numbers[rng.choice(UPDATE_NUMBERS)] = rng.choice([b for b in BORDERS if b < 1 << 63])
        try:
            refused = bool(client._send(job, texts, numbers))
        except SourceError:
            refused = True
        counts["refused" if refused else "updated"] += 1
        if not refused and job in others:
            trespassed.append([job, texts, numbers])
    return {"jobs": own, "trespassed": trespassed, **counts}


def change_comments(seconds: float) -> int:
    """Change the comments of the user's jobs all the time; how many changes Slurm took."""
    client = SlurmClient(60)
    own = [j.id for j in client.jobs() if j.user == getpass.getuser() and j.state == "PENDING"]
    changed, end = 0, time.monotonic() + seconds
    while own and time.monotonic() < end:
        for job in own:
            comment = f"x JobState=RUNNING {changed}\nJobId=1 Priority=4294967290"
            changed += not client._send(job, {"comment": comment}, {})
    return changed


if __name__ == "__main__":
    if sys.argv[1] == "comments":
        print(change_comments(float(sys.argv[2])))
    else:
        seed, jobs, updates = map(int, sys.argv[1:4])
        print(json.dumps(attack(seed, jobs, updates, sys.argv[4:])))
