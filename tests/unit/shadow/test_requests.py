"""Requests of jobs that no filter has marked."""

from typing import Any

import pytest
from make import context_of, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import CannotPlanError
from slurm_gpu_aware.features.shadow.compared import indexed
from slurm_gpu_aware.features.shadow.moments import (
    as_asked,
    as_gated,
    original_of,
    records_by_id,
    request_of,
)
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import SlurmNode


def plain_record(name: str, *kinds: tuple[str | None, int]) -> SlurmNode:
    return slurm_node(name, gpus=kinds or (("a100", 4),))


def request(*nodes: SlurmNode, **fields: Any) -> Request:
    context = indexed(context_of(nodes or (plain_record("n1"), plain_record("n2"))))
    return request_of(as_gated(slurm_job(7, **fields)), context)


def test_forms() -> None:
    one = request(tres_per_node="gres/gpu:2")
    assert (one.gpus, one.gpus_per_node, one.min_nodes) == (2, 2, 1)
    two = request(tres_per_job="gres/gpu:4")
    assert (two.gpus, two.gpus_per_node, two.max_nodes) == (4, None, None)
    three = request(tres_per_task="gres/gpu=1", tasks=2, cpus=2)
    assert three.gpus == 2
    four = request(tres_per_node="gres/gpu:2", min_nodes=2, max_nodes=2, tasks=2, cpus=2)
    assert (four.gpus, four.min_nodes) == (4, 2)
    assert request(tres_per_job="gres/gpu:8").node_counts(4) == (2, 4, 8)


def test_a_form_without_a_row_is_named() -> None:
    with pytest.raises(CannotPlanError, match="form of request"):
        request(tres_per_socket="gres/gpu:1")


def test_a_type_means_the_nodes_that_have_it() -> None:
    nodes = (plain_record("n1"), plain_record("n2", ("v100", 4)), plain_record("n3", (None, 4)))
    one = request(*nodes, tres_per_node="gres/gpu:v100:2")
    assert one.nodes.eligible is not None
    assert one.nodes.eligible.tolist() == [False, True, False]
    mixed = plain_record("n1", ("v100", 2), ("a100", 2))
    with pytest.raises(CannotPlanError, match="type v100 alone"):
        request(mixed, tres_per_node="gres/gpu:v100:2")


def test_exclusive_and_excluded() -> None:
    one = request(tres_per_node="gres/gpu:1", exclusive=True, exc_nodes=("n1",))
    assert one.nodes.whole
    assert one.nodes.eligible is not None
    assert one.nodes.eligible.tolist() == [False, True]


def test_one_cpu_and_one_task_count_as_not_given() -> None:
    original = original_of(slurm_job(7, tres_per_node="gres/gpu:1", cpus_per_task=1))
    assert (original.cpus_per_task, original.num_tasks, original.nodes) == (None, None, None)


def test_a_job_that_runs_is_planned_as_it_waited() -> None:
    waiting = slurm_job(7, tres_per_job="gres/gpu:4", partitions=("a", "b"))
    run = {"state": "RUNNING", "nodes": ("n1", "n2"), "min_nodes": 2, "partitions": ("b",)}
    started = slurm_job(7, tres_per_job="gres/gpu:4", **run)
    asked = as_asked(started, waiting)
    assert (asked.min_nodes, asked.max_nodes, asked.partitions) == (1, None, ("b",))
    unseen = as_asked(started, None)
    assert (unseen.min_nodes, unseen.max_nodes) == (2, 2)
    by_node = {"tres_per_node": "gres/gpu:1"}
    ranged = slurm_job(7, **by_node, min_nodes=1, max_nodes=4)
    fixed = as_asked(slurm_job(7, **by_node, **run), ranged)
    assert (fixed.min_nodes, fixed.max_nodes) == (2, 2)  # as many as Slurm gave it


def test_a_task_was_one_of_its_array() -> None:
    rest = slurm_job(98, array_id=98, array_tasks="2-4")
    task = slurm_job(99, array_id=98)
    assert records_by_id({"98": rest}, task) is rest
    assert records_by_id({}, task) is None
