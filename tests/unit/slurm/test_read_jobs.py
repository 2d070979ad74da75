"""Jobs of Slurm's library into records: recorded ones of both releases, and every sentinel."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import job_record

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import in_holding_pool
from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET, UNLIMITED
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob, array_tasks

RECORDED = sorted((Path(__file__).parents[2] / "data").glob("slurm-*.json"))
PER_CPU = 1 << 63
"""MEM_PER_CPU, as a signed number: what is below 0 is memory of each CPU."""


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def jobs(request: pytest.FixtureRequest) -> dict[str, SlurmJob]:
    """Recorded jobs by what was asked of them."""
    found = json.loads(request.param.read_text())
    names = found["names"]
    read = [job_of(raw) for raw in found["job"]]
    return {names[str(job.raw_id)]: job for job in read if str(job.raw_id) in names}


def read(**fields: Any) -> SlurmJob:
    return job_of(job_record(**fields))


def test_both_releases_are_recorded() -> None:
    assert [path.stem for path in RECORDED] == ["slurm-24.11", "slurm-26.05"]


def test_what_a_recorded_request_says(jobs: dict[str, SlurmJob]) -> None:
    two = jobs["two nodes"]
    assert (two.min_nodes, two.tres_per_node) == (2, "gres/gpu:2")
    assert (two.cpus_per_tres, two.mem_per_tres) == ("gres/gpu:2", "gres/gpu:100")
    assert (two.memory_mb_per_node, two.memory_mb_per_cpu) == (None, None)
    assert jobs["typed"].tres_freq == "gpu:900"
    assert jobs["tasks"].tres_per_task == "gres/gpu=1"
    assert (jobs["range"].min_nodes, jobs["range"].state) in [(2, "PENDING"), (2, "RUNNING")]
    array = jobs["array"]
    assert array_tasks(array.array_tasks or "") == [0, 3, 6, 9]
    assert (array.array_limit, array.reason) == (2, "BeginTime")
    many = jobs["many tasks"]
    assert array_tasks(many.array_tasks or "") == sorted({n * n % 997 for n in range(40)})
    assert jobs["exclusive"].exclusive
    assert not jobs["gres"].exclusive
    assert jobs["memory"].memory_mb_per_node == 0
    assert jobs["memory per CPU"].memory_mb_per_cpu == 1500
    assert jobs["memory per CPU"].ntasks_per_node == 3
    assert jobs["licence"].licence_count("gpuaware") == 1
    assert jobs["licence"].dependency is None
    assert jobs["deadline"].exc_nodes == ("n1", "n2")
    assert jobs["deadline"].deadline_s == jobs["deadline"].submit_s + 2 * 86_400
    assert jobs["memory"].deadline_s is None
    assert (jobs["deadline"].time_limit_s, jobs["deadline"].features) == (300, "gpu_v100")
    assert jobs["endless"].time_limit_s == math.inf
    assert math.isinf(jobs["endless"].end_s)
    assert jobs["bound"].enforce_binding is True
    assert (jobs["cores"].threads_per_core, jobs["cores"].tasks_per_core) == (1, 1)
    assert jobs["cores"].unsupported == ("--sockets-per-node (-B)", "--cores-per-socket (-B)")
    assert jobs["cores"].submitted_with in (None, "sbatch")
    assert jobs["unchecked"].unsupported == ("--contiguous", "--switches", "--prefer")
    assert jobs["several sizes"].unsupported == ("--nodes with several sizes",)
    assert jobs["after"].time_min_s == 600


def test_what_recorded_jobs_hold(jobs: dict[str, SlurmJob]) -> None:
    """Each holds its GPUs alone, of the types that it was given, on cores of their nodes."""
    running = [job for job in jobs.values() if job.state == "RUNNING"]
    held = [(share.node, slot) for job in running for share in job.shares for slot in share.gpus]
    assert len(held) == len(set(held)) >= 4
    for job in running:
        assert tuple(share.node for share in job.shares) == job.nodes
        assert sum(share.cpus for share in job.shares) == job.cpus
        assert {t for share in job.shares for t in share.types.values()} == job.gpu_types
        for share in job.shares:
            assert share.types == {slot: f"g{slot}" for slot in share.gpus}
            assert share.cores is not None
            assert len(share.cores) == share.cpus


def test_no_text_of_a_user_is_more_than_a_text(jobs: dict[str, SlurmJob]) -> None:
    """Names and comments that hold fields, newlines, and whole records of made-up jobs."""
    assert jobs["state in the name"].name == "x JobState=RUNNING"
    assert jobs["newline in the name"].name == "a\nJobId=424242 JobName=forged"
    assert jobs["newline in the comment"].comment == "a\nb JobId=7"
    assert jobs["licences in the comment"].comment == "class=A Licenses=gpuaware:1"
    assert jobs["quotes"].comment == "'\"$(touch /tmp/no)`id`\\"
    assert jobs["utf-8"].name == "猫"
    assert jobs["extra"].extra == "e x=1\nTresPerJob=gres/gpu:7"
    for what, job in jobs.items():
        assert job.state in ("PENDING", "RUNNING"), what
        assert job.admin_comment is None, what
    assert jobs["extra"].tres_per_job is None


def test_nothing_is_set() -> None:
    job = read(
        num_tasks=NOT_SET, cpus_per_task=NOT_SET, ntasks_per_node=NOT_SET, max_nodes=0,
        time_limit=NOT_SET, pn_min_memory=NOT_SET, priority=0, num_nodes=0,
    )  # fmt: skip
    assert (job.tasks, job.cpus_per_task, job.ntasks_per_node) == (1, None, None)
    assert (job.threads_per_core, job.tasks_per_core) == (None, None)
    assert (job.min_nodes, job.max_nodes) == (1, None)
    assert (job.memory_mb_per_node, job.memory_mb_per_cpu) == (None, None)
    assert (job.eligible_s, job.accrue_s, job.tried_at_s, job.start_s) == (None,) * 4
    assert job.time_limit_s is None
    assert math.isinf(job.end_s)
    assert (job.array_id, job.array_tasks, job.array_limit, job.het) == (None, None, None, False)
    assert (job.account, job.qos, job.dependency, job.reservation, job.holding_pool) == (None,) * 5
    assert (job.admin_comment, job.comment, job.extra, job.features) == (None,) * 4
    assert (job.licenses, job.req_nodes, job.shares, job.unsupported) == ((),) * 4
    assert (job.req_tres, job.gpu_types, job.enforce_binding) == ({}, frozenset(), None)
    assert job.priority == 0


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"num_nodes": 2, "max_nodes": 4}, (2, 4)),
        ({"num_nodes": 3, "max_nodes": 2}, (2, 2)),  # as scontrol: at most so many
        ({"num_nodes": 2, "max_nodes": 4, "state": "RUNNING"}, (2, None)),
        ({"num_nodes": 2048, "max_nodes": 0}, (2048, None)),
    ],
)
def test_numbers_of_nodes(fields: dict[str, Any], found: tuple[int, int | None]) -> None:
    job = read(**fields)
    assert (job.min_nodes, job.max_nodes) == found


@pytest.mark.parametrize(
    ("state", "limit", "end", "found"),
    [
        ("RUNNING", 60, 5000, 5000.0),
        ("RUNNING", UNLIMITED, 31536000, math.inf),
        ("PENDING", UNLIMITED, 31536000, math.inf),
        ("SUSPENDED", UNLIMITED, 31536000, math.inf),
        ("COMPLETING", UNLIMITED, 5000, 5000.0),
        ("CANCELLED", UNLIMITED, 5000, 5000.0),
        ("PENDING", 60, 0, math.inf),
    ],
)
def test_the_end_of_a_job(state: str, limit: int, end: int, found: float) -> None:
    assert read(state=state, time_limit=limit, end_time=end).end_s == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"pn_min_memory": 0}, (0, None)),
        ({"pn_min_memory": 8000}, (8000, None)),
        ({"pn_min_memory": 1500 - PER_CPU}, (None, 1500)),
        ({"pn_min_memory": 100, "mem_per_tres": "gres/gpu:100"}, (None, None)),
        ({"pn_min_memory": UNLIMITED}, (None, None)),
    ],
)
def test_memory(fields: dict[str, Any], found: tuple[int | None, int | None]) -> None:
    job = read(**fields)
    assert (job.memory_mb_per_node, job.memory_mb_per_cpu) == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ("7", None, None)),
        ({"array_job_id": 5, "array_task_id": 3}, ("5_3", None, None)),
        ({"array_job_id": 7, "array_task_id": NOT_SET, "array_task_str": "0-2,4-9%2",
          "array_max_tasks": 2}, ("7", "0-2,4-9", 2)),
        # 26.05 leaves the last task in the array's own record and shows it with the limit.
        ({"array_job_id": 7, "array_task_id": NOT_SET, "array_task_str": "6%2",
          "array_max_tasks": 2}, ("7_6", None, 2)),
        ({"array_job_id": 7, "array_task_str": "[1-3]"}, ("7", "1-3", None)),
    ],
)  # fmt: skip
def test_arrays(fields: dict[str, Any], found: tuple[object, ...]) -> None:
    job = read(**fields)
    assert (job.id, job.array_tasks, job.array_limit) == found
    assert job.raw_id == 7


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"contiguous": 1}, ("--contiguous",)),
        ({"req_switch": 1}, ("--switches",)),
        ({"pn_min_tmp_disk": 10}, ("--tmp",)),
        ({"pn_min_tmp_disk": NOT_SET}, ()),
        ({"prefer": "gpu_v100"}, ("--prefer",)),
        ({"batch_features": "big"}, ("--batch",)),
        ({"burst_buffer": "#BB x"}, ("--bb",)),
        ({"segment_size": 2}, ("--segment",)),
        ({"core_spec": 0}, ("--core-spec",)),
        ({"core_spec": 2}, ("--core-spec",)),
        ({"core_spec": 0x8000 | 1}, ("--thread-spec",)),
        ({"sockets_per_node": 2}, ("--sockets-per-node (-B)",)),
        ({"cores_per_socket": 2}, ("--cores-per-socket (-B)",)),
        ({"job_size_str": "1,3"}, ("--nodes with several sizes",)),
        ({"oversized": 1}, ("an option of more than 4,096 characters",)),
    ],
)
def test_options_that_are_not_checked(fields: dict[str, Any], options: tuple[str, ...]) -> None:
    assert read(**fields).unsupported == options


@pytest.mark.parametrize(
    ("exclusive", "expected"),
    [
        (0, (False, False, "")),
        (1, (True, False, "")),
        (2, (False, True, "")),
        (3, (True, False, "mcs")),
        (4, (True, False, "topo")),
    ],
)
def test_with_whom_it_shares_nodes(exclusive: int, expected: tuple[bool, bool, str]) -> None:
    job = read(exclusive=exclusive)
    assert (job.exclusive, job.exclusive_user, job.exclusive_by) == expected
    assert [read(oversubscribe=asked).oversubscribe for asked in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("flags", "found"),
    [(0, None), (1 << 4, True), (1 << 19, False), (1 << 4 | 1 << 33, True), (1 << 20, None)],
)
def test_binding(flags: int, found: bool | None) -> None:
    assert read(bitflags=flags).enforce_binding is found


def test_a_word_of_slurms_for_nothing_is_a_users_text() -> None:
    job = read(name="(null)", comment="(null)", extra="N/A")
    assert (job.name, job.comment, job.extra) == ("(null)", "(null)", "N/A")


def test_texts_that_are_not_utf_8_stay_as_they_are() -> None:
    text = b"bad \xff".decode("utf-8", "surrogateescape")
    assert read(comment=text).comment == text


def test_users_without_a_name() -> None:
    assert read(user_name="", user_id=0).user == "root"
    assert read(user_name="", user_id=4_000_000_000).user == "4000000000"


@pytest.mark.parametrize(("reservation", "ours"), [("gpuaware_pool", True), ("maint", False)])
def test_our_own_reservation_is_none_of_the_users(reservation: str, ours: bool) -> None:
    job = read(resv_name=reservation)
    assert in_holding_pool(reservation) is ours
    assert (job.holding_pool, job.reservation) == (
        (reservation, None) if ours else (None, reservation)
    )


def test_requested_tres() -> None:
    tres = read(tres_req_str="cpu=2K,mem=1.5T,node=1K,billing=8,gres/gpu=4,gres/tmp=512G").req_tres
    assert (tres["cpu"], tres["mem"], tres["node"], tres["gres/gpu"]) == (2048, 1572864, 1024, 4)
    assert tres["gres/tmp"] == 512 * 1024**3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("matlab:\t1", (("matlab", 1),)),
        ("a:1k", (("a", 1),)),
        ("a:x,b:2;c|d:3", (("a", 1), ("b", 2), ("c", 1), ("d", 3))),
        ("gpuaware", (("gpuaware", 1),)),
    ],
)
def test_licences(text: str, found: tuple[tuple[str, int], ...]) -> None:
    assert read(licenses=text).licenses == found


def shares(lines: str) -> tuple[NodeShare, ...]:
    return read(state="RUNNING", nodes="n[1-2]", shares=lines).shares


def test_shares_of_nodes() -> None:
    gres = "gpu:g0:0(IDX:),gpu:g1:1(IDX:1),gpu:g3:1(IDX:3)"
    assert shares(f"n1\t9\t0-7,12\t4500\t{gres}\nn2\t2\t*\t0\t\n") == (
        NodeShare("n1", 9, 4500, (1, 3), {1: "g1", 3: "g3"}, (*range(8), 12)),
        NodeShare("n2", 2, 0, (), {}, None),
    )
    assert shares("n1\t2\t\t0\t\n")[0].cores == ()
    assert read(state="PENDING", shares="n1\t1\t0\t500\t\n").shares == ()


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("shard:1(1/4,0/4)", ()),
        ("gpu:a100(CNT:2)", ()),
        ("gpu:a100:2(IDX:2-3)", (2, 3)),
        ("gpu:g0:1(IDX:0),tmp(CNT:10)", (0,)),
        ("gpu:g0:1(IDX:0),gpu:g1:1(IDX:1),VramPerGpu(CNT:0)", (0, 1)),
        ("gpu:1g.5gb:1(IDX:3),mps:a100:50(50/100,0/100)", (3,)),
    ],
)
def test_gres_of_running_jobs(gres: str, gpus: tuple[int, ...]) -> None:
    assert [share.gpus for share in shares(f"n1\t1\t0\t500\t{gres}\n")] == [gpus]


@pytest.mark.parametrize(
    ("gres", "shards"),
    [
        ("shard:3(1/4,0/4,2/4)", {0: 1, 2: 2}),
        ("shard:g0:0(0/4,0/4),shard:g1:3(0/4,3/4)", {1: 3}),
        ("shard:2", {}),
        ("gpu:g0:1(IDX:0)", {}),
    ],
)
def test_shards_of_running_jobs(gres: str, shards: dict[int, int]) -> None:
    assert [share.shards for share in shares(f"n1\t1\t0\t500\t{gres}\n")] == [shards]


@pytest.mark.parametrize("gres", ["gpu:g0:1(IDX:N/A)", "gpu:g0:2G"])
def test_gpus_that_cannot_be_told_are_an_error_of_that_job(gres: str) -> None:
    with pytest.raises(SourceError):
        shares(f"n1\t1\t0\t500\t{gres}\n")


def test_types_that_an_ended_job_had() -> None:
    job = read(state="COMPLETED", gres_total="gpu:g0:1,gpu:g1:0,gpu:2,shard:1")
    assert job.gpu_types == {"g0"}
