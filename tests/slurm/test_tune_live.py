"""The selector takes what tune has set, without a restart, and goes back when it is deleted."""

import json
import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from site_files import configured

TUNED = "/var/lib/slurm-gpu-aware/tuned.json"
SET = {
    "policy": "packed",
    "options": {},
    "set_at": round(time.time()),
    "gain_percent": 4.1,
    "low_percent": 2.0,
    "high_percent": 6.3,
}


@pytest.fixture
def tunable(cluster: Cluster) -> Iterator[None]:
    """The admin lets tune set packed placement."""
    with configured(cluster, '[tune]\napply = true\nallowed = ["packed"]\n', TUNED):
        yield


def policy(cluster: Cluster, user: str = "alice") -> str:
    """What status shows to a user."""
    return str(json.loads(cluster.sh("ctl", ["gpu-aware", "status", "--json"], user))["policy"])


def policy_of(cluster: Cluster, job_id: str) -> str:
    """The policy that placed a job."""
    return str(cluster.explained(job_id)["policy"])


def ended_job(cluster: Cluster) -> str:
    """A job that has run."""
    job_id = cluster.submit("alice", ["--gres=gpu:2"], "true")
    cluster.wait(job_id, "COMPLETED", 60)
    return job_id


def test_the_file_is_taken_shown_and_given_back(cluster: Cluster, tunable: None) -> None:
    own = policy_of(cluster, ended_job(cluster))
    cluster.wait_until(lambda: policy(cluster) == own, 60, lambda: policy(cluster))

    write = f"umask 022; cat >{TUNED}.new && mv {TUNED}.new {TUNED}"
    cluster.sh("ctl", write, "slurm", stdin=json.dumps(SET))
    cluster.wait_until(
        lambda: policy(cluster).startswith("packed, set by tune on "), 60, lambda: policy(cluster)
    )
    assert policy_of(cluster, ended_job(cluster)) == "packed"
    doctor = cluster.sh("ctl", ["gpu-aware", "doctor", "--json"], check=False)
    checks = {check["name"]: check for check in json.loads(doctor)["checks"]}
    assert checks["policy"]["status"] == "ok"
    assert "gain over packed 4.1% (2.0 to 6.3)" in checks["policy"]["found"]

    cluster.sh("ctl", write, "slurm", stdin='{"policy": "packed"')
    cluster.wait_until(lambda: "does not count" in policy(cluster), 60, lambda: policy(cluster))
    assert policy_of(cluster, ended_job(cluster)) == own
    cluster.sh("ctl", ["rm", TUNED])
    cluster.wait_until(lambda: policy(cluster) == own, 60, lambda: policy(cluster))


def test_a_young_site_is_told_so(cluster: Cluster) -> None:
    cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm", timeout=180)
    ended_job(cluster)
    done = cluster.run("ctl", ["gpu-aware", "tune"], "slurm", timeout=120)
    said = done.stderr.decode().strip().splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, b"")
    assert said.startswith(("Error: too little history: ", "Error: the store has no times")), said
