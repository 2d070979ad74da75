"""Requests for another number of GPUs: their sizes, and the fields that bind and restore them."""

from dataclasses import replace

import pytest
from memory_slurm import job_record

from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.request_forms import (
    Binding,
    changed_fields,
    placed_fields,
    restored_fields,
)
from slurm_gpu_aware.gate.resizing import as_shown, bound_fields, resized, sizes_of
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.updates import JobUpdate

NODE = OriginalRequest(tres_per_node="gres/gpu:2", min_cpus=1, resizable="nodes")
TOTAL = OriginalRequest(tres_per_job="gres/gpu:2", min_cpus=1, resizable="nodes")
TASKS = replace(TOTAL, num_tasks=2, min_cpus=2, resizable="gpus")
PER_TASK = replace(TASKS, tres_per_job=None, tres_per_task="gres/gpu=1")
PER_GPU = replace(TASKS, num_tasks=4, ntasks_per_tres=2)
FOUR = Binding(("n1",), (0, 1, 2, 3), gpus=4)
TYPED = "gres/gpu:g0:1,gres/gpu:g1:1,gres/gpu:g2:1,gres/gpu:g3:1"


@pytest.mark.parametrize(
    ("original", "bounds", "sizes"),
    [
        (NODE, (1, 8), (1, 2, 4, 8)),
        (TOTAL, (2, 7), (2, 4)),
        (replace(TOTAL, tres_per_job="gres/gpu:3"), (1, 9), (1, 2, 3, 4, 8)),
        (replace(NODE, nodes=(3, 3)), (1, 24), (3, 6, 12, 24)),
        (replace(NODE, nodes=(2, 2)), (3, 8), (4, 8)),
        (PER_TASK, (1, 4), (1, 2, 4)),
        (PER_GPU, (1, 4), (1, 2, 4)),
        (replace(NODE, resizable=None), (1, 8), ()),
        (NODE, (3, 8), ()),
        (OriginalRequest(resizable="nodes"), (1, 8), ()),
        (replace(PER_TASK, num_tasks=None), (1, 8), ()),
    ],
)
def test_sizes_double_and_hold_the_number_of_the_request(original, bounds, sizes):
    assert sizes_of(original, *bounds) == sizes


def test_a_resized_request_is_the_one_that_would_have_been_typed():
    assert resized(NODE, 8) == replace(NODE, tres_per_node="gres/gpu:8")
    assert resized(replace(NODE, nodes=(2, 2)), 8).tres_per_node == "gres/gpu:4"
    assert resized(TASKS, 1) == replace(TASKS, tres_per_job="gres/gpu:1", num_tasks=1)
    assert resized(PER_TASK, 8) == replace(PER_TASK, num_tasks=8)
    assert resized(PER_GPU, 4).num_tasks == 8
    assert resized(NODE, 2) is NODE


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (NODE, {}),
        (TOTAL, {"TresPerJob": ""}),
        (TASKS, {"TresPerJob": "", "NumTasks": "4", "NumCPUs": "4"}),
        (
            replace(TASKS, cpus_per_task=3),
            {"TresPerJob": "", "NumTasks": "4", "NumCPUs": "12"},
        ),
        (PER_TASK, {"TresPerTask": "", "NumTasks": "4", "NumCPUs": "4"}),
        (
            replace(PER_TASK, cpus_per_tres="gres/gpu:3"),
            {
                "TresPerTask": "",
                "CpusPerTres": "",
                "CPUsPerTask": "3",
                "NumTasks": "4",
                "NumCPUs": "12",
            },
        ),
        (
            PER_GPU,
            {
                "TresPerJob": "",
                "TasksPerNode": "8",
                "NumTasks": "8",
                "NumCPUs": "8",
                "MinCPUsNode": "8",
            },
        ),
        (replace(NODE, cpus_per_tres="gres/gpu:2"), {"CpusPerTres": "", "NumCPUs": "8"}),
    ],
)
def test_tasks_and_cpus_follow_the_gpus(original, expected):
    fields = dict(bound_fields(original, FOUR))
    same = {"ReqNodeList": "n1", "NumNodes": "1-1", "TresPerNode": TYPED}
    assert fields == same | expected
    JobUpdate("7", tuple(fields.items()))


def test_where_slurm_chooses_the_gpus_it_is_told_their_number():
    plain = Binding(("n1", "n2"), None, gpus=8)
    assert dict(bound_fields(replace(NODE, nodes=(2, 2)), plain)) == {
        "ReqNodeList": "n1,n2",
        "TresPerNode": "gres/gpu:4",
    }
    fields = dict(bound_fields(TASKS, plain))
    assert (fields["TresPerJob"], fields["NumTasks"]) == ("gres/gpu:8", "8")


def test_the_own_number_is_placed_as_by_any_other_request():
    own = Binding(("n1",), (1, 3), gpus=2)
    assert bound_fields(TASKS, own) == placed_fields(TASKS, own)


def test_what_a_larger_size_changed_is_restored():
    shown = replace(
        job_of(job_record(pn_min_memory=1 - (1 << 63))),
        req_nodes=("n1",),
        tres_per_node=TYPED,
        tres_per_job=None,
        tasks=4,
        cpus=4,
    )
    fields = dict(restored_fields(shown, TASKS, marked=True))
    assert fields["NumTasks"] == fields["NumCPUs"] == "2"
    assert (fields["TresPerJob"], fields["TresPerNode"]) == ("gres/gpu:2", "")
    kept = replace(shown, req_nodes=(), tres_per_node=None, tres_per_job="gres/gpu:2")
    assert "NumTasks" not in dict(restored_fields(replace(kept, tasks=2), TASKS, marked=True))


def test_the_number_of_a_bound_job_is_the_one_that_slurm_shows():
    shown = replace(job_of(job_record()), tres_per_node=None, tres_per_job="gres/gpu:8", tasks=8)
    assert as_shown(shown, TASKS) == resized(TASKS, 8)
    fixed = replace(TASKS, resizable=None)
    assert as_shown(shown, fixed) is fixed


def test_a_change_that_fixes_the_number_undoes_a_larger_size():
    shown = replace(
        job_of(job_record()), req_nodes=("n1",), tres_per_node=TYPED, tres_per_job=None, tasks=4
    )
    after = replace(TASKS, nodes=(1, 3), resizable=None)
    fields = dict(changed_fields(replace(shown, cpus=4), TASKS, after, bound=True))
    assert (fields["NumTasks"], fields["NumCPUs"], fields["NumNodes"]) == ("2", "2", "1-3")
    fixed = replace(TASKS, resizable=None)
    same = dict(changed_fields(replace(shown, tasks=2), fixed, after, bound=True))
    assert "NumTasks" not in same
