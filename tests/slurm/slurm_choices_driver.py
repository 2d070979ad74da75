"""A small plain Slurm in one container, and what it gives to random requests.

    python3 slurm_choices_driver.py COUNT SEED

Runs as root beside the cluster's own Slurm, with its own files, ports and daemons, and leaves
nothing behind. Prints one line of JSON per request: what was asked, which jobs ran before, and the
job's own record (None: Slurm has refused to start it at once). A line with ``nodes`` comes first.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

HOME = Path("/tmp/slurm-choices")
ENV = {**os.environ, "SLURM_CONF": str(HOME / "slurm.conf")}
BRIDGES = {(0, 1): 4, (2, 3): 4}
ACROSS = {(0, 2): 4, (1, 3): 4}
CUBE = {  # DGX-1: NVLinks of 8 V100
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
EVEN = {(a, b): 3 for a in range(4) for b in range(a + 1, 4)}
Links = dict[tuple[int, int], int]


class ChosenNode(NamedTuple):
    """A node with two sockets; half of its GPUs is bound to each of them, or none."""

    name: str
    gpus: int
    cores: int
    """Cores of a socket."""
    threads: int
    links: Links | None
    bound: bool = True
    """``Cores=`` of its GPUs is known."""
    typed: bool = False
    """Its GPUs have a type; without type and ``Cores=`` slurmctld ignores the links."""


NODES = (
    ChosenNode("ba", 4, 4, 1, BRIDGES),
    ChosenNode("bb", 4, 4, 1, BRIDGES),
    ChosenNode("bx", 4, 4, 2, ACROSS),
    ChosenNode("ca", 8, 8, 1, CUBE),
    ChosenNode("cb", 8, 8, 2, CUBE),
    ChosenNode("da", 4, 4, 1, None),
    ChosenNode("db", 4, 6, 1, None),
    ChosenNode("ea", 4, 4, 1, EVEN),
    ChosenNode("na", 4, 4, 1, BRIDGES, bound=False, typed=True),
    ChosenNode("nb", 4, 4, 1, BRIDGES, bound=False),
    ChosenNode("nc", 8, 4, 2, CUBE, bound=False, typed=True),
)
PARTITIONS = {
    "all": [node.name for node in NODES],
    "bridged": ["ba", "bb", "bx"],
    "cube": ["ca", "cb"],
    "mixed": ["bb", "ca", "da", "db"],
    "rest": ["da", "ea", "na"],
    "unbound": ["na", "nb", "nc"],
    **{f"only{node.name}": [node.name] for node in NODES},
}
CONF = """
ClusterName=choices
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
MailProg=/bin/true
SlurmctldPort=17900
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MinJobAge=2
"""


def device(gpu: int) -> str:
    return f"{HOME}/gpu{gpu}"


def links_of(node: ChosenNode, gpu: int) -> str:
    """``Links=`` of a GPU, as slurmd's nvml plugin writes it."""
    links = node.links or {}
    pairs = [(min(gpu, other), max(gpu, other)) for other in range(node.gpus)]
    return ",".join("-1" if a == b else str(links.get((a, b), 0)) for a, b in pairs)


def write_files() -> None:
    HOME.mkdir()
    for name in ("state", "spool"):
        (HOME / name).mkdir()
    lines, gres = [CONF.format(home=HOME)], []
    for place, node in enumerate(NODES):
        (HOME / "spool" / node.name).mkdir()
        lines.append(
            f"NodeName={node.name} NodeHostname={os.uname().nodename} NodeAddr=127.0.0.1 "
            f"Port={17901 + place} Sockets=2 CoresPerSocket={node.cores} "
            f"ThreadsPerCore={node.threads} RealMemory=100 "
            f"Gres=gpu:{'x:' if node.typed else ''}{node.gpus}\n"
        )
        for gpu in range(node.gpus):
            line = f"NodeName={node.name} Name=gpu File={device(gpu)}"
            if node.bound:
                first = 0 if gpu < node.gpus // 2 else node.cores
                line += f" Cores={first}-{first + node.cores - 1}"
            line += " Type=x" if node.typed else ""
            if node.links is not None:
                line += f" Links={links_of(node, gpu)}"
            gres.append(line + "\n")
    for name, nodes in PARTITIONS.items():
        default = "YES" if name == "all" else "NO"
        lines.append(f"PartitionName={name} Nodes={','.join(nodes)} Default={default} MaxTime=60\n")
    (HOME / "slurm.conf").write_text("".join(lines))
    (HOME / "gres.conf").write_text("".join(gres))
    for gpu in range(8):
        subprocess.run(["mknod", device(gpu), "c", "195", str(gpu)], check=True)


