"""The simulator's rounds: the jobs shown to the planner, the jobs that give way, the outcome."""

import random

import numpy as np
import pytest
from make import plan_round

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob


def flat(nodes):
    return Cluster.uniform(nodes, 4, locality_penalty=1.0, same_indices=False)


def starts(jobs, cluster, settings):
    trace = Trace.of("t", jobs)
    result = simulate(trace, cluster, settings)
    return dict(zip((j.job_id for j in trace.jobs), result.start_s, strict=True)), result


@pytest.mark.parametrize("order", ["fifo", "priority", "edf"])
@pytest.mark.parametrize("backfill", [False, True])
def test_jobs_of_one_time_stand_in_the_order_of_their_numbers_as_live(order, backfill):
    """10 asks for more than is free and stands before 2 in the file, 2 before 10 in the queue."""
    jobs = [TraceJob("1", 0, 12, 1000), TraceJob("10", 5, 16, 100), TraceJob("2", 5, 4, 100)]
    start, _ = starts(jobs, flat(4), SimSettings(order=order, backfill=backfill))
    assert start == {"1": 0, "2": 5, "10": 1000}


@pytest.mark.parametrize("backfill", [False, True])
def test_a_job_behind_the_prefix_gives_way_to_earlier_jobs_only(backfill):
    """3 runs on 4 of 20 GPUs when 2 and 4 come. 2 does not fit even without 3; 4 is longer."""
    jobs = [
        TraceJob("1", 0, 8, 1000),
        TraceJob("3", 0, 4, 5000),
        TraceJob("2", 10, 16, 2000),
        TraceJob("4", 10, 4, 6000),
    ]
    settings = SimSettings(policy="packed", order="srtf", backfill=backfill)
    start, result = starts(jobs, flat(5), settings)
    assert result.preemptions.sum() == result.migrations.sum() == 0
    assert start == {"1": 0, "3": 0, "2": 1000, "4": 3000}


@pytest.mark.parametrize("backfill", [False, True])
def test_no_more_jobs_give_way_than_must_and_the_last_ones_first(backfill):
    """Four jobs fill 16 GPUs; a short one needs the GPUs of one of them: of the longest."""
    jobs = [TraceJob(str(i), 0, 4, 1000.0 * i) for i in range(1, 5)]
    jobs.append(TraceJob("short", 10, 4, 100))
    settings = SimSettings(policy="packed", order="srtf", backfill=backfill, migration_s=0)
    start, result = starts(jobs, flat(4), settings)
    assert start["short"] == 10
    assert result.preemptions.tolist() == [0, 0, 0, 1, 0]
    assert result.end_s.tolist() == [1000, 2000, 3000, 4100, 110]


def queue_at_once(seed, n=24):
    """Jobs that all arrive at 0, in any order of the file, and more than fit."""
    dice = random.Random(seed)
    ids = [str(i) for i in range(1, n + 1)]
    dice.shuffle(ids)
    return [
        TraceJob(
            job,
            0.0,
            dice.choice((1, 2, 2, 4, 8)),
            100.0,
            dice.choice("ABC"),
            time_limit_s=dice.choice((200.0, 1000.0)),
            priority=float(dice.randrange(4)),
        )
        for job in ids
    ]


@pytest.mark.parametrize("policy", ["pal", "packed", "lowest-index"])
@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("order", ["fifo", "priority"])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_round_is_plan_rounds(policy, backfill, order, seed):
    """The planner is shown the whole queue here, and only as much as it needs by the simulator."""
    rng = np.random.default_rng(seed)
    scores = {c: rng.choice([0.9, 1.0, 1.2], size=(6, 4)) for c in "ABC"}
    cluster = Cluster.uniform(6, 4, scores=scores, locality_penalty=1.5)
    jobs = queue_at_once(seed)
    trace = Trace.of("t", jobs)
    settings = SimSettings(policy=policy, order=order, backfill=backfill)
    found = simulate(trace, cluster, settings, keep_placements=True).placements
    requests = [
        Request(
            job.job_id,
            job.gpus,
            app_class=job.app_class,
            time_limit_s=job.time_limit_s,
            priority=job.priority if order == "priority" else 0.0,
        )
        for job in jobs
    ]
    plan = plan_round(requests, cluster, PlanSettings(policy=policy, backfill=backfill), 0.0)
    assert len(plan.waiting) > 5
    assert [(p["job_id"], p["nodes"], p["slots"]) for p in found if p["at_s"] == 0] == [
        (a.job_id, [cluster.nodes[n] for n in a.nodes], [list(s) for s in a.slots])
        for a in plan.assignments
    ]
