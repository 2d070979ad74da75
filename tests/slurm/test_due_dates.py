"""Due dates on a real Slurm: jobs start with the least number that suffices, and grow at its time.

The jobs of the name `LONG` have short earlier runs. The work of a job is in milliseconds of one
GPU; one with more of them is as much faster, as the model ``net`` says, too.
"""

import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from test_limits import WAIT
from test_moves import await_event
from test_sizes import net_model
from test_way_of_a_job import events, let_go, placed

from slurm_gpu_aware.slurm.sacct import SACCT_FIELDS

SETTINGS = """[moves]
enabled = true
margin_s = 1e6
[estimates]
history_days = 1
[due_dates]
order = "pressure"
"""
"""No job moves to end sooner."""
WORKS = """cd "$HOME"
work=$(cat work-$SLURM_JOB_ID 2>/dev/null || echo 0)
gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l)
echo "run ${SLURM_RESTART_COUNT:-0} from $work with $gpus"
trap 'echo $work > work-$SLURM_JOB_ID; echo "saved $work"; exit 0' TERM
last=$(date +%s%3N)
while [ $work -lt WORK ]; do
    sleep 0.2 & wait $!
    now=$(date +%s%3N)
    work=$((work + gpus * (now - last)))
    last=$now
done
date '+ended %s'
"""
AGED = """
import sqlite3
with sqlite3.connect("/var/lib/slurm-gpu-aware/store.db") as db:
    db.execute("UPDATE events SET at_unix = at_unix - 86400 WHERE kind IN ('move_begun', 'moved')")
"""
LONG = f"-Jlong-{time.time():.0f}"
ALL_GPUS = ["-N4", "--gres=gpu:4", "--nice=1000000", "-t1"]


@pytest.fixture(scope="module", autouse=True)
def history(cluster: Cluster) -> Iterator[None]:
    """Two earlier runs of the name `LONG`."""
    with net_model(cluster, SETTINGS):
        for seconds in (2, 4):
            job = ["--gres=gpu:1", "--comment=class=A,model=net", LONG, "-t2"]
            job_id = cluster.submit("alice", job, f"sleep {seconds}")
            cluster.wait(job_id, "COMPLETED", 60)
            await_accounted(cluster, job_id)
        yield


def await_accounted(cluster: Cluster, job_id: str) -> None:
    """Wait until sacct, of which the selector reads earlier runs, lists the end of a job."""
    ask = ["sacct", "-nXPj", job_id, "-o", "State"]
    ended = lambda: cluster.sh("ctl", ask).strip() == "COMPLETED"  # noqa: E731
    cluster.wait_until(ended, 90, f"sacct lists job {job_id}")


@pytest.fixture(autouse=True)
def new_selector(cluster: Cluster) -> None:
    """It knows the earlier runs, and how long no move took: moves of other tests are old."""
    start_selector(cluster)


def start_selector(cluster: Cluster) -> None:
    cluster.service_down("ctl", "selectd")
    cluster.sh("ctl", ["python3", "-c", AGED])
    cluster.service_up("ctl", "selectd")

    def known() -> bool:
        log = cluster.sh("ctl", "tail -n 20 /var/log/cluster/selectd.*")
        return "earlier runs" in log.rpartition("selector stops")[2]

    cluster.wait_until(known, 90, "earlier runs are read")


class Job:
    """A job of alice; asks for one GPU."""

    def __init__(self, cluster: Cluster, comment: str, *options: str, work_s: int = 20) -> None:
        self.cluster = cluster
        script = WORKS.replace("WORK ", f"{1000 * work_s} ")
        options = (f"--comment=class=A,model=net,gpus=1-4{comment}", *options)
        self.id = cluster.submit(
            "alice", ["--gres=gpu:1", LONG, "-t2", "--open-mode=append", *options], script
        )

    @property
    def gpus(self) -> int:
        return sum(map(len, self.cluster.gpus(self.id).values()))

    def runs(self) -> int:
        """Wait until it runs; its number of GPUs."""
        self.cluster.wait(self.id, "RUNNING", 60)
        return self.gpus

    def ended(self, deadline: float = 240) -> tuple[list[list[str]], float]:
        """Wait until it has done its work; (its starts, Unix time of its end)."""
        self.cluster.wait(self.id, "COMPLETED", deadline)
        lines = self.cluster.output(self.id, "alice").splitlines()
        (end,) = (float(line.split()[1]) for line in lines if line.startswith("ended "))
        return [line.split() for line in lines if line.startswith("run ")], end

    def kinds(self) -> list[str]:
        return [kind for kind, _ in events(self.cluster, self.id)]


