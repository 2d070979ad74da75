"""Parked jobs that are not next in line, in a reservation that has not begun."""

import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from cluster import GATE, Cluster
from site_files import SLURM_CONF, configured
from test_limits import WAIT, fill, limit
from test_survival import storm_without_mercy
from test_way_of_a_job import GATE_LICENCE, decisions, end_job, let_go, placed, started

__all__ = ["limit"]  # a fixture of test_limits

HOLDING_POOL = "gpuaware_pool"
DEFER = "/var/spool/slurm-gpu-aware/submitted.defer"


@pytest.fixture(autouse=True, scope="module")
def no_room(cluster: Cluster) -> Iterator[None]:
    """No parked job stays in Slurm's own queue."""
    with configured(cluster, "[gate]\nqueue_tests = 0\nlease_s = 60\n"):
        yield
        cluster.service_down("ctl", "selectd")
        cluster.sh("ctl", ["rm", "-f", DEFER])


def in_pool(cluster: Cluster, *job_ids: str) -> bool:
    return all(HOLDING_POOL in cluster.job(job_id).get("Reservation", "") for job_id in job_ids)


def pools(cluster: Cluster) -> dict[str, int]:
    """Name -> Unix time of its start."""
    show = "SLURM_TIME_FORMAT=%s scontrol -o show reservation"
    found = re.findall(
        rf"ReservationName=({HOLDING_POOL}\S*) StartTime=(\d+)", cluster.sh("ctl", show)
    )
    return {name: int(start) for name, start in found}


def test_jobs_come_from_the_pool_in_their_order_and_grow_older_there(cluster: Cluster) -> None:
    first = fill(cluster, [4, 4, 4, 4])
    jobs = [
        cluster.submit("alice", ["--gres=gpu:4", f"--nice={nice}", "-t", "30"], WAIT)
        for nice in (10, 20, 30)
    ]
    cluster.wait_until(lambda: in_pool(cluster, *jobs), 60, "all in the holding pool")
    accrued: list[str] = []

    def age_there() -> bool:  # until its scheduler has passed, Slurm shows what it showed before
        shown = [cluster.job(job_id) for job_id in jobs]
        accrued[:] = [job["AccrueTime"] for job in shown]
        return {job["Reason"] for job in shown} == {"Reservation"} and "Unknown" not in accrued

    cluster.wait_until(age_there, 60, lambda: str([cluster.job(j)[""] for j in jobs]))
    for place, job_id in enumerate(jobs):
        let_go(cluster, "bob", first[place])
        cluster.wait(job_id, "RUNNING", 60)
        started(cluster, job_id)
        assert cluster.job(job_id).get("Reservation", "(null)") == "(null)"
        assert [cluster.job(j)["JobState"] for j in jobs[place + 1 :]] == ["PENDING"] * (2 - place)
    assert [cluster.job(job_id)["AccrueTime"] for job_id in jobs] == accrued
    assert [len(decisions(cluster, job_id)) for job_id in jobs] == [1, 1, 1]


def seconds(job: dict[str, str], field: str) -> float:
    """A time of a job; not "Unknown"."""
    return datetime.fromisoformat(job[field]).timestamp()


