"""The client of Slurm's library in the controller's container: its contract, and how it fails."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

CONTRACT = Path(__file__).resolve().parents[1] / "contract"
PYTHON = "/opt/slurm-gpu-aware/bin/python"
FOLDER = "/tmp/contract"
LIMIT_S = 2.0
"""Time limit of each call of ``live_failures.py``."""
HELD_UP_S = 0.5
"""So long may other threads of a process be held up by a call while another process goes on; a call
that kept Python's lock would take ``LIMIT_S``."""


@pytest.fixture(scope="module")
def with_files(cluster: Cluster) -> Iterator[Cluster]:
    """Plain Slurm, with what runs beside it in the controller's container."""
    cluster.sh("ctl", ["mkdir", "-p", FOLDER])
    for path in (*CONTRACT.glob("*.py"), CONTRACT.parent / "idle_clock.py"):
        cluster.sh("ctl", f"cat > {FOLDER}/{path.name}", stdin=path.read_text())
    with cluster.plain():
        yield cluster


def call(
    cluster: Cluster,
    *words: str,
    user: str = "slurm",
    variables: str = "",
    held_up_s: float = HELD_UP_S,
) -> Any:
    """What ``live_failures.py`` found; the process has ended by itself, and nothing held it up."""
    command = f"cd /tmp && {variables} {PYTHON} {FOLDER}/live_failures.py {' '.join(words)}"
    answer = json.loads(cluster.sh("ctl", command, user, timeout=240))
    assert answer["longest_s"] < held_up_s
    return answer["found"]


def parked(cluster: Cluster) -> str:
    """A held job of SlurmUser's."""
    return cluster.sh(
        "ctl", ["sbatch", "--parsable", "-H", "-o", "/dev/null", "--wrap", "true"], "slurm"
    ).strip()


def test_contract(with_files: Cluster) -> None:
    found = json.loads(
        with_files.sh("ctl", [PYTHON, f"{FOLDER}/live_client.py"], "slurm", timeout=300)
    )
    assert len(found) >= 20
    assert {check: failure for check, failure in found.items() if failure} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("Bogus Foo=1", 'line 2: "Bogus Foo=1"'),
        ("NoSuchKey=1", "unrecognized key: NoSuchKey"),
    ],
)
def test_configuration_that_cannot_be_read(
    with_files: Cluster, text: str | None, said: str
) -> None:
    """libslurm ends the process where it cannot read it; a child of ours finds out."""
    conf = f"{FOLDER}/slurm.conf"
    with_files.sh("ctl", f"rm -f {conf}")
    if text is not None:
        with_files.sh("ctl", f"cat > {conf}", stdin=f"ClusterName=x\n{text}\n")
    took_s, message = call(with_files, "open", variables=f"SLURM_CONF={conf}")
    assert took_s < 5
    assert message.startswith("SourceError: ")
    assert said in message


def test_no_configuration(with_files: Cluster) -> None:
    with_files.sh("ctl", "mv /etc/slurm/slurm.conf /etc/slurm/slurm.conf.away")
    try:
        took_s, message = call(with_files, "open")
    finally:
        with_files.sh("ctl", "mv /etc/slurm/slurm.conf.away /etc/slurm/slurm.conf")
    assert took_s < 2
    assert "no slurm.conf at /etc/slurm/slurm.conf" in message


@pytest.mark.parametrize(
    ("stop", "go"),
    [
        ('kill -STOP "$(services pid slurmctld)"', 'kill -CONT "$(services pid slurmctld)"'),
        ("services down slurmctld", "services up slurmctld"),
        ("services down slurmctld KILL", "services up slurmctld"),
        ("services down munged", "services up munged"),
    ],
    ids=["hangs", "ends", "is killed", "munge"],
)
def test_slurm_that_is_away_for_a_while(with_files: Cluster, stop: str, go: str) -> None:
    """Each call ends within its time, with an error; afterwards the same client works again."""
    called = f"/tmp/called-{time.time_ns()}"  # of this test alone: one before may still wait
    waits = f"timeout 240 sh -c 'until [ -e {called} ]; do sleep 0.1; done'"
    with_files.sh("ctl", f"({waits} && {{ {stop}; sleep 8; {go}; }}) >/dev/null 2>&1 &")
    found = call(with_files, "calls", "90", called)
    assert max(took_s for _, took_s, _ in found) < LIMIT_S + 0.5
    errors = [said for _, _, said in found if said]
    assert errors
    assert all(said.startswith("SourceError: Slurm") for said in errors)
    assert found[0][2] == ""
    assert [said for _, _, said in found[-4:]] == [""] * 4


def test_rights_of_an_ordinary_user(with_files: Cluster) -> None:
    said = call(with_files, "rights", parked(with_files), user="alice")
    assert len(said) == 6
    assert all("Invalid user id" in message for message in said), said


def test_many_calls_at_a_time(with_files: Cluster) -> None:
    job_id = parked(with_files)
    # Eight threads take turns at Python's lock
    malloc = "PYTHONMALLOC=malloc"
    found = call(with_files, "busy", "300", job_id, variables=malloc, held_up_s=2.0)
    assert found["failed"] == []
    assert found["grew_kb"] < 256  # at most 110 bytes of a call
