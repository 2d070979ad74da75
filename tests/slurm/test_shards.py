"""Shards on real Slurm: whole-GPU jobs beside them, and the GPUs that jobs of shards get."""

import re
import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from site_files import GRES_CONF, SLURM_CONF, kept, restart
from test_limits import WAIT
from test_way_of_a_job import GATE_LICENCE, decisions, let_go, placed, placed_by_us

TYPES = ",".join(f"shard:g{i}:4" for i in range(4))
ON_N1 = ["-w", "n1", "--mem=100", "-t5"]


@pytest.fixture(scope="module", autouse=True)
def shards(cluster: Cluster) -> Iterator[None]:
    """Four shards of each GPU of n1."""
    with kept(cluster, SLURM_CONF, GRES_CONF):
        text = cluster.sh("ctl", ["cat", SLURM_CONF])
        line = re.search(r"^NodeName=n\[1-4\].*\n", text, re.M)
        assert line is not None
        one = line[0].replace("n[1-4]", "n1").replace("Gres=", f"Gres={TYPES},")
        text = text.replace(line[0], line[0].replace("n[1-4]", "n[2-4]") + one)
        text = text.replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
        cluster.sh("ctl", ["tee", SLURM_CONF], stdin=text)
        files = "\n".join(
            f"NodeName=n1 Name=shard Type=g{i} Count=4 File=/dev/nvidia{i}" for i in range(4)
        )
        cluster.sh("ctl", ["tee", "-a", GRES_CONF], stdin=f"{files}\n")
        restart(cluster)
        yield


def share(cluster: Cluster, number: int, *options: str) -> tuple[str, int]:
    """A running job of bob's with so many shards of a GPU; its id, and the GPU."""
    job_id = cluster.running_job("bob", [*ON_N1, f"--gres=shard:{number}", *options], WAIT)
    return job_id, shard_of(cluster, job_id)


def shard_of(cluster: Cluster, job_id: str) -> int:
    held = re.findall(r" GRES=(\S*)", cluster.job(job_id)[""])
    (slot,) = re.findall(r"shard:g([0-9]):[1-9]", held[0])
    return int(slot)


def test_whole_gpus_beside_shards(cluster: Cluster) -> None:
    """No GPU of which shards are in use is given away; the rest of the node is used."""
    shared, slot = share(cluster, 2)
    whole = [cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT) for _ in range(3)]
    cluster.wait_all(whole, "RUNNING", 40)
    given = {cluster.gpus(job_id)["n1"] for job_id in whole}
    assert given == {(i,) for i in range(4) if i != slot}
    assert all(placed(cluster, job_id) for job_id in whole)
    waits = cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT)
    time.sleep(4)
    assert GATE_LICENCE in cluster.job(waits)["Licenses"]
    let_go(cluster, "bob", shared)
    cluster.wait(waits, "RUNNING", 40)
    assert cluster.gpus(waits) == {"n1": (slot,)}


def test_a_shard_job_that_starts_between_plan_and_release(cluster: Cluster) -> None:
    """It takes the GPU that an earlier round chose: the job gets another one at its turn."""
    blocked = cluster.running_job("alice", ["-w", "n1", "--gres=gpu:3", "--mem=100", "-t60"], WAIT)
    (left,) = set(range(4)) - set(cluster.gpus(blocked)["n1"])
    for _ in range(5):
        cluster.kill("ctl", "selectd", "STOP")
        whole = cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], WAIT)
        shared = cluster.submit("bob", [*ON_N1, "--gres=shard:1"], WAIT)
        cluster.kill("ctl", "selectd", "CONT")
        both = (whole, shared)
        cluster.wait_until(
            lambda both=both: any(cluster.job(i)["JobState"] == "RUNNING" for i in both), 40
        )
        time.sleep(2)
        runs = [i for i in both if cluster.job(i)["JobState"] == "RUNNING"]
        assert len(runs) == 1, "one GPU as a whole and in shards"
        let_go(cluster, "alice" if runs == [whole] else "bob", runs[0])
        other = shared if runs == [whole] else whole
        cluster.wait(other, "RUNNING", 60)
        got = shard_of(cluster, other) if other == shared else cluster.gpus(other)["n1"][0]
        assert got == left
        let_go(cluster, "alice" if other == whole else "bob", other)


STEPS = """
for step in "" -n1 --gres=shard:1 --gres=none; do
    srun $step sh -c 'echo "step $CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE"' || echo failed $step
done
"""


