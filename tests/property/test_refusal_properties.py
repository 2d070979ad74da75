"""Whatever a user says of jobs, none of them takes what another user's job refuses for them."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from make import plan_round

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.timeline import take

NOW, NODES, WIDTH = 50_000.0, 3, 3
SETTINGS = PlanSettings(policy="eft")
LIMITS = st.sampled_from([60.0, 3_000.0, 20_000.0, math.inf])
COUNTS = st.integers(1, 4)


@st.composite
def sites(draw):
    """A cluster on which bob's jobs run, one waiting job of alice, and others of bob."""
    scores = draw(st.lists(st.sampled_from([1.0, 1.0, 1.6, 2.0]), min_size=9, max_size=9))
    scores = {"A": np.array(scores).reshape(NODES, WIDTH)}
    cluster, running = Cluster.uniform(NODES, WIDTH, scores=scores), []
    for node in range(NODES):
        slots = tuple(draw(st.sets(st.integers(0, WIDTH - 1), max_size=2)))
        if slots:
            cluster.take(node, slots)
            soon_s = draw(st.floats(10.0, 5_000.0))
            job = RunningJob(f"r{node}", ((node, slots),), NOW + 90_000.0, start_s=NOW - 60.0)
            running.append(replace(job, expected_end_s=NOW + soon_s, user="bob"))
    alice = Request("1", draw(COUNTS), app_class="A", time_limit_s=20_000.0, user="alice")
    alice = replace(alice, priority=41_000.0, max_nodes=draw(st.integers(1, 2)))
    bob = [
        Request(f"{n}", draw(COUNTS), app_class="A", time_limit_s=draw(LIMITS), user="bob")
        for n in range(2, draw(st.integers(2, 7)))
    ]
    return replace(cluster, running=tuple(running)), alice, bob


@given(sites(), st.booleans())
def test_a_job_can_start_when_it_no_longer_waits_for_others(site, backfill):
    cluster, alice, bob = site
    plan = plan_round([alice, *bob], cluster, replace(SETTINGS, backfill=backfill), NOW)
    wait = next((w.postponement for w in plan.waiting if w.job_id == "1"), None)
    if wait is None:
        return
    requests = {request.job_id: request for request in bob}
    later = cluster.copy()
    for one in plan.assignments:
        if NOW + requests[one.job_id].time_limit_s > wait.start_s:
            take(later, requests[one.job_id], one)
    assert Dispatcher(SETTINGS, now=NOW).could_place(alice, later) is not None
