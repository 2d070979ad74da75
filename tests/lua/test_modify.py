"""What an ordinary user may change in a job, and what not."""

from __future__ import annotations

from typing import Any

import pytest
from luafilter import ALICE, ERROR, OPERATOR, SUCCESS, Filter

PARKED = {
    "tres_per_node": "gres/gpu:2",
    "licenses": "gpuaware:1",
    "admin_comment": "gpuaware/1;tn=gres/gpu:2",
    "comment": "class=A",
    "min_nodes": 1,
    "max_nodes": 1,
}
PLACED = {
    "tres_per_node": "gres/gpu:g0:1,gres/gpu:g2:1",
    "admin_comment": "gpuaware/1;tn=gres/gpu:2",
}
OPENED_BY_HAND = {"tres_per_node": "gres/gpu:2", "licenses": "matlab:1,gpuaware:1"}
FOREIGN = {"tres_per_node": "gres/gpu:2", "licenses": "matlab:1"}

GUARDED: list[dict[str, Any]] = [
    {"licenses": ""},
    {"licenses": "matlab:1"},
    {"req_nodes": "n1"},
    {"req_nodes": ""},
    {"exc_nodes": "n1"},
    {"tres_per_node": "gres/gpu:1"},
    {"tres_per_node": ""},
    {"tres_per_job": "gres/gpu:1"},
    {"tres_per_task": "gres/gpu=1"},
    {"tres_per_socket": "gres/gpu:1"},
    {"tres_freq": "gpu:900"},
    {"tres_bind": "gres/gpu:closest"},
    {"cpus_per_tres": "gres/gpu:1"},
    {"mem_per_tres": "gres/gpu:1"},
    {"min_nodes": 2},
    {"max_nodes": 2},
    {"min_cpus": 8},
    {"max_cpus": 8},
    {"pn_min_cpus": 3},
    {"min_cpus": 65535},
    {"num_tasks": 2},
    {"num_tasks": 65534},
    {"cpus_per_task": 2},
    {"ntasks_per_node": 2},
    {"shared": 0},
    {"contiguous": 1},
    {"req_switch": 1},
    {"core_spec": 1},
    {"thread_spec": 0},
    {"sockets_per_node": 2},
    {"cores_per_socket": 2},
    {"threads_per_core": 1},
    {"ntasks_per_core": 1},
    {"ntasks_per_socket": 1},
    {"ntasks_per_tres": 1},
    {"pn_min_tmp_disk": 65534},
    {"prefer": "big"},
    {"batch_features": "big"},
    {"burst_buffer": ""},
    {"partition": "other"},
    {"features": "big"},
    {"reservation": "r1"},
    {"extra": "site=1"},
    {"admin_comment": "x"},
]
ALLOWED: list[dict[str, Any]] = [
    {"time_limit": 60},
    {"time_min": 5},
    {"name": "better"},
    {"priority": 0},
    {"dependency": "afterok:7"},
    {"qos": "normal"},
    {"comment": "class=B"},
    {"comment": "see wiki"},
    {"comment": ""},
]


@pytest.mark.parametrize("record", [PARKED, PLACED, OPENED_BY_HAND])
@pytest.mark.parametrize("change", GUARDED, ids=str)
def test_owner_is_refused(filter_: Filter, record: dict[str, Any], change: dict[str, Any]) -> None:
    out = filter_.modify(record, **change)
    assert (out.rc, out.written, out.log) == (ERROR, [], [])
    (sentence,) = out.messages
    assert sentence.startswith("gpu-aware: ")
    assert "ask an operator" in sentence


@pytest.mark.parametrize("record", [PARKED, PLACED])
@pytest.mark.parametrize("change", ALLOWED, ids=str)
def test_owner_may(filter_: Filter, record: dict[str, Any], change: dict[str, Any]) -> None:
    out = filter_.modify(record, **change)
    assert (out.rc, out.written, out.messages, out.log) == (SUCCESS, [], [], [])


@pytest.mark.parametrize("uid", [0, OPERATOR])
@pytest.mark.parametrize("change", GUARDED, ids=str)
def test_operators_pass(filter_: Filter, uid: int, change: dict[str, Any]) -> None:
    assert filter_.modify(PARKED, uid, **change).rc == SUCCESS


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"licenses": "gpuaware:1"}, "--licenses"),
        ({"licenses": "matlab:1,gpuaware"}, "--licenses"),
        ({"reservation": "gpuaware_gate"}, "--reservation"),
        ({"tres_per_node": "gres/gpu:g3:1"}, "g3"),
        ({"tres_per_job": "gpu:g3:1"}, "g3"),
        ({"extra": "freq=1530"}, "--comment=freq=MHz"),
    ],
)
def test_in_any_job_what_is_ours_is_refused(
    filter_: Filter, change: dict[str, Any], hint: str
) -> None:
    out = filter_.modify(FOREIGN, **change)
    assert out.rc == ERROR
    assert hint in out.messages[0]
    assert filter_.modify(FOREIGN, 0, **change).rc == SUCCESS


@pytest.mark.parametrize("change", [*GUARDED, {"comment": "class=D"}], ids=str)
def test_jobs_that_are_not_ours_are_left_alone(filter_: Filter, change: dict[str, Any]) -> None:
    assert filter_.modify(FOREIGN, **change).rc == SUCCESS


@pytest.mark.parametrize("record", [PARKED, PLACED])
@pytest.mark.parametrize(
    ("comment", "hint"),
    [
        ("class=D", "A, B, C, auto"),
        ("run 7 gpu:bw=no", "high, low"),
        ("place=off", "at submission"),
    ],
)
def test_wrong_comment_is_refused(
    filter_: Filter, record: dict[str, Any], comment: str, hint: str
) -> None:
    out = filter_.modify(record, ALICE, comment=comment)
    assert out.rc == ERROR
    assert hint in out.messages[0]


def test_new_gpu_range_of_a_parked_job_must_hold_its_count(filter_: Filter) -> None:
    assert filter_.modify(PARKED, comment="gpus=2-4").rc == SUCCESS
    out = filter_.modify(PARKED, comment="gpus=4-8")
    assert out.rc == ERROR
    assert "the 2 GPUs" in out.messages[0]
