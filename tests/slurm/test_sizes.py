"""gpus=MIN-MAX on a real Slurm: jobs run with another number of GPUs, and srun inside follows.

A performance model of the application ``net`` says that each doubling of its GPUs almost halves
its time.
"""

import contextlib
from collections.abc import Iterator

import pytest
from cluster import Cluster, CommandFailed
from site_files import CONFIG, kept
from test_limits import WAIT, limit
from test_moves import APPENDS, COUNTS, MOVES, await_event, await_requeue, look_for_moves
from test_power import FILE, GPUS, IDLE_W, MARGIN, power, why
from test_way_of_a_job import NO_HISTORY, end_job, events

__all__ = ["limit"]


STOPPING = "/shared/home/alice/stopping-"
EPILOG = "/etc/slurm/epilog.d/90-stopping"
RANGE = "--comment=class=A,model=net,gpus=1-4"
SEEN = """
echo "batch $CUDA_VISIBLE_DEVICES"
srun bash -c 'echo "plain $SLURM_NTASKS $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES"'
srun -n1 -N1 --gpus=1 bash -c 'echo "one $CUDA_VISIBLE_DEVICES"'
echo "ended $?"
"""
ALL = "0,1,2,3"
FORMS: dict[str, tuple[list[str], list[str]]] = {
    # options: what each task of a plain srun sees with four GPUs on a node
    "gres": (["--gres=gpu:1"], [f"1 1 {ALL}"]),
    "gpus": (["--gpus=2"], [f"1 1 {ALL}"]),
    "gpus-per-node": (["-N1", "--gpus-per-node=2"], [f"1 1 {ALL}"]),
    "one task": (["--gpus=2", "-n1", "-c3"], [f"1 3 {ALL}"]),
    "CPUs by GPU": (["--gres=gpu:2", "--cpus-per-gpu=2"], [f"1 8 {ALL}"]),
    "memory by GPU": (["--gres=gpu:1", "--mem-per-gpu=100"], [f"1 1 {ALL}"]),
    "a task per GPU": (["-N1", "-n2", "--gpus=2", "-c2"], 4 * [f"4 8 {ALL}"]),
    "tasks with a GPU": (["-N1", "-n2", "--gpus-per-task=1"], [f"4 4 {i}" for i in range(4)]),
    "tasks with a GPU and CPUs": (
        ["-N1", "-n1", "--gpus-per-task=1", "--cpus-per-gpu=3"],
        [f"4 12 {i}" for i in range(4)],
    ),
    "tasks by GPU": (["-N1", "--gpus=2", "--ntasks-per-gpu=1"], [f"4 4 {i}" for i in range(4)]),
    "an array": (["--gres=gpu:2", "--array=3"], [f"1 1 {ALL}"]),
}
WRITTEN = (
    *("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "ReqTRES", "MinCPUsNode"),
    *("TresPerJob", "TresPerTask", "CpusPerTres", "NtasksPerN:B:S:C"),
)
"""Fields that another number of GPUs changes, and that do not name the GPUs."""


@contextlib.contextmanager
def net_model(cluster: Cluster, settings: str) -> Iterator[None]:
    """The model of ``net`` is stored, and the selector has more settings."""
    rows = ["application,gpu_model,gpus,nodes,batch_size,clock_mhz,time_s,power_w"]
    for gpus in (1, 2, 4, 8):
        for clock_mhz in (600, 900, 1200, 1500):
            time_s = 0.1 * 1500 / clock_mhz / gpus + 0.001
            power_w = gpus * (50 + clock_mhz / 10)
            nodes = -(-gpus // 4)
            rows.append(f"net,v100,{gpus},{nodes},{128 // gpus},{clock_mhz},{time_s},{power_w}")
    with kept(cluster, CONFIG):
        cluster.sh("ctl", f"cat >>{CONFIG}", stdin=settings)
        cluster.sh("ctl", ["gpu-aware-profile", "sweep"], "slurm", timeout=120)
        text = "\n".join(rows)
        cluster.sh("ctl", "cat >/tmp/net.csv && chmod 644 /tmp/net.csv", stdin=text)
        cluster.sh("ctl", ["gpu-aware-profile", "import", "/tmp/net.csv"], "slurm")
        cluster.sh("ctl", ["gpu-aware", "models", "fit"], "slurm")
        cluster.kill("ctl", "selectd", "TERM")
        yield
        up = lambda: cluster.service_pid("ctl", "selectd") is not None  # noqa: E731
        cluster.wait_until(up, 30, "the selector, which the end of a test may restart")
        cluster.kill("ctl", "selectd", "TERM")


@pytest.fixture(scope="module", autouse=True)
def models(cluster: Cluster) -> Iterator[None]:
    """Jobs may be moved soon after their start; one that says so ends when the test lets it."""
    wait = f"for i in $(seq 600); do [ -e {STOPPING}$SLURM_JOB_ID ] || exit 0; sleep 0.1; done"
    with net_model(cluster, MOVES + NO_HISTORY):
        cluster.sh("ctl", f"cat >{EPILOG} && chmod 755 {EPILOG}", stdin=f"#!/bin/sh\n{wait}\n")
        yield
        cluster.sh("ctl", ["rm", EPILOG])


def lines_of(cluster: Cluster, job_id: str, word: str) -> list[str]:
    """Rest of the lines of a job's output that begin with a word."""
    lines = cluster.output(job_id, "alice").splitlines()
    return sorted(line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} "))


@pytest.mark.parametrize(("options", "tasks"), FORMS.values(), ids=FORMS)
def test_srun_inside_follows_the_number(
    cluster: Cluster, options: list[str], tasks: list[str]
) -> None:
    out = "--output=/shared/home/alice/slurm-%A.out"
    job_id = cluster.submit("alice", [*options, out, RANGE], SEEN)
    cluster.wait(job_id, "COMPLETED", 60)
    assert lines_of(cluster, job_id, "batch") == [ALL]
    assert lines_of(cluster, job_id, "plain") == tasks
    assert lines_of(cluster, job_id, "ended") == ["0"]
    assert [line.count(",") for line in lines_of(cluster, job_id, "one")] == [0]


def test_tasks_go_to_as_many_nodes_as_their_gpus_need(cluster: Cluster) -> None:
    comment = "--comment=class=A,model=net,gpus=2-8"
    job_id = cluster.submit("alice", ["-n4", "--gpus-per-task=1", comment], SEEN)
    cluster.wait(job_id, "COMPLETED", 60)
    assert lines_of(cluster, job_id, "plain") == sorted(2 * [f"8 4 {i}" for i in range(4)])


def test_a_larger_size_waits_for_no_one_and_takes_from_no_one(cluster: Cluster) -> None:
    """Fifteen GPUs are held: the job starts on the one that is left."""
    whole = cluster.submit("bob", ["-N3", "--gres=gpu:4"], WAIT)
    three = cluster.submit("bob", ["--gres=gpu:3"], WAIT)
    cluster.wait_all((whole, three), "RUNNING")
    job_id = cluster.submit("alice", ["--gres=gpu:2", RANGE], SEEN)
    cluster.wait(job_id, "COMPLETED", 60)
    (gpus,) = lines_of(cluster, job_id, "batch")
    assert gpus.count(",") == 0
    for held in (whole, three):
        end_job(cluster, "bob", held)


@pytest.mark.parametrize("name", ["a task per GPU", "tasks with a GPU and CPUs", "tasks by GPU"])
def test_under_a_limit_the_own_number_is_restored(cluster: Cluster, limit: str, name: str) -> None:
    """Slurm holds the larger job; what was changed for it is undone, and it starts as asked."""
    options = [f"--qos={limit}", *FORMS[name][0]]
    records = []
    for comment in (RANGE, "--comment=class=A"):
        job_id = cluster.submit("alice", [*options, comment], WAIT)
        cluster.wait(job_id, "RUNNING", 90)
        shown = cluster.job(job_id)
        records.append({field: shown.get(field) for field in WRITTEN})
        end_job(cluster, "alice", job_id)
        if comment == RANGE:
            await_event(cluster, job_id, "ended")  # written after all that is counted
            assert [kind for kind, _ in events(cluster, job_id)].count("released") in (2, 3)
    assert records[0] == records[1]


def test_a_range_that_srun_could_not_follow_is_refused(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match=r"cannot change with --exclusive; valid: gpus=2"):
        cluster.submit("alice", ["--gres=gpu:2", "--exclusive", "--comment=gpus=1-4"], "true")
    job_id = cluster.submit("alice", ["--gres=gpu:2", "--exclusive", "--comment=gpus=2"], "true")
    cluster.wait(job_id, "COMPLETED", 60)


def goes_on(cluster: Cluster, job_id: str, told: str) -> None:
    """The moved job of alice says so (``told``: a pattern), and goes on from where it saved."""
    await_event(cluster, job_id, "moved")
    cluster.wait_told(job_id, told)
    cluster.sh("ctl", ["touch", f"/shared/home/alice/go-{job_id}"])
    cluster.wait(job_id, "COMPLETED", 30)
    (saved,) = lines_of(cluster, job_id, "saved")
    assert any(line.startswith(f"1 from {saved} on") for line in lines_of(cluster, job_id, "run"))


def test_a_running_job_grows_when_gpus_become_free(cluster: Cluster) -> None:
    """It saves its work, and goes on from there with four GPUs."""
    held = [cluster.submit("bob", ["-N3", "--gres=gpu:4"], WAIT)]
    held.append(cluster.submit("bob", ["--gres=gpu:3"], WAIT))
    cluster.wait_all(held, "RUNNING")
    comment = "--comment=class=A,model=net,gpus=1-4,move=10s"
    job_id = cluster.running_job("alice", ["-n1", "--gpus-per-task=1", comment, *APPENDS], COUNTS)
    assert sum(map(len, cluster.gpus(job_id).values())) == 1
    for other in held:
        end_job(cluster, "bob", other)
    look_for_moves(cluster)
    await_requeue(cluster, job_id)
    cluster.wait(job_id, "RUNNING", 60)
    assert sum(map(len, cluster.gpus(job_id).values())) == 4
    assert cluster.job(job_id)["NumTasks"] == "4"
    goes_on(cluster, job_id, r"moved from n(.|\n)*by their\s+number")


TELLS = '[ "$SLURM_RESTART_COUNT" ] || touch stopping-$SLURM_JOB_ID'
STOPS_SLOWLY = COUNTS.replace("exit 0'", f"{TELLS}; exit 0'")


@contextlib.contextmanager
def stopping(cluster: Cluster, job_id: str) -> Iterator[None]:
    """In the block Slurm has told the job to end, and its epilog goes on."""
    file = f"{STOPPING}{job_id}"
    told = lambda: cluster.run("ctl", ["test", "-e", file]).returncode == 0  # noqa: E731
    cluster.wait_until(told, 90, lambda: cluster.job(job_id)[""])
    try:
        yield
    finally:
        cluster.sh("ctl", ["rm", file])


def shrinking(cluster: Cluster) -> tuple[str, str, list[str]]:
    """A job of bob, one of alice that is about to shrink, and two of bob for which it does.

    She stands below him, whatever fair share makes of what ran before: for who stands below it, no
    job shrinks.
    """
    held = cluster.running_job("bob", ["-N3", "--gres=gpu:4", "--time=300"], WAIT)
    asked = ["-n1", "--gpus-per-task=1", "--comment=class=A,model=net,gpus=1-4,move=10s"]
    job_id = cluster.running_job("alice", [*asked, "--nice=1000000", *APPENDS], STOPS_SLOWLY)
    assert sum(map(len, cluster.gpus(job_id).values())) == 4
    others = [cluster.submit("bob", ["--gres=gpu:1"], WAIT) for _ in range(2)]
    look_for_moves(cluster)
    return held, job_id, others


def test_a_running_job_shrinks_so_that_waiting_jobs_start(cluster: Cluster) -> None:
    """Even if the selector is killed between the requeue and the restart.

    The request is not changed before its record is back: the change would be lost.
    """
    held, job_id, others = shrinking(cluster)
    with stopping(cluster, job_id):
        cluster.service_down("ctl", "selectd", "KILL")
    await_requeue(cluster, job_id)
    for change in ("numtasks=2", "comment=class=A,model=net,gpus=4-4,move=10s"):
        done = cluster.run("ctl", ["scontrol", "update", f"jobid={job_id}", change], "alice")
        assert done.returncode != 0
        assert b"on its way back to the queue; try again" in done.stderr
    for command in ("hold", "release"):
        cluster.sh("ctl", ["scontrol", command, job_id], "alice")
    cluster.service_up("ctl", "selectd")
    cluster.wait_all((job_id, *others), "RUNNING", 90)
    assert sum(map(len, cluster.gpus(job_id).values())) == 2
    assert cluster.job(job_id)["NumTasks"] == "2"
    goes_on(cluster, job_id, r"on\s+what\s+it\s+gives\s+back\s+job(.|\n)*can\s+start")
    for other in (held, *others):
        end_job(cluster, "bob", other)


def test_a_job_that_was_held_while_it_shrank_waits_no_two_minutes(cluster: Cluster) -> None:
    """Slurm's delay of requeued jobs is left out after the release, too."""
    held, job_id, others = shrinking(cluster)
    # The selector goes on with it once it is held.
    with stopping(cluster, job_id):
        cluster.kill("ctl", "selectd", "STOP")
    await_requeue(cluster, job_id)
    cluster.sh("ctl", ["scontrol", "hold", job_id], "alice")
    cluster.kill("ctl", "selectd", "CONT")
    cluster.wait_all(others, "RUNNING")
    await_event(cluster, job_id, "error")
    cluster.sh("ctl", ["scontrol", "release", job_id], "alice")
    cluster.wait(job_id, "RUNNING", 30)
    assert sum(map(len, cluster.gpus(job_id).values())) == 2
    cluster.sh("ctl", ["scancel", job_id])
    for other in (held, *others):
        end_job(cluster, "bob", other)


def set_limit(cluster: Cluster, gpus: float) -> None:
    """The limit leaves power for so many GPUs of ``net``, at the default clock."""
    watts = (GPUS * IDLE_W + gpus * (200.0 - IDLE_W)) / (1 - MARGIN)
    cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])