@pytest.mark.parametrize("options", [(), ("-n2", "-c2")])
def test_a_job_of_shards_gets_the_fullest_gpu_that_suffices(
    cluster: Cluster, options: tuple[str, ...]
) -> None:
    first, one = share(cluster, 1)
    second, two = share(cluster, 4)
    third, three = share(cluster, 2)
    fourth, four = share(cluster, 3)
    assert one == three
    assert len({one, two, four}) == 3
    job_id = cluster.running_job("alice", [*ON_N1, "--gres=shard:1", *options], STEPS + WAIT)
    # One shard is free of two GPUs: the lower index
    assert shard_of(cluster, job_id) == min(one, four)
    assert len(placed(cluster, job_id)) == 1
    cluster.wait_told(job_id, r"1 of 4 were free,\s+the fewest that\s+suffice")
    for user, each in (("alice", job_id), *(("bob", i) for i in (first, second, third, fourth))):
        let_go(cluster, user, each)
    cluster.wait(job_id, "COMPLETED", 40)
    output = cluster.output(job_id, "alice")
    assert not re.search("failed|error", output), output
    steps = re.findall("^step ", output, re.M)  # srun may say that a step is not created yet
    assert len(steps) == (4 if "-n2" not in options else 7)


def test_jobs_that_come_together_share_a_gpu(cluster: Cluster) -> None:
    """Also where no GPU has shards in use yet; a job of whole GPUs before them is not passed."""
    jobs = [cluster.submit("bob", ["--mem=100", "-t5", "--gres=shard:2"], WAIT) for _ in range(4)]
    cluster.wait_all(jobs, "RUNNING")
    slots = [shard_of(cluster, job_id) for job_id in jobs]
    assert sorted(map(slots.count, set(slots))) == [2, 2]
    assert all(placed(cluster, job_id) for job_id in jobs)


LEFT = (
    ["--gres=shard:5"],
    ["--gres=shard:1", "-N2"],
    ["--gres=shard:1", "--exclusive"],
    ["--gres=shard:1,gpu:1"],
    ["--gres=shard:1", "--comment=place=off"],
)


def test_what_is_left_to_slurm(cluster: Cluster) -> None:
    """Slurm itself refuses some of them."""
    sbatch = ["sbatch", "--parsable", "-t5", "--mem=100", "--wrap=true"]
    told = [cluster.run("ctl", [*sbatch, *options], "bob") for options in LEFT]
    jobs = [done.stdout.decode().split()[-1] for done in told if done.returncode == 0]
    assert len(jobs) >= 3
    time.sleep(4)  # some rounds of the selector
    shown = lambda: {job_id: cluster.job(job_id)["Licenses"] for job_id in jobs}  # noqa: E731
    opened = lambda: all(GATE_LICENCE not in one for one in shown().values())  # noqa: E731
    cluster.wait_until(opened, 60, lambda: str(shown()))
    assert [job_id for job_id in jobs if placed_by_us(cluster, job_id)] == []


def test_a_job_before_it_is_not_delayed(cluster: Cluster) -> None:
    """A GPU that others use is not kept in use by jobs behind one that waits for all four."""
    shared, _ = share(cluster, 1, "-t3")
    whole = cluster.submit("alice", [*ON_N1, "--gres=gpu:4"], "true")
    last = [*ON_N1, "--gres=shard:1", "--nice=1000000"]
    behind = [cluster.submit("bob", last, "true") for _ in range(2)]
    time.sleep(5)
    found = [cluster.job(job_id) for job_id in (whole, *behind)]
    assert all(GATE_LICENCE in job["Licenses"] for job in found), [job[""] for job in found]
    cluster.wait_told(behind[0], rf"waits\s+for\s+its\s+turn\s+behind\s+job\s+{whole}")
    let_go(cluster, "bob", shared)
    cluster.wait_all((whole, *behind), "COMPLETED")
    starts = [cluster.job(i)["StartTime"] for i in (whole, *behind)]
    assert starts == sorted(starts)


def test_a_job_that_is_requeued_or_changed(cluster: Cluster) -> None:
    """It is restored and placed again, with another number of shards and another time limit."""
    job_id, _ = share(cluster, 2)
    cluster.sh("ctl", ["scontrol", "requeue", job_id])
    cluster.sh("ctl", ["scontrol", "hold", job_id])

    def unbound() -> bool:
        job = cluster.job(job_id)
        return "shard:g" not in job["TresPerNode"] and GATE_LICENCE in job["Licenses"]

    cluster.wait_until(unbound, 60, lambda: cluster.job(job_id)[""])
    for change in ("gres=shard:3", "timelimit=3"):
        cluster.sh("ctl", ["scontrol", "update", f"jobid={job_id}", change], "bob")
    cluster.start_requeued(job_id)
    cluster.sh("ctl", ["scontrol", "release", job_id])
    cluster.wait(job_id, "RUNNING", 60)
    cluster.wait_until(lambda: len(decisions(cluster, job_id)) >= 2, 30, "two decisions")
    assert f"shard:g{shard_of(cluster, job_id)}:3" in cluster.job(job_id)[""]
    assert cluster.job(job_id)["TimeLimit"] == "00:03:00"


def test_a_job_of_whole_gpus_that_becomes_one_of_shards(cluster: Cluster) -> None:
    """It is planned as one."""
    full = [cluster.submit("bob", [*ON_N1, "--gres=gpu:4"], WAIT)]
    cluster.wait(full[0], "RUNNING", 40)
    job_id = cluster.submit("alice", [*ON_N1, "--gres=gpu:1"], STEPS)
    cluster.sh("ctl", ["scontrol", "update", f"jobid={job_id}", "gres=shard:2"], "alice")
    let_go(cluster, "bob", full[0])
    cluster.wait(job_id, "COMPLETED", 60)
    assert placed(cluster, job_id)
    output = cluster.output(job_id, "alice")
    assert not re.search("failed|error", output), output


