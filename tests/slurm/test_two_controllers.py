"""Two controllers: the selector of the second takes over with its slurmctld, and gives back."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from cluster import GATE, NODES, Cluster, ClusterError, CommandFailed
from idle_clock import Stopwatch
from test_survival import GUARDED, check_storm, prepare_storm

TAKEOVER_S = 20.0
"""From slurmctld's takeover to the first placed job: no time-out of a call to the first one passes.

It takes 2 to 6 s, most of it Slurm's own.
"""
AS_TOLD = "while [ ! -e $mark/go ]; do sleep 0.2; done"


class Pair(Cluster):
    """Two controllers, ``ctl`` and ``ctl2``, that share StateSaveLocation; no accounting."""

    KIND = "pair"
    CONTAINERS = ("ctl", "ctl2", *NODES)

    def answers(self) -> bool:
        """Whether one of them is in control: standing by, it answers a ping, too."""
        return self.run(self.controller, ["squeue", "-h"]).returncode == 0

    def link(self, container: str, state: str) -> None:
        """Take a container off the network (``down``), or put it back; its name stays known."""
        command = ["ip", "link", "set", "eth0", state]
        subprocess.run(["docker", "exec", self._id(container), *command], check=True)

    def holder(self) -> str | None:
        """Host that the gate's reservation names."""
        shown = self.sh(self.controller, ["scontrol", "-o", "show", "res", GATE], check=False)
        match = re.search(r"Comment=gpu-aware: host (\S+), process", shown)
        return match[1] if match else None

    def reset(self) -> None:
        self.controller = "ctl"
        self.link("ctl", "up")
        super().reset()
        self.wait_until(lambda: self.holder() == "ctl", 60, "the selector of ctl works")
        self.await_slurmds()


@pytest.fixture(name="cluster", scope="module")
def pair_of_controllers() -> Iterator[Pair]:
    """A cluster of its own, beside or after that of the other files."""
    project = os.environ.get("GPU_AWARE_PROJECT") or "gpuaware"
    reuse = os.environ.get("GPU_AWARE_REUSE_PAIR") == "1"
    name = project if reuse else f"{project}-pair-{os.getpid()}"
    pair = Pair(name, os.environ.get("GPU_AWARE_SUITE") or "trixie")
    if reuse and pair.running():
        pair.refresh()
        yield pair
        return
    try:
        pair.up()
        yield pair
    finally:
        pair.down()


def submit_jobs(cluster: Pair, count: int, gpus: int, seconds: float) -> list[str]:
    """Jobs of two users; of 0 seconds: until they are told to end."""
    script = GUARDED.replace("sleep $1", f"sleep {seconds}" if seconds else AS_TOLD)
    asked = [f"--gres=gpu:{gpus}", "--comment=class=A"]
    return [submit_one(cluster, ("alice", "bob")[n % 2], asked, script) for n in range(count)]


def submit_one(cluster: Pair, user: str, asked: list[str], script: str) -> str:
    """Submit; a slurmctld that has just started does not know the nodes' GPUs yet."""
    watch = Stopwatch()
    while watch.idle_s < 30:
        try:
            return cluster.submit(user, asked, script)
        except CommandFailed as exc:
            if "node configuration is not available" not in exc.stderr:
                raise
            time.sleep(0.5)
    raise ClusterError("slurmctld refuses all GPU jobs")


def marks(cluster: Pair) -> int:
    """GPUs that running jobs have noted as theirs (`GUARDED`)."""
    return len(cluster.sh("ctl", "find /shared/home/storm -name 'n*-*'").split())


def notes(cluster: Pair) -> str:
    """What the running jobs have noted, and where they are."""
    seen = cluster.sh("ctl", "cd /shared/home/storm; find; cat shared runs 2>&1", check=False)
    return seen + cluster.sh(cluster.controller, ["squeue"], check=False)


def states_of(cluster: Pair) -> dict[str, str]:
    return {job["JobId"]: job["JobState"] for job in cluster.jobs()}