@pytest.mark.parametrize("killed", [False, True])
def test_a_running_job_grows_as_far_as_there_is_power(cluster: Cluster, killed: bool) -> None:
    """Another job does not get the power that is kept for it meanwhile.

    ``killed``: the selector is killed between the requeue and the restart.
    """
    with kept(cluster, FILE):
        set_limit(cluster, 1.4)
        comment = "--comment=class=A,model=net,gpus=1-4,move=10s"
        asked = ["-n1", "--gpus-per-task=1", comment, *APPENDS]
        job_id = cluster.running_job("alice", asked, COUNTS)
        assert sum(map(len, cluster.gpus(job_id).values())) == 1
        set_limit(cluster, 2.5)
        look_for_moves(cluster)
        await_requeue(cluster, job_id)
        if killed:
            cluster.kill("ctl", "selectd", "KILL")
        other = cluster.submit("bob", ["--gres=gpu:1", "--comment=class=A,model=net"], WAIT)
        seen: list[float] = []

        def runs() -> bool:
            if found := power(cluster):
                assert found["planned_w"] <= found["limit_w"]
                seen.append(found["planned_w"])
            return bool(seen) and cluster.job(job_id)["JobState"] == "RUNNING"

        cluster.wait_until(runs, 90, lambda: str(cluster.job(job_id)))
        assert sum(map(len, cluster.gpus(job_id).values())) == 2
        await_event(cluster, job_id, "moved")
        cluster.wait_until(
            lambda: "waits for power" in why(cluster, other), 60, lambda: why(cluster, other)
        )
        cluster.sh("ctl", ["touch", f"/shared/home/alice/go-{job_id}"])
        cluster.wait(job_id, "COMPLETED", 30)
        cluster.wait(other, "RUNNING", 60)
        end_job(cluster, "bob", other)
