"""The filter inside a real slurmctld. The selector is down, and the gate closed."""

import random
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from cluster import GATE, Cluster
from site_files import several_clusters

from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse

CONF = "/etc/slurm/gpu_aware_conf.lua"
LOG = "/var/log/cluster/slurmctld.log"
SUBMITTED = "/var/spool/slurm-gpu-aware/submitted"
SAME_AS_G3 = "xfUUwfUUxfUU"
"""A GRES type that Slurm does not tell from g3."""
SAME_WITH_LICENCE = "A.aAA+t0-+z2license/gpuaware"
"""Another one; in --tres-per-task Slurm takes the gate's licence out of it."""

FORBIDDEN = [
    "licenses=gpuaware:1",
    "gres=gpu:g1:1",
    "extra=freq=1530",
    "extra=gpuaware/1;tn=gres/gpu:4",
    f"reservation={GATE}",
]
ALLOWED = [
    "comment=class=B",
    "comment=see",
    "timelimit=5",
    "jobname=other",
    "nice=5",
    "starttime=now",
    "dependency=",
]


@pytest.fixture(autouse=True, scope="module")
def closed_gate(cluster: Cluster) -> Iterator[None]:
    """A gate that no selector opens; the next file finds one that the selector holds."""
    close_gate(cluster)
    yield
    delete_gate(cluster)
    cluster.service_up("ctl", "selectd")
    cluster.await_gate()


@pytest.fixture(autouse=True, name="clean")
def no_jobs(cluster: Cluster) -> None:
    """The cluster's own `clean` would let the selector take the gate."""
    cluster.end_all()


def delete_gate(cluster: Cluster) -> None:
    cluster.run("ctl", ["scontrol", "delete", f"reservation={GATE}"])


def close_gate(cluster: Cluster) -> None:
    """Close it for ten hours, so that it does not need the heartbeat."""
    cluster.service_down("ctl", "selectd")
    delete_gate(cluster)
    create = f"scontrol create reservation reservationname={GATE} licenses=gpuaware:100000"
    cluster.sh("ctl", f"{create} starttime=now duration=600 users=root flags=ANY_NODES nodecnt=0")


def submit(cluster: Cluster, *args: str, user: str = "alice") -> tuple[int, str, str]:
    """(status, job id or nothing, what the user reads)."""
    done = cluster.run("ctl", ["sbatch", "--parsable", *args, "--wrap=sleep 1"], user)
    job_id = done.stdout.decode().strip().partition(";")[0]  # the cluster follows with -M
    return done.returncode, job_id, done.stderr.decode()


def update(cluster: Cluster, job: str, change: str, user: str = "alice") -> tuple[int, str]:
    done = cluster.run("ctl", ["scontrol", "update", f"jobid={job}", change], user)
    return done.returncode, (done.stdout + done.stderr).decode()


def waiting(cluster: Cluster) -> list[dict[str, str]]:
    """Jobs that have not ended (Slurm shows ended ones for some minutes)."""
    return [j for j in cluster.jobs() if j["JobState"] == "PENDING"]


def open_gate(cluster: Cluster, job: str) -> None:
    assert update(cluster, job, "licenses=", "root") == (0, "")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--gres=gpu:2"], OriginalRequest("gres/gpu:2", min_cpus=1)),
        (["--gpus=2"], OriginalRequest(tres_per_job="gres/gpu:2", min_cpus=1)),
        (
            ["-N2", "--gpus-per-node=2"],
            OriginalRequest("gres/gpu:2", nodes=(2, 2), min_cpus=2),
        ),
        (
            ["-n4", "-c2", "--gpus-per-task=1"],
            OriginalRequest(
                tres_per_task="cpu=2,gres/gpu=1",
                tres_bind="gres/gpu:per_task:1",
                num_tasks=4,
                cpus_per_task=2,
                min_cpus=8,
                min_cpus_node=2,
            ),
        ),
        (
            ["--gpus=v100:2", "-C", "gpu_v100", "-x", "n4"],
            OriginalRequest(
                tres_per_job="gres/gpu:2",
                features="gpu_v100&gpu_v100",
                model="v100",
                exc_nodes="n4",
                min_cpus=1,
            ),
        ),
    ],
)
def test_parked(cluster: Cluster, args: list[str], expected: OriginalRequest) -> None:
    status, job, said = submit(cluster, *args, "--comment=class=A")
    assert (status, said) == (0, "")
    cluster.wait_until(lambda: cluster.job(job)["Reason"] == "Licenses", 60, "waits for the gate")
    fields = cluster.job(job)
    assert fields["JobState"] == "PENDING"
    assert fields["Licenses"] == "gpuaware:1"
    assert int(fields["Priority"]) > 0
    assert parse(fields["AdminComment"]) == expected
    open_gate(cluster, job)
    cluster.wait(job, "COMPLETED")


