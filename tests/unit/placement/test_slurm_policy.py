"""Policy slurm: what was measured on a real slurmctld (docs/internals/slurm-links.md)."""

from typing import Any

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.cluster import Cluster, Sockets
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.placement.policies.slurm import RELEASES
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.topology.machines import machine

BRIDGES = HardwareGraph.from_links([(0, 1, "NV4", None), (2, 3, "NV4", None)], n=4)


def given(
    cluster: Cluster, gpus: int, *, total: bool = False, options: Any = None, **fields: Any
) -> Any:
    """Nodes and slots of a job; ``total``: it asks by --gpus."""
    per_node = None if total else gpus // fields.get("min_nodes", 1)
    request = job_request("1", gpus, gpus_per_node=per_node, **fields)
    found = make_policy("slurm", options).place(request, cluster)
    return found and dict(found.gpus)


@pytest.mark.parametrize("release", RELEASES)
def test_a_pair_has_the_fewest_links(release: str) -> None:
    """The table of Slurm's defect, measured on 24.11.5 and 26.05.5."""
    cluster, options = Cluster.uniform(1, 4, graph=BRIDGES), {"release": release}
    assert given(cluster, 2, options=options) == {0: (0, 2)}
    assert given(cluster, 2, options={**options, "tasks": 2, "per_task": True}) == {0: (0, 2)}
    assert given(cluster, 3, options=options) == {0: (0, 2, 3)}
    assert given(cluster, 2, total=True, options=options) == {0: (0, 1)}
    cluster.take(0, [0])
    assert given(cluster, 2, options=options) == {0: (1, 2)}
    cluster.give_back(0, [0])
    cluster.take(0, [0, 2])
    assert given(cluster, 2, options=options) == {0: (1, 3)}


def test_dgx_1() -> None:
    cube = machine("dgx-1-v100")
    one_socket = HardwareGraph.build(cube.gbps, cube.classes)
    cluster = Cluster.uniform(1, 8, graph=one_socket)
    (slots,) = given(cluster, 2).values()
    (better,) = given(cluster, 2, total=True).values()

    def links(pair: tuple[int, ...]) -> int:
        word = cube.classes[pair[0]][pair[1]]
        return int(word.removeprefix("NV")) if word.startswith("NV") else 0

    assert links(better) == 2 > links(slots)


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (None, {}),
        (BRIDGES, {"links": False}),
        (uniform_graph(4, "NV12", 300.0), {}),
        (HardwareGraph.from_links([(0, 1, "XGMI4", None), (2, 3, "XGMI4", None)], n=4), {}),
    ],
    ids=["no links", "not told", "switch", "AMD"],
)
def test_without_unequal_links_the_lowest_indices(graph: Any, options: Any) -> None:
    cluster = Cluster.uniform(1, 4, graph=graph)
    assert given(cluster, 2, options=options) == {0: (0, 1)}
    cluster.take(0, [0])
    assert given(cluster, 2, options=options) == {0: (1, 2)}


def on_sockets(free: list[list[int]], gpus: list[list[bool]]) -> Cluster:
    """Nodes with two sockets; GPUs 0 and 1 beside the first, 2 and 3 beside the second."""
    cores = np.array(free)
    sockets = Sockets(
        gpu=np.array([[0, 0, 1, 1]] * len(free)),
        cpus=np.full(cores.shape, 4),
        free_cpus=cores,
        per_core=np.ones(len(free), dtype=np.int64),
        quiet=np.ones(len(free), dtype=np.bool_),
    )
    exists = np.ones((len(free), 4), dtype=np.bool_)
    names = [f"n{i}" for i in range(len(free))]
    return Cluster.build(
        names, exists, free=np.array(gpus), sockets=sockets, free_cpus=cores.sum(axis=1)
    )


def test_gpus_lie_beside_free_cores() -> None:
    every = [True] * 4
    assert given(on_sockets([[0, 2]], [every]), 2) == {0: (2, 3)}
    assert given(on_sockets([[0, 2]], [every]), 3) == {0: (0, 2, 3)}  # the rest lies anywhere
    away = on_sockets([[0, 2]], [[True, True, False, False]])
    assert given(away, 1) == {0: (0,)}
    assert given(away, 1, bound=True) is None


def test_nodes_with_gpus_beside_free_cores_come_first() -> None:
    cluster = on_sockets([[0, 4], [4, 4]], [[True] * 4, [True] * 4])
    assert given(cluster, 3) == {1: (0, 1, 2)}


def test_one_node_by_release() -> None:
    """24.11 takes the tightest node, 26.05 the first, where -N1 is given."""
    cluster = on_sockets([[4, 4], [4, 2]], [[True] * 4, [True, False, True, True]])
    asked: dict[str, Any] = {"max_nodes": 1, "cpus": 1}
    assert given(cluster, 3, options={"release": "24.11"}, **asked) == {1: (0, 2, 3)}
    assert given(cluster, 3, options={"release": "26.05"}, **asked) == {0: (0, 1, 2)}


def test_several_nodes_get_different_indices() -> None:
    cluster = Cluster.uniform(3, 2)
    cluster.take(0, [0])
    cluster.take(1, [1])
    found = make_policy("slurm").place(job_request("1", 2, min_nodes=2, gpus_per_node=1), cluster)
    assert dict(found.gpus) == {0: (1,), 1: (0,)}
    assert not found.exact  # one GRES line cannot name them


def test_uneven_nodes_by_total() -> None:
    assert given(Cluster.uniform(2, 4), 6, total=True) == {0: (0, 1, 2, 3), 1: (0, 1)}


def test_requests_that_do_not_tell_their_option() -> None:
    """Traces and ``place``: by --gres, as most users ask, on the fewest nodes."""
    policy = make_policy("slurm", {"gres": True})
    cluster = Cluster.uniform(2, 4, graph=BRIDGES)
    found = [policy.place(job_request("1", gpus), cluster) for gpus in (2, 6, 9)]
    assert [one and dict(one.gpus) for one in found] == [
        {0: (0, 2)},
        {0: (0, 2, 3), 1: (0, 2, 3)},
        None,
    ]
    assert policy.of_traces == {"gres": True}


def test_exclusive_jobs_get_all_gpus_of_an_idle_node() -> None:
    cluster = Cluster.uniform(2, 4)
    cluster.take(0, [2])
    assert given(cluster, 1, whole=True) == {1: (0, 1, 2, 3)}


def test_what_does_not_fit_has_no_place() -> None:
    cluster = Cluster.uniform(2, 4)
    assert given(cluster, 5) is None
    assert given(cluster, 9, total=True) is None
    assert given(cluster, 2, eligible=np.zeros(2, dtype=np.bool_)) is None


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"release": "23.02"}, "release must be one of 24.11, 25.05, 25.11, 26.05, not '23.02'"),
        ({"links": 1}, "links must be true or false, not 1"),
        ({"tasks": -1}, "tasks must be a whole number >= 0, not -1"),
    ],
)
def test_bad_options(options: dict[str, Any], wanted: str) -> None:
    with pytest.raises(PolicyError, match=wanted):
        make_policy("slurm", options)
