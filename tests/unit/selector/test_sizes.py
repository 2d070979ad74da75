"""Other numbers of GPUs over rounds of the selector: placing, and growth of running jobs."""

import shutil
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware
from slurm_folder import SlurmFolder, parked
from store_samples import fit_models, ingest, put_net, report

from slurm_gpu_aware.store.database import open_store

NODES = ["n1", "n2"]
NET = "class=A,model=net"
PLACED = "gpuaware/1;tn=gres/gpu:2;mc=1;rs=nodes"
TASKS = "gpuaware/1;tj=gres/gpu:2;nt=2;cpt=2;mc=4;rs=gpus"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which ``net`` has a model: each doubling of its GPUs almost halves its time."""
    path = tmp_path_factory.mktemp("fitted") / "store.db"
    with open_store(path) as store:
        for node in NODES:
            ingest(store, report(node))
        put_net(store)
    fit_models(path)
    return path


@pytest.fixture
def net_site(slurm: SlurmFolder, fitted: Path) -> SlurmFolder:
    shutil.copy(fitted, slurm.store)
    return slurm


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
    with site.config.open("a") as config:
        config.write(f"[moves]\nenabled = true\nfirst_s = 0.0\nlast_s = 0.0\n{more}")
    others = [
        parked(number, state="RUNNING", licenses="", admin_comment="", nodes=node, slots=slots)
        for number, node, slots in (("8", "n1", [0, 1, 2]), ("9", "n2", [0, 1, 2, 3]))
    ]
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
    with site.config.open("a") as config:
        config.write("[moves]\nenabled = true\nfirst_s = 0.0\nlast_s = 0.0\n")
    held = {"licenses": "", "admin_comment": "", "nodes": "n2", "slots": [0, 1, 2, 3]}
    other = parked("9", state="RUNNING", **held)
    job = first_job(site, parked(comment=f"{NET},gpus=1-4,move=10s", admin_comment=PLACED), other)
    assert (job["state"], gpus(job)) == ("RUNNING", 4)
    now = int(time.time())
    for number in ("7", "9"):
        site.change(number, start_time=now - 5_000, end_time=now + 40_000)
    one = {"tres_per_node": "gres/gpu:1", "admin_comment": "gpuaware/1;tn=gres/gpu:1;mc=1"}
    waiting = [parked(number, comment="class=A", **one) for number in ("10", "11")]
    site.write([*site.jobs.values(), *waiting], NODES)


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
    done = gpu_aware("explain", "7", config=net_site.config)
    assert "it gives back jobs 10, 11 can start" in " ".join(done.stdout.split()), done.stdout


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
