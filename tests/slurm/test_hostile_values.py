"""Hostile values in every field that a user owns concern that user's jobs alone.

alice attacks, bob is the victim. ``GPU_AWARE_HOSTILE_JOBS`` jobs are submitted, and as many updates
sent by raw RPC, in batches (``make test-hostile``: thousands).
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from hostile_attack import RECORD
from idle_clock import Stopwatch
from site_files import SLURM_CONF, kept, restart
from test_limits import WAIT
from test_way_of_a_job import let_go, placed

JOBS = int(os.environ.get("GPU_AWARE_HOSTILE_JOBS", "150"))
SEED = int(os.environ.get("GPU_AWARE_HOSTILE_SEED", "1"))
BATCH = max(75, JOBS // 8)
PYTHON = "/opt/slurm-gpu-aware/bin/python"
HERE = Path(__file__).parent
LOG = "/var/log/cluster/selectd.log"
MOST_GROWTH_MB = 50
LONGER_S = 6.0
"""So much longer than without an attack another user's job may take to start.

It may miss a turn of the selector or of Slurm, 5 s each; an attack that works costs 15 s."""
MOVING = {
    "",
    "Priority",
    "Reason",
    "Reservation",
    "ReservationName",
    "Scheduler",
    "SchedNodeList",
} | {
    *("AccrueTime", "EligibleTime", "EndTime", "LastSchedEval", "PreemptEligibleTime", "RunTime"),
    "StartTime",
}
"""Fields that Slurm itself, or the holding pool, changes in a job that waits or runs."""


def inside(cluster: Cluster, program: str, user: str, *arguments: object) -> Any:
    """What a program of this folder prints (JSON), run as a user in the controller's container."""
    done = cluster.sh(
        "ctl",
        [PYTHON, "-", *map(str, arguments)],
        user,
        stdin=(HERE / program).read_bytes(),
        timeout=300,
    )
    return json.loads(done.splitlines()[-1])


def check_picture(cluster: Cluster) -> None:
    """The selector's client reads every job, and each field as Slurm has it."""
    found = inside(cluster, "hostile_picture.py", "slurm")
    assert found["unread"] == []
    assert found["different"] == []
    assert found["jobs"] > 0


def fixed(cluster: Cluster, job_id: str) -> list[dict[str, str]]:
    """The fields of a job, or of each part of its array, that must not change."""
    kept = [{k: v for k, v in part.items() if k not in MOVING} for part in cluster.jobs(job_id)]
    for part in kept:  # what the job waits for moves; a running job's record is taken out
        record = re.sub(r";st=[^;]*", "", part.pop("AdminComment", ""))
        if part["JobState"] == "PENDING":
            part["AdminComment"] = record
    return kept


def memory_mb(cluster: Cluster) -> float:
    """Resident memory of the selector."""
    pid = cluster.service_pid("ctl", "selectd")
    text = cluster.sh("ctl", ["grep", "VmRSS", f"/proc/{pid}/status"])
    return int(text.split()[1]) / 1024


def start_s(cluster: Cluster, *options: str) -> float:
    """How long a job of bob's takes until it runs on the free node, on an idle machine."""
    asked = Stopwatch()
    job_id = cluster.submit("bob", ["--gres=gpu:1", "--nodelist=n4", *options], "true")
    cluster.wait(job_id, {"RUNNING", "COMPLETING", "COMPLETED"})
    return asked.idle_s


def usual_s(cluster: Cluster) -> float:
    """The longest of three starts while nothing else happens."""
    return max(start_s(cluster) for _ in range(3))


@contextlib.contextmanager
def selector_unharmed(cluster: Cluster) -> Iterator[None]:
    """The selector lives on, says nothing of a traceback, and its memory has not grown much."""
    cluster.wait_until(lambda: cluster.service_pid("ctl", "selectd") is not None, 60, "selector")
    lines = int(cluster.sh("ctl", f"wc -l <{LOG}"))
    pid, before = cluster.service_pid("ctl", "selectd"), memory_mb(cluster)
    yield
    assert cluster.service_pid("ctl", "selectd") == pid
    assert memory_mb(cluster) - before < MOST_GROWTH_MB
    said = cluster.sh("ctl", f"tail -n +{lines + 1} {LOG}")
    assert "Traceback" not in said
    assert "is left out" not in said


