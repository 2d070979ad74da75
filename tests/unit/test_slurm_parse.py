"""The parser on answers of a real Slurm, hostile names and comments included.

``tests/data/record_slurm.py`` recorded them; Slurm's own JSON is the judge.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.job_reader import parse_jobs
from slurm_gpu_aware.slurm.parse_cluster import (
    parse_config,
    parse_free_licenses,
    parse_nodes,
    parse_partitions,
    parse_reservations,
)
from slurm_gpu_aware.slurm.parse_json import parse_jobs_json
from slurm_gpu_aware.slurm.records import SlurmJob, array_tasks
from slurm_gpu_aware.slurm.values import (
    parse_count,
    parse_duration,
    parse_licenses,
    parse_memory,
)

DATA = Path(__file__).parents[1] / "data"
RELEASES = sorted(path.name for path in DATA.glob("slurm-*"))
# Names of a job record that text and JSON write differently, all of them harmless
OTHER_WORDS = {"gpu_types", "tasks", "reason", "memory_mb_per_node", "name", "comment"}


def read(release: str, name: str) -> str:
    return (DATA / release / name).read_bytes().decode("utf-8", "surrogateescape")


def recorded(release: str) -> tuple[dict[str, SlurmJob], dict[int, SlurmJob], set[int]]:
    """(jobs by what was asked, jobs by JSON, doubtful numbers)."""
    names = json.loads(read(release, "names.json"))
    found = parse_jobs(read(release, "jobs.txt"))
    named = {names[str(job.raw_id)]: job for job in found.jobs if str(job.raw_id) in names}
    truth = {job.raw_id: job for job in parse_jobs_json(read(release, "jobs.json"))}
    return named, truth, set(found.doubtful)


@pytest.mark.parametrize("release", RELEASES)
def test_text_says_what_json_says(release: str) -> None:
    jobs, truth, _ = recorded(release)
    assert len(jobs) >= 12
    for what, job in jobs.items():
        if what in ("admin comment in the comment", "a directory with words"):
            continue
        for field in dataclasses.fields(job):
            if field.name in OTHER_WORDS:
                continue
            mine, theirs = getattr(job, field.name), getattr(truth[job.raw_id], field.name)
            if field.name == "looked_at_s":  # Slurm went on between the two readings
                assert abs(mine - theirs) <= 10 if mine and theirs else mine == theirs, what
                continue
            if field.name == "shares":
                mine = [(s.node, s.memory_mb, s.gpus, s.types) for s in mine]
                theirs = [(s.node, s.memory_mb, s.gpus, s.types) for s in theirs]
            assert mine == theirs, (what, field.name)


@pytest.mark.parametrize("release", RELEASES)
def test_no_user_can_forge_a_record(release: str) -> None:
    _, truth, doubtful = recorded(release)
    found = parse_jobs(read(release, "jobs.txt"))
    for job in found.jobs:
        real = truth.get(job.raw_id)
        assert real is not None, f"job {job.raw_id} does not exist"
        assert (job.user, job.state, job.nodes) == (real.user, real.state, real.nodes)
        assert job.licenses == real.licenses
        assert [s.gpus for s in job.shares] == [s.gpus for s in real.shares]
    names = json.loads(read(release, "names.json"))
    for number, what in names.items():
        if "newline in the name" in what or "record" in what:
            assert int(number) in doubtful, what


@pytest.mark.parametrize("release", RELEASES)
def test_every_job_is_read_or_doubted(release: str) -> None:
    _, truth, doubtful = recorded(release)
    read_or_doubted = {job.raw_id for job in parse_jobs(read(release, "jobs.txt")).jobs} | doubtful
    assert set(truth) <= read_or_doubted


def test_the_last_task_of_a_throttled_array_is_a_task() -> None:
    """26.05 leaves it in the array's own record and shows it with the limit."""
    text = read("slurm-24.11", "jobs.txt")
    line = next(line for line in text.splitlines() if "ArrayTaskId=0,3,6,9%2" in line)
    (job,) = parse_jobs(line.replace("ArrayTaskId=0,3,6,9%2", "ArrayTaskId=6%2")).jobs
    assert (job.id, job.array_tasks, job.array_limit) == (f"{job.raw_id}_6", None, 2)


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_request_says(release: str) -> None:
    jobs, _, _ = recorded(release)
    two = jobs["two nodes"]
    assert (two.min_nodes, two.tres_per_node) == (2, "gres/gpu:2")
    assert (two.cpus_per_tres, two.mem_per_tres) == ("gres/gpu:2", "gres/gpu:100")
    assert [len(share.gpus) for share in two.shares] == [2, 2]
    assert jobs["typed"].tres_freq == "gpu:900"
    assert jobs["typed"].shares == () or jobs["typed"].shares[0].gpus == (1, 3)
    array = jobs["array"]
    assert array_tasks(array.array_tasks or "") == [0, 3, 6, 9]
    assert (array.array_limit, array.reason) == (2, "BeginTime")
    assert jobs["exclusive"].exclusive
    assert jobs["memory"].memory_mb_per_node == 0
    assert jobs["memory per CPU"].memory_mb_per_cpu == 1500
    assert jobs["licence"].licence_count("gpuaware") == 1
    assert jobs["deadline"].exc_nodes == ("n1", "n2")
    assert jobs["deadline"].time_limit_s == 300