def test_a_later_job_is_not_tried_by_slurm_first(cluster: Cluster) -> None:
    """The filter gives a begin time; neither a place nor the holding pool waits for it to come."""
    first = fill(cluster, [4, 4, 4, 4])
    wide = cluster.submit("alice", ["-N4", "--gres=gpu:4", "-t", "30"], WAIT)
    cluster.wait_until(lambda: in_pool(cluster, wide), 60, "in the holding pool")
    cluster.wait_until(
        lambda: cluster.run("ctl", ["test", "-e", DEFER]).returncode == 0, 60, "the filter is told"
    )
    both: list[str] = []

    def in_time() -> bool:  # a busy machine may need several new pairs
        if both:
            cluster.sh("ctl", ["scancel", *both])
        asked = ["--gres=gpu:4", "-t", "30"]
        both[:] = [cluster.submit("alice", [*asked, *more], WAIT) for more in ([], ["-a", "1-2"])]
        cluster.wait_until(lambda: in_pool(cluster, *both), 9, "in the holding pool")
        return cluster.sh("ctl", "date +%FT%T").strip() < cluster.job(both[0])["EligibleTime"]

    cluster.wait_until(in_time, 120, "a job and an array there before they may begin")
    late, array = both
    job = cluster.job(late)
    assert seconds(job, "EligibleTime") - seconds(job, "SubmitTime") == pytest.approx(10, abs=2)
    cluster.submit("bob", ["-t", "1"], "true")  # Slurm's scheduler passes
    time.sleep(12)
    cluster.submit("bob", ["-t", "1"], "true")
    cluster.wait_until(
        lambda: cluster.job(late)["Reason"] == "Reservation", 60, lambda: cluster.job(late)[""]
    )
    cluster.wait_until(
        lambda: all(cluster.job(j)["AccrueTime"] != "Unknown" for j in both), 60, "their age counts"
    )
    for job in map(cluster.job, both):
        assert job["AccrueTime"] == job["EligibleTime"]
        # sbatch's own look at most: it begins ten seconds later
        assert seconds(job, "LastSchedEval") - seconds(job, "SubmitTime") < 9
    cluster.sh("ctl", ["scontrol", "hold", array])
    held = cluster.job(array)
    assert (held["EligibleTime"], held["AccrueTime"]) == ("Unknown", "Unknown")
    cluster.sh("ctl", ["scontrol", "release", array])
    cluster.wait_until(
        lambda: in_pool(cluster, array) and cluster.job(array)["AccrueTime"] != "Unknown",
        60,
        lambda: cluster.job(array)[""],
    )
    let_go(cluster, "bob", first[0])
    cluster.wait(late, "RUNNING", 40)
    assert len(placed(cluster, late)) == 1
    cluster.sh("ctl", ["scancel", wide, array])

    end_job(cluster, "bob", first[1], 30)
    at_once = cluster.submit("alice", ["--gres=gpu:1", "-t", "30"], WAIT)
    assert "bt=" in cluster.job(at_once)["AdminComment"]
    cluster.wait(at_once, "RUNNING", 9)
    job = cluster.job(at_once)
    assert job["EligibleTime"] <= job["StartTime"]
    assert len(placed(cluster, at_once)) == 1


def let_time_pass(cluster: Cluster) -> None:
    """The gate ends, and the pool opens a while later: here within seconds, else a minute each."""
    update = ["scontrol", "update"]
    cluster.sh("ctl", ["rm", DEFER])  # which holds until the end of the gate
    cluster.sh("ctl", [*update, f"reservationname={GATE}", "endtime=now+2"])
    for name in pools(cluster):
        cluster.sh("ctl", [*update, f"reservationname={name}", "starttime=now+12"])


def test_without_a_selector_the_pool_opens_and_later_closes_again(cluster: Cluster) -> None:
    first = fill(cluster, [4, 4, 4, 4])
    jobs = [cluster.submit("alice", ["--gres=gpu:4", "-t", "30"], WAIT) for _ in range(4)]
    array = cluster.submit("alice", ["--array=1-3", "--gres=gpu:4", "-t", "30"], WAIT)
    cluster.wait_until(lambda: in_pool(cluster, *jobs, array), 60, "all in the holding pool")
    cluster.service_down("ctl", "selectd", "KILL")
    cluster.kill("ctl", "slurmctld", "TERM")  # they lie there afterwards, too
    cluster.wait_until(lambda: in_pool(cluster, *jobs, array), 60, "all in the holding pool")
    let_time_pass(cluster)
    for job_id in first[:2]:
        let_go(cluster, "bob", job_id)
    cluster.wait_all(jobs[:2], "RUNNING", 180)
    waiting = (*jobs[2:], array)
    cluster.wait_until(
        lambda: not any(HOLDING_POOL in cluster.job(j).get("Reservation", "") for j in waiting),
        60,
        "ResvProlog takes them from the holding pool",
    )
    assert all("Held" not in cluster.job(j)["Reason"] for j in waiting)

    # They keep their place: a job that arrives now with a higher priority is before them.
    urgent = cluster.submit("bob", ["--gres=gpu:4", "-t", "30"], WAIT)
    cluster.sh("ctl", ["scontrol", "update", f"jobid={urgent}", "priority=4000000000"])
    let_go(cluster, "alice", jobs[0])
    cluster.wait(urgent, "RUNNING", 60)
    assert cluster.job(jobs[2])["JobState"] == "PENDING"
    let_go(cluster, "bob", urgent)
    cluster.wait(jobs[2], "RUNNING", 60)

    cluster.service_up("ctl", "selectd")
    rest = (jobs[3], array)
    cluster.wait_until(
        lambda: in_pool(cluster, *rest),
        90,
        lambda: f"{pools(cluster)}: {[cluster.job(j)[''] for j in rest]}",
    )
    let_go(cluster, "bob", first[2])
    cluster.wait(jobs[3], "RUNNING", 60)
    started(cluster, jobs[3])
    assert len(decisions(cluster, jobs[3])) == 1
    ends = [("bob", first[3]), ("alice", jobs[1]), ("alice", jobs[2])]
    for task, (user, job_id) in enumerate(ends, 1):
        let_go(cluster, user, job_id)
        cluster.wait(f"{array}_{task}", "RUNNING", 60)
        started(cluster, f"{array}_{task}")