LISTS = [
    *("shard:g3:1", "shard:g3", "gres/shard:g3:1", "gres:shard:g3:1", "shard=g3=1", "shard:g3=1"),
    *("shard:1,shard:g3:1", "shard:g0:1,shard:g3:1", "gpu:1,shard:g3:1", "gpu:g3:1", "gpu:g3"),
    *(
        "gpu=g3=1",
        "gpu:g3=1",
        "gres/gpu:g3:1",
        "gpu:1,gpu:g3:1",
        "gpu:g0:1,gpu:g3:1",
        "xgres/gpu:g3",
    ),
    *("gpu:G3:1", "GPU:g3:1", "gpu: g3:1", "gpu::g3:1", " gpu:g3:1", "gpu:g03:1", "shard:G3:1"),
    *("SHARD:g3:1", "shard: g3:1", "shard::g3:1", "shard:g3 :1", "shard:g3:1k", "gpu:g3(S:1)"),
    *("gpu:xfUUwfUUxfUU:1", "shard:xfUUwfUUxfUU:1", "gpu:g3:g3:1", "gpu:1:g3", "gpu:(g3):1"),
]
"""GRES lists that might name GPU 3, by types that Slurm takes for g3, too."""
KINDS = ["g3:1", "g3", "G3:1", "gpu:g3:1", "g3=1", "g0:1,g3:1"]
OPTIONS = ["--gpus=", "--gpus-per-node=", "--gpus-per-task=", "--gpus-per-socket="]
OPTIONS += ["--tres-per-task=gres/gpu:", "--tres-per-task=gres/shard:"]


def test_no_user_names_a_gpu_in_any_spelling(cluster: Cluster) -> None:
    """The filter or Slurm refuses it, or the job gets no GPU at all (``--gpus-per-task=g3``)."""
    spellings = [[f"--gres={text}"] for text in LISTS]
    spellings += [[f"{o}{kind}", "-N1", "-n1", "-B1"] for o in OPTIONS for kind in KINDS]
    for options in spellings:
        command = ["sbatch", "--parsable", *ON_N1, *options, "--wrap=sleep 60"]
        done = cluster.run("ctl", command, "bob")
        if done.returncode == 0:
            job_id = done.stdout.decode().split()[-1]
            cluster.wait(job_id, "RUNNING", 60)
            assert not re.search("IDX|g3", cluster.job(job_id)[""].split("TRES=")[1]), options
            cluster.sh("ctl", ["scancel", job_id])
    waiting = cluster.submit("bob", ["--gres=shard:1", "--hold"], "true")
    for text in LISTS:
        cluster.run("ctl", ["scontrol", "update", f"jobid={waiting}", f"gres={text}"], "bob")
        asked = cluster.job(waiting)[""].rstrip().partition("TresPerNode=")[2]
        assert not re.search("(gpu|shard)[:=](g3(?! )|xfUU)", asked), text


@pytest.mark.parametrize("gres", ["shard:g3:1", "gpu:g3:1"])
def test_the_sentence_for_a_job_that_names_a_gpu(cluster: Cluster, gres: str) -> None:
    asked = f"--gres={gres}"
    for command in (
        ["sbatch", asked, "--wrap=true"],
        ["sbatch", "-a1-2", asked, "--wrap=true"],
        ["sbatch", "-n1", ":", asked, "--wrap=true"],
        ["salloc", asked, "true"],
        ["srun", asked, "true"],
        ["env", f"SBATCH_GRES={gres}", "sbatch", "--wrap=true"],
        ["env", f"SALLOC_GRES={gres}", "salloc", "true"],
        ["env", f"SLURM_GRES={gres}", "srun", "true"],
    ):
        done = cluster.run("ctl", command, "bob")
        assert done.returncode, command
        assert "names one GPU of a node, which is chosen for you; ask for a number" in (
            done.stderr.decode()
        ), command
    job_id = cluster.sh("ctl", ["sbatch", "--parsable", "--hold", asked, "--wrap=true"]).strip()
    assert gres in cluster.job(job_id)["TresPerNode"]  # root may
    cluster.sh("ctl", ["scancel", job_id])


def test_a_job_that_waits_for_another_node_holds_up_no_shards(cluster: Cluster) -> None:
    """Only what it has reserved is kept for it, from longer jobs."""
    on_n2 = ["-w", "n2", "--gres=gpu:4", "--mem=100", "-t5"]
    cluster.running_job("alice", on_n2, WAIT)
    share(cluster, 1)
    waits = cluster.submit("alice", on_n2, WAIT)
    share(cluster, 1, "-t60", "--nice=1000000")
    assert GATE_LICENCE in cluster.job(waits)["Licenses"]
