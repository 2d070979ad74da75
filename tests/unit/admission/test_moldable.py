"""gpus=MIN-MAX in the planner's request: which sizes it has, and what each of them asks for."""

from dataclasses import replace

import pytest
from make import SLURM, context_of, request_of, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.gate.admin_comment import JobMarker, OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.resizing import resized
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import GpuDefaults

NODE = OriginalRequest(tres_per_node="gres/gpu:2", min_cpus=1, resizable="nodes")
TOTAL = OriginalRequest(tres_per_job="gres/gpu:2", min_cpus=1, resizable="nodes")
TASKS = replace(TOTAL, num_tasks=2, cpus_per_task=2, min_cpus=4, resizable="gpus")
PER_TASK = OriginalRequest(tres_per_task="gres/gpu=1", num_tasks=2, min_cpus=2, resizable="gpus")
PER_GPU = replace(TASKS, num_tasks=4, ntasks_per_tres=2, min_cpus=8)
TWO = replace(NODE, nodes=(2, 2))
FORMS = {
    "node": (NODE, (1, 2, 4)),
    "two nodes": (replace(TWO, min_cpus=2), (2, 4, 8)),
    "in total": (TOTAL, (1, 2, 4)),
    "one task": (replace(TOTAL, num_tasks=1), (1, 2, 4)),
    "a task per GPU": (TASKS, (1, 2, 4, 8, 16)),
    "in tasks": (PER_TASK, (1, 2, 4, 8, 16)),
    "in tasks of two nodes": (replace(PER_TASK, nodes=(2, 2)), (2, 4, 8)),
    "tasks by GPU": (PER_GPU, (1, 2, 4, 8, 16)),
    "CPUs by GPU": (replace(NODE, cpus_per_tres="gres/gpu:3", min_cpus=6), (1, 2, 4)),
    "memory by GPU": (replace(NODE, mem_per_tres="gres/gpu:1000"), (1, 2, 4)),
}
RANGE = "gpus=1-16"


def four(**more: object) -> AdmissionContext:
    return context_of([slurm_node(f"n{i}", **more) for i in range(1, 5)])  # type: ignore[arg-type]


def in_range(original: OriginalRequest, where: AdmissionContext, **job: object) -> Request:
    """The request of a job that may get another number of GPUs."""
    usual = {"cpus": original.min_cpus or 1, "comment": RANGE}
    return request_of(slurm_job(**{**usual, **job}), original, where)


def asks(one: Request) -> object:
    """What a request asks for, in each shape that it may have on nodes of four GPUs."""
    counts = one.node_counts(4)
    demands = [(n, one.cpus_on_node(n), one.memory_on_node(n)) for n in counts]
    return one.gpus, one.gpus_per_node, one.total_cpus, demands


@pytest.mark.parametrize(("original", "sizes"), FORMS.values(), ids=FORMS)
def test_each_size_asks_as_if_it_had_been_typed(
    original: OriginalRequest, sizes: tuple[int, ...]
) -> None:
    where = four()
    own = in_range(original, where)
    assert own.sizes == sizes
    for gpus in sizes:
        typed = resized(original, gpus)
        cpus = original.min_cpus or 1
        if original.resizable == "gpus" or original.cpus_per_tres:
            cpus = cpus * gpus // own.gpus
        other = in_range(replace(typed, min_cpus=cpus), where)
        assert asks(own.resized(gpus)) == asks(other)
        assert own.resized(gpus).resized(own.gpus).cpus.total == own.cpus.total


def test_only_a_range_at_submission_makes_a_job_moldable() -> None:
    for comment in ("gpus=2", "class=A", ""):
        assert in_range(NODE, four(), comment=comment).sizes == ()
    assert in_range(replace(NODE, resizable=None), four()).sizes == ()
    assert in_range(NODE, four(), comment="gpus=2-3").sizes == ()


def test_a_job_that_gets_whole_nodes_keeps_its_number() -> None:
    assert in_range(NODE, four(), exclusive=True).sizes == ()


def test_a_size_must_fit_nodes_that_are_there() -> None:
    assert in_range(TASKS, context_of([slurm_node("n1")])).sizes == (1, 2, 4)
    assert in_range(replace(TASKS, cpus_per_task=8, min_cpus=16), four()).sizes == (1, 2, 4, 8)
    per_gpu = replace(NODE, cpus_per_tres="gres/gpu:6", min_cpus=12)
    assert in_range(per_gpu, four()).sizes == (1, 2)


def test_default_cpus_that_cannot_be_written_for_a_size_leave_it_out() -> None:
    """``DefCpuPerGPU=1``: several types of GPU need 2 CPUs or more in a task."""
    where = replace(four(), slurm=replace(SLURM, per_gpu=GpuDefaults(cpus=1)))
    one = replace(PER_TASK, num_tasks=1, min_cpus=1)
    assert in_range(one, where).sizes == ()
    assert in_range(replace(NODE, tres_per_node="gres/gpu:1"), where).sizes == (1, 2, 4)


def test_a_job_that_runs_with_another_size_is_translated_with_its_own() -> None:
    marker = JobMarker(JobPhase.RELEASED, 0, 1.0)
    running = slurm_job(
        state="RUNNING",
        cpus=16,
        memory_mb_per_cpu=500,
        comment=RANGE,
        req_nodes=("n1", "n2"),
        tres_per_node="gres/gpu:g0:1,gres/gpu:g1:1,gres/gpu:g2:1,gres/gpu:g3:1",
    )
    gated = GatedJob(running, TASKS, marker, JobPhase.STARTED)
    found = to_request(gated, four())
    assert (found.gpus, found.cpus.total, found.resized(8).cpus.total) == (2, 4, 16)
