"""A job is called impossible if, and only if, the empty cluster has no place for it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import NOW, plan_round, request_of
from small_clusters import all_sets, clusters, requests
from small_requests import NAMES, asked_requests, idle_nodes, in_use, left_of, reserved, site_of

from slurm_gpu_aware.admission.context import CannotPlanError
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.request import Memory
from slurm_gpu_aware.planning.plan import PlanSettings

NEVER = "cannot start even on an idle cluster"
IMPOSSIBLE = re.compile("more (CPUs|memory) than a node has|no node has so many|no socket has")
"""Why a job is left to Slurm that Slurm would not start either."""


@st.composite
def empty_and_used(draw):
    """A cluster without jobs, the same one in some reading of Slurm, and a request."""
    cluster = draw(clusters(most_gpus=10))
    n, width = cluster.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    totals = {"cpus": rng.integers(1, 9, n), "memory_mb": rng.integers(1, 9, n)}
    free = {"free_cpus": totals["cpus"].copy(), "free_memory_mb": totals["memory_mb"].copy()}
    empty = replace(cluster, free=cluster.exists.copy(), **totals, **free)
    held = [(node, slot) for node, slot in np.argwhere(~cluster.free & cluster.exists).tolist()]
    running = [RunningJob("r", tuple((i, (s,)) for i, s in held), NOW + 10.0, {0: 1}, {0: 1})]
    used = replace(
        empty,
        free=cluster.free,
        free_cpus=rng.integers(0, totals["cpus"] + 1),
        free_memory_mb=rng.integers(0, totals["memory_mb"] + 1),
        running=tuple(running if held else ()),
        installed=np.ones((n, width), dtype=bool) if draw(st.booleans()) else None,
    )
    request = draw(requests(cluster))
    if draw(st.integers(0, 3)) == 0:
        request = replace(request, memory=Memory(whole=True))
    return empty, used, request


def verdict(request, cluster):
    """The reason why it is called impossible; None: it is not."""
    plan = plan_round([request], cluster, PlanSettings(), NOW)
    return next((one.reason for one in plan.waiting if one.infeasible), None)


@settings(max_examples=500, deadline=None)
@given(empty_and_used())
def test_the_empty_cluster_decides(situation):
    empty, used, request = situation
    possible = next(all_sets(request, empty), None) is not None
    assert (verdict(request, used) is None) is possible
    assert (verdict(request, empty) is None) is possible


def outcome(job, original, context, make=request_of):
    """``planned``, ``left`` or ``impossible``; and the reason."""
    try:
        request = make(job, original, context)
    except CannotPlanError as exc:
        return ("impossible" if IMPOSSIBLE.search(exc.reason) else "left"), exc.reason
    why = verdict(request, context.cluster)
    return ("planned" if why is None else "impossible"), why


@pytest.mark.parametrize("make", [request_of, left_of])
@settings(max_examples=600, deadline=None)
@given(st.data(), idle_nodes(), asked_requests())
def test_no_job_of_others_makes_a_request_impossible(make, data, nodes, request):
    """Whatever runs, is placed and not started, or is read wrong."""
    alone, _ = outcome(*request, site_of(nodes), make)
    beside, _ = outcome(*request, site_of(*data.draw(in_use(nodes))), make)
    assert beside != "impossible" or alone == "impossible"


@pytest.mark.parametrize("make", [request_of, left_of])
@settings(max_examples=400, deadline=None)
@given(st.data(), idle_nodes(), asked_requests())
def test_a_node_that_is_away_is_no_reason_for_never(make, data, nodes, request):
    """Down, drained, silent, with drained GPUs, or reserved."""
    alone, why_alone = outcome(*request, site_of(nodes), make)
    away = data.draw(st.sets(st.sampled_from(NAMES), min_size=1))
    kind = data.draw(st.sampled_from(["DOWN", "DRAIN", "gpus", "reserved"]))
    states, drained = frozenset({"IDLE", kind}), frozenset({0, 1})
    if kind == "reserved":
        context = site_of(nodes, reservations=[reserved(*away)])
    else:
        change = {"gpus_drained": drained} if kind == "gpus" else {"states": states}
        shown = [replace(one, **change) if one.name in away else one for one in nodes]
        context = site_of(shown)
    found, why = outcome(*request, context, make)
    if found != "impossible":
        return
    if alone == "left":  # here by another rule of ours than there
        assert "indexed and plain" not in why_alone
    elif alone == "impossible":
        assert why.startswith(NEVER) or IMPOSSIBLE.search(why_alone)
    else:
        assert "; down, drained or reserved: n" in why