def run_command(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)


def until_idle() -> None:
    """Wait until all nodes have registered."""
    for _ in range(1200):
        shown = run_command("sinfo", "-h", "-p", "all", "-o", "%T").stdout.split()
        if shown == ["idle"]:
            return
        time.sleep(0.1)
    logs = "".join(path.read_text()[-3000:] for path in HOME.glob("*.log"))
    raise SystemExit(f"the nodes are {shown}\n{logs}")


def jobs_of_state() -> list[dict[str, Any]]:
    """The running jobs: ID, and per node its GPUs and CPUs."""
    found = []
    for line in run_command("scontrol", "-d", "-o", "show", "job").stdout.splitlines():
        if "JobState=RUNNING" not in line and "JobState=CONFIGURING" not in line:
            continue
        match = re.match(r"JobId=(\d+) ", line)
        assert match is not None, line
        parts = re.finditer(
            r" Nodes=(\S+) CPU_IDs=(\S+) Mem=\d+ GRES=(?:gpu(?::x)?:\d+\(IDX:([\d,-]+)\))?", line
        )
        share = {
            name: {"cpus": numbers_of(part[2]), "gpus": numbers_of(part[3] or "")}
            for part in parts
            for name in node_names(part[1])
        }
        assert share, line
        found.append({"id": int(match[1]), "share": share})
    return found


def node_names(text: str) -> list[str]:
    """Node names of a host list; the last letter may be in brackets."""
    return text.split(",")


def numbers_of(text: str) -> list[int]:
    """``0-1,3`` as a list."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def request(rng: random.Random) -> dict[str, Any]:
    """A random request: what it asks for, by the names of Slurm's options."""
    form = rng.choice(("gres", "gres", "gpus_per_node", "gpus", "gpus", "gpus_nodes", "per_task"))
    asked: dict[str, Any] = {"form": form, "partition": rng.choice(list(PARTITIONS))}
    gpus = rng.choice((1, 2, 2, 2, 3, 4, 4, 5, 6, 8))
    asked["gpus"] = gpus
    if form == "gpus_per_node":
        asked.update(nodes=rng.choice((1, 2, 3)), gpus=min(gpus, 4))
    elif form == "gpus_nodes":
        asked["nodes"] = rng.choice([n for n in (1, 2, 3) if n <= gpus])
    elif form == "per_task":
        asked.update(tasks=rng.choice((1, 2, 2, 3, 4)), gpus=rng.choice((1, 1, 2)))
        if rng.random() < 0.5:
            asked["nodes"] = 1
    if form != "per_task" and rng.random() < 0.25:
        asked["tasks"] = rng.choice((2, 2, 3, 4)) * (asked.get("nodes") or 1)
    kind = rng.random()
    if kind < 0.3:
        asked["cpus_per_task"] = rng.choice((2, 2, 3, 4))
    elif kind < 0.4 and form != "per_task" and "tasks" not in asked:
        asked["cpus_per_gpu"] = rng.choice((1, 2))
    partition = PARTITIONS[asked["partition"]]
    kind = rng.random()
    if kind < 0.1:
        asked["required"] = [rng.choice(partition)]
    elif kind < 0.15:
        asked["exclusive"] = True
    elif kind < 0.25:
        asked["bound"] = True
    if form in ("gpus", "gres") and rng.random() < 0.15:
        asked.update(nodes=1, most=rng.choice((1, 2, 3)))
    return asked


