"""What else a node offers: CPUs, memory, features, partitions, states. Jobs that fit start."""

import re
import time
from collections.abc import Iterator

import pytest
from cluster import NODES, Cluster, CommandFailed
from site_files import CONFIG, GRES_CONF, SLURM_CONF, kept, restart
from test_limits import WAIT, fill, is_parked, limit
from test_way_of_a_job import GATE_LICENCE, decisions, let_go, placed

__all__ = ["limit"]  # a fixture of test_limits


def node_of(cluster: Cluster, job_id: str) -> str:
    cluster.wait(job_id, "RUNNING", 60)
    (node,) = cluster.gpus(job_id)
    return node


def set_state(cluster: Cluster, node: str, *settings: str) -> None:
    cluster.sh("ctl", ["scontrol", "update", f"nodename={node}", *settings])


def test_cpus_that_others_hold(cluster: Cluster) -> None:
    """Jobs without GPUs hold the CPUs of three nodes; GPU jobs go where CPUs are left."""
    cpu_jobs = [
        cluster.submit("bob", ["-N1", "-n1", "-c14", "-w", node, "--mem=1000"], WAIT)
        for node in NODES[:3]
    ]
    cluster.wait_all(cpu_jobs, "RUNNING")
    first = cluster.submit("alice", ["--gres=gpu:1", "-c8"], WAIT)
    assert node_of(cluster, first) == "n4"
    # Two CPUs are left on n1 to n3, eight on n4.
    waits = cluster.submit("alice", ["--gres=gpu:1", "-c12", "-t", "10"], "true")
    small = [cluster.submit("alice", ["--gres=gpu:1", "-c2", "-t", "5"], "true") for _ in range(3)]
    cluster.wait_all(small, "COMPLETED")
    assert is_parked(cluster, waits)
    assert not decisions(cluster, waits)
    let_go(cluster, "bob", cpu_jobs[0])
    cluster.wait(waits, "COMPLETED", 60)


def test_cpus_beside_the_gpus(cluster: Cluster) -> None:
    """--gres-flags=enforce-binding: CPUs on the socket of the GPUs, of which the first has two."""
    bound = ["-w", "n1", "--gres-flags=enforce-binding", "-t", "5"]
    cpu_job = cluster.running_job("bob", ["-w", "n1", "-n6", "-m", "block:block"], WAIT)
    first = cluster.running_job("alice", [*bound, "-n1", "-c4", "--gres=gpu:1"], WAIT)
    (slots,) = cluster.gpus(first).values()
    assert set(slots) <= {2, 3}
    assert re.search(r"CPU_IDs=(8-11|12-15) ", cluster.job(first)[""])
    # Four CPUs are left on the second socket, two on the first.
    waits = cluster.submit("alice", [*bound, "-n1", "-c6", "--gres=gpu:1"], "true")
    small = cluster.submit("alice", [*bound, "-n1", "-c2", "--gres=gpu:1", "-t1"], "true")
    cluster.wait(small, "COMPLETED", 60)
    assert GATE_LICENCE in cluster.job(waits)["Licenses"]
    assert not decisions(cluster, waits)
    let_go(cluster, "bob", cpu_job)
    cluster.wait(waits, "COMPLETED", 60)


@pytest.fixture
def all_bound(cluster: Cluster) -> Iterator[None]:
    """Cores beside the GPUs are every job's default; the selector reads that at its start."""
    with kept(cluster, SLURM_CONF):
        add = "/^SelectTypeParameters=/s/$/,ENFORCE_BINDING_GRES/"
        cluster.sh("ctl", f"sed -i '{add}' {SLURM_CONF}")
        restart(cluster)
        yield


def test_a_limit_where_every_job_is_bound(cluster: Cluster, all_bound: None, limit: str) -> None:
    job = ["--gres=gpu:2", "-n1", "-c2", "-t", "30", f"--qos={limit}"]
    first = cluster.running_job("alice", job, WAIT)
    assert set(*cluster.gpus(first).values()) in ({0, 1}, {2, 3})
    fill(cluster, [4, 4, 4])
    second = cluster.submit("alice", job, WAIT)
    # Nothing is kept for it: another job takes all that is free.
    fill(cluster, [2])
    cluster.wait_until(lambda: is_parked(cluster, second), 60, lambda: str(cluster.job(second)[""]))
    let_go(cluster, "alice", first)
    cluster.wait(second, "RUNNING", 60)
    assert set(*cluster.gpus(second).values()) in ({0, 1}, {2, 3})
    assert len(decisions(cluster, second)) <= 3


