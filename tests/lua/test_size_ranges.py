"""gpus=MIN-MAX: which jobs may get another number of GPUs, and what the filter does with them."""

from typing import Any

import pytest
from luafilter import ALICE, ERROR, SUCCESS, Filter

from slurm_gpu_aware.gate.admin_comment import noted_record, parse

RANGE = {"comment": "gpus=1-8"}
NODE = {"tres_per_node": "gres/gpu:2"}
TOTAL = {"tres_per_job": "gres/gpu:2"}
PER_TASK = {"tres_per_task": "gres/gpu=1"}
TWO_NODES = {"min_nodes": 2, "max_nodes": 2}

ALLOWED: list[tuple[str, dict[str, Any], str]] = [
    ("--gres=gpu:2", NODE, "nodes"),
    ("--gpus=2", TOTAL, "nodes"),
    ("-n1 --gpus=2", TOTAL | {"num_tasks": 1}, "nodes"),
    ("-n2 --gpus=2", TOTAL | {"num_tasks": 2}, "gpus"),
    ("-n2 --gres=gpu:2", NODE | {"num_tasks": 2}, "gpus"),
    ("-n1 --gpus=1", {"tres_per_job": "gres/gpu:1", "num_tasks": 1}, "nodes"),
    ("-n1 --gpus-per-task=1", PER_TASK | {"num_tasks": 1}, "gpus"),
    ("-n4 --gpus-per-task=1", PER_TASK | {"num_tasks": 4}, "gpus"),
    ("--ntasks-per-gpu=2", TOTAL | {"num_tasks": 4, "ntasks_per_tres": 2}, "gpus"),
    ("-N2 --gres=gpu:2", NODE | TWO_NODES, "nodes"),
    ("-N2 -n2 --gres=gpu:2", NODE | TWO_NODES | {"num_tasks": 2}, "nodes"),
    ("-N2 -n4 --gres=gpu:2", NODE | TWO_NODES | {"num_tasks": 4}, "gpus"),
    ("-N2 -n2 --gpus=2", TOTAL | TWO_NODES | {"num_tasks": 2}, "gpus"),
    ("--ntasks-per-node=1", TOTAL | TWO_NODES | {"ntasks_per_node": 1, "num_tasks": 2}, "nodes"),
    ("--cpus-per-gpu", NODE | {"cpus_per_tres": "gres/gpu:2"}, "nodes"),
    ("an array", NODE | {"array_inx": "0-9"}, "nodes"),
    ("a model", {"tres_per_job": "gres/gpu:a100:2"}, "nodes"),
]
FIXED: list[tuple[str, dict[str, Any], str, str]] = [
    ("salloc", NODE | {"script": None}, "salloc and srun", "gpus=2"),
    ("--exclusive", NODE | {"shared": 0}, "--exclusive", "gpus=2"),
    (
        "--gpus-per-socket",
        {"tres_per_socket": "gres/gpu:1", "sockets_per_node": 2},
        "--gpus-per-socket",
        "gpus=2",
    ),
    (
        "--gpus-per-task=2",
        {"tres_per_task": "gres/gpu=2", "num_tasks": 2},
        "--gpus-per-task of more than 1",
        "gpus=4",
    ),
    ("--ntasks-per-node=2", NODE | {"ntasks_per_node": 2}, "--ntasks-per-node", "gpus=2"),
    (
        "--ntasks-per-node --gpus-per-task",
        PER_TASK | TWO_NODES | {"ntasks_per_node": 1},
        "--ntasks-per-node",
        "gpus=2",
    ),
    ("-N2-4", NODE | {"min_nodes": 2, "max_nodes": 4}, "nodes that is not fixed", "no gpus="),
    ("-n4 --gpus=2", TOTAL | {"num_tasks": 4}, "--ntasks that is neither", "gpus=2"),
    ("--gpus=8", {"tres_per_job": "gres/gpu:8"}, "several nodes without --nodes", "gpus=8"),
]