def test_slurm_that_loses_the_pool_loses_no_job(cluster: Cluster) -> None:
    """An old slurm.conf is restored: without the licence the reservation is not valid."""
    first = fill(cluster, [4, 4, 4, 4])
    jobs = [cluster.submit("alice", ["--gres=gpu:4", "-t", "30"], WAIT) for _ in range(2)]
    cluster.wait_until(lambda: in_pool(cluster, *jobs), 60, "all in the holding pool")
    cluster.await_saved()
    cluster.sh("ctl", f"sed -i 's/^Licenses=.*/Licenses={GATE_LICENCE}:100000/' {SLURM_CONF}")
    try:
        cluster.kill("ctl", "slurmctld", "KILL")
        cluster.wait_until(
            lambda: {cluster.job(j)["Reason"] for j in jobs} <= {"Licenses", "Priority", "None"},
            60,
            lambda: str([cluster.job(j)[""] for j in jobs]),
        )
        assert pools(cluster) == {}
        for place, job_id in enumerate(jobs):
            let_go(cluster, "bob", first[place])
            cluster.wait(job_id, "RUNNING", 60)
            started(cluster, job_id)
    finally:
        licences = f"{GATE_LICENCE}:100000,{HOLDING_POOL}:8"
        cluster.sh("ctl", f"sed -i 's/^Licenses=.*/Licenses={licences}/' {SLURM_CONF}")
        cluster.sh("ctl", ["scontrol", "reconfigure"])
        cluster.kill("ctl", "selectd", "TERM")  # one that was refused a pool rests for a while


def test_of_jobs_alike_one_shows_the_limit(cluster: Cluster, limit: str) -> None:
    job = ["--gres=gpu:1", f"--qos={limit}", "-t", "30"]
    jobs = [cluster.submit("alice", job, WAIT) for _ in range(8)]
    running = jobs[:2]
    cluster.wait_all(running, "RUNNING")
    rest = jobs[2:]
    cluster.wait_until(
        lambda: sum(in_pool(cluster, j) for j in rest) >= 5, 60, "five in the holding pool"
    )
    time.sleep(10)
    assert all(len(decisions(cluster, job_id)) <= 2 for job_id in rest)
    let_go(cluster, "alice", running[0])
    let_go(cluster, "alice", running[1])

    def two_more() -> bool:
        return sum(cluster.job(j)["JobState"] == "RUNNING" for j in rest) == 2

    cluster.wait_until(two_more, 60, lambda: cluster.sh("ctl", "squeue -o '%i %T %r %v'"))


def test_released_by_hand(cluster: Cluster) -> None:
    first = fill(cluster, [4, 4, 4, 4])
    job_id = cluster.submit("alice", ["--gres=gpu:4", "-t", "30"], WAIT)
    cluster.wait_until(lambda: in_pool(cluster, job_id), 60, "in the holding pool")
    cluster.sh("ctl", ["gpu-aware", "release", job_id])
    assert not in_pool(cluster, job_id)
    let_go(cluster, "bob", first[3])
    cluster.wait(job_id, "RUNNING", 60)
    assert decisions(cluster, job_id) == []


def test_users_cannot_go_there_themselves(cluster: Cluster) -> None:
    first = fill(cluster, [4, 4, 4, 4])
    job_id = cluster.submit("alice", ["--gres=gpu:4", "-t", "30"], WAIT)
    cluster.wait_until(lambda: in_pool(cluster, job_id), 60, "in the holding pool")
    name = cluster.job(job_id)["Reservation"]
    for options in (["--gres=gpu:1", f"--reservation={name}"], [f"--reservation={name}"]):
        done = cluster.run("ctl", ["sbatch", *options, "--wrap", "true"], "alice")
        assert done.returncode != 0
        assert b"is the gate of GPU placement" in done.stderr
    update = ["scontrol", "update", f"jobid={job_id}", "reservationname="]
    cluster.sh("ctl", update, "alice")  # a change of the owner: the job stays behind the gate
    cluster.wait_until(
        lambda: in_pool(cluster, job_id) or "gpuaware:1" in cluster.job(job_id)["Licenses"],
        30,
        "parked or in the holding pool again",
    )
    assert cluster.job(job_id)["JobState"] == "PENDING"
    assert GATE in cluster.sh("ctl", ["scontrol", "show", "reservation"])
    let_go(cluster, "bob", first[0])


def test_selector_killed_at_random_moments(cluster: Cluster) -> None:
    storm_without_mercy(cluster)
