"""A site whose job_submit.lua refuses every change but root's: no job waits for that."""

from collections.abc import Iterator

import pytest
from cluster import GATE, Cluster

from slurm_gpu_aware.selector.backoff import MOST

SCRIPT = "/etc/slurm/job_submit.lua"
RULE = """
local before = slurm_job_modify
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if modify_uid ~= 0 then
        slurm.log_user("only root changes jobs here")
        return slurm.ERROR
    end
    return before(job_desc, job_rec, part_list, modify_uid)
end
"""


@pytest.fixture
def own_script(cluster: Cluster) -> Iterator[str]:
    """The text of job_submit.lua, which is put back."""
    text = cluster.sh("ctl", ["cat", SCRIPT])
    yield text
    write(cluster, text)
    cluster.sh("ctl", "gpu-aware release --all", check=False)
    cluster.kill("ctl", "selectd", "TERM")
    cluster.await_gate()


def with_rule(text: str, *, before: str = "return slurm.SUCCESS") -> str:
    """The script with the site's rule before the last line of this beginning."""
    at = text.rindex(f"\n{before}")
    return text[:at] + RULE + text[at:]


def trials(cluster: Cluster) -> str:
    return cluster.sh("ctl", ["squeue", "-h", "-n", "gpu-aware-trial", "-o", "%i"]).strip()


def write(cluster: Cluster, text: str) -> None:
    cluster.sh("ctl", ["tee", SCRIPT], stdin=text)


def status(cluster: Cluster) -> str:
    return cluster.sh("ctl", ["gpu-aware", "status"])


def open_the_gate(cluster: Cluster) -> None:
    """The selector is away, and the gate as if it had never been closed."""
    cluster.service_down("ctl", "selectd")
    cluster.sh("ctl", ["scontrol", "delete", f"reservation={GATE}"], check=False)


def test_a_site_that_refuses_all_changes_keeps_the_gate_open_until_it_mends_that(
    cluster: Cluster, own_script: str
) -> None:
    """A new selector tries at once; one that works, after two minutes, as unit tests hold."""
    open_the_gate(cluster)
    write(cluster, with_rule(own_script))
    cluster.service_up("ctl", "selectd")
    cluster.wait_until(lambda: "refused" in status(cluster), 120, "status says why it is open")
    assert not cluster.gate_closed()
    assert trials(cluster) == ""
    assert "slurm_job_modify" in status(cluster)
    job = cluster.submit("alice", ["--gres=gpu:1"])
    cluster.wait(job, "COMPLETED", 60)
    doctor = cluster.sh("ctl", ["gpu-aware", "doctor"], check=False)
    assert "changes of jobs" in doctor
    assert "modify_uid ==" in doctor.replace("\n", " ")
    write(cluster, own_script)
    cluster.kill("ctl", "selectd", "TERM")
    cluster.await_gate()
    job = cluster.submit("alice", ["--gres=gpu:1"])
    cluster.wait(job, "COMPLETED", 60)
    cluster.wait_until(lambda: "refused" not in status(cluster), 60, lambda: status(cluster))


def test_a_rule_that_comes_later_opens_the_gate(cluster: Cluster, own_script: str) -> None:
    cluster.await_gate()
    write(cluster, with_rule(own_script))
    jobs = [cluster.submit("alice", ["--gres=gpu:1"]) for _ in range(MOST + 1)]
    cluster.wait_all(jobs, "COMPLETED", 150)
    cluster.wait_until(lambda: "refuse" in status(cluster), 120, "status says why it is open")
    assert not cluster.gate_closed()


def test_a_rule_that_join_calls_keeps_no_job_waiting(cluster: Cluster, own_script: str) -> None:
    open_the_gate(cluster)
    write(cluster, with_rule(own_script, before="local loaded, gpu_aware"))
    cluster.service_up("ctl", "selectd")
    cluster.wait_until(cluster.gate_closed, 120, "the test job could be changed")
    job = cluster.submit("alice", ["--gres=gpu:1"])
    cluster.wait(job, "COMPLETED", 60)
    assert cluster.gate_closed()
    assert "refused" not in status(cluster)
