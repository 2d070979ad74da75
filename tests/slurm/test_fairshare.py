"""Fair shares and priorities of the simulator against those of a real slurmctld."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cluster import Cluster
from test_limits import sacctmgr
from test_preemption import configure

from slurm_gpu_aware.slurm.multifactor import (
    Multifactor,
    fair_tree,
    later_usage,
    priorities,
    read_site,
    summed,
)

SETTINGS = [
    "PriorityDecayHalfLife=0-00:05:00",
    "PriorityMaxAge=1-0",
    "PriorityWeightJobSize=5000",
    "PriorityWeightAge=100000",
]
SHOW = ["sh", "-c", "scontrol show config; sshare --all --parsable2"]
CPUS, NODES = 64, 4


@pytest.fixture(scope="module", autouse=True)
def accounts_with_shares(cluster: Cluster) -> Iterator[None]:
    """Two accounts of equal shares (a tie while unused) and one of more; alice is in two."""
    for account, share in (("physics", 3), ("ocean", 1), ("ice", 1)):
        sacctmgr(cluster, "add", "account", account, f"fairshare={share}")
    for user, account, share in (
        *(("alice", "physics", 2), ("root", "physics", 1), ("bob", "ocean", 1)),
        *(("alice", "ice", 5), ("root", "ice", 2)),
    ):
        sacctmgr(cluster, "add", "user", user, f"account={account}", f"fairshare={share}")
    # Usage of earlier tests: what ties in whole numbers, as sshare tells it, may not tie in Slurm.
    sacctmgr(cluster, "modify", "account", "root", "set", "rawusage=0")
    try:
        configure(cluster, SETTINGS)
        yield
        cluster.end_all()
    finally:
        configure(cluster, [])
        for account in ("physics", "ocean", "ice"):
            sacctmgr(cluster, "delete", "user", "alice,bob,root", "where", f"account={account}")
            delete = ["sacctmgr", "-i", "delete", "account", account]
            gone = lambda delete=delete: cluster.run("ctl", delete).returncode == 0  # noqa: E731
            cluster.wait_until(gone, 60, f"slurmdbd hears of the last job of {account}")


def seen(cluster: Cluster) -> tuple[Multifactor, np.ndarray, np.ndarray]:
    """The site as the simulator reads it, and slurmctld's usage and factors in its order."""
    text = cluster.sh("ctl", SHOW)
    lines = text[text.index("Account|") :].splitlines()
    rows = [dict(zip(lines[0].split("|"), line.split("|"), strict=True)) for line in lines[1:]]
    usage, factor = ([float(row[key] or 0) for row in rows] for key in ("RawUsage", "FairShare"))
    return read_site(text, "this cluster"), np.array(usage), np.array(factor)


def check_factors(cluster: Cluster) -> Multifactor:
    """Factors are Slurm's, which renews them a little after usage."""

    def same() -> bool:
        site, usage, factor = seen(cluster)
        at = site.associations.is_user
        return bool(fair_tree(site.associations, usage)[at] == pytest.approx(factor[at], abs=1e-6))

    cluster.wait_until(same, 90, lambda: f"Slurm's factors:\n{cluster.sh('ctl', SHOW)}")
    site, usage, _ = seen(cluster)
    tree = site.associations
    assert {("physics", "alice"), ("ocean", "bob"), ("ice", "alice")} <= tree.places.keys()
    # accounts have the usage of their users, but for whole numbers
    assert summed(tree, usage)[~tree.is_user] == pytest.approx(usage[~tree.is_user], abs=len(usage))
    return site


def next_usage(cluster: Cluster, after: np.ndarray) -> np.ndarray:
    """Usage once slurmctld has renewed it (each minute), of all jobs: it adds one after another."""
    found = after

    def renewed() -> bool:
        nonlocal found
        before, found = found, seen(cluster)[1]
        time.sleep(1)
        return not np.array_equal(found, after) and np.array_equal(found, before)

    cluster.wait_until(renewed, 120, "slurmctld renews usage")
    return found


