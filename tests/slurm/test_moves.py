"""Moves on a real Slurm: a job with checkpoints goes to better GPUs and carries on there."""

from collections.abc import Iterator

import pytest
from cluster import Cluster
from idle_clock import Stopwatch
from test_way_of_a_job import NO_HISTORY, decisions, events, one_fast_node, started

MOVES = "[moves]\nenabled = true\nfirst_s = 2.0\nlast_s = 0.0\nmargin_s = 60.0\n"
# It counts, and saves its number when Slurm ends it. "wait" lets the trap run at once.
COUNTS = """cd "$HOME"
step=$(cat count-$SLURM_JOB_ID 2>/dev/null || echo 0)
echo "run ${SLURM_RESTART_COUNT:-0} from $step on $SLURMD_NODENAME"
trap 'echo $step > count-$SLURM_JOB_ID; echo "saved $step"; exit 0' TERM
while [ ! -e go-$SLURM_JOB_ID ]; do
    sleep 0.2 & wait $!
    step=$((step + 1))
done
echo "done at $step"
"""
APPENDS = ["--open-mode=append", "--time=120"]


@pytest.fixture(autouse=True, scope="module")
def moving(cluster: Cluster) -> Iterator[None]:
    """Jobs are moved, and n4 is twice as fast as the other nodes."""
    with one_fast_node(cluster, MOVES + NO_HISTORY):
        yield


def on_slow_gpus(cluster: Cluster, *options: str) -> str:
    """A job of alice beside one of bob that held all of the fast node, and has ended since."""
    # So long that no job waits for it
    held = ["--gres=gpu:4", "--comment=class=A", "--time=600"]
    fast = cluster.running_job("bob", held, "sleep 36000")
    assert list(cluster.gpus(fast)) == ["n4"]
    comment = "--comment=class=A,move=10s"
    job_id = cluster.running_job("alice", ["--gres=gpu:2", comment, *APPENDS, *options], COUNTS)
    started(cluster, job_id)
    assert "n4" not in cluster.gpus(job_id)
    cluster.sh("ctl", ["scancel", fast])
    cluster.wait(fast, "CANCELLED", 60)
    return job_id


def look_for_moves(cluster: Cluster) -> None:
    """A selector that starts looks for moves at once, another one each half a minute."""
    cluster.kill("ctl", "selectd", "TERM")


def await_requeue(cluster: Cluster, job_id: str) -> None:
    shown = lambda: str(cluster.job(job_id))  # noqa: E731
    cluster.wait_until(lambda: cluster.job(job_id)["Restarts"] == "1", 90, shown)


def await_event(cluster: Cluster, job_id: str, wanted: str) -> None:
    cluster.wait_until(
        lambda: wanted in [kind for kind, _ in events(cluster, job_id)],
        90,
        lambda: str(events(cluster, job_id)),
    )


def await_move(cluster: Cluster, job_id: str) -> None:
    """It runs again on the fast node, and goes on where it was."""
    await_requeue(cluster, job_id)
    cluster.wait(job_id, "RUNNING", 60)
    assert list(cluster.gpus(job_id)) == ["n4"]
    await_event(cluster, job_id, "moved")
    cluster.sh("ctl", ["touch", f"/shared/home/alice/go-{job_id}"])
    cluster.wait(job_id, "COMPLETED", 60)
    await_event(cluster, job_id, "ended")
    lines = cluster.output(job_id, "alice").splitlines()
    first, second = (line.split() for line in lines if line.startswith("run "))
    (saved,) = (line.split()[1] for line in lines if line.startswith("saved "))
    assert first[:4] == ["run", "0", "from", "0"]
    assert second == ["run", "1", "from", saved, "on", "n4"]
    assert int(saved) > 0


def test_a_job_moves_goes_on_and_is_counted_once(cluster: Cluster) -> None:
    job_id, watch = on_slow_gpus(cluster), Stopwatch()
    await_move(cluster, job_id)
    share = watch.share
    kinds = [kind for kind, _ in events(cluster, job_id)]
    assert [kinds.count(kind) for kind in ("move_begun", "moved", "ended")] == [1, 1, 1]
    before, after = decisions(cluster, job_id)
    assert (before["state"], before["outcome"]["why"]) == ("waiting", "moved")
    assert after["state"] == "ended"
    assert after["outcome"]["as_planned"] is True
    cluster.wait_told(job_id, r"moved from n(.|\n)*saves")
    # A move lasts seconds, not Slurm's two minutes for requeued jobs.
    (moved,) = (detail for kind, detail in events(cluster, job_id) if kind == "moved")
    assert moved["after_s"] * share < 60


def test_killed_between_requeue_and_placing_nothing_is_lost(cluster: Cluster) -> None:
    job_id = on_slow_gpus(cluster)
    look_for_moves(cluster)
    await_requeue(cluster, job_id)
    cluster.kill("ctl", "selectd", "KILL")
    await_move(cluster, job_id)


def test_a_job_that_slurm_may_not_requeue_stays(cluster: Cluster) -> None:
    job_id = on_slow_gpus(cluster, "--no-requeue")
    look_for_moves(cluster)
    cluster.wait_until(
        lambda: any(d.get("step") == "move" for _, d in events(cluster, job_id)),
        90,
        lambda: str(events(cluster, job_id)),
    )
    assert cluster.job(job_id)["JobState"] == "RUNNING"
    cluster.wait_told(job_id, "It is not moved: Slurm does not requeue it")
    cluster.sh("ctl", ["scancel", job_id])