def test_refusals_reach_the_user(cluster: Cluster) -> None:
    for args, sentence in [
        (["--gres=gpu:1", "--comment=class=D"], "class=D is not valid; valid: A, B, C, auto"),
        (["--gres=gpu:g1:1"], "GPU type g1 names one GPU of a node"),
        ([f"--gres=gpu:{SAME_AS_G3}:1"], "the same as g3, names one GPU of a node"),
        ([f"--gpus={SAME_AS_G3}:1", "--comment=place=off"], "the same as g3"),
        (["-n1", f"--tres-per-task=gres/gpu:{SAME_AS_G3}:1"], "the same as g3"),
        (["-n1", "--tres-per-task=license/gpuaware:100000"], "licence gpuaware is the gate"),
        (["-n1", f"--tres-per-task=gres/gpu:{SAME_WITH_LICENCE}:1"], "licence gpuaware is"),
        (["--licenses=gpuaware:1"], "licence gpuaware is the gate"),
        (["--gpus=1", f"--reservation={GATE}"], f"reservation {GATE} is the gate"),
        (["--gpus=1", "--extra=freq=900"], "--comment=freq=MHz"),
    ]:
        status, job, said = submit(cluster, *args)
        assert status != 0, args
        assert job == ""
        assert said.startswith("sbatch: error: gpu-aware: ")
        assert sentence in said.splitlines()[0]
    assert waiting(cluster) == []


def test_licences_of_megabytes_do_not_hold_slurmctld_up(cluster: Cluster) -> None:
    script = f"#!/bin/sh\n#SBATCH --licenses={',' * 3_900_000}\nsleep 1\n"
    spent = "cut -d ' ' -f 14,15 /proc/$(services pid slurmctld)/stat"  # ticks of 10 ms
    before = cluster.sh("ctl", spent)
    done = cluster.run("ctl", ["sbatch"], "alice", stdin=script)
    assert done.returncode != 0
    assert b"--licenses is longer than 1024 characters" in done.stderr
    took = sum(map(int, cluster.sh("ctl", spent).split())) - sum(map(int, before.split()))
    assert took < 50, "half a second of slurmctld's CPU time"


def test_left_to_slurm_and_told(cluster: Cluster) -> None:
    several = ["-M", "gpuaware,gpuaware", "--gpus=1"]
    for args, reason in [
        (["--gpus=5"], "evenly"),
        (["--gpus=1", "--comment=place=off"], "place=off"),
        (several, "several clusters"),
    ]:
        with several_clusters(cluster) if args is several else nullcontext():
            status, job, said = submit(cluster, *args)
        assert status == 0
        assert said.count("gpu-aware: this job is left to Slurm, which chooses its GPUs: ") == 1
        assert reason in said
        if args is not several:  # it waits for its turn, and no selector opens it
            assert cluster.job(job)["Licenses"] == "gpuaware:1"
            open_gate(cluster, job)
        assert cluster.wait(job, "COMPLETED")["Licenses"] == "(null)"
    assert cluster.job(submit(cluster, *several)[1])["Licenses"] == "gpuaware:1"


RAW = r"""
#include <slurm/slurm.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **options)
{
    job_desc_msg_t job;
    submit_response_msg_t *made = NULL;
    char *environment[] = {"PATH=/usr/bin:/bin", NULL};
    slurm_init(NULL);
    slurm_init_job_desc_msg(&job);
    job.user_id = getuid();
    job.group_id = getgid();
    job.tres_per_node = "gres/gpu:1";
    job.script = "#!/bin/sh\n";
    job.work_dir = "/tmp";
    job.environment = environment;
    job.env_size = 1;
    job.bitflags |= count > 1 ? CRON_JOB : 0;
    return slurm_submit_batch_job(&job, &made) ? 3 : 0;
}
"""


def test_no_program_forges_a_job_of_scrontab(cluster: Cluster) -> None:
    """slurmctld takes its mark from any client, and removes it after the filter."""
    cluster.sh("ctl", "cc -x c - -o /tmp/raw -lslurm", stdin=RAW)
    assert cluster.run("ctl", ["/tmp/raw", "forge"], "alice").returncode == 3
    assert waiting(cluster) == []
    assert cluster.run("ctl", ["/tmp/raw"], "alice").returncode == 0
    assert [job["Licenses"] for job in waiting(cluster)] == ["gpuaware:1"]


def test_jobs_without_gpus_are_not_touched(cluster: Cluster) -> None:
    status, job, said = submit(cluster, "--comment=class=A")
    assert (status, said) == (0, "")
    assert "AdminComment" not in cluster.wait(job, "COMPLETED")


def test_a_model_does_not_reach_srun_inside(cluster: Cluster) -> None:
    """sbatch exports SLURM_GPUS=v100:1; with it srun would ask for a type that no node has."""
    job = cluster.submit("alice", ["--gpus=v100:1"], 'echo "asks $SLURM_GPUS"; srun echo ran')
    open_gate(cluster, job)
    cluster.wait(job, "COMPLETED")
    assert cluster.output(job, "alice").splitlines() == ["asks 1", "ran"]


def test_array_task_by_task(cluster: Cluster) -> None:
    job = cluster.submit("alice", ["--array=0-3%2", "--gres=gpu:1"])
    open_gate(cluster, f"{job}_1")
    cluster.wait(f"{job}_1", "COMPLETED")
    others = [j for j in cluster.jobs(job) if j.get("ArrayTaskId") != "1"]
    assert {j["Licenses"] for j in others} == {"gpuaware:1"}