@pytest.fixture
def victims(cluster: Cluster) -> dict[str, str]:
    """bob's jobs: one runs on n1, one waits for n1, an array does, an administrator holds one."""
    found = {"running": cluster.submit("bob", ["--gres=gpu:4", "--nodelist=n1"], "sleep 3000")}
    cluster.wait(found["running"], "RUNNING")
    wait = ["--gres=gpu:4", "--nodelist=n1", "--comment=class=A"]
    found["parked"] = cluster.submit("bob", wait, "sleep 3000")
    found["array"] = cluster.submit("bob", [*wait, "--array=1-3"], "sleep 3000")
    found["held"] = cluster.submit("bob", wait, "sleep 3000")  # no room: not placed before the hold
    cluster.sh("ctl", ["scontrol", "hold", found["held"]])
    cluster.wait_until(
        lambda: cluster.job(found["held"])["Priority"] == "0", 60, "the administrator's hold"
    )
    return found


@pytest.fixture
def matlab(cluster: Cluster) -> Iterator[str]:
    """A site's licence beside ours."""
    resource = ["resource", "name=matlab", "server=x"]
    more = ["type=license", "count=100", "cluster=gpuaware", "percentallowed=100"]
    cluster.sh("ctl", ["sacctmgr", "-i", "add", *resource, *more], check=False)
    show = ["scontrol", "show", "licenses"]
    cluster.wait_until(lambda: "matlab@x" in cluster.sh("ctl", show), 60, "the licence")
    yield "matlab@x"
    cluster.cancel_all()
    cluster.sh("ctl", ["sacctmgr", "-i", "delete", *resource], check=False)


