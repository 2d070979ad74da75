"""Jobs that no exact placement fits, by hand."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from make import as_gated, job_request, slurm_job, with_fields
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.selector import leaver
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.leaver import fits_by_counts, infeasible
from slurm_gpu_aware.selector.round_state import DOUBTFUL

RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"


def with_slots(*there: list[int], width: int = 4) -> Cluster:
    exists = np.zeros((len(there), width), dtype=np.bool_)
    for i, slots in enumerate(there):
        exists[i, slots] = True
    nodes = len(there)
    return Cluster.build(
        [f"n{i + 1}" for i in range(nodes)],
        exists,
        free_cpus=np.zeros(nodes, dtype=np.int64),
        cpus=np.full(nodes, 8, dtype=np.int64),
        free_memory_mb=np.zeros(nodes, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"gpus": 4, "gpus_per_node": 2, "min_nodes": 2}, True),
        ({"gpus": 6, "gpus_per_node": 3, "min_nodes": 2}, False),
        ({"gpus": 4, "gpus_per_node": 2, "min_nodes": 2, "required": (0,)}, True),
        ({"gpus": 4, "gpus_per_node": 2, "min_nodes": 2, "required": (2,)}, False),
        ({"gpus": 4, "gpus_per_node": 2, "min_nodes": 2, "cpus": 20}, False),
        ({"gpus": 5}, True),  # 2 + 2 + 1
        ({"gpus": 5, "max_nodes": 2}, False),
        ({"gpus": 5, "required": (2,)}, True),
        ({"gpus": 5, "gpus_per_node": 5}, False),
        ({"gpus": 4, "gpus_per_node": 4}, False),
    ],
)
def test_fits_by_counts(asked: dict[str, Any], fits: bool) -> None:
    here = with_slots([2, 3], [0, 1], [0])
    assert fits_by_counts(job_request("7", **asked), here) is fits


def test_only_nodes_that_it_may_use_count() -> None:
    here = with_slots([2, 3], [0, 1], [0, 1])
    request = Request("7", gpus=4, gpus_per_node=2, min_nodes=2)
    nowhere = with_fields(request, eligible=np.array([True, False, False]))
    assert fits_by_counts(request, here)
    assert not fits_by_counts(nowhere, here)


def test_jobs_of_one_shape_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks one count takes 30 ms on 2000 nodes."""
    here = with_slots([2, 3], [0, 1])
    shapes = {1: 2, 2: 2, 3: 5, 4: 5}  # GPUs; nowhere are 5
    records = [slurm_job(n, admin_comment=RECORD) for n in shapes]
    records.append(slurm_job(9, array_tasks="0-1", admin_comment=RECORD))
    jobs = {job.raw_id: as_gated(job) for job in records}
    shapes |= {90: 3, 91: 4}
    candidates = {
        str(n): Candidate(jobs[min(n, 9)].task(str(n)), Request(str(n), gpus))
        for n, gpus in shapes.items()
    }
    waiting = [Waiting(job_id, "why", infeasible=True) for job_id in candidates]
    counted: list[str] = []

    def count(request: Request, where: Cluster) -> bool:
        counted.append(request.job_id)
        return fits_by_counts(request, where)

    monkeypatch.setattr(leaver, "fits_by_counts", count)
    context = SimpleNamespace(cluster=here)
    found = infeasible(waiting, candidates, jobs.values(), context)  # type: ignore[arg-type]
    assert [job.id for job, _ in found] == ["1", "2", "9"]
    assert counted == ["1", "3", "90"]


NO_COMMON_INDEX = {"n1": [0, 1], "n2": [2, 3]}


def on_two(job_id: str, gpus: int = 2, **fields: Any) -> dict[str, Any]:
    """A job for so many GPUs of each of two nodes."""
    record = f"gpuaware/1;tn=gres/gpu:{gpus};nn=2-2;mc=2"
    return parked(job_id, gpus, admin_comment=record, num_nodes=2, **fields)


@pytest.mark.parametrize("unread", [frozenset(), frozenset({99})])
def test_what_was_unread_when_jobs_were_read_counts(
    slurm: SlurmFolder, unread: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later reading, of other jobs, says nothing about those that the round planned with."""
    slurm.write([on_two("98", stuck=True)], ["n1", "n2"], drained=NO_COMMON_INDEX)
    bench = RoundsBench(slurm)

    def leaves(read: Callable[[], Any], found: frozenset[int]) -> Callable[[], Any]:
        def read_then_others() -> Any:
            known = read()
            bench.client.unread = found
            return known

        return read_then_others

    monkeypatch.setattr(bench.client, "jobs", leaves(bench.client.jobs, unread))
    others = frozenset({99}) - unread
    monkeypatch.setattr(bench.client, "nodes", leaves(bench.client.nodes, others))
    for _ in range(3):  # it is found, confirmed, and planned by counts
        bench.run()
    assert (slurm.jobs["98"]["licenses"] == "") is (not unread)


@pytest.mark.parametrize("tasks", [None, "0,1"])
def test_without_common_indices_slurm_places_it(slurm: SlurmFolder, tasks: str | None) -> None:
    job = on_two("98", num_cpus=2)
    if tasks is not None:
        job |= {"array_job_id": 98, "array_task_str": tasks, "stuck": True}
    slurm.write([job, parked("8")], ["n1", "n2"], drained=NO_COMMON_INDEX)
    bench = RoundsBench(slurm)
    for _ in range(3):  # it is found, confirmed, and planned by counts
        bench.run()
        assert slurm.jobs["98"]["licenses"] == "gpuaware:1"  # 8 has two of the four GPUs
    assert slurm.jobs["8"]["state"] == "RUNNING"
    slurm.change("8", state="COMPLETED")
    bench.run()
    others = [number for number in slurm.jobs if number != "8"]
    opened = [number for number in others if slurm.jobs[number]["licenses"] == ""]
    assert len(opened) == 1  # one task needs all GPUs
    for number in opened:
        assert ";st=by-Slurm;" in slurm.jobs[number]["admin_comment"].replace("/1;", ";")
        assert slurm.jobs[number]["tres_per_node"] == "gres/gpu:2"


def test_what_is_too_large_for_the_usable_nodes_waits(slurm: SlurmFolder) -> None:
    slurm.write([on_two("98", 3)], ["n1", "n2"], drained=NO_COMMON_INDEX)
    bench = RoundsBench(slurm)
    first, second = bench.run(), bench.run()
    assert slurm.jobs["98"]["licenses"] == "gpuaware:1"
    assert [one["reason"] for one in first.waiting] == [DOUBTFUL]
    assert [one["reason"] for one in second.waiting] == [
        "needs 2 nodes with 3 GPUs each; 0 nodes have that many; down, drained or reserved: n1, n2"
    ]
    assert (first.doubtful, second.doubtful) == (1, 0)