def test_factors_usage_and_priorities_are_slurms(cluster: Cluster) -> None:
    check_factors(cluster)  # no usage: all levels are tied
    running = {
        ("physics", "alice"): ("alice", ["--account=physics", "-n1", "-c8", "-t30"]),
        ("ocean", "bob"): ("bob", ["--account=ocean", "-n1", "-c3", "-t30"]),
    }
    for user, asked in running.values():
        cluster.wait(cluster.submit(user, asked, "sleep 1000"), "RUNNING", 60)
    waiting = {
        cluster.submit("alice", ["--account=physics", "-N4", "-n64", "-t9"], "true"): (
            *(("physics", "alice"), 4, 64, 0),
        ),
        cluster.submit("alice", ["--account=ice", "-N4", "-n64", "-t9"], "true"): (
            *(("ice", "alice"), 4, 64, 0),
        ),
        cluster.submit("bob", ["--account=ocean", "-N4", "-n60", "-t9", "--nice=77"],
                       "true"): (("ocean", "bob"), 4, 60, 77),
    }  # fmt: skip
    submitted = time.time()
    unused = seen(cluster)[1]
    cluster.kill("ctl", "slurmctld", "TERM")  # one that starts renews usage at once
    cluster.await_answer()
    before = next_usage(cluster, unused)
    after = next_usage(cluster, before)
    site = check_factors(cluster)
    tree = site.associations
    held = np.zeros(len(tree.names))
    for name, cpus in ((("physics", "alice"), 8), (("ocean", "bob"), 3)):
        held[tree.places[name]] = cpus
    users = held > 0
    late = [replace(site, calc_period_s=60.0 + s) for s in range(-1, 31)]  # slurmctld may be busy
    ours = [later_usage(one, before, held, 1)[users] for one in late]
    same = [usage == pytest.approx(after[users], rel=0.005, abs=1) for usage in ours]
    assert any(same), (ours, after[users])
    assert (before[users] + 60 * held[users] > 1.02 * after[users]).all()  # else it is 1 at most

    names, nodes, gpus, nice = zip(*waiting.values(), strict=True)
    theirs, factor = np.array([]), np.array([])

    def settled() -> bool:
        """Whether slurmctld has renewed priorities, too, by the factors of the usage now."""
        nonlocal theirs, factor
        sprio = cluster.sh("ctl", ["sprio", "-h", "-o", "%i %A %F %J %Y"]).splitlines()
        found = {row[0]: [float(cell) for cell in row[1:]] for row in map(str.split, sprio)}
        factor = fair_tree(tree, seen(cluster)[1])[[tree.places[name] for name in names]]
        theirs = np.array([found[job_id] for job_id in waiting])
        return bool(theirs[:, 1] == pytest.approx(factor * site.weight_fairshare, abs=1))

    cluster.wait_until(settled, 90, lambda: f"{theirs[:, 1]} of the factors {factor}")
    qos = [theirs[i, 3] - theirs[i, :3].sum() + nice[i] for i in range(3)]
    assert qos == pytest.approx([qos[0]] * 3, abs=3)  # what all have: partition and QOS
    ages = theirs[:, 0] / site.age_per_s
    assert ((time.time() - submitted - 100 <= ages) & (ages <= time.time() - submitted + 10)).all()
    more = np.array(qos[0]) - np.array(nice, dtype=float)
    shares = np.array(nodes) / NODES, np.array(gpus) / CPUS
    computed = priorities(site, ages, factor, *shares, more)
    assert computed == pytest.approx(theirs[:, 3], abs=4)  # sprio writes rounded parts
    sizes = priorities(site, ages * 0, factor * 0, *shares, ages * 0)
    assert sizes == pytest.approx(theirs[:, 2], abs=1)
