"""Other numbers of GPUs over rounds of the selector: placing, and growth of running jobs."""

import time
from itertools import product
from typing import Any

import pytest
from commands import words
from slurm_folder import SlurmFolder, parked, run_by_slurm

NODES = ["n1", "n2"]
NET = "class=A,model=net"
PLACED = "gpuaware/1;tn=gres/gpu:2;mc=1;rs=nodes"
MOVES = "[moves]\nenabled = true\nfirst_s = 0.0\nlast_s = 0.0\n"
TASKS = "gpuaware/1;tj=gres/gpu:2;nt=2;cpt=2;mc=4;rs=gpus"


def first_job(site: SlurmFolder, *jobs: dict[str, Any], rounds: int = 2) -> dict[str, Any]:
    """Slurm's record of the first job after some rounds."""
    site.write(list(jobs), NODES)
    assert site.round(rounds) == 0, site.said
    return site.jobs[str(jobs[0]["job_id"])]


def gpus(job: dict[str, Any]) -> int:
    return str(job["tres_per_node"]).count("gpu:g")


def test_a_job_gets_more_gpus_on_an_idle_cluster(net_site: SlurmFolder) -> None:
    job = first_job(net_site, parked(comment=f"{NET},gpus=1-4", admin_comment=PLACED))
    assert (job["state"], gpus(job)) == ("RUNNING", 4)
    (decided,) = net_site.ledger("7")
    assert [len(slots) for slots in decided.slots] == [4]
    assert decided.why["grown"] == {"least_gpus": 1}


def test_its_tasks_and_cpus_follow(net_site: SlurmFolder) -> None:
    total = {"tres_per_node": "", "tres_per_job": "gres/gpu:2", "num_tasks": 2, "num_cpus": 4}
    job = first_job(net_site, parked(comment=f"{NET},gpus=1-4", admin_comment=TASKS, **total))
    assert (job["num_tasks"], job["num_cpus"], gpus(job)) == (4, 8, 4)
    assert job["tres_per_job"] in ("", None)


@pytest.mark.parametrize(
    ("comment", "record"),
    [
        (f"{NET},gpus=2", PLACED),
        (NET, PLACED),
        ("class=A,gpus=1-4", PLACED),  # no model
        (f"{NET},gpus=1-4", PLACED.removesuffix(";rs=nodes")),
        (f"{NET},gpus=1-4,place=packed", PLACED.replace("mc=1", "mc=1;ex=1")),
    ],
)
def test_other_jobs_keep_the_number_of_their_options(
    net_site: SlurmFolder, comment: str, record: str
) -> None:
    job = first_job(net_site, parked(comment=comment, admin_comment=record))
    assert job["state"] == "RUNNING"
    assert gpus(job) in (0, 2)  # 0: --exclusive, Slurm chooses


def runs_on_one_gpu(site: SlurmFolder, more: str = "") -> None:
    """Job 7 runs on the only free GPU, and then the others become free."""
    site.configure(f"{MOVES}{more}")
    others = run_by_slurm("8", "n1", [0, 1, 2]), run_by_slurm("9", "n2")
    job = first_job(site, parked(comment=f"{NET},gpus=1-4,move=10s", admin_comment=PLACED), *others)
    assert (job["state"], gpus(job)) == ("RUNNING", 1)
    now = int(time.time())
    site.change("7", start_time=now - 5_000, end_time=now + 30_000)
    for number in ("8", "9"):
        site.change(number, state="COMPLETED", nodes="")


def test_a_running_job_grows_by_a_move(net_site: SlurmFolder) -> None:
    runs_on_one_gpu(net_site)
    assert net_site.round(4) == 0, net_site.said
    job = net_site.jobs["7"]
    assert (job["starts"], job["state"], gpus(job)) == (2, "RUNNING", 4)
    _, second = net_site.ledger("7")
    assert second.why["moved"]["gpus"] == 4
    (begun,) = net_site.events("move_begun")
    assert begun.detail["slots"] == [0, 1, 2, 3]


def test_under_a_power_limit_with_power_left_it_grows_too(net_site: SlurmFolder) -> None:
    runs_on_one_gpu(net_site, "[power]\npower_budget_watts = 100000\n")
    assert net_site.round(4) == 0, net_site.said
    assert (net_site.jobs["7"]["starts"], gpus(net_site.jobs["7"])) == (2, 4)


def waits_beside_four(site: SlurmFolder) -> None:
    """Job 7 runs on all GPUs of n1, those of n2 are held, and 10 and 11 wait for one each."""
    site.configure(MOVES)
    moldable = parked(comment=f"{NET},gpus=1-4,move=10s", admin_comment=PLACED)
    job = first_job(site, moldable, run_by_slurm("9", "n2"))
    assert (job["state"], gpus(job)) == ("RUNNING", 4)
    now = int(time.time())
    for number in ("7", "9"):
        site.change(number, start_time=now - 5_000, end_time=now + 40_000)
    site.add(*(parked(number, 1, comment="class=A") for number in ("10", "11")))


def test_a_running_job_shrinks_so_that_waiting_jobs_start(net_site: SlurmFolder) -> None:
    """Also if the selector is killed about the time of the requeue."""
    waits_beside_four(net_site)
    state, ledger = net_site.home.joinpath("state.json").read_text(), net_site.store.read_bytes()
    assert net_site.round(5) == 0, net_site.said
    requeue = [call[0] for call in net_site.calls].index("requeue") + 1
    for count, before in [(0, True), *product((requeue, requeue + 1), (True, False))]:
        for path in net_site.store.parent.glob("store.db*"):
            path.unlink()
        net_site.store.write_bytes(ledger)
        net_site.home.joinpath("state.json").write_text(state)
        if count:
            assert net_site.round(5, kill_at=count, before=before) != 0
        assert net_site.round(6) == 0, net_site.said
        jobs, moved = net_site.jobs, net_site.jobs["7"]["restart_cnt"]
        assert (jobs["7"]["state"], jobs["7"]["licenses"]) == ("RUNNING", ""), (count, before)
        assert gpus(jobs["7"]) == (2 if moved else 4), (count, before, net_site.said)
        others = {jobs[number]["state"] for number in ("10", "11")}
        assert others == {"RUNNING" if moved else "PENDING"}, (count, before)
        assert moved or count
    assert "it gives back jobs 10, 11 can start" in words("explain", "7", config=net_site.config)


@pytest.mark.parametrize(("tier", "left"), [(2, 4), (1, 2), (0, 2)])
def test_it_shrinks_for_no_partition_of_a_lower_tier(
    net_site: SlurmFolder, tier: int, left: int
) -> None:
    """Whatever Slurm's priorities are."""
    waits_beside_four(net_site)
    net_site.set(tiers={"gpu": tier, "other": 1})
    for number in ("10", "11"):
        net_site.change(number, partition="other", priority=9_000 if tier > 1 else 1)
    assert net_site.round(6) == 0, net_site.said
    assert gpus(net_site.jobs["7"]) == left, net_site.said
