"""The commands of users on a login node: Slurm's commands, munge and our package, no store."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster

SHARED = "/shared/gpu-aware/state"


@pytest.fixture(scope="module")
def login(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with one more host, ``login``."""
    project = cluster.project
    ctl = docker(
        *("ps", "-q", "--filter", f"label=com.docker.compose.project={project}"),
        *("--filter", "label=com.docker.compose.service=ctl"),
    )
    image = docker("inspect", "-f", "{{.Config.Image}}", ctl)
    network = docker(
        "inspect", "-f", "{{range $n, $_ := .NetworkSettings.Networks}}{{$n}}{{end}}", ctl
    )
    host = docker(
        *("run", "-d", "--init", "--hostname", "login", "--network", network),
        *("--label", f"com.docker.compose.project={project}"),
        *("--label", "com.docker.compose.service=login", "--volumes-from", ctl, image, "login"),
    )
    try:
        cluster.wait_until(
            lambda: cluster.run("login", "munge -n | unmunge").returncode == 0, 60, "munge"
        )
        cluster.reset()
        cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm", timeout=300)
        yield cluster
    finally:
        docker("rm", "-f", host)


def docker(*args: str) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def told_bob(cluster: Cluster, command: str) -> Any:
    return json.loads(cluster.sh("login", f"gpu-aware {command} --json", user="bob", check=False))


def test_a_login_node_has_no_store_and_answers(login: Cluster) -> None:
    assert login.sh("login", "ls /var/lib/slurm-gpu-aware; pgrep slurm || true").strip() == ""
    only = ["--gres=gpu:4", "-w", "n4"]
    first = login.running_job("alice", only, "sleep 300")
    second = login.submit("bob", only, "true")

    def reason() -> bool:
        entries = [p for p in told_bob(login, "queue")["parked"] if p["job_id"] == second]
        return any("n4 has no free GPU" in entry["reason"] for entry in entries)

    login.wait_until(reason, 60, "a reason on the login node")
    newest = told_bob(login, f"explain {first}")["decisions"][-1]
    given = dict(zip(newest["nodes"], (tuple(s) for s in newest["slots"]), strict=True))
    assert given == login.gpus(first)
    status = told_bob(login, "status")
    assert status["gate"]["exists"]
    assert status["parked"] == 1
    assert status["profile"]["gpus"] == 16
    answer = told_bob(login, "place -g 2")["answers"][0]
    assert answer["place"] is not None
    text = login.run("login", "gpu-aware queue", user="bob").stderr.decode()
    assert "From the selector's public copy" in text


def test_without_the_client_the_copy_alone_answers(login: Cluster) -> None:
    """Where the package was installed without Slurm's headers."""
    library = "$(echo /opt/slurm-gpu-aware/lib/python3*/site-packages/slurm_gpu_aware/slurm)"
    login.sh("login", f"mkdir /root/aside && mv {library}/_libslurm.* /root/aside")
    try:
        for command in ("queue", "status", "place -g 2"):
            done = login.run("login", f"gpu-aware {command}", user="bob")
            assert done.returncode == 0, done.stderr
        assert b"the client of Slurm's library is not built" in login.run(
            "login", "gpu-aware queue", user="bob"
        ).stderr.replace(b"\n", b" ")
    finally:
        login.sh("login", f"mv /root/aside/* {library}/ && rmdir /root/aside")


def test_a_shared_folder_that_hangs_or_is_open_to_others_holds_up_nothing(login: Cluster) -> None:
    copier = login.sh("ctl", "pgrep -f 'store[.]shared_copy'").split()[0]
    login.sh("ctl", f"kill -STOP {copier}")
    try:
        job = login.submit("alice", ["--gres=gpu:1"], "true")
        login.wait(job, "COMPLETED")
    finally:
        login.sh("ctl", f"kill -CONT {copier}")
    login.wait_until(
        lambda: told_bob(login, f"explain {job}")["state"] == "ended", 60, "a fresh copy"
    )
    found = login.sh("ctl", f"stat -c '%U %a' {SHARED}/store.db").split()
    assert found == ["slurm", "644"]


def test_where_there_is_no_copy_one_sentence_says_what_to_do(login: Cluster) -> None:
    login.sh("login", "sed '/^published/d' /etc/slurm-gpu-aware/config.toml > /tmp/none.toml")
    for command in ("queue", "status", "explain 1", "place -g 1"):
        done = login.run("login", f"gpu-aware --config /tmp/none.toml {command}", user="bob")
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"an administrator sets store.published" in done.stderr