def local(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def await_requeue(job: Job) -> None:
    shown = lambda: f"{job.cluster.job(job.id)}\n{events(job.cluster, job.id)}"  # noqa: E731
    job.cluster.wait_until(lambda: job.cluster.job(job.id)["Restarts"] == "1", 120, shown)


def said(cluster: Cluster, user: str, *options: str) -> str:
    """What sbatch tells of a job that is due now."""
    cluster.wait_until(lambda: time.time() % 60 < 40, 60, "this minute has not passed as due=")
    comment = f"--comment=class=A,gpus=1-4,due={local(time.time())}"
    job = ["sbatch", "--gres=gpu:1", comment, *options, "--wrap=true"]
    done = cluster.run("ctl", job, user)
    assert done.returncode == 0
    assert b"Submitted" in done.stdout
    return done.stderr.decode()


def test_sbatch_tells_a_due_date_that_all_earlier_runs_miss(cluster: Cluster) -> None:
    told = said(cluster, "alice", LONG, "-t2")
    assert "no time for any earlier run of this name" in told, told
    assert "even with the most GPUs that it may get, 4" in told
    assert said(cluster, "alice", LONG) == ""  # its time limit is not known
    assert said(cluster, "alice", f"{LONG}x", "-t2") == ""
    assert said(cluster, "bob", LONG, "-t2") == ""
    hidden = cluster.run("ctl", ["ls", "/var/spool/slurm-gpu-aware/submitted.runs"], "alice")
    assert b"Permission denied" in hidden.stderr


def test_no_comment_forges_a_run_of_another_user(cluster: Cluster) -> None:
    name, start = f"forged-{time.time():.0f}", f"{time.time() - 900:.0f}"
    cells = {
        "JobID": "999999",
        "User": "alice",
        "Submit": start,
        "Start": start,
        "ElapsedRaw": "600",
        "TimelimitRaw": "60",
        "State": "COMPLETED",
        "AllocTRES": "gres/gpu=1,node=1",
        "JobName": name,
    }
    row = "|".join(cells.get(field, "") for field in SACCT_FIELDS)
    job_id = cluster.submit("bob", ["--gres=gpu:1", f"--comment=x\n{row}", "-t2"], "true")
    cluster.wait(job_id, "COMPLETED", 60)
    await_accounted(cluster, job_id)
    assert row in cluster.sh("ctl", f"sacct -nXPj {job_id} -o Comment")
    start_selector(cluster)
    assert said(cluster, "alice", f"-J{name}", "-t2") == ""


def test_sizes_growth_and_a_killed_selector(cluster: Cluster) -> None:
    """Idle GPUs are kept for a job of all of them, so that none is given away."""
    hold = cluster.running_job("bob", ["--gres=gpu:1", "-t9"], WAIT)
    behind = cluster.submit("bob", ALL_GPUS, "true")
    due_s = time.time() + 180
    due, name = local(due_s), f"-Jnew-{due_s:.0f}"
    grows = Job(cluster, f",due={due},move=1s", "-t4", work_s=132)
    stays = Job(cluster, f",due={due}", "-t4", work_s=50)  # each runs for 25 s: all are seen
    early = Job(cluster, ",due=1h,move=1s", work_s=25)
    late = Job(cluster, f",due={local(time.time())}", work_s=25)
    new = Job(cluster, f",due={due}", "-t4", name, work_s=25)
    epochs = Job(cluster, f",due={due},epochs=80x3s", "-t4", name, work_s=50)
    slurms = Job(cluster, ",move=1s", "-t1", "--deadline=now+1hour", work_s=25)
    plain = Job(cluster, "", work_s=25)

    # All of the limit of 240 s must fit: one GPU needs 240 s for it, two need 121 s. So they may be
    # placed a minute late, on a busy machine, without taking more; and a restart that takes most
    # of a minute still does for the work that there is.
    others = (early, late, new, slurms, plain)
    assert [job.runs() for job in (grows, stays, epochs, *others)] == [1, 2, 2, 1, 1, 1, 1, 1]
    cluster.wait_told(grows.id, r"due +\S+ \S+; met with 100% by \d+ earlier runs; longest case")
    account = cluster.explained(grows.id)["why"]["due"]
    assert account["due_s"] == int(due_s)
    ((at, gpus),) = account["growth"]
    assert (gpus, at < due_s) == (2, True)
    cluster.wait_told(late.id, "it has passed, so it plays no part")
    cluster.wait_told(new.id, "no earlier run of its name")
    cluster.wait_told(epochs.id, "met with 100% by its epochs")
    cluster.wait_told(slurms.id, r"met with 100% by \d+ earlier runs")
    cluster.wait_told(slurms.id, "may cancel a requeued job that has a --deadline")

    time.sleep(max(0.0, at - 20 - time.time()))
    assert grows.kinds().count("move_begun") == 0
    at -= 2.0  # it is left at once in its last second
    time.sleep(max(0.0, at - time.time()))
    cluster.kill("ctl", "selectd", "KILL")
    await_requeue(grows)
    assert time.time() >= at
    cluster.kill("ctl", "selectd", "KILL")
    (first, second), end = grows.ended()
    assert (first[1], first[3], second[1]) == ("0", "0", "1")
    assert int(second[3]) > 1000 * 5  # from its checkpoint
    assert (first[-1], second[-1]) == ("1", "2")
    assert end <= due_s
    await_event(cluster, grows.id, "ended")
    assert [grows.kinds().count(kind) for kind in ("move_begun", "moved", "ended")] == [1, 1, 1]

    for job in (stays, epochs, *others):
        starts, _ = job.ended()
        assert len(starts) == 1
    assert late.kinds().count("due_impossible") == 1
    assert "due_impossible" not in stays.kinds()
    assert "due" not in placed(cluster, plain.id)[-1]["asked"]
    let_go(cluster, "bob", hold)
    cluster.wait(behind, "COMPLETED", 60)


def test_on_a_full_cluster_due_dates_are_met_and_nothing_starves(cluster: Cluster) -> None:
    """Slurm alone would be late with the same work, although its job starts first of all."""
    forms = (["-N3", "--gres=gpu:4"], ["--gres=gpu:3"])
    held = [cluster.submit("bob", [*form, "-t9"], WAIT) for form in forms]
    cluster.wait_all(held, "RUNNING")
    due_s, work_s = time.time() + 120, 121
    due = f",due={local(due_s)}"
    plain = Job(cluster, f"{due},place=off", "-t3", work_s=work_s)
    assert plain.runs() == 1  # by itself; later it takes a GPU that the selector gives away
    others = [cluster.submit("bob", ["--gres=gpu:2", "-t1"], "sleep 5") for _ in range(2)]
    others.append(cluster.submit("bob", ALL_GPUS, "sleep 1"))
    jobs = [Job(cluster, due, "-t3", work_s=work_s) for _ in range(3)]
    others.append(cluster.submit("bob", ["--gres=gpu:1", "-t1"], "sleep 5"))
    let_go(cluster, "bob", held[0])
    for job in jobs:
        (start,), end = job.ended()
        assert int(start[-1]) > 1
        assert end <= due_s
    cluster.sh("ctl", ["scancel", "--quiet", plain.id])
    let_go(cluster, "bob", held[1])
    cluster.wait_all(others, "COMPLETED")


def fill_gpus(cluster: Cluster) -> str:
    """All GPUs are in use for nine minutes at most; the job of one of them."""
    jobs = [cluster.submit("bob", ["-t9", f"--gres=gpu:{n}"], WAIT) for n in (4, 4, 4, 3, 1)]
    cluster.wait_all(jobs, "RUNNING")
    return jobs[-1]


def test_by_pressure_the_urgent_job_starts_first_and_others_are_untouched(cluster: Cluster) -> None:
    """One GPU for all, one after another. Long limits: no job waits for as long as it runs.

    They take the first free GPU: with `eft`, one that expects a faster one soon lets others pass.
    """
    last = fill_gpus(cluster)
    in_turn = {
        "with time": ",gpus=1-4,due=9h,epochs=9x1s",
        "urgent": ",gpus=1-4,due=9m,epochs=9x1s",
        "without history": ",gpus=1-4,due=8m",
        "without due date": ",gpus=1-4",
    }
    options = ["--gres=gpu:1", "-t900", f"-Jnew-{time.time():.0f}"]
    asked = "class=A,model=net,place=packed"
    jobs = {
        name: cluster.submit("alice", [*options, f"--comment={asked}{more}"], "sleep 2")
        for name, more in in_turn.items()
    }
    let_go(cluster, "bob", last)
    cluster.wait_all(jobs.values(), "COMPLETED")
    started = {name: cluster.job(job_id)["StartTime"] for name, job_id in jobs.items()}
    assert started["urgent"] == min(started.values())
    assert started["urgent"] < started["with time"]
    for name in ("without history", "without due date"):
        assert sum(map(len, placed(cluster, jobs[name])[-1]["slots"])) == 1
        account = cluster.explained(jobs[name])["why"].get("due")
        assert account is None or account.get("in_time") is None


def test_an_invented_due_date_passes_no_other_user(cluster: Cluster) -> None:
    """One GPU for all, one after another; bob's job has the least time to spare."""
    last = fill_gpus(cluster)
    asked = "--comment=class=A,model=net,place=packed,gpus=1-4"
    jobs = [
        cluster.submit(user, ["--gres=gpu:1", "-t900", f"{asked},{due}", nice], "sleep 2")
        for user, due, nice in (
            *(("alice", "due=9h,epochs=9x1s", "--nice=0"),) * 4,
            ("bob", "due=9m,epochs=1x5m", "--nice=1000000"),
        )
    ]
    explain = ["gpu-aware", "explain", jobs[-1]]
    counts = lambda: "met with 100%" in cluster.sh("ctl", explain, "bob")  # noqa: E731
    cluster.wait_until(counts, 60, "its due date counts")
    let_go(cluster, "bob", last)
    cluster.wait_all(jobs, "COMPLETED")
    *starts, invented = (cluster.job(job_id)["StartTime"] for job_id in jobs)
    assert max(starts) < invented
