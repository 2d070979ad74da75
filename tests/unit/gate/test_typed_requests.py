"""Requests by GPU type: which nodes serve them, and how they ask for a feature instead."""

from typing import Any

import pytest
from make import slurm_job, slurm_node

from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types, type_sentence, untyped_fields

A100 = [
    slurm_node("a1", gpus=(("a100", 4),)),
    slurm_node("a2", gpus=(("a100", 4),)),
    slurm_node("i1", gpus=(("g0", 1), ("g1", 1))),
]


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({"tres_per_node": "gres/gpu:a100:2"}, {"a100"}),
        ({"tres_per_job": "gres/gpu:a100"}, {"a100"}),
        ({"tres_per_task": "cpu=2,gres/gpu:a100=1"}, {"a100"}),
        ({"tres_per_node": "gres/gpu:a100:1,gres/gpu:v100:1"}, {"a100", "v100"}),
        ({"tres_per_node": "gres/gpu:2", "tres_per_socket": "gres/gpu:Tesla-1"}, {"Tesla-1"}),
        ({"tres_per_node": "gres/gpu:2,gres/nic:mlx:1"}, set()),
        ({"tres_per_node": "gres/gpu:g0:1,gres/gpu:g3:1"}, set()),
        ({}, set()),
    ],
)
def test_types(fields: dict[str, Any], types: set[str]) -> None:
    assert gpu_types(slurm_job(**fields)) == types


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"tres_per_node": "gres/gpu:a100:2,gres/nic:1", "features": "ib"},
            (("Features", "ib&gpu_a100"), ("TresPerNode", "gres/gpu:2,gres/nic:1")),
        ),
        (
            {"tres_per_job": "gres/gpu:a100:4", "tres_per_task": "gres/gpu:a100=1"},
            (
                ("Features", "gpu_a100"),
                ("TresPerJob", "gres/gpu:4"),
                ("TresPerTask", "gres/gpu=1"),
            ),
        ),
        (
            {"tres_per_socket": "gres/gpu:a100", "features": "x|y"},
            (("Features", "(x|y)&gpu_a100"), ("TresPerSocket", "gres/gpu")),
        ),
        (
            {"tres_per_node": "gres/gpu:a100:1", "features": "gpu_a100&ib"},
            (("Features", "gpu_a100&ib"), ("TresPerNode", "gres/gpu:1")),
        ),
        ({"tres_per_node": "gres/gpu:a100:1", "features": "[x|y]"}, None),
        ({"tres_per_node": "gres/gpu:a100:1", "features": "x*2"}, None),
        ({"tres_per_node": "gres/gpu:a100:1", "features": "x|y&z"}, None),
    ],
)
def test_a_type_becomes_a_feature(fields: dict[str, Any], expected: Any) -> None:
    assert untyped_fields(slurm_job(**fields), "a100", "gpu_a100") == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tres_per_node": "gres/gpu:a100:4", "min_nodes": 2}, True),
        ({"tres_per_node": "gres/gpu:a100:5"}, False),
        ({"tres_per_node": "gres/gpu:a100:1", "min_nodes": 3}, False),
        ({"tres_per_node": "gres/gpu:a100:1", "req_nodes": ("a1",)}, True),
        ({"tres_per_node": "gres/gpu:a100:1", "req_nodes": ("a3",)}, False),
        ({"tres_per_node": "gres/gpu:a100:1", "req_nodes": ("i1",)}, False),
        ({"tres_per_node": "gres/gpu:a100:1", "exc_nodes": ("a1", "a2")}, False),
        ({"tres_per_job": "gres/gpu:a100:8"}, True),
        ({"tres_per_job": "gres/gpu:a100:9"}, False),
        ({"tres_per_task": "gres/gpu:a100=2", "tasks": 4}, True),
        ({"tres_per_task": "gres/gpu:a100=2", "tasks": 5}, False),
        ({"tres_per_node": "gres/gpu:v100:1"}, False),
        ({"tres_per_node": "gres/gpu:9"}, True),
    ],
)
def test_which_nodes_can_serve_a_type(fields: dict[str, Any], expected: bool) -> None:
    assert can_start(slurm_job(**fields), A100) is expected


def test_the_sentence_says_whether_it_can_start() -> None:
    assert type_sentence(slurm_job(tres_per_node="gres/gpu:1"), A100) is None
    here = type_sentence(slurm_job(tres_per_node="gres/gpu:a100:1"), A100)
    assert here.endswith("a[1-2]")
    gone = type_sentence(slurm_job(tres_per_node="gres/gpu:v100:1"), A100)
    assert "can no longer start" in gone