@pytest.mark.parametrize(("name", "fields", "tasks"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_the_record_says_what_becomes_of_the_tasks(
    filter_: Filter, name: str, fields: dict[str, Any], tasks: str
) -> None:
    out = filter_.submit(**fields, **RANGE)
    assert (out.rc, out.messages) == (SUCCESS, [])
    record = parse(out.job["admin_comment"])
    assert record is not None
    assert record.resizable == tasks
    for comment in ("class=A", "gpus=" + ("4" if "n4" in name or "-N2" in name else "2")):
        plain = filter_.submit(**fields, comment=comment)
        fixed = parse(plain.job.get("admin_comment"))
        assert fixed is None or fixed.resizable is None


@pytest.mark.parametrize(("name", "fields", "why", "valid"), FIXED, ids=[row[0] for row in FIXED])
def test_a_range_is_refused_where_srun_could_not_follow(
    filter_: Filter, name: str, fields: dict[str, Any], why: str, valid: str
) -> None:
    out = filter_.submit(**fields, **RANGE)
    assert (out.rc, out.written) == (ERROR, [])
    assert "gpus=1-8: the number of GPUs cannot change with" in out.messages[0]
    assert why in out.messages[0]
    assert out.messages[0].endswith(f"valid: {valid}")
    if valid != "no gpus=":
        assert filter_.submit(**fields, comment=valid).rc == SUCCESS


def test_a_job_that_is_left_to_slurm_keeps_its_number(filter_: Filter) -> None:
    out = filter_.submit(**NODE, **RANGE, contiguous=1, environment={"SLURM_GPUS_PER_NODE": "2"})
    assert (out.rc, sorted(out.written)) == (SUCCESS, ["admin_comment", "licenses"])
    record = parse(out.job["admin_comment"])
    assert record is not None
    assert (record.left, record.resizable) == ("--contiguous", None)
    assert out.environment == {"SLURM_GPUS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"SLURM_GPUS": "2"}, {"SLURM_GPUS": ""}),
        ({"SLURM_GPUS": "a100:2", "HOME": "/x"}, {"SLURM_GPUS": "", "HOME": "/x"}),
        ({"SLURM_GPUS_PER_NODE": "2"}, {"SLURM_GPUS_PER_NODE": ""}),
        ({"SLURM_TRES_PER_TASK": "gres/gpu=1"}, {"SLURM_TRES_PER_TASK": "gres/gpu=1"}),
        ({}, {}),
    ],
)
def test_srun_inside_asks_for_no_number(
    filter_: Filter, given: dict[str, str], left: dict[str, str]
) -> None:
    job = {"tres_per_job": "gres/gpu:a100:2"}
    assert filter_.submit(**job, **RANGE, environment=given).environment == left
    if not any("a100" in value for value in given.values()):
        assert filter_.submit(**job, comment="gpus=2", environment=given).environment == given


RECORD = "gpuaware/1;tj=gres/gpu:2;nt=2;mc=2;rs=gpus"
PARKED = TOTAL | {
    "licenses": "gpuaware:1",
    "admin_comment": RECORD,
    "comment": "gpus=1-4",
    "partition": "gpu",
    "min_nodes": 1,
    "max_nodes": 1,
}


def test_a_range_can_be_changed_and_taken_away(filter_: Filter) -> None:
    for comment in ("gpus=2-8", "gpus=2", "class=A", ""):
        out = filter_.modify(PARKED, ALICE, comment=comment)
        assert (out.rc, out.messages, out.written) == (SUCCESS, [], [])
    out = filter_.modify(PARKED, ALICE, comment="gpus=3-8")
    assert (out.rc, out.written) == (ERROR, [])


@pytest.mark.parametrize(
    ("change", "tasks"),
    [
        ({"num_tasks": 1}, "nodes"),
        ({"features": "big"}, "gpus"),
        ({"num_tasks": 1, "comment": "class=A"}, "nodes"),
        ({"num_tasks": 3, "comment": "gpus=2"}, None),
    ],
)
def test_a_change_may_change_what_becomes_of_the_tasks(
    filter_: Filter, change: dict[str, Any], tasks: str | None
) -> None:
    out = filter_.modify(PARKED, ALICE, **change)
    assert (out.rc, out.messages) == (SUCCESS, [])
    record = parse(noted_record(out.job["extra"]))
    assert record is not None
    assert record.resizable == tasks


def test_a_change_that_fixes_the_number_is_refused(filter_: Filter) -> None:
    out = filter_.modify(PARKED, ALICE, num_tasks=3)
    assert (out.rc, out.written) == (ERROR, [])
    assert "--ntasks that is neither" in out.messages[0]