def test_memory_that_others_hold(cluster: Cluster) -> None:
    for node in NODES[:3]:
        job_id = cluster.running_job("bob", ["-w", node, "--mem=60000"], WAIT)
    job_id = cluster.submit("alice", ["--gres=gpu:2", "--mem=8000"], WAIT)
    assert node_of(cluster, job_id) == "n4"


def test_whole_node_waits_for_the_cpus(cluster: Cluster) -> None:
    """An exclusive job needs nodes without any other job, also without GPUs."""
    held = [cluster.submit("bob", ["-w", node, "-t", "30"], WAIT) for node in NODES]
    cluster.wait_all(held, "RUNNING")
    whole = cluster.submit("alice", ["--gres=gpu:1", "--exclusive", "-t", "5"], WAIT)
    beside = cluster.submit("alice", ["--gres=gpu:1", "-t", "1"], "true")
    cluster.wait(beside, "COMPLETED", 60)
    assert is_parked(cluster, whole)
    let_go(cluster, "bob", held[2])
    assert node_of(cluster, whole) == "n3"
    assert cluster.gpus(whole) == {"n3": (0, 1, 2, 3)}


@pytest.fixture
def resumed(cluster: Cluster) -> Iterator[None]:
    yield
    for node in NODES:
        cluster.sh("ctl", ["scontrol", "update", f"nodename={node}", "state=resume"], check=False)


def test_drained_nodes_are_left_alone(cluster: Cluster, resumed: None) -> None:
    for node in ("n1", "n3"):
        set_state(cluster, node, "state=drain", "reason=test")
    assert {node for j in fill(cluster, [4, 4]) for node in cluster.gpus(j)} == {"n2", "n4"}
    waiting = cluster.submit("alice", ["--gres=gpu:1"], "true")
    time.sleep(6)
    assert cluster.job(waiting)["JobState"] == "PENDING"  # parked, or open for the next free GPU
    set_state(cluster, "n3", "state=resume")
    cluster.wait(waiting, "COMPLETED", 60)


def test_a_node_that_does_not_answer(cluster: Cluster) -> None:
    """Slurm needs a while to notice; the job that was placed there goes elsewhere."""
    cluster.service_down("n1", "slurmd", "KILL")
    try:
        cluster.mark_down("n1")
        jobs = fill(cluster, [4, 4, 4])
        assert {node for j in jobs for node in cluster.gpus(j)} == {"n2", "n3", "n4"}
    finally:
        cluster.service_up("n1", "slurmd")


def test_features(cluster: Cluster) -> None:
    set_state(cluster, "n2", "availablefeatures=gpu_v100,fast", "activefeatures=gpu_v100,fast")
    try:
        job_id = cluster.submit("alice", ["--gres=gpu:1", "-C", "fast"], WAIT)
        assert node_of(cluster, job_id) == "n2"
    finally:
        set_state(cluster, "n2", "availablefeatures=gpu_v100", "activefeatures=gpu_v100")


def test_partitions(cluster: Cluster) -> None:
    """A job of several partitions gets all its nodes in one; one that is down gives none."""
    for name, nodes in (("left", "n[1-2]"), ("right", "n[3-4]")):
        cluster.sh("ctl", ["scontrol", "create", f"partitionname={name}", f"nodes={nodes}"])
    try:
        right = cluster.submit("alice", ["-p", "right", "--gres=gpu:2"], WAIT)
        assert node_of(cluster, right) in ("n3", "n4")
        both = cluster.running_job("alice", ["-p", "left,right", "-N2", "--gres=gpu:4"], WAIT)
        assert set(cluster.gpus(both)) == {"n1", "n2"}
        cluster.sh("ctl", ["scontrol", "update", "partitionname=right", "state=down"])
        held = cluster.submit("bob", ["-p", "right", "--gres=gpu:1"], "true")
        time.sleep(6)
        assert is_parked(cluster, held)
        cluster.sh("ctl", ["scontrol", "update", "partitionname=right", "state=up"])
        cluster.wait(held, "COMPLETED", 60)
    finally:
        cluster.end_all()
        for name in ("left", "right"):
            cluster.sh("ctl", ["scontrol", "delete", f"partitionname={name}"], check=False)