@pytest.mark.parametrize("release", RELEASES)
def test_the_rest_of_the_cluster(release: str) -> None:
    nodes = parse_nodes(read(release, "nodes.txt"))
    assert [node.name for node in nodes] == ["n1", "n2", "n3", "n4"]
    assert nodes[0].gpus == (("g0", 1), ("g1", 1), ("g2", 1), ("g3", 1))
    held = {
        (share.node, slot)
        for job in parse_jobs_json(read(release, "jobs.json"))
        if job.state == "RUNNING"
        for share in job.shares
        for slot in share.gpus
    }
    assert {(node.name, slot) for node in nodes for slot in node.gpus_used} == held
    (partition,) = parse_partitions(read(release, "partitions.txt"))
    assert partition.nodes == {"n1", "n2", "n3", "n4"}
    assert (partition.default_time_s, partition.max_time_s) == (3600, math.inf)
    reservations = {r.name: r for r in parse_reservations(read(release, "reservations.txt"))}
    assert reservations["maintenance"].nodes == {"n4"}
    assert reservations["gpuaware_gate"].licenses == (("gpuaware", 100000),)
    config = parse_config(read(release, "config.txt"))
    assert config.counts_memory
    assert config.version >= (24, 11)
    assert parse_free_licenses(read(release, "licenses.txt")) == {"gpuaware": 0}


def test_no_jobs() -> None:
    assert parse_jobs("No jobs in the system\n").jobs == []
    assert parse_jobs("").jobs == []


def test_a_second_record_of_one_job_makes_it_doubtful() -> None:
    text = read(RELEASES[0], "jobs.txt").split("\n")[0]
    found = parse_jobs(text + "\n" + text.replace("JobState=RUNNING", "JobState=PENDING") + "\n")
    assert found.jobs == []
    assert len(found.doubtful) == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,07]", ("n1", "n2", "n3", "n07")),
        ("n1 n2,", ("n1", "n2")),
        ("r[1-2]n[08-10],x", ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x")),
    ],
)
def test_hostlists(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n;rm", "n[1-999999999]", "$(id)", "n["])
def test_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(SourceError):
        expand_hostlist(text)


def test_small_values() -> None:
    assert parse_licenses("matlab:2,other") == (("matlab", 2), ("other", 1))
    assert parse_duration("1-02:03:04") == 93784
    assert math.isinf(parse_duration("UNLIMITED"))
    assert (parse_memory("1.5G"), parse_memory("100M"), parse_memory("2T")) == (1536, 100, 2097152)
    assert (parse_count("16"), parse_count("2K"), parse_count("1.5K")) == (16, 2048, 1536)
    with pytest.raises(SourceError):
        parse_duration("soon")


@pytest.mark.parametrize(
    ("tres", "cpus", "gpus"),
    [
        ("cpu=16", 16, None),
        ("cpu=4,gres/gpu=2,gres/gpu:g0=1,gres/gpu:g1=1", 4, 2),
        ("cpu=2,gres/gpu:g3=1", 2, 1),
        ("(null)", None, None),
    ],
)
def test_what_a_reservation_holds_of_its_nodes(tres: str, cpus: int | None, gpus: int | None):
    line = (
        "ReservationName=half StartTime=1 EndTime=2 Duration=00:00:01 Nodes=n[1-2] NodeCnt=2"
        f" CoreCnt=4 Features=(null) PartitionName=gpu Flags=MAGNETIC TRES={tres} Users=alice"
        " Licenses=(null) State=ACTIVE   NodeName=n1 CoreIDs=0-1   NodeName=n2 CoreIDs=0-1"
    )
    (found,) = parse_reservations(line)
    assert (found.cpus, found.gpus, found.nodes) == (cpus, gpus, {"n1", "n2"})
    assert found.flags == {"MAGNETIC"}
