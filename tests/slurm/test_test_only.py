"""``--test-only`` with gpu_aware_cli_filter.lua: the answers are those of plain Slurm."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from cluster import NODES, Cluster

CLIENT = "/shared/test-only"
"""Folder with the slurm.conf of the commands that load the file; the cluster's stays as it is."""
ASKED = [
    "sbatch --gres=gpu:1",
    "sbatch --gres=gpu:2 -n2 -c3 --comment=class=A,bw=high",
    "sbatch --gres=gpu:1 --comment='run 7 gpu:class=B'",
    "sbatch --gres=gpu:1 --comment='my own text'",
    f"sbatch --gres=gpu:1 --comment={'x' * 1020}",
    "sbatch --gpus=3",
    "sbatch --gpus=8",
    "sbatch --gpus=17",
    "sbatch -N2 --gpus-per-node=2",
    "sbatch -N2 --gpus=4",
    "sbatch -n4 --gpus-per-task=1",
    "sbatch --gres=gpu:2 --cpus-per-gpu=4",
    "sbatch --gres=gpu:2 --mem-per-gpu=4G",
    "sbatch --gres=gpu:2 --exclusive",
    "sbatch --gres=gpu:2 --array=0-9%3",
    "sbatch --gres=gpu:2 --begin=now+1hour",
    "sbatch --gres=gpu:4 -w n3",
    "sbatch --gres=gpu:5",
    "sbatch --gres=gpu:1 -C no_such_feature",
    "sbatch --gpus=2 --contiguous",
    "sbatch --gres=gpu:1 : --gres=gpu:2",
    "sbatch -n2",
    "srun --gres=gpu:2",
    "srun --gpus=2",
    "srun -N2 --gres=gpu:2",
]


class Answer(NamedTuple):
    """What a user reads, without job ids and our own sentences."""

    text: str
    start: str
    """Time when Slurm would start the job; empty: another answer."""


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[str]:
    """The environment of commands with CliFilterPlugins=lua."""
    cluster.sh("ctl", f"install -d {CLIENT}; install -m 644 /etc/slurm/slurm.conf {CLIENT}/")
    cluster.sh("ctl", f"cp /etc/slurm/gpu_aware_cli_filter.lua {CLIENT}/cli_filter.lua")
    cluster.sh("ctl", f"echo CliFilterPlugins=lua >>{CLIENT}/slurm.conf")
    yield f"SLURM_CONF={CLIENT}/slurm.conf"
    cluster.sh("ctl", f"rm -r {CLIENT}")


def ask(cluster: Cluster, line: str, environment: str = "") -> Answer:
    words = shlex.split(line)
    words.insert(1, "--test-only")
    words += ["--wrap=true"] if words[0] == "sbatch" else ["true"]
    if ":" in words:  # a component more
        words.insert(words.index(":") + 1, "--test-only")
    done = cluster.run("ctl", ["env", *environment.split(), *words], "alice", timeout=60)
    text = (done.stdout + done.stderr).decode()
    text = "".join(line for line in text.splitlines(True) if "gpu-aware: " not in line)
    start = re.search(r"to start at (\S+)", text)
    text = re.sub(r"Job \d+ to start at \S+", "Job", text)
    return Answer(text, start[1] if start else "")


def ask_all(cluster: Cluster, environment: str = "") -> dict[str, Answer]:
    return {line: ask(cluster, line, environment) for line in ASKED}


def now(cluster: Cluster) -> str:
    return cluster.sh("ctl", ["date", "+%Y-%m-%dT%H:%M:%S"]).strip()


def test_answers_are_those_of_plain_slurm(cluster: Cluster, client: str) -> None:
    cluster.await_gate()
    assert "not available" in ask(cluster, ASKED[0]).text, "the gate is not in the way any more"
    free = ask_all(cluster, client)
    for minutes, node in enumerate(NODES, 50):
        full = ["--gres=gpu:4", f"-w{node}", f"-t{minutes}", "--comment=place=off"]
        cluster.wait(cluster.submit("bob", full, "sleep 3600"), "RUNNING", 60)
    busy = ask_all(cluster, client)
    with cluster.plain():
        plain_busy = ask_all(cluster)
        cluster.cancel_all()
        cluster.reset()
        plain_free = ask_all(cluster)
        after = now(cluster)
    assert {k: a.text for k, a in free.items()} == {k: a.text for k, a in plain_free.items()}
    for line, answer in busy.items():
        plain = plain_busy[line]
        # A start now is a second later in the second round.
        if plain.start > after or answer.start > after:
            assert answer == plain or "begin" in line, line
        assert answer.text == plain.text, line
    assert busy[ASKED[0]].start > after, "nothing was busy"
    for line, answer in free.items():
        assert bool(answer.start) == bool(plain_free[line].start), line
        assert answer.start <= after or "begin" in line, line
    assert sum(bool(answer.start) for answer in free.values()) > 15


def test_a_submission_is_parked_as_before(cluster: Cluster, client: str) -> None:
    """And a wrong comment is refused in a test, too."""
    submit = ["env", *client.split(), "sbatch", "--parsable", "--wrap=sleep 1"]
    job_id = cluster.sh("ctl", [*submit, "--gres=gpu:1"], "alice").strip()
    assert cluster.job(job_id)["AdminComment"].startswith("gpuaware/")
    assert cluster.job(job_id).get("Comment") is None
    cluster.wait(job_id, "COMPLETED", 60)
    wrong = cluster.run(
        "ctl", [*submit, "--test-only", "--gres=gpu:1", "--comment=class=D"], "alice"
    )
    assert b"class=D is not valid" in wrong.stderr
    marked = [*submit, "--gres=gpu:1", "--comment=gpu:test-only"]
    held = cluster.sh("ctl", marked, "alice").strip()
    released = cluster.run("ctl", ["scontrol", "release", held], "alice")
    assert b"Slurm only tests this job" in released.stderr
    assert cluster.job(held)["Reason"] == "JobHeldUser"
    typed = cluster.run("ctl", [*submit, "--test-only", "--gpus=v100:1"], "alice")
    assert b"to start at" in typed.stderr