def test_a_node_that_lacks_a_gpu(cluster: Cluster) -> None:
    """GPU 1 of n4 is taken out of Slurm's files: the three others are used, exactly."""
    text = cluster.sh("ctl", ["cat", SLURM_CONF])
    line = re.findall(r"^NodeName=n\[1-4\] .*$", text, flags=re.M)[0]
    lacking = line.replace("n[1-4]", "n4").replace("gpu:g1:1,", "")
    text = text.replace(line, f"{line.replace('n[1-4]', 'n[1-3]')}\n{lacking}")
    gres = cluster.sh("ctl", ["cat", GRES_CONF])
    split = re.sub(r"^NodeName=n\[1-4\](.*Type=g1 .*)$", r"NodeName=n[1-3]\1", gres, flags=re.M)
    with kept(cluster, SLURM_CONF, GRES_CONF):
        cluster.sh("ctl", f"cat >{SLURM_CONF}", stdin=text)
        cluster.sh("ctl", f"cat >{GRES_CONF}", stdin=split)
        restart(cluster)
        fill(cluster, [4, 4, 4])
        with pytest.raises(CommandFailed, match="node configuration is not available"):
            cluster.submit("alice", ["--gres=gpu:4", "-w", "n4"], "true")
        # One after the other: each takes a GPU that the one before left.
        jobs = [cluster.submit("alice", ["--gres=gpu:1"], WAIT) for _ in range(3)]
        assert {node_of(cluster, job_id) for job_id in jobs} == {"n4"}
        slots = [placed(cluster, job_id)[-1]["slots"] for job_id in jobs]
        assert sorted(slots) == [[[0]], [[2]], [[3]]]
        types = [re.findall(r"gpu:(g\d):1\(IDX", cluster.job(j)[""]) for j in jobs]
        assert types == [[f"g{slot[0][0]}"] for slot in slots]


POWER_SAVING = """\
SuspendTime=100000
SuspendTimeout=3
ResumeTimeout=120
SuspendProgram=/bin/true
ResumeProgram=/tmp/resume
"""


@pytest.fixture
def asleep(cluster: Cluster) -> Iterator[str]:
    """A node that Slurm has put to sleep; ResumeProgram writes its name to /tmp/resumed."""
    node = "n4"
    with kept(cluster, SLURM_CONF, CONFIG):
        cluster.sh("ctl", f"cat >>{SLURM_CONF}", stdin=POWER_SAVING)
        cluster.sh("ctl", f"cat >>{CONFIG}", stdin="\n[selector]\nstart_timeout_s = 15.0\n")
        script = "#!/bin/sh\necho $1 >>/tmp/resumed\n"
        cluster.sh("ctl", "rm -f /tmp/resumed; install -m 755 /dev/stdin /tmp/resume", stdin=script)
        restart(cluster)
        set_state(cluster, node, "state=power_down_force", "reason=test")
        cluster.service_down(node, "slurmd")
        cluster.wait_until(
            lambda: "POWERED_DOWN" in cluster.sh("ctl", ["scontrol", "show", "node", node]),
            90,
            "asleep",
        )
        yield node
        cluster.cancel_all()
        # The usual one cannot listen before this one has ended.
        gone = lambda: cluster.run(node, ["pkill", "-x", "slurmd"]).returncode != 0  # noqa: E731
        cluster.wait_until(gone, 60, "the slurmd of the test ends")


def test_a_node_that_sleeps_is_woken(cluster: Cluster, asleep: str) -> None:
    """For a job that fits on no other; that is placed once, and runs as soon as it is awake."""
    for node, gpus in zip(NODES[:3], (4, 4, 2), strict=True):
        job_id = cluster.running_job("bob", ["-w", node, f"--gres=gpu:{gpus}", "-t", "60"], WAIT)
    awake = cluster.submit("alice", ["--gres=gpu:2"], WAIT)
    assert node_of(cluster, awake) == "n3"
    job_id = cluster.submit("alice", ["--gres=gpu:2"], WAIT)
    cluster.wait_until(
        lambda: asleep in cluster.sh("ctl", "cat /tmp/resumed", check=False), 90, "to be woken"
    )
    time.sleep(20)  # longer than a placed job may take that nothing holds
    cluster.sh(asleep, "slurmd -b")  # as a machine that has just booted
    cluster.wait(job_id, "RUNNING", 60)
    assert cluster.gpus(job_id) == {asleep: (0, 1)}
    assert len(placed(cluster, job_id)) == 1
