"""What an owner changes in a job (``scontrol update``), beside what plain Slurm answers.

Each change is made in two jobs alike: one is ours, the other has passed the gate (`PAST`) and
belongs to bob, who is an operator only to the filter of these tests.
"""

import re
import threading
import time
from collections.abc import Iterator

import pytest
from cluster import ENDED, GATE, NODES, Cluster
from site_files import FILTER_CONF, several_clusters
from test_limits import WAIT
from test_way_of_a_job import expect_kinds, let_go

CPU_FIELDS = ("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "MinCPUsNode", "MinMemoryCPU")
PYTHON = "/opt/slurm-gpu-aware/bin/python"
FLAGS = """
import sys
from slurm_gpu_aware.slurm.client import SlurmClient
print(SlurmClient(60)._send(sys.argv[1], {}, {"bitflags": 1 << 36}))
"""
"""A raw update with RESET_LIC_TASK alone, with which Slurm takes all licences from a job."""
LATE = """
import pathlib, sys, time
from slurm_gpu_aware.cli.entry import gpu_aware
from slurm_gpu_aware.slurm.client import SlurmClient
send, waits = SlurmClient.update_jobs, pathlib.Path("/tmp/late")
def late(self, updates):
    if any("sel=prepared" in dict(one.fields).get("AdminComment", "") for one in updates):
        SlurmClient.update_jobs = send
        waits.touch()
        while waits.exists():
            time.sleep(0.05)
    return send(self, updates)
SlurmClient.update_jobs = late
sys.argv[1:] = ["selectd"]
gpu_aware()
"""
"""A selector that waits between its first plan and its updates as long as a file is there."""
FIELDS = (
    *("Partition", "TimeLimit", "ReqNodeList", "ExcNodeList", "Features", "MinMemoryNode"),
    *("TresPerNode", "TresPerJob", "TresPerTask", "CpusPerTres", "Contiguous", "Reservation"),
    *CPU_FIELDS,
)
PAST = ["-M", "gpuaware,gpuaware"]
"""Several clusters: such a job cannot wait at the gate, so Slurm alone places it."""
ONE, JOB, TASKS = ("--gres=gpu:2",), ("--gpus=2",), ("-n2", "--gpus-per-task=1")
HALF = "numnodes=2 features=nosuch"
"""Slurm sets the first, refuses the second, and shows the least nodes of before."""
CHANGES = [
    (ONE, "partition=second"),
    (ONE, "partition=nosuch"),
    (ONE, "numnodes=2"),
    (ONE, "numnodes=1-2"),
    (ONE, "reqnodelist=n2"),
    (ONE, "reqnodelist=nosuch"),
    (ONE, "excnodelist=n[1-3]"),
    (("--gres=gpu:1", "-w", "n1"), "reqnodelist="),
    (ONE, "features=gpu_v100"),
    (ONE, "features=nosuch"),
    (ONE, "gres=gpu:1"),
    (ONE, "trespernode=gres/gpu:3"),
    (JOB, "tresperjob=gres/gpu:3"),
    (TASKS, "trespertask=gres/gpu=2"),
    (TASKS, "numtasks=4"),
    (ONE, "timelimit=5"),
    (ONE, "timelimit=90"),
    (ONE, "minmemorynode=700"),
    (ONE, "numcpus=4"),
    (ONE, "cpuspertask=2"),
    (ONE, "mincpusnode=3"),
    (ONE, "contiguous=yes"),
    (ONE, "oversubscribe=yes"),
    (ONE, "reservationname=nosuch"),
    (ONE, "extra=mine"),
    (ONE, HALF),
    (ONE, "partition=second numnodes=2 timelimit=7"),
]
RUN_ON = {
    "partition=second": ({"n3", "n4"}, 1, 2),
    "numnodes=2": (set(NODES), 2, 4),
    "reqnodelist=n2": ({"n2"}, 1, 2),
    "excnodelist=n[1-3]": ({"n4"}, 1, 2),
    "gres=gpu:1": (set(NODES), 1, 1),
    "tresperjob=gres/gpu:3": (set(NODES), None, 3),
    "numtasks=4": (set(NODES), None, 4),
    "partition=second numnodes=2 timelimit=7": ({"n3", "n4"}, 2, 4),
}
"""Change -> (nodes it may run on, how many (None: any number), GPUs in all)."""


@pytest.fixture(scope="module", autouse=True)
def past_the_gate(cluster: Cluster) -> Iterator[None]:
    """Jobs of `PAST` pass it, and updates by bob."""
    operators = "sed -i 's/operators = {{ {}/operators = {{ {}/' " + FILTER_CONF
    bob = cluster.sh("ctl", ["id", "-u", "bob"]).strip()
    cluster.sh("ctl", operators.format("", f"{bob}, "))
    try:
        with several_clusters(cluster):
            yield
    finally:
        cluster.sh("ctl", operators.format(f"{bob}, ", ""))
        with several_clusters(cluster):  # slurmctld reads the file again
            pass


@pytest.fixture
def second(cluster: Cluster) -> Iterator[None]:
    """A second partition, of two nodes."""
    cluster.sh("ctl", ["scontrol", "create", "partitionname=second", "nodes=n[3-4]"])
    yield
    cluster.end_all()
    cluster.sh("ctl", ["scontrol", "delete", "partitionname=second"], check=False)


@pytest.fixture
def no_selector(cluster: Cluster) -> Iterator[None]:
    """No selector, and a gate that stays closed without its heartbeat."""
    cluster.service_down("ctl", "selectd")
    change = f"reservationname={GATE} endtime=now+1hour"
    cluster.sh("ctl", f"scontrol update {change}")
    yield
    cluster.service_up("ctl", "selectd")


def fill_all(cluster: Cluster) -> None:
    """Occupy all GPUs by jobs that are not ours, of the name fill."""
    options = [*PAST, "--gres=gpu:4", "-t", "60", "-J", "fill"]
    cluster.wait_all(
        [cluster.submit("bob", [*options, "-w", node], "sleep 3600") for node in NODES], "RUNNING"
    )


def twins(cluster: Cluster, options: tuple[str, ...], script: str = "sleep 2") -> tuple[str, str]:
    """(our job of alice, a job of bob past the gate) with these options."""
    asked = [*options, "-t", "60"]
    ours = cluster.submit("alice", [*asked, "--comment=class=A"], script)
    return ours, cluster.submit("bob", [*asked, *PAST], script)


def try_both(cluster: Cluster, ours: str, plain: str, change: str) -> str:
    """What ``scontrol update`` prints of both, the same, with its status."""
    told = try_update(cluster, ours, change)
    assert told == try_update(cluster, plain, change, "bob"), change
    return told


def try_update(cluster: Cluster, job: str, change: str, user: str = "alice") -> str:
    """What ``scontrol update`` prints, with its status."""
    done = cluster.run("ctl", ["scontrol", "update", f"jobid={job}", *change.split()], user)
    text = (done.stdout + done.stderr).decode().replace(job, "JOB")
    return f"{done.returncode} {text}"


def own_fields(job: dict[str, str]) -> dict[str, str]:
    """The fields of its request, without what is ours in them."""
    shown = {name: job.get(name, "") for name in FIELDS}
    licences = [item for item in job["Licenses"].split(",") if not item.startswith("gpuaware")]
    shown["Licenses"] = ",".join(licences) or "(null)"
    return shown | {"Extra": job.get("Extra", "")}


def least(job: dict[str, str]) -> dict[str, str]:
    """The same without the maximum of nodes: Slurm cannot unset it, and changes it with GRES."""
    return own_fields(job) | {"NumNodes": job["NumNodes"].partition("-")[0]}


def settled(job: dict[str, str]) -> bool:
    """Whether the selector has taken over the change of a parked job."""
    return "gpuaware:1" in job["Licenses"] and "gpuaware/" not in job.get("Extra", "")


def await_settled(cluster: Cluster, jobs: list[str]) -> None:
    def done() -> bool:
        shown = {job["JobId"]: job for job in cluster.jobs()}
        return all(settled(shown[job]) for job in jobs)

    cluster.wait_until(done, 90, "the selector has taken over all changes")


def test_parked_jobs_change_as_in_plain_slurm(cluster: Cluster, second: None) -> None:
    fill_all(cluster)
    pairs = [(change, *twins(cluster, options)) for options, change in CHANGES]
    for change, ours, plain in pairs:
        try_both(cluster, ours, plain, change)
    await_settled(cluster, [ours for _, ours, _ in pairs])
    for change, ours, plain in pairs:
        asked, expected = own_fields(cluster.job(ours)), own_fields(cluster.job(plain))
        if change == HALF:
            assert asked["NumNodes"] == "2-2"
            expected["NumNodes"] = "2-2"
        assert asked == expected, change

    keep = {ours: RUN_ON[change] for change, ours, _ in pairs if change in RUN_ON}
    gone = [job["JobId"] for job in cluster.jobs() if job["JobId"] not in keep]
    cluster.sh("ctl", ["scancel", "--quiet", *gone])
    for job, (allowed, nodes, gpus) in keep.items():
        shown = cluster.wait(job, "COMPLETED", 90)
        names = cluster.sh("ctl", ["scontrol", "show", "hostnames", shown["NodeList"]]).split()
        assert nodes in (None, len(names)), shown
        assert set(names) <= allowed, shown
        assert gpus_of(shown) == gpus, shown


def test_more_required_nodes_than_nodes(cluster: Cluster) -> None:
    """Plain Slurm starts such a job on some of them."""
    fill_all(cluster)
    both = twins(cluster, ONE)
    assert try_both(cluster, *both, "reqnodelist=n[1-2]") == "0 "
    submitted = twins(cluster, ("--gres=gpu:1", "-N1", "-w", "n[1-2]"))
    cluster.sh("ctl", ["scancel", "-n", "fill"])
    for job in (*both, *submitted):
        assert cluster.wait(job, "COMPLETED", 90)["NodeList"] in ("n1", "n2")


def gpus_of(job: dict[str, str]) -> int:
    """GPUs that a job got."""
    (count,) = re.findall(r"gres/gpu=(\d+)", job["AllocTRES"])
    return int(count)


def bind(cluster: Cluster, job: str, node: str, slots: str = "01") -> None:
    """Place a job as the selector does."""
    record = cluster.job(job)["AdminComment"]
    gres = ",".join(f"gres/gpu:g{slot}:1" for slot in slots)
    cluster.sh("ctl", ["scontrol", "update", f"jobid={job}", f"reqnodelist={node}"])
    fields = [f"trespernode={gres}", f"admincomment={record};sel=released:0:1790000000"]
    cluster.sh("ctl", ["scontrol", "update", f"jobid={job}", *fields, "licenses="])


def test_placed_jobs_return_to_the_queue(cluster: Cluster, second: None, no_selector: None) -> None:
    fill_all(cluster)
    changes = [
        *("partition=second", "numnodes=2", "reqnodelist=n3", "gres=gpu:1", "timelimit=5"),
        *("excnodelist=n1", "features=gpu_v100", "extra=mine", "numtasks=2"),
        "partition=second gres=gpu:3",
    ]
    pairs = [(change, *twins(cluster, ONE)) for change in changes]
    (refused, _), (unseen, _), (twice, _) = (twins(cluster, ONE) for _ in range(3))
    for name in [*(ours for _, ours, _ in pairs), refused, unseen]:
        bind(cluster, name, "n1")
    for change, ours, plain in pairs:
        assert try_both(cluster, ours, plain, change) == "0 ", change
        job = cluster.job(ours)
        assert "gpuaware:2" in job["Licenses"], change
        assert job["ReqNodeList"] == "n1"
        assert job["TresPerNode"] == "gres/gpu:g0:1,gres/gpu:g1:1"
    # A change that Slurm refuses leaves the job placed as it was.
    assert try_update(cluster, refused, "features=nosuch reqnodelist=n4").startswith("1 ")
    for larger in ("timelimit=600", "timelimit=600 nice=-5", "minmemorynode=9000"):
        assert "hold it (scontrol hold)" in try_update(cluster, refused, larger)
    assert cluster.job(refused)["TimeLimit"] == "01:00:00"
    job = cluster.job(refused)
    assert (job["ReqNodeList"], job["Licenses"]) == ("n1", "(null)")
    assert job["TresPerNode"] == "gres/gpu:g0:1,gres/gpu:g1:1"
    # Slurm reads names of nodes only when the selector sets them: the job keeps its request.
    assert try_update(cluster, unseen, "reqnodelist=nosuch") == "0 "
    # Regression: with a part of it, kept by Slurm, and an earlier change, the job parked for ever.
    assert try_update(cluster, twice, "numtasks=2") == "0 "
    assert try_update(cluster, twice, "features=nosuch").startswith("1 ")
    assert "feat=nosuch" in cluster.job(twice)["Extra"]

    cluster.service_up("ctl", "selectd")
    await_settled(cluster, [*(ours for _, ours, _ in pairs), unseen, twice])
    job = cluster.job(twice)
    assert (job["NumTasks"], job["Features"]) == ("2", "(null)")
    assert "feat=" not in job["AdminComment"]
    for change, ours, plain in pairs:
        assert least(cluster.job(ours)) == least(cluster.job(plain)), change
    job = cluster.job(unseen)
    assert (job["ReqNodeList"], job["TresPerNode"]) == ("(null)", "gres/gpu:2")


def test_no_job_is_larger_than_planned_after_a_change_that_slurm_refused_half_way(
    cluster: Cluster,
) -> None:
    """Regression: planned on one node, it took a second one, kept for the first that waits."""
    whole = ["--gres=gpu:4", "-t", "30"]
    others = [cluster.submit("alice", [*whole, "-w", node], WAIT) for node in ("n3", "n4")]
    for other in others:
        cluster.wait(other, "RUNNING")
    head = cluster.submit("alice", [*whole, "-N2", "-w", "n2,n3"])
    job = cluster.submit(
        "alice", ["-H", "--nice=1000000", "-N1", "--gres=gpu:1", "-t", "600"], WAIT
    )
    assert "denied" in try_update(cluster, job, "numnodes=2-2 nice=-5")
    assert cluster.job(job)["NumNodes"].startswith("2")  # else Slurm refuses it as a whole now
    await_settled(cluster, [job])
    assert "nn=2-2" in cluster.job(job)["AdminComment"]
    cluster.sh("ctl", ["scontrol", "release", job], "alice")
    expect_kinds(cluster, head, ["parked"])
    let_go(cluster, "alice", others[0])
    cluster.wait(head, {"RUNNING", "COMPLETED"}, 60)
    assert cluster.job(job)["JobState"] == "PENDING"
    cluster.end_all()


def test_a_component_that_is_changed_while_it_is_planned_waits(
    cluster: Cluster, no_selector: None
) -> None:
    """Regression: it ran for ten hours on GPUs that were kept for another job after its minute."""
    run = 'timeout 100 "$1" -c "$2" > /tmp/late.log 2>&1 & echo $!'
    late = cluster.sh("ctl", ["sh", "-c", run, "sh", PYTHON, LATE], "slurm").strip()
    one = "--gres=gpu:1 -t 1"
    script = f"#!/bin/bash\n#SBATCH {one}\n#SBATCH hetjob\n#SBATCH {one}\nsleep 600\n"
    job = cluster.sh("ctl", ["sbatch", "--parsable"], "alice", stdin=script).strip()
    planned = lambda: not cluster.run("ctl", ["test", "-e", "/tmp/late"]).returncode  # noqa: E731
    cluster.wait_until(planned, 60, "a round has planned it")
    other = str(int(job) + 1)
    assert try_update(cluster, other, "timelimit=600") == "0 "
    cluster.sh("ctl", ["rm", "/tmp/late"])
    seen = lambda: "its-owner-has-changed-it" in cluster.job(job)["AdminComment"]  # noqa: E731
    try:
        cluster.wait_until(seen, 30, lambda: str(cluster.job(job)))
    finally:
        cluster.sh("ctl", ["kill", late])
    assert "gpuaware:1" in cluster.job(job)["Licenses"]
    assert try_update(cluster, other, "timelimit=1") == "0 "
    cluster.service_up("ctl", "selectd")
    cluster.wait(job, "RUNNING", 120)
    cluster.end_all()


def test_what_slurm_refuses_last_is_never_recorded(cluster: Cluster) -> None:
    """Regression: with a second change at once, the refused request was carried out."""
    fill_all(cluster)
    job = cluster.submit("alice", ["--gres=gpu:2", "-t", "60"])

    def change(text: str) -> str:
        return f"scontrol update jobid={job} {text} 2>&1 || true;"

    for refused in ("tresfreq=nonsense", "tresbind=nonsense", "trespernode=gpu:1"):
        loop = f"for i in $(seq 8); do {change(refused)} {change('timelimit=50') * 6} done"
        told = cluster.run("ctl", ["bash", "-c", loop], "alice").stdout.decode()
        assert told.count("TRES") == 8, told
        await_settled(cluster, [job])
        record = cluster.job(job)["AdminComment"]
        assert "tn=gres/gpu:2" in record, refused
        assert "nonsense" not in record


def test_running_jobs_change_as_in_plain_slurm(cluster: Cluster) -> None:
    options = ("-N2", "--gpus-per-node=1")
    ours, plain = twins(cluster, options, "sleep 300")
    cluster.wait_all((ours, plain), "RUNNING")
    for change in (
        *("timelimit=50", "timelimit=99", "gres=gpu:1", "reqnodelist=nosuch", "extra=mine"),
        *("partition=gpu", "features=gpu_v100", "licenses=", "excnodelist=n4", "numnodes=1"),
    ):
        try_both(cluster, ours, plain, change)
    assert cluster.job(ours)["NumNodes"] == cluster.job(plain)["NumNodes"] == "1"


FORBIDDEN = [
    *("licenses=gpuaware:1", "licenses=gpuaware:2", "gres=gpu:g3:1", "tresperjob=gres/gpu:g0:1"),
    *("extra=freq=1530", "extra=gpuaware/1;tn=gres/gpu:4", f"reservationname={GATE}"),
    "licenses=gpuaware:2 extra=gpuaware/1;tn=gres/gpu:g3:1",
    "admincomment=gpuaware/1;tn=gres/gpu:4",
]


def test_nobody_takes_a_gpu_or_the_gate(cluster: Cluster, no_selector: None) -> None:
    fill_all(cluster)
    ours, placed = (twins(cluster, ONE)[0] for _ in range(2))
    plain = cluster.submit("alice", [*ONE, *PAST])
    bind(cluster, placed, "n2")
    for name in (ours, plain, placed):
        before = cluster.job(name)
        for change in FORBIDDEN:
            assert try_update(cluster, name, change).startswith("1 "), change
        after = cluster.job(name)
        assert own_fields(after) == own_fields(before)
        assert after["Licenses"] == before["Licenses"]
    assert try_update(cluster, ours, "numnodes=2", "bob").startswith("1 ")
    for name in (ours, placed):
        cluster.sh("ctl", [PYTHON, "-c", FLAGS, name], "alice")
        assert "gpuaware:2" in cluster.job(name)["Licenses"]
    # Its own note, repeated by hand, is taken out again.
    assert try_update(cluster, ours, "numnodes=2") == "0 "
    job = cluster.job(ours)
    forged = f"licenses={job['Licenses']} extra={job['Extra']}"
    assert try_update(cluster, plain, forged).startswith("1 ")
    # The selector cannot undo what it has not read.
    for change in ("licenses=", "reqnodelist=n1", "admincomment=gpuaware/1;tn=gres/gpu:2"):
        assert "its owner has just changed this job" in try_update(cluster, ours, change, "root")
    for nodes in range(100):
        assert try_update(cluster, ours, f"numnodes={nodes % 4 + 1}") == "0 "
    cluster.service_up("ctl", "selectd")
    await_settled(cluster, [ours])
    assert cluster.job(ours)["NumNodes"] == "4-4"


def test_no_update_opens_the_gate(cluster: Cluster, no_selector: None) -> None:
    """Slurm takes what no node can have from a held job, and keeps GPUs that an update clears."""
    fill_all(cluster)
    held = cluster.submit("alice", ["--hold", "--gres=gpu:5", "-t", "60"])
    job = cluster.submit("alice", ["--gres=gpu:1", "-t", "60"])
    assert "as it was submitted" in try_update(cluster, held, "gres=gpu:1")
    assert try_update(cluster, held, "partition=gpu") == "0 "
    assert try_update(cluster, job, "trespertask=gres/gpu:1 priority=0").startswith("1 ")
    assert "Slurm keeps the GPUs" in try_update(cluster, job, "gres=gpu:0")
    cluster.sh("ctl", ["scontrol", "release", job], "alice")
    assert "gpuaware:" in cluster.job(job)["Licenses"]
    cluster.service_up("ctl", "selectd")
    later = cluster.submit("alice", ["--gres=gpu:1", "-t", "60"])
    expect_kinds(cluster, later, ["parked"])  # a round has seen both
    assert cluster.job(job)["JobState"] == "PENDING"


def test_an_array_changes_as_a_whole(cluster: Cluster, no_selector: None) -> None:
    fill_all(cluster)
    array = cluster.submit("alice", ["-a0-3", *ONE, "-t", "60", "--comment=class=A"], "sleep 1")
    bind(cluster, f"{array}_0", "n1")
    cluster.sh("ctl", ["scontrol", "update", f"jobid={array}_1", "nice=0"])  # a record of its own
    assert try_update(cluster, array, "excnodelist=n4 timelimit=5") == "0 "
    cluster.service_up("ctl", "selectd")

    def changed() -> bool:
        return all(settled(job) for job in cluster.jobs(array))

    cluster.wait_until(changed, 90, "all tasks are changed")
    for job in cluster.jobs(array):
        fields = job["TresPerNode"], job["ExcNodeList"], job["ReqNodeList"], job["TimeLimit"]
        assert fields == ("gres/gpu:2", "n4", "(null)", "00:05:00")
    cluster.sh("ctl", ["scancel", "-n", "fill"])
    cluster.wait_until(
        lambda: {job["JobState"] for job in cluster.jobs(array)} == {"COMPLETED"}, 90, "all tasks"
    )


def test_changes_while_jobs_are_placed(cluster: Cluster) -> None:
    """Nothing starts with other GPUs than it asks for, and no accepted change is lost."""
    script = "sleep 1"
    jobs: list[str] = []
    answers: dict[str, int] = {}
    stop = threading.Event()

    def change_all() -> None:
        while not stop.is_set():
            for job in tuple(jobs):
                if job not in answers and try_update(cluster, job, "gres=gpu:2").startswith("0 "):
                    answers[job] = 2
                elif job not in answers and cluster.job(job)["JobState"] != "PENDING":
                    answers[job] = 1

    thread = threading.Thread(target=change_all)
    thread.start()
    try:
        for _ in range(40):
            jobs.append(
                cluster.submit("alice", ["--gres=gpu:1", "-t1", "--comment=class=A"], script)
            )
            time.sleep(0.05)

        def unended() -> set[str]:
            return set(jobs) - {j["JobId"] for j in cluster.jobs() if j["JobState"] in ENDED}

        cluster.wait_until(lambda: not unended(), 180, lambda: f"not ended: {unended()}")
    finally:
        stop.set()
        thread.join()
    for job in jobs:
        shown = cluster.job(job)
        assert shown["JobState"] == "COMPLETED", job
        # One that ended before it was looked at was not changed
        assert gpus_of(shown) == answers.get(job, 1), shown