def test_random_values(cluster: Cluster, victims: dict[str, str], matlab: str) -> None:
    usual = usual_s(cluster)
    before = {name: fixed(cluster, job) for name, job in victims.items()}
    taken = 0
    with selector_unharmed(cluster):
        for batch in range(-(-JOBS // BATCH)):
            with ThreadPoolExecutor() as pool:
                asked = (SEED + batch, BATCH, BATCH, *victims.values())
                attack = pool.submit(inside, cluster, "hostile_attack.py", "alice", *asked)
                waited = start_s(cluster)
                told = attack.result()
            assert told["trespassed"] == []
            taken += len(told["jobs"]) + told["updated"]
            check_picture(cluster)
            for name, job in victims.items():
                assert fixed(cluster, job) == before[name], name
            assert waited < usual + LONGER_S
            assert start_s(cluster) < usual + LONGER_S
            cluster.sh("ctl", ["scancel", "--user=alice"])
    assert taken > JOBS / 2, "Slurm refuses most of it: what is left says nothing"


def test_a_forged_record(cluster: Cluster, victims: dict[str, str]) -> None:
    """A whole job record in a text, as commands print it, is a text."""
    before = {name: fixed(cluster, job) for name, job in victims.items()}
    released = RECORD.replace("ArrayJobId={0} ArrayTaskId=2", "JobId={0}")
    with selector_unharmed(cluster):
        for option in ("--comment", "--job-name", "--extra"):
            for job_id in victims.values():
                for record in (RECORD, released):
                    asked = ["--parsable", "--hold", f"{option}={record.format(job_id)}"]
                    told = cluster.run("ctl", ["sbatch", *asked, "--wrap=true"], "alice")
                    # Extra stays as it is written, and could be taken for a record of a placed job
                    refused = b"gpuaware/... in Extra is GPU placement's own record" in told.stderr
                    assert refused == (option == "--extra"), told
                    assert (told.returncode == 0) != refused, told
        for _ in range(3):  # each makes a round
            start_s(cluster)
        check_picture(cluster)
    for name, job in victims.items():
        assert fixed(cluster, job) == before[name], name


def test_step_managers(cluster: Cluster) -> None:
    """Where all jobs have a step manager they are read, and placed, as elsewhere."""
    usual = usual_s(cluster)
    managed = r"s/^PrologFlags=.*/PrologFlags=Alloc,Contain\nSlurmctldParameters=enable_stepmgr/"
    with kept(cluster, SLURM_CONF):
        cluster.sh("ctl", ["sed", "-i", managed, SLURM_CONF])
        restart(cluster)
        job_id = cluster.submit("alice", ["--gres=gpu:1"], "srun sleep 1")
        assert cluster.job(job_id)["StepMgrEnabled"] == "Yes"
        cluster.wait(job_id, "COMPLETED")
        assert start_s(cluster) < usual + LONGER_S
        check_picture(cluster)


def test_comments_that_change_all_the_time(cluster: Cluster, victims: dict[str, str]) -> None:
    usual = usual_s(cluster)
    waiting = "sbatch --gres=gpu:1 --nodelist=n1 --comment='x JobState=RUNNING' --wrap=true"
    cluster.sh("ctl", f"for i in $(seq 60); do {waiting} || exit; done", "alice")
    with selector_unharmed(cluster), ThreadPoolExecutor() as pool:
        changing = pool.submit(inside, cluster, "hostile_attack.py", "alice", "comments", 10)
        waits = [start_s(cluster) for _ in range(3)]
        assert changing.result() > 60
    assert max(waits) < usual + LONGER_S
    check_picture(cluster)


def test_odd_licences(cluster: Cluster, matlab: str) -> None:
    """Licences that Slurm takes and we might not: the others of the round start."""
    taken = []
    for count in ("\t1", ":\t1", "1k", "0x1", ""):
        asked = [f"--licenses={matlab}:{count}", "--gres=gpu:1", "--wrap=sleep 1"]
        taken += cluster.run("ctl", ["sbatch", "--parsable", *asked], "alice").stdout.split()
    with selector_unharmed(cluster):
        for _ in range(2):
            assert start_s(cluster) < 15
    for job_id in taken:
        cluster.wait(job_id.decode(), "COMPLETED")


def test_megabytes(cluster: Cluster) -> None:
    """Held CPU jobs with such texts cost neither memory nor a round's time; some are refused."""
    usual = usual_s(cluster)
    texts = {
        "licenses": "," * 3_900_000,
        "exclude": "n1" + "," * 3_900_000,
        "nodelist": "n1" + "," * 3_900_000,
        "comment": "," * 3_900_000,
        "dependency": "afterany" + ":1" * 1_000_000,
    }
    with selector_unharmed(cluster):
        for name, text in texts.items():
            script = f"#!/bin/bash\n#SBATCH --{name}={text}\nsleep 1\n"
            cluster.run("ctl", ["sbatch", "--hold"], "alice", stdin=script, timeout=120)
        assert start_s(cluster) < usual + LONGER_S
        check_picture(cluster)


def test_long_node_lists_by_raw_updates(cluster: Cluster) -> None:
    """sbatch shortens such lists, a raw update does not: 36 s for each reading, once."""
    job_id = cluster.submit("alice", ["--hold", "--exclude=n1", "--nodelist=n2"])
    program = (
        "import sys\n"
        "from slurm_gpu_aware.slurm.client import SlurmClient\n"
        "client = SlurmClient(60)\n"
        "print(client._send(sys.argv[1], {'exc_nodes': 'n1' + ',' * 60000}, {}))\n"
        "print(client._send(sys.argv[1], {'req_nodes': 'n[' + '2,' * 30000 + '2]'}, {}))\n"
    )
    cluster.sh("ctl", [PYTHON, "-c", program, job_id], "alice")
    asked = Stopwatch()
    check_picture(cluster)
    assert asked.idle_s < 15


def test_arrays_wait_for_their_begin_and_their_dependency(cluster: Cluster) -> None:
    """Slurm shows no reason of a new array: none of it takes GPUs before its time."""
    earlier = cluster.submit("alice", ["--gres=gpu:1"], WAIT)
    array = ["--gres=gpu:4", "--array=1-2", "--comment=class=A"]
    asked = time.monotonic()
    begins = cluster.submit("alice", [*array, "--begin=now+20"], "true")
    depends = cluster.submit("alice", [*array, f"--dependency=afterany:{earlier}"], "true")
    end = time.monotonic() + 6
    late = False
    while not late:
        late = time.monotonic() > end
        parts = cluster.jobs(begins)
        if time.monotonic() > asked + 19:
            parts = []  # it may have begun
        parts += cluster.jobs(depends)
        assert {(part["JobState"], part["ReqNodeList"]) for part in parts} == {
            ("PENDING", "(null)")
        }
        time.sleep(0.1)
    let_go(cluster, "alice", earlier)
    for job_id in (begins, depends):
        for task in ("1", "2"):
            name = f"{job_id}_{task}"
            cluster.wait_until(
                lambda name=name: {j["JobState"] for j in cluster.jobs(name)} == {"COMPLETED"},
                120,
                name,
            )
            assert len(placed(cluster, name)) == 1


def test_an_array_of_tasks_far_apart_starts(cluster: Cluster) -> None:
    """libslurm cuts a long list of tasks at 64 characters unless it is told otherwise."""
    tasks = ",".join(str(n * (n + 1) // 2) for n in range(1, 40))
    job_id = cluster.submit("alice", ["--gres=gpu:4", f"--array={tasks}%1"], "sleep 600")
    cluster.wait_until(
        lambda: any(part["JobState"] == "RUNNING" for part in cluster.jobs(job_id)), 60, "task 1"
    )
    check_picture(cluster)
