"""Preemption by partition and by QOS: exactly the victims that `explain` names, no other job.

The cluster's slurm.conf is changed for the module and put back; a second partition ``urgent`` over
the same nodes has the higher tier.
"""

import time
from collections.abc import Iterator, Sequence

import pytest
from cluster import Cluster
from site_files import SLURM_CONF, restart
from test_limits import WAIT, is_parked, sacctmgr

MARK = "# preemption, for a test"


def configure(cluster: Cluster, lines: Sequence[str]) -> None:
    """Replace our lines of slurm.conf (the fixtures of a module overlap), and restart."""
    text = "\n".join(f"{line} {MARK}" for line in lines)
    edit = f"sed -i '/{MARK}$/d' {SLURM_CONF} && cat >>{SLURM_CONF}"
    cluster.sh("ctl", edit, stdin=f"{text}\n")
    restart(cluster)


PARTITIONS = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=urgent Nodes=n[1-4] PriorityTier=10 PreemptMode=OFF DefaultTime=60",
    "PartitionName=scratch Nodes=n[1-4] PriorityTier=1 PreemptMode=CANCEL DefaultTime=60",
]


@pytest.fixture(scope="module")
def by_partition(cluster: Cluster) -> Iterator[None]:
    configure(cluster, PARTITIONS)
    yield
    configure(cluster, [])


@pytest.fixture
def by_age(cluster: Cluster, by_partition: None) -> Iterator[None]:
    middle = "PartitionName=middle Nodes=n[1-4] PriorityTier=5 PreemptMode=REQUEUE DefaultTime=60"
    order = "PreemptParameters=youngest_first,reorder_count=0"
    configure(cluster, [*PARTITIONS, middle, order])
    yield
    cluster.cancel_all()
    configure(cluster, PARTITIONS)


@pytest.fixture(scope="module")
def by_qos(cluster: Cluster) -> Iterator[None]:
    sacctmgr(cluster, "add", "qos", "cheap", "set", "priority=1", "preemptmode=requeue")
    sacctmgr(cluster, "add", "qos", "dear", "set", "priority=5", "preempt=cheap")
    sacctmgr(cluster, "add", "qos", "mates", "set", "preemptmode=within,requeue")
    for user, names in (("alice", "+=dear"), ("bob", "+=cheap,mates")):
        sacctmgr(cluster, "modify", "user", user, "set", f"qos{names}")
    # The restart behind: QOS are read once a minute.
    configure(cluster, ["PreemptType=preempt/qos", "PreemptMode=REQUEUE"])
    yield
    cluster.cancel_all()
    for user, names in (("alice", "-=dear"), ("bob", "-=cheap,mates")):
        sacctmgr(cluster, "modify", "user", user, "set", f"qos{names}")
    for name in ("dear", "cheap", "mates"):
        sacctmgr(cluster, "delete", "qos", name)
    configure(cluster, [])


def occupy(cluster: Cluster, counts: Sequence[int], *options: str) -> list[str]:
    """Low jobs of bob that hold so many GPUs each; all run, packed whatever the GPUs' scores.

    Each may run longer than the one before, and so is cheaper to preempt.
    """
    low = ["--comment=place=packed", *options]
    jobs = [
        cluster.submit("bob", [f"--gres=gpu:{n}", "-t", str(60 + place), *low], WAIT)
        for place, n in enumerate(counts)
    ]
    cluster.wait_all(jobs, "RUNNING")
    return jobs


