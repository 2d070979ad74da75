"""Verdicts of one round on jobs that have no place on the empty cluster."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import job_request, plan_round, with_fields

from slurm_gpu_aware.model.cluster import PLENTY_CPUS, PLENTY_MB, Cluster, RunningJob, Shards
from slurm_gpu_aware.model.request import Memory, Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting

FOUR = np.ones((2, 4), dtype=np.bool_)


def held_cluster(**fields: Any) -> Cluster:
    """Two nodes of four GPUs, 16 CPUs and 1000 MB, all of it held by jobs that none knows."""
    totals = {"cpus": np.array([16, 16]), "memory_mb": np.array([1000, 1000])}
    free = {"free": ~FOUR, "free_cpus": np.zeros(2, int), "free_memory_mb": np.zeros(2, int)}
    given = {"exists": FOUR.copy(), **totals, **free, **fields}
    return Cluster.build(["n1", "n2"], given.pop("exists"), **given)


def why_waits(request: Request, cluster: Cluster) -> Waiting:
    (waiting,) = plan_round([request], cluster, PlanSettings(), 0.0).waiting
    return waiting


def test_the_empty_cluster_has_what_its_nodes_have() -> None:
    running = (RunningJob("r", ((0, (0,)),), 10.0, {0: 16}, {0: 1000}),)
    shards = Shards(np.full((2, 4), 8), np.full((2, 4), 3))
    used = held_cluster(running=running, shards=shards, power_w=np.zeros(2))
    empty = used.empty()
    assert empty.free.all()
    assert (empty.free_cpus.tolist(), empty.free_memory_mb.tolist()) == ([16, 16], [1000, 1000])
    assert (empty.running, empty.power_w) == ((), None)
    assert not empty.shards.free.any()  # those of GPUs that jobs share
    assert not used.free.any()
    empty.take(0, (0,), 1, 1)
    assert (used.cpus.tolist(), used.exists.all()) == ([16, 16], True)


def test_what_is_not_known_is_plenty() -> None:
    empty = replace(held_cluster(), cpus=None, memory_mb=None).empty(repaired=True)
    assert empty.free_cpus.tolist() == [PLENTY_CPUS] * 2
    assert empty.free_memory_mb.tolist() == [PLENTY_MB] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": 1, "cpus": 16},
        {"gpus": 4, "memory": Memory(per_gpu_mb=250)},
        {"gpus": 1, "memory": Memory(per_node_mb=1000, whole=True)},
        {"gpus": 4, "whole": True},
        {"gpus": 8, "power_w": 5000.0},
    ],
)
def test_what_jobs_hold_makes_no_job_impossible(fields: dict[str, Any]) -> None:
    used = held_cluster(power_w=np.array([0.0, 100.0]))
    assert not why_waits(job_request("1", **fields), used).infeasible


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": 1, "cpus": 17}, "GPUs are free, but too few nodes have 17 free CPUs"),
        ({"gpus": 1, "memory": Memory(per_gpu_mb=1001)}, "too few nodes have 1001 MB of memory"),
        ({"gpus": 5, "max_nodes": 1}, "5 GPUs cannot be split evenly over nodes of at most 4 GPUs"),
    ],
)
def test_what_no_node_has_is_impossible(fields: dict[str, Any], why: str) -> None:
    waiting = why_waits(job_request("1", **fields), held_cluster())
    assert waiting.infeasible
    assert waiting.reason.startswith("cannot start even on an idle cluster: ")
    assert waiting.reason.endswith(why)


def test_nodes_that_are_down_are_named() -> None:
    down = held_cluster(exists=FOUR & [[True], [False]], installed=FOUR)
    waiting = why_waits(Request("1", 8), down)
    assert waiting.infeasible
    now = "needs 8 GPUs; the nodes it may use have 4 GPUs"
    assert waiting.reason == f"{now}; down, drained or reserved: n2"
    assert why_waits(Request("1", 12), down).reason.startswith(
        "cannot start even on an idle cluster"
    )


def test_reserved_nodes_are_named_and_others_are_not() -> None:
    names = [f"n{i}" for i in range(1, 8)]
    cluster = Cluster.uniform(names, 4)
    eligible = np.arange(7) < 1
    request = job_request("1", 8, eligible=eligible, allowed=np.arange(7) < 6)
    assert why_waits(request, cluster).reason.endswith("reserved: n2, n3, n4 and 2 more")
    without = with_fields(request, allowed=None)
    assert why_waits(without, cluster).reason.startswith("cannot start even on an idle cluster")


def test_all_memory_is_that_of_the_node_which_the_job_gets() -> None:
    """Not an amount: of two nodes only the one that no job uses counts, and all of it is taken."""

    def asking(number: int, memory: Memory, **fields: Any) -> Request:
        return job_request(str(number), 1, memory=memory, **fields)

    def planned(queue: list[Request], free_mb: list[int]) -> Plan:
        memory = {"memory_mb": np.array([1000, 4000]), "free_memory_mb": np.array(free_mb)}
        cluster = Cluster.build(["n1", "n2"], FOUR, **memory)
        return plan_round(queue, cluster, PlanSettings(), 0.0)

    every, some = Memory(per_node_mb=1000, whole=True), Memory(per_gpu_mb=1)
    plan = planned([asking(1, every), asking(2, every), Request("3", 1)], [1000, 3000])
    assert {a.job_id: a.nodes for a in plan.assignments}["1"] == (0,)
    (second,) = plan.waiting
    assert second.job_id == "2"
    assert "too few nodes have all their memory free" in second.reason
    only = {"eligible": np.array([False, True])}
    behind = planned([asking(1, every, **only), asking(2, some, **only)], [1000, 4000])
    assert [(a.job_id, a.nodes) for a in behind.assignments] == [("1", (1,))]
    assert [w.job_id for w in behind.waiting] == ["2"]
