"""The shadow beside plain Slurm: it says what Slurm gave each job, and changes nothing.

It runs as an ordinary user, on plain nodes, without filter and selector. ``GPU_AWARE_SHADOW_JOBS``
is the number of jobs (60).
"""

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cluster import Cluster
from site_files import GRES_CONF, SLURM_CONF, kept, restart
from test_limits import WAIT
from test_way_of_a_job import end_job, let_go

JOBS = int(os.environ.get("GPU_AWARE_SHADOW_JOBS") or 60)
MOST_WAITING = 6
"""Jobs that wait when the next ones come: GPUs are neither all busy nor idle for long."""
HOME = "/shared/home/bob/shadow"
LOG = "/var/log/cluster/slurmctld.log"
CONFIG = f"""[site]
classes = ["A", "B", "C"]
default_class = "A"
[placement]
levels = {{ cluster = 1.5 }}
[store]
path = "{HOME}/store.db"
"""
FORMS = (
    "--gres=gpu:1",
    "--gres=gpu:2",
    "--gres=gpu:4",
    "--gres=gpu:v100:2",
    "--gpus=1",
    "--gpus=2",
    "--gpus=3 -N1",
    "--gpus=6",
    "-N2 --gpus-per-node=2",
    "--nodes=2-4 --gres=gpu:1",
    "-n2 --gpus-per-task=1",
    "-n4 -N2 --gpus-per-task=1",
    "--sockets-per-node=2 --gpus-per-socket=1",
    "--gpus=2 --cpus-per-gpu=3",
    "--gres=gpu:1 --mem-per-gpu=700",
    "--gres=gpu:1 -c 4 --mem=2000",
    "--gpus=2 --ntasks-per-gpu=1",
    "--gres=gpu:2 --exclusive",
    "--gres=gpu:1 -w n2",
    "--gres=gpu:2 -x n1",
    "--gres=gpu:1 --constraint=gpu_v100",
    "--gres=gpu:1 --array=0-3%2",
    "--gres=gpu:2 --gres-flags=enforce-binding",
    "-N1 --gres=gpu:1 : -N1 --gres=gpu:1",
    "-c 2",
)
LEFT = ("per-socket", "enforce-binding", " : ")
"""What forms that are never compared have in them."""
READING = {
    *("REQUEST_JOB_INFO", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO", "REQUEST_BUILD_INFO"),
    *("REQUEST_RESERVATION_INFO", "REQUEST_TOPO_INFO"),
}
OF_THE_TEST = {
    *("REQUEST_SUBMIT_BATCH_JOB", "REQUEST_SUBMIT_BATCH_HET_JOB", "REQUEST_JOB_INFO_SINGLE"),
    *("REQUEST_STATS_INFO", "REQUEST_JOB_USER_INFO", "REQUEST_CONFIG"),
}
OF_NODES = re.compile(
    "MESSAGE_|REQUEST_COMPLETE_|REQUEST_STEP_|REQUEST_JOB_READY|REQUEST_PING|REQUEST_HET_JOB_ALLOC"
    "|REQUEST_JOB_STEP_CREATE|ACCOUNTING_"
)
"""Beginnings of the requests of nodes, of running jobs, and of slurmdbd."""
Given = dict[str, tuple[int, ...]]


@pytest.fixture
def plain_nodes(cluster: Cluster) -> Iterator[Cluster]:
    """Plain Slurm, on nodes whose GPUs have one type."""
    with kept(cluster, SLURM_CONF, GRES_CONF), cluster.plain():
        types = "s/Gres=gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1/Gres=gpu:v100:4/"
        cluster.sh("ctl", ["sed", "-i", types, SLURM_CONF])
        cluster.sh("ctl", ["sed", "-i", "s/Type=g[0-3]/Type=v100/", GRES_CONF])
        restart(cluster)
        cluster.service_down("ctl", "selectd")  # the restart brought it up
        yield cluster


class Shadow:
    """A shadow of user bob, with a store of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.sh("ctl", f"rm -rf {HOME}; install -d -o bob -g bob {HOME}")
        cluster.sh("ctl", f"cat >{HOME}/config.toml", stdin=CONFIG)
        self.ours("gpu-aware-profile sweep", timeout=300)

    def ours(self, command: str, timeout: float = 60) -> str:
        env = f"cd {HOME}; export GPU_AWARE_CONFIG={HOME}/config.toml"
        return self.cluster.sh("ctl", f"{env}; {command}", "bob", timeout=timeout)

    def start(self) -> None:
        self.looks = self.last_look()
        pid = f"echo $! >{HOME}/pid"
        self.ours(f"setsid gpu-aware selectd --shadow >>{HOME}/log 2>&1 & {pid}")
        self.cluster.wait_until(self.looked, 60, self.log)

    def stop(self, signal: str = "TERM") -> None:
        self.cluster.sh("ctl", f"kill -{signal} $(cat {HOME}/pid)")
        gone = f"! kill -0 $(cat {HOME}/pid) 2>/dev/null"
        self.cluster.wait_until(
            lambda: self.cluster.run("ctl", gone).returncode == 0, 60, lambda: "the shadow ends"
        )

    def log(self) -> str:
        return self.cluster.sh("ctl", f"cat {HOME}/log")

    def looked(self) -> bool:
        return self.last_look() > self.looks

    def last_look(self) -> float:
        return float(self.rows("SELECT coalesce(max(until_at_unix), 0) FROM shadow_watches")[0][0])

    def rows(self, query: str) -> list[list[Any]]:
        code = (
            "import json, sqlite3, sys\n"
            f"db = sqlite3.connect('file:{HOME}/store.db?mode=ro', uri=True)\n"
            "print(json.dumps(db.execute(sys.argv[1]).fetchall()))\n"
        )
        found = self.cluster.sh("ctl", ["python3", "-c", code, query], "bob")
        rows: list[list[Any]] = json.loads(found)
        return rows

    def started(self) -> dict[str, tuple[dict[str, Any], str]]:
        """Job -> (both sets, why it is not compared)."""
        rows = self.rows("SELECT job_id, sets, reason FROM shadow_jobs")
        return {job_id: (json.loads(sets), reason) for job_id, sets, reason in rows}


@pytest.fixture
def shadow(plain_nodes: Cluster) -> Iterator[Shadow]:
    made = Shadow(plain_nodes)
    yield made
    plain_nodes.sh("ctl", f"kill $(cat {HOME}/pid) 2>/dev/null; rm -rf {HOME}", check=False)


def shown_job(shadow: Shadow) -> dict[str, Given]:
    """Job -> node -> GPUs, of all running jobs that scontrol shows with GPUs.

    Those that the shadow has seen, too, may end: on a busy machine neither looks often.
    """
    found: dict[str, Given] = {}
    stored = {job_id for (job_id,) in shadow.rows("SELECT job_id FROM shadow_jobs")}
    for job in shadow.cluster.jobs():
        given: Given = {}
        for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", job[""]):
            indices = [i for text in re.findall(r"IDX:([\d,-]+)", gres) for i in rpc_numbers(text)]
            for node in names(nodes) if indices else ():
                given[node] = tuple(sorted(indices))
        if job["JobState"] != "RUNNING":
            continue
        task = job.get("ArrayTaskId", "")
        name = f"{job['ArrayJobId']}_{task}" if task else job["JobId"]
        if given:
            found[name] = given
        if name in stored or not given:
            let_go(shadow.cluster, "alice", job["JobId"])
    return found


def names(text: str) -> list[str]:
    """The nodes of ``n[1-2,4]``."""
    inside = re.fullmatch(r"n\[([\d,-]+)\]", text)
    return [f"n{i}" for i in rpc_numbers(inside[1])] if inside else [text]


def rpc_numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def file_hashes(cluster: Cluster) -> str:
    """Everything below /etc/slurm."""
    return cluster.sh("ctl", "cd /etc/slurm && find . -type f -exec sha256sum {} + | sort -k2")


def requests_of(cluster: Cluster) -> set[str]:
    """Kinds of requests that slurmctld has had since its counters were set back."""
    by_type = cluster.sh("ctl", ["sdiag"]).partition("statistics by message type")[2]
    return set(re.findall(r"^\t([A-Z_]+) ", by_type.partition("statistics by user")[0], re.M))


def test_it_says_what_slurm_gave_and_changes_nothing(shadow: Shadow) -> None:
    cluster, rng = shadow.cluster, random.Random(37)
    before = file_hashes(cluster)
    logged = int(cluster.sh("ctl", f"wc -c <{LOG}"))  # other tests have left lines there
    cluster.sh("ctl", ["sdiag", "-r"])
    shadow.start()
    seen: dict[str, Given] = {}

    def records(*of: str) -> int:
        seen.update(shown_job(shadow))
        return len(cluster.sh("ctl", ["squeue", "-h", "-o", "%i", *of]).split())

    asked = dict[str, str]()  # job -> form

    def submit(form: str) -> None:
        job = cluster.submit("alice", form.split(), f"sleep {rng.randint(3, 5)}\n{WAIT}")
        asked[job] = form

    def compared_forms() -> set[str]:
        """Once all jobs have ended."""
        cluster.wait_until(lambda: records() == 0, 300, shadow.log)
        running = "SELECT count(*) FROM shadow_jobs WHERE ended_at_unix IS NULL"
        cluster.wait_until(lambda: shadow.rows(running) == [[0]], 60, shadow.log)
        compared = [job for job, (sets, _) in shadow.started().items() if sets["ours"]]
        return {asked.get(job.partition("_")[0], " : ") for job in compared}

    number = 0
    while number < JOBS:
        for _ in range(rng.randint(1, 6)):
            form = FORMS[len(asked) % len(FORMS)]
            submit(form)
            number += 4 if "array" in form else 1 + form.count(" : ")
        cluster.wait_until(lambda: records("-t", "PD") <= MOST_WAITING, 120, shadow.log)
    read = {*FORMS} - {"-c 2"} - {form for form in FORMS if any(part in form for part in LEFT)}
    for form in sorted(read - compared_forms()):
        submit(form)  # the first time, by chance, the same GPUs were not free on each node
        compared_forms()

    found = shadow.started()
    assert len(seen) >= JOBS * 0.9
    wrong = {
        job: (given, found.get(job)) for job, given in seen.items() if not same(given, found, job)
    }
    assert wrong == {}
    assert {reason for _, reason in found.values()} >= {"heterogeneous jobs are left to Slurm"}
    reasons = [reason for sets, reason in found.values() if not sets["ours"]]
    assert all(reason and not reason.endswith(": ") for reason in reasons)
    compared = [job for job, (sets, _) in found.items() if sets["ours"]]
    assert compared_forms() == read, (asked, {job: why for job, (_, why) in found.items() if why})

    kinds = requests_of(cluster)
    others = kinds - READING - OF_THE_TEST
    assert [kind for kind in others if not OF_NODES.match(kind)] == []
    assert kinds >= {"REQUEST_JOB_INFO", "REQUEST_NODE_INFO"}
    assert file_hashes(cluster) == before
    log = cluster.sh("ctl", f"tail -c +{logged + 1} {LOG}")
    ours = [line for line in log.splitlines() if re.search(r"(?i)update|reserv", line)]
    assert [line for line in ours if re.search(r"(?i)uid[= ]2002\b|bob", line)] == []

    said = json.loads(shadow.ours("gpu-aware report --shadow --json"))
    assert said["jobs"] == len(found)
    assert said["compared"] == len(compared) == said["jobs"] - sum(said["not_compared"].values())
    slow = [week["slow"] for week in said["weeks"] if week["slow"]["jobs"]]
    assert slow  # the fake GPUs differ, and Slurm does not know it
    example = slow[0]["examples"][0]
    assert found[example["job_id"]][0]["given"]["gpus"] == list(map(list, example["given"].items()))
    assert example["look_up"] == f"sacct -j {example['job_id']}"


def same(given: Given, found: Mapping[str, tuple[dict[str, Any], str]], job: str) -> bool:
    """Whether the shadow has a job with the GPUs that scontrol showed."""
    sets = found[job][0]["given"] if job in found else None
    return sets is not None and {n: tuple(slots) for n, slots in sets["gpus"]} == given


def test_a_restart_loses_only_what_started_meanwhile(shadow: Shadow) -> None:
    cluster = shadow.cluster
    shadow.start()
    first = cluster.submit("alice", ["--gres=gpu:1"], WAIT)
    cluster.wait_until(lambda: first in shadow.started(), 60, shadow.log)
    shadow.stop("KILL")
    second = cluster.running_job("alice", ["--gres=gpu:1"], "sleep 300")
    end_job(cluster, "alice", first)
    shadow.start()
    third = cluster.submit("alice", ["--gres=gpu:1"], "sleep 300")
    cluster.wait_until(lambda: third in shadow.started(), 60, shadow.log)
    found = shadow.started()
    assert found[first][0]["ours"] is not None
    assert found[second][1] == "it started while the shadow did not run"
    assert found[third][0]["ours"] is not None
    query = f"SELECT ended_at_unix - started_at_unix FROM shadow_jobs WHERE job_id = '{first}'"
    hours, minutes, seconds = map(int, cluster.job(first)["RunTime"].split(":"))
    assert shadow.rows(query) == [[3600 * hours + 60 * minutes + seconds]]
    said = shadow.ours("gpu-aware report --shadow")
    assert "it started while the shadow did not run" in " ".join(said.split())
