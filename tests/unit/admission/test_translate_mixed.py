"""A job that only indexed and plain nodes together can hold is left to Slurm."""

from dataclasses import replace

import numpy as np
import pytest
from make import (
    PROFILE,
    SLURM,
    asked,
    context_of,
    job_request,
    nodes_for,
    slurm_job,
    slurm_node,
    why_left,
)

from slurm_gpu_aware.admission.fitting import needs_both_kinds
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.config.settings import PlacementConfig
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request

INDEXED = slurm_node("n0").gpus
PLAIN = (("v100", 4),)


def mixed_cluster(*kinds: tuple[tuple[str | None, int], ...]) -> Cluster:
    nodes = [slurm_node(f"n{i}", gpus=kind) for i, kind in enumerate(kinds)]
    return build_cluster(nodes, [], replace(SLURM, counts_memory=False), PROFILE)


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [(3, 3, True), (2, 2, False), (4, 1, False), (5, 5, False), (8, 2, False), (16, 4, True)],
)
def test_two_indexed_and_two_plain(gpus: int, nodes: int, expected: bool):
    mixed = mixed_cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    request = Request("1", gpus, min_nodes=nodes, max_nodes=nodes)
    assert needs_both_kinds(request, mixed) is expected
    assert not needs_both_kinds(request, mixed_cluster(*[INDEXED] * 4))
    assert not needs_both_kinds(request, mixed_cluster(*[PLAIN] * 4))


def test_required_nodes_of_both_kinds():
    mixed = mixed_cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    assert needs_both_kinds(job_request("1", 2, 2, 2, required=(0, 2)), mixed)
    assert not needs_both_kinds(job_request("1", 2, 2, 2, required=(2, 3)), mixed)


def test_only_nodes_that_it_may_use_count():
    mixed = mixed_cluster(INDEXED, INDEXED, PLAIN, PLAIN)
    one_of_each = np.array([True, False, True, False])
    assert needs_both_kinds(job_request("1", 2, 2, 2, eligible=one_of_each), mixed)


def test_a_required_node_that_is_away_says_nothing_of_kinds():
    """Its GPUs do not exist while it is drained or restarts: the job waits for it."""
    mixed = mixed_cluster(INDEXED, PLAIN, PLAIN)
    away = replace(mixed, exists=mixed.exists & np.array([[False], [True], [True]]))
    assert not needs_both_kinds(job_request("1", 2, 1, 1, required=(0,)), away)
    assert not needs_both_kinds(job_request("1", 2, 2, 2, required=(0,)), away)
    assert needs_both_kinds(job_request("1", 2, 2, 2, required=(0,)), mixed)


def test_a_type_bounds_the_nodes():
    kinds = enumerate([INDEXED, PLAIN, (("a100", 4),)])
    context = context_of([slurm_node(f"n{i}", gpus=gpus) for i, gpus in kinds])
    job = {"tres_per_node": "gres/gpu:v100:2"}
    assert nodes_for(context, asked("gpu:v100:2"), **job) == {"n1"}


def test_a_type_beside_others_on_a_node_is_left_to_slurm():
    """A plain node's GPUs count alike."""
    context = context_of([slurm_node("n1", gpus=(("v100", 2), ("a100", 2)))])
    job = slurm_job(tres_per_node="gres/gpu:v100:2")
    assert "type v100 alone" in why_left(job, asked("gpu:v100:2"), context)


def test_nodes_only_makes_every_node_plain():
    config = replace(PROFILE.config, placement=PlacementConfig(gpus="nodes"))
    cluster = build_cluster([slurm_node("n1")], [], SLURM, replace(PROFILE, config=config))
    assert not cluster.indexed.any()
    assert build_cluster([slurm_node("n1")], [], SLURM, PROFILE).indexed.all()
