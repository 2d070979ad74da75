"""Jobs bound to the sockets of their GPUs: which sockets these are, and which cores are taken."""

import math
from typing import Any

import pytest
from make import PROFILE, SLURM_WITH_CORES, slurm_job
from memory_slurm import node_record

from slurm_gpu_aware.admission.holds import Hold, with_sockets
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.model.cluster import Cluster, Sockets
from slurm_gpu_aware.slurm.read_cluster import node_of
from slurm_gpu_aware.slurm.records import NodeCores, NodeShare, SlurmJob, SlurmNode

GPUS = "gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1)"


def with_gpus(**fields: Any) -> SlurmNode:
    return node_of(node_record("n1", **{"gres": GPUS, **fields}))


def test_sockets_of_gpus() -> None:
    assert with_gpus().cores == NodeCores(sockets=2, cores=8, threads=1, cpus=1)
    assert with_gpus().gpu_sockets == ((0,), (0,), (1,), (1,))


@pytest.mark.parametrize(
    ("fields", "cores"),
    [
        ({"threads": 2, "cpus": 32, "cpus_efctv": 32}, NodeCores(2, 8, 2, 2)),
        # CPUs=16 in slurm.conf: a core counts as one CPU, its ids as two.
        ({"threads": 2}, NodeCores(2, 8, 2, 1)),
        (
            {"cpu_spec_list": "15", "cpus_efctv": 15},
            NodeCores(2, 8, 1, 1, frozenset({15})),
        ),
        # Which core is kept is not told; CPUs that are no whole cores.
        ({"cpus_efctv": 15}, None),
        ({"cpus": 12, "cpus_efctv": 12}, None),
    ],
)
def test_cores_of_a_node(fields: dict[str, Any], cores: NodeCores | None) -> None:
    assert with_gpus(**fields).cores == cores


def found_in(one: SlurmNode, *jobs: SlurmJob, holds: tuple[Hold, ...] = ()) -> Cluster:
    cluster = build_cluster([one], jobs, SLURM_WITH_CORES, PROFILE, holds=holds)
    return with_sockets(cluster, {one.name: one}, jobs, holds, 0.0)


def sockets(*args: Any, **kwargs: Any) -> Sockets:
    return found_in(*args, **kwargs).sockets


def on_cores(number: int, *cores: int, **fields: Any) -> SlurmJob:
    share = NodeShare("n1", len(cores), 500, (), {}, cores)
    return slurm_job(number, **{"state": "RUNNING", "shares": (share,), **fields})


def test_free_cores_of_each_socket() -> None:
    """A job without GPUs counts, too; a suspended one holds no cores."""
    found = sockets(
        with_gpus(alloc_cpus=5),
        on_cores(1, 0, 1, 2),
        on_cores(2, 8, 15),
        on_cores(3, 9, state="SUSPENDED"),
    )
    assert found.gpu.tolist() == [[0, 0, 1, 1]]
    assert found.cpus.tolist() == [[8, 8]]
    assert found.free_cpus.tolist() == [[5, 6]]


def test_a_core_is_taken_whole() -> None:
    found = sockets(with_gpus(threads=2, cpus=32, cpus_efctv=32, alloc_cpus=4), on_cores(1, 0, 8))
    assert found.free_cpus.tolist() == [[14, 14]]
    assert found.per_core.tolist() == [2]


def test_cores_kept_for_the_system_are_no_jobs() -> None:
    one = with_gpus(cpu_spec_list="7,15", cpus_efctv=14, alloc_cpus=1)
    found = sockets(one, on_cores(1, 14))
    assert found.cpus.tolist() == [[7, 7]]
    assert found.free_cpus.tolist() == [[7, 6]]


def test_cpus_of_an_unknown_job_may_be_anywhere() -> None:
    assert sockets(with_gpus(alloc_cpus=5), on_cores(1, 0)).free_cpus.tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("gres", "bound"),
    [
        ("gpu:g0:1,gpu:g1:1(S:0),gpu:g2:1(S:0-1),gpu:g3:1(S:1)", [-1, 0, -1, 1]),
        ("gpu:v100:4(S:0-1)", [-1, -1, -1, -1]),
        ("gpu:v100:4(S:1)", [1, 1, 1, 1]),
        ("gpu:a:2(S:0),gpu:b:2(S:1)", [0, 0, 1, 1]),
    ],
)
def test_gpus_whose_socket_is_not_told(gres: str, bound: list[int]) -> None:
    assert sockets(with_gpus(gres=gres)).gpu.tolist() == [bound]


def test_running_jobs_give_back_what_they_hold() -> None:
    (job,) = found_in(with_gpus(alloc_cpus=3), on_cores(1, 0, 1, 8, end_s=50.0)).running
    assert job.socket_cpus == {0: (2, 1)}


def hold_on(slots: tuple[int, ...], cpus: int = 2, **fields: Any) -> Hold:
    return Hold("7", ("n1",), slots, 2, cpus, 1000, math.inf, **fields)


def test_a_placed_job_that_has_not_started_has_its_cores() -> None:
    cluster = found_in(with_gpus(), holds=(hold_on((2,)),))
    assert cluster.sockets.free_cpus.tolist() == [[8, 6]]
    assert cluster.sockets.quiet.tolist() == [False]
    assert cluster.running[0].socket_cpus == {0: (0, 2)}


def test_a_placed_job_that_gets_all_cores_beside_its_gpus() -> None:
    cluster = found_in(
        with_gpus(), holds=(hold_on((0, 1), fills_sockets=True, memory_mb_per_cpu=500),)
    )
    assert cluster.sockets.free_cpus.tolist() == [[0, 8]]
    assert cluster.free_cpus.tolist() == [8]
    assert cluster.free_memory_mb.tolist() == [64000 - 1000 - 6 * 500]
    assert cluster.running[0].cpus == {0: 8}


def test_where_slurm_is_about_to_choose_no_job_is_sent() -> None:
    cluster = found_in(with_gpus(), holds=(hold_on(()),))
    assert not cluster.free.any()
    given_back = [job for job in cluster.running if job.end_s == 0.0]
    assert [job.gpus for job in given_back] == [((0, (2, 3)),)]


def test_jobs_without_the_flag_cost_nothing() -> None:
    assert build_cluster([with_gpus()], [], SLURM_WITH_CORES, PROFILE).sockets is None
