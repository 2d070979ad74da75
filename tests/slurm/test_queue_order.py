"""Order of the queue on a real Slurm: shorter jobs first, within Slurm's own priorities."""

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from cluster import Cluster
from site_files import configured
from test_limits import WAIT, fill, sacctmgr
from test_preemption import configure
from test_replay_live import REPLAY
from test_way_of_a_job import end_job, let_go

from slurm_gpu_aware.cli.job_text import facts_of

SETTINGS = """[estimates]
history_days = 0
[queue]
order = "{order}"
run_time_weight = {weight}
passed_s = 86400.0
"""
MINUTES = {"long": 50, "middle": 20, "short": 2}


@pytest.fixture(name="settings", autouse=True)
def order_settings(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """The order that a test names, and the weight."""
    order, weight = request.param
    with configured(cluster, SETTINGS.format(order=order, weight=weight)):
        yield


def fill_gpus(cluster: Cluster) -> str:
    """All GPUs are in use; the job of the one that becomes free first."""
    return fill(cluster, [4, 4, 4, 3, 1])[-1]


def wait_for_one(cluster: Cluster, user: str, minutes: int, *more: str) -> str:
    asked = ["--gres=gpu:1", f"-t{minutes}", "--comment=class=A,place=packed", *more]
    return cluster.submit(user, asked, "sleep 1.2")


def start_order(cluster: Cluster, jobs: dict[str, str]) -> list[str]:
    """Names of jobs that have ended, in the order of their starts."""
    cluster.wait_all(jobs.values(), "COMPLETED")
    return sorted(jobs, key=lambda name: cluster.job(jobs[name])["StartTime"])


@pytest.mark.parametrize("settings", [("expected", 100.0)], indirect=True)
def test_run_time_counts_as_age_and_priorities_stay(cluster: Cluster) -> None:
    """The priorities of one user's jobs differ by age only; a nice of bob's job is worth years."""
    last = fill_gpus(cluster)
    jobs = {name: wait_for_one(cluster, "alice", m) for name, m in MINUTES.items()}
    jobs["nice"] = wait_for_one(cluster, "bob", 1, "--nice=1000000")
    words = lambda: cluster.sh("ctl", ["gpu-aware", "explain", jobs["long"]], "alice")  # noqa: E731
    told = re.compile(r"2\s+shorter\s+jobs\s+may\s+start\s+before\s+it,\s+until\s+20")
    cluster.wait_until(lambda: told.search(words()) is not None, 60, words)
    let_go(cluster, "bob", last)
    assert start_order(cluster, jobs) == ["short", "middle", "long", "nice"]
    first = cluster.explained(jobs["short"])
    assert first["why"]["passes"]["job_id"] == jobs["long"]
    assert "as it is shorter (expected 2 min)" in facts_of(first["why"]).text


@pytest.mark.parametrize("settings", [("backfill", 1.0)], indirect=True)
def test_behind_the_head_the_shortest_goes_first(cluster: Cluster) -> None:
    """The head waits for two GPUs, of which one is free."""
    last = fill_gpus(cluster)
    asked = ["--gres=gpu:2", "-t50", "--comment=class=A,place=packed", "--nice=0"]
    head = cluster.submit("alice", asked, "sleep 1")
    later = {name: wait_for_one(cluster, "alice", m, "--nice=10") for name, m in MINUTES.items()}
    for job_id in (head, *later.values()):
        cluster.wait_told(job_id, "As of the round at")
    let_go(cluster, "bob", last)
    assert start_order(cluster, later) == ["short", "middle", "long"]
    assert cluster.job(head)["JobState"] == "PENDING"
    assert "shorter" not in cluster.sh("ctl", ["gpu-aware", "explain", head], "alice")


@pytest.mark.parametrize("settings", [("expected", 100.0)], indirect=True)
def test_a_wait_begins_when_a_job_becomes_eligible(cluster: Cluster) -> None:
    """A begin time, a dependency and a hold are no wait."""
    last = fill_gpus(cluster)
    first = cluster.submit("alice", ["-n1", "-t10"], WAIT)
    more = {"begin": "--begin=now+15", "dependency": f"-dafterany:{first}", "hold": "--hold"}
    jobs = {name: wait_for_one(cluster, "alice", 20, option) for name, option in more.items()}
    time.sleep(4)  # all of them become eligible later than they were submitted
    end_job(cluster, "alice", first)
    cluster.sh("ctl", ["scontrol", "release", jobs["hold"]])

    def since(name: str, field: str = "AccrueTime") -> float:
        text = cluster.job(jobs[name])[field]
        return 0.0 if text == "Unknown" else datetime.fromisoformat(text).timestamp()

    known = lambda: all(since(n) > since(n, "SubmitTime") + 3 for n in jobs)  # noqa: E731
    cluster.wait_until(known, 60, lambda: str([cluster.job(i) for i in jobs.values()]))
    begun = {name: since(name) for name in jobs}
    let_go(cluster, "bob", last)
    start_order(cluster, jobs)
    asked = {name: cluster.explained(job_id)["asked"] for name, job_id in jobs.items()}
    assert {name: one["waits_since_s"] for name, one in asked.items()} == begun


SHARES = {"alice": 100, "bob": 1}
PRIORITIES = ["PriorityWeightAge=100000", "PriorityMaxAge=1-0", "PriorityWeightFairshare=2000"]
"""All of the fair share is worth half an hour of age."""


@pytest.fixture
def fair_shares(cluster: Cluster) -> Iterator[None]:
    for user, share in SHARES.items():
        sacctmgr(cluster, "modify", "user", user, "set", f"fairshare={share}")
    configure(cluster, PRIORITIES)
    yield
    configure(cluster, [])
    for user in SHARES:
        sacctmgr(cluster, "modify", "user", user, "set", "fairshare=parent")  # conftest's


@pytest.mark.parametrize("settings", [("expected", 1.0)], indirect=True)
@pytest.mark.usefixtures("fair_shares")
def test_run_time_and_fair_share_of_two_users_count(cluster: Cluster) -> None:
    """48 minutes of run time count more than the fair share, which decides between equal jobs."""
    last = fill_gpus(cluster)
    kinds = [(user, kind) for user in ("bob", "alice") for kind in ("long", "short")]
    jobs = {f"{user} {kind}": wait_for_one(cluster, user, MINUTES[kind]) for user, kind in kinds}

    def priority(name: str) -> int:
        return int(cluster.job(jobs[name])["Priority"])

    ahead = lambda: priority("alice long") - priority("bob short") > 100  # noqa: E731
    cluster.wait_until(ahead, 90, lambda: str({name: priority(name) for name in jobs}))
    let_go(cluster, "bob", last)
    order = ["alice short", "bob short", "alice long", "bob long"]
    assert start_order(cluster, jobs) == order
    assert cluster.explained(jobs["bob short"])["why"]["passes"]["job_id"] == jobs["alice long"]
    python = ["/opt/slurm-gpu-aware/bin/python", "-c", REPLAY]
    again = json.loads(cluster.sh("ctl", python, user="slurm"))
    assert again["rounds"] >= 1
    assert again["differences"] == []