@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_interactive_waits_and_goes_on(cluster: Cluster, command: str) -> None:
    process = cluster.start_command("ctl", [command, "--gres=gpu:1", "echo", "ran"], "alice")
    try:
        cluster.wait_until(
            lambda: [j.get("Reason") for j in waiting(cluster)] == ["Licenses"], 60, "parked"
        )
        job = waiting(cluster)[0]
        assert parse(job["AdminComment"]) == OriginalRequest(
            "gres/gpu:1", min_cpus=1, interactive=True
        )
        open_gate(cluster, job["JobId"])
        out, _ = cluster.finish(process, 60)
        assert (process.returncode, out) == (0, b"ran\n")
    finally:
        process.kill()


def test_owner_cannot_open_the_gate(cluster: Cluster) -> None:
    job = cluster.submit("alice", ["--gres=gpu:2", "--comment=class=A"])
    watched = ("Licenses", "TresPerNode", "NumNodes", "NumCPUs", "Features", "AdminComment")
    before = {key: cluster.job(job).get(key) for key in watched}
    for change in FORBIDDEN:
        status, said = update(cluster, job, change)
        assert status != 0, change
        assert "gpu-aware: " in said, change
    assert {key: cluster.job(job).get(key) for key in watched} == before
    assert update(cluster, job, "admincomment=x")[0] != 0
    assert update(cluster, job, "licenses=", "bob")[0] != 0
    assert "class=D is not valid" in update(cluster, job, "comment=class=D")[1]
    for change in ALLOWED:
        assert update(cluster, job, change) == (0, ""), change
    assert update(cluster, job, "licenses=") == (0, "")  # its own; the gate's stays
    assert cluster.job(job)["Licenses"] == "gpuaware:2"
    for command in ("hold", "release"):
        assert cluster.run("ctl", ["scontrol", command, job], "alice").returncode == 0


def test_owner_cannot_enter_by_another_job(cluster: Cluster) -> None:
    _, other, _ = submit(cluster, "--hold")
    _, left, _ = submit(cluster, "--hold", "--gres=gpu:1", "--comment=place=off")
    for job, change in [
        (other, "licenses=gpuaware"),
        (other, f"reservation={GATE}"),
        (other, "gres=gpu:g1:1"),
        (other, f"gres=gpu:{SAME_AS_G3}:1"),
        (other, "trespertask=license/gpuaware:1"),
        (other, "licenses=" + "a," * 600),
        (left, "licenses=gpuaware:1"),
        (left, "tresperjob=gres/gpu:g3:1"),
        (left, "extra=freq=900"),
    ]:
        status, said = update(cluster, job, change)
        assert status != 0, change
        assert "gpu-aware: " in said, change


def test_odd_comments_do_no_harm(cluster: Cluster) -> None:
    rng = random.Random(11)
    logged = int(cluster.sh("ctl", f"wc -c <{LOG}"))  # other tests break the filter
    pieces = ["class=A", "bw=", "'", '"', "$(touch /tmp/owned)", "`id`", "\n", "é日本"]
    pieces += [";", "%s", ","]
    for _ in range(25):
        comment = "".join(rng.choices(pieces, k=4))
        submit(cluster, "--gres=gpu:1", f"--comment={comment}")
    submit(cluster, "--gres=gpu:1", "--comment=" + "class=A," * 1280)
    assert cluster.sh("ctl", "ls /tmp/owned 2>&1 || true").startswith("ls: cannot")
    assert {j["Licenses"] for j in waiting(cluster)} == {"gpuaware:1"}
    assert ": job passes unmodified" not in cluster.sh("ctl", f"tail -c +{logged + 1} {LOG}")


def test_each_parked_job_leaves_a_byte(cluster: Cluster) -> None:
    def size() -> int:
        return int(cluster.sh("ctl", f"stat -c %s {SUBMITTED} 2>/dev/null || echo 0"))

    before = size()
    for _ in range(3):
        submit(cluster, "--gres=gpu:1")
    submit(cluster)
    assert size() == before + 3


def test_broken_configuration_lets_jobs_pass(cluster: Cluster) -> None:
    before = int(cluster.sh("ctl", f"wc -c <{LOG}"))
    touch = "touch -d @$(($(stat -c %Y /etc/slurm/job_submit.lua)+1)) /etc/slurm/job_submit.lua"
    try:
        cluster.sh("ctl", f"echo 'return {{' > {CONF}; {touch}")
        status, job, said = submit(cluster, "--gres=gpu:1")
        assert (status, said) == (0, "")
        cluster.wait(job, "COMPLETED")
        said = cluster.sh("ctl", f"tail -c +{before + 1} {LOG}")
        assert "passes unmodified" in said
        assert CONF in said
    finally:
        cluster.mode("aware")
        close_gate(cluster)
    _, job, _ = submit(cluster, "--gres=gpu:1")
    assert cluster.job(job)["Licenses"] == "gpuaware:1"