def in_control_at(cluster: Pair, host: str) -> float:
    """Unix time at which the slurmctld of a host took control last."""
    log = cluster.sh(host, "grep 'Running as primary' /var/log/cluster/slurmctld.log")
    return datetime.fromisoformat(log.splitlines()[-1][1:24]).replace(tzinfo=UTC).timestamp()


def placed_at(cluster: Pair, host: str, job_id: str) -> float | None:
    """Unix time of the decision in the host's own ledger; None: it has made none."""
    code = (
        "import sys\n"
        "from slurm_gpu_aware.store.database import open_store\n"
        "from slurm_gpu_aware.store.ledger import Ledger\n"
        "with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:\n"
        "    print(*(d.decided_at for d in Ledger(store).decisions(sys.argv[1])))\n"
    )
    found = cluster.sh(host, ["python3", "-c", code, job_id]).split()
    return float(found[-1]) if found else None


def test_the_second_takes_over_under_load_and_gives_back(cluster: Pair) -> None:
    prepare_storm(cluster)
    stay = submit_jobs(cluster, 5, 2, 0)
    gone = [submit_one(cluster, "bob", ["--gres=gpu:2"], "sleep 3000") for _ in range(3)]
    cluster.wait_all([*stay, *gone], "RUNNING")
    # slurmctld tells a job's GPUs only after the nodes have registered with it
    cluster.wait_until(
        lambda: marks(cluster) == 2 * len(stay),
        60,
        lambda: f"the jobs know their GPUs: {notes(cluster)}",
    )
    jobs = submit_jobs(cluster, 6, 1, 1)
    # GPUs become free behind the back of the first selector, so that jobs wait for the second
    cluster.service_down("ctl", "selectd", "KILL")
    cluster.sh("ctl", ["scontrol", "update", f"reservation={GATE}", "endtime=now+1hour"])
    for job_id in gone:
        cluster.sh("ctl", ["scancel", job_id])
    cluster.wait_all(gone, "CANCELLED")
    cluster.await_saved()  # it forgets the rest
    assert {states_of(cluster)[job_id] for job_id in jobs} == {"PENDING"}

    watch = Stopwatch()
    cluster.service_down("ctl", "slurmctld", "KILL")
    cluster.link("ctl", "down")
    cluster.controller = "ctl2"
    cluster.wait_until(cluster.answers, 90, "slurmctld of ctl2 is in control")
    cluster.wait_until(lambda: cluster.holder() == "ctl2", 60, "the selector of ctl2 works")
    share = watch.share
    cluster.wait_all(jobs, "COMPLETED")
    first = min(placed_at(cluster, "ctl2", job_id) or float("inf") for job_id in jobs)
    late_s = first - in_control_at(cluster, "ctl2")
    print(
        f"first job placed {late_s:.1f} s after slurmctld's takeover, at {share:.2f} of the speed"
    )
    assert late_s * share <= TAKEOVER_S
    jobs += (more := submit_jobs(cluster, 4, 1, 1))
    cluster.wait_all(more, "COMPLETED")

    cluster.link("ctl", "up")
    cluster.service_up("ctl", "slurmctld")
    cluster.service_up("ctl", "selectd")
    cluster.controller = "ctl"
    cluster.wait_until(
        lambda: cluster.holder() == "ctl", 90, "the first controller and its selector work again"
    )
    jobs += (last := submit_jobs(cluster, 4, 1, 1))
    cluster.sh("ctl", "touch /shared/home/storm/go")
    try:
        cluster.wait_all([*stay, *last], "COMPLETED", 90)
    except ClusterError as exc:
        raise ClusterError(f"{exc}: {notes(cluster)}") from None
    in_ledger = lambda: placed_at(cluster, "ctl", last[0]) is not None  # noqa: E731
    cluster.wait_until(in_ledger, 60, "the ledger of ctl has the job")
    assert placed_at(cluster, "ctl2", last[0]) is None, "exactly one selector works"
    check_storm(cluster, [*stay, *jobs])