def states(cluster: Cluster, jobs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Job -> (state, restarts)."""
    known = {job["JobId"]: job for job in cluster.jobs()}
    return {j: (known[j]["JobState"], known[j]["Restarts"]) for j in jobs}


def touched(cluster: Cluster, jobs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Those of them that do not run undisturbed."""
    return {j: s for j, s in states(cluster, jobs).items() if s != ("RUNNING", "0")}


def check_victims(
    cluster: Cluster, high: str, low: Sequence[str], gone: tuple[str, str]
) -> list[str]:
    """Exactly the named victims were preempted; return them. ``gone``: what they are now."""
    before = {job_id: cluster.gpus(job_id) for job_id in low if job_id}
    cluster.wait(high, "RUNNING")
    victims = sorted(cluster.explained(high)["victims"])
    cluster.wait_until(
        lambda: touched(cluster, low) == dict.fromkeys(victims, gone),
        60,
        lambda: f"only {victims} are {gone}: {touched(cluster, low)}",
    )
    time.sleep(3)
    assert touched(cluster, low) == dict.fromkeys(victims, gone)
    got = cluster.gpus(high)
    lost = {(n, s) for v in victims for n, slots in before[v].items() for s in slots}
    if lost:
        used = {(n, s) for n, slots in got.items() for s in slots}
        assert used & lost or not used
    return victims


REQUEUED = ("PENDING", "1")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_exactly_the_named_victims(cluster: Cluster, by_partition: None, count: int) -> None:
    low = occupy(cluster, [1] * 16)
    before = {job_id: cluster.gpus(job_id) for job_id in low}
    high = cluster.submit("alice", ["-p", "urgent", f"--gres=gpu:{count}"], WAIT)
    victims = check_victims(cluster, high, low, REQUEUED)
    assert len(victims) == count
    held = {(n, s) for v in victims for n, slots in before[v].items() for s in slots}
    assert {(n, s) for n, slots in cluster.gpus(high).items() for s in slots} == held


def test_jobs_without_gpus_that_slurm_preempts_are_named(
    cluster: Cluster, by_partition: None
) -> None:
    """They are older, so that Slurm takes them away on its way to the third victim."""
    plain = [cluster.submit("bob", ["-w", f"n{i}", "-t60"], WAIT) for i in range(1, 5)]
    cluster.wait_all(plain, "RUNNING")
    low = occupy(cluster, [1] * 16)
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:3"], WAIT)
    victims = check_victims(cluster, high, [*plain, *low], REQUEUED)
    assert len(victims) == 4
    assert len(set(victims) & set(plain)) == 1


def test_free_gpus_first(cluster: Cluster, by_partition: None) -> None:
    low = occupy(cluster, [4, 4, 4, 3])
    high = cluster.running_job("alice", ["-p", "urgent", "--gres=gpu:1"], WAIT)
    assert cluster.explained(high)["victims"] == []
    assert set(states(cluster, low).values()) == {("RUNNING", "0")}


def test_fewest_victims(cluster: Cluster, by_partition: None) -> None:
    """One job that holds a node goes rather than four that hold one GPU each."""
    low = occupy(cluster, [1, 1, 1, 1, 4, 2, 2, 1, 3])
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:4"], WAIT)
    assert check_victims(cluster, high, low, REQUEUED) == [low[4]]


def test_whole_node(cluster: Cluster, by_partition: None) -> None:
    low = occupy(cluster, [2, 2, 1, 3, 2, 2, 4])
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:2", "--exclusive"], WAIT)
    victims = check_victims(cluster, high, low, REQUEUED)
    assert victims == [low[6]]
    assert list(cluster.gpus(high).values()) == [(0, 1, 2, 3)]


def test_two_nodes(cluster: Cluster, by_partition: None) -> None:
    low = occupy(cluster, [2, 2] * 4)
    high = cluster.submit("alice", ["-p", "urgent", "-N2", "--gres=gpu:2"], WAIT)
    victims = check_victims(cluster, high, low, REQUEUED)
    assert len(victims) == 2


def test_the_victim_goes_elsewhere(cluster: Cluster, by_partition: None) -> None:
    low = occupy(cluster, [4, 4, 4, 4])
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:4"], WAIT)
    (victim,) = check_victims(cluster, high, low, REQUEUED)
    cluster.wait_until(lambda: is_parked(cluster, victim), 60, lambda: str(cluster.job(victim)))
    other = next(job_id for job_id in low if job_id != victim)
    (node,) = cluster.gpus(other)
    cluster.sh("ctl", ["scancel", other])
    cluster.start_requeued(victim)
    cluster.wait(victim, "RUNNING")
    assert list(cluster.gpus(victim)) == [node]


def test_cancelled_victims(cluster: Cluster, by_partition: None) -> None:
    low = [
        *occupy(cluster, [4, 4, 2, 2], "-p", "scratch"),
        *occupy(cluster, [4], "-p", "urgent"),
    ]
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:3"], WAIT)
    victims = check_victims(cluster, high, low, ("PREEMPTED", "0"))
    assert len(victims) == 1
    assert victims[0] in low[:2]


def test_the_newest_first(cluster: Cluster, by_age: None) -> None:
    """By default the lower tier goes. Were that chosen here, Slurm would take all four."""
    occupy(cluster, [4, 4, 4], "-p", "urgent")
    old = occupy(cluster, [1, 1])
    time.sleep(2)
    new = occupy(cluster, [1, 1], "-p", "middle")
    high = cluster.submit("alice", ["-p", "urgent", "--gres=gpu:2"], WAIT)
    assert check_victims(cluster, high, [*old, *new], REQUEUED) == sorted(new)


def test_by_qos(cluster: Cluster, by_qos: None) -> None:
    cheap = occupy(cluster, [1, 1, 2, 4], "--qos=cheap")
    normal = occupy(cluster, [4, 4])
    dear = cluster.submit("alice", ["--qos=dear", "--gres=gpu:3"], WAIT)
    victims = check_victims(cluster, dear, [*cheap, *normal], REQUEUED)
    assert victims == [cheap[3]]
    assert set(states(cluster, normal).values()) == {("RUNNING", "0")}


def test_within_a_qos(cluster: Cluster, by_qos: None) -> None:
    """``PreemptMode=WITHIN``: of jobs of the same QOS those of lower priority."""
    low = occupy(cluster, [1, 4], "--qos=mates", "--nice=1000000")
    peers = occupy(cluster, [4, 4], "--qos=mates")
    for job_id in peers:
        cluster.sh("ctl", ["scontrol", "update", f"jobid={job_id}", "nice=-1000000"])
    high = cluster.submit("bob", ["--qos=mates", "--gres=gpu:4"], WAIT)
    victims = check_victims(cluster, high, [*low, *peers], REQUEUED)
    assert len(victims) == 1
    assert set(victims) < set(low)


def test_no_job_is_preempted_without_need(cluster: Cluster, by_qos: None) -> None:
    cheap = occupy(cluster, [4, 4], "--qos=cheap")
    dear = cluster.running_job("alice", ["--qos=dear", "-N2", "--gres=gpu:4"], WAIT)
    assert cluster.explained(dear)["victims"] == []
    assert set(states(cluster, cheap).values()) == {("RUNNING", "0")}