def options(asked: dict[str, Any]) -> list[str]:
    """The request as options of salloc."""
    words = {
        "gres": "--gres=gpu:{}",
        "gpus_per_node": "--gpus-per-node={}",
        "gpus": "--gpus={}",
        "gpus_nodes": "--gpus={}",
        "per_task": "--gpus-per-task={}",
    }
    found = [words[asked["form"]].format(asked["gpus"]), "-p", asked["partition"]]
    if "most" in asked:
        found.append(f"-N{asked['nodes']}-{asked['most']}")
    elif "nodes" in asked:
        found.append(f"-N{asked['nodes']}")
    found += ["-w", ",".join(asked["required"])] if "required" in asked else []
    found += ["--exclusive"] if "exclusive" in asked else []
    found += ["--gres-flags=enforce-binding"] if "bound" in asked else []
    for key, word in (("tasks", "-n"), ("cpus_per_task", "-c")):
        found += [word, str(asked[key])] if key in asked else []
    if "cpus_per_gpu" in asked:
        found.append(f"--cpus-per-gpu={asked['cpus_per_gpu']}")
    return found


def allocate(*asked: str) -> int | None:
    """Start a job at once; None: Slurm cannot."""
    done = run_command("salloc", "--no-shell", "--immediate=1", "-J", "choice", *asked)
    match = re.search(r"Granted job allocation (\d+)", done.stderr)
    if match:
        return int(match[1])
    refused = ("Unable to allocate", "unavailable", "not available", "cannot be")
    assert any(word in done.stderr for word in refused), done.stderr
    return None


def cancel(*ids: int) -> None:
    """End jobs, and wait until their nodes have noticed."""
    if ids:
        run_command("scancel", *map(str, ids))
    for _ in range(3000):
        if not run_command("squeue", "-h", "-t", "CG,CF,PD").stdout:
            return
        time.sleep(0.02)
    raise SystemExit("jobs do not end")


def walk(count: int, seed: int) -> None:
    """Start and end jobs at random, and print what Slurm gave."""
    rng = random.Random(seed)
    rows = [
        {**node._asdict(), "links": node.links and [(*pair, n) for pair, n in node.links.items()]}
        for node in NODES
    ]
    print(json.dumps({"nodes": rows, "partitions": PARTITIONS}))
    running: list[int] = []
    for _ in range(count):
        while running and (rng.random() < 0.45 or len(running) > 12):
            cancel(running.pop(rng.randrange(len(running))))
        if rng.random() < 0.25:  # take cores of one node
            name = rng.choice(NODES).name
            how = ["-m", rng.choice(("block:block", "block:cyclic"))]
            taken = allocate("-N1", "-n", str(rng.randint(1, 7)), "-w", name, *how)
            running += [] if taken is None else [taken]
        before = jobs_of_state()
        asked = request(rng)
        job = allocate(*options(asked))
        given = None
        if job is not None:
            running.append(job)
            given = next(one["share"] for one in jobs_of_state() if one["id"] == job)
        line = {"asked": asked, "before": [one["share"] for one in before], "given": given}
        print(json.dumps(line), flush=True)
    cancel(*running)


def run_states() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    shutil.rmtree(HOME, ignore_errors=True)
    write_files()
    started = []
    try:
        started.append(subprocess.Popen(["slurmctld", "-D"], env=ENV, stderr=subprocess.DEVNULL))
        for node in NODES:
            command = ["slurmd", "-D", "-N", node.name]
            started.append(subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL))
        until_idle()
        walk(count, seed)
    finally:
        for process in reversed(started):
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        shutil.rmtree(HOME, ignore_errors=True)


if __name__ == "__main__":
    run_states()
