"""Due dates in the simulator: as the planner plans them, met or not, and by STS for all jobs."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request
from small_sizes import POWER, TABLES, moldable
from small_traces import FLAT

from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.due_dates.declared import DueDatesConfig
from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.due_dates.plan import due_plan
from slurm_gpu_aware.features.due_dates.simulated import due_numbers, parse_factors, with_due_dates
from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

ONE = Cluster.uniform(1, 8, same_indices=False)
SIZES = (1, 2, 4, 8)
EARLIER = [1000.0] * 4 + [9000.0]
"""Work of the earlier runs, with one GPU."""
LIMIT_S = 10_000.0
AT_S = 100_000.0
"""Submission of the job with a due date; the earlier ones have ended."""


def earlier():
    return [
        TraceJob(str(i), 0.0, 1, work, name="a", user="u", time_limit_s=LIMIT_S, table=TABLES["a"])
        for i, work in enumerate(EARLIER)
    ]


def dated_job(work_s, due_after_s, **more):
    job = TraceJob(
        "dated", AT_S, 1, work_s, name="a", user="u", time_limit_s=LIMIT_S, table=TABLES["a"],
        sizes=SIZES, deadline_s=AT_S + due_after_s,
    )  # fmt: skip
    return replace(job, **more)


def due_run(jobs, policy="packed", cluster=ONE, order="slurm", **more):
    base = SimSettings(**more).put(POWER, RunEstimates("limit"))
    moves = MovesConfig(first_s=0.0, margin_s=1e9, last_s=0.0)
    settings = parse_policy(policy, base.put(moves, DueDatesConfig(order)))
    return simulate(Trace.of("t", jobs), cluster, settings, keep_placements=True)


def sizes_of(result, job_id="dated"):
    return [
        (p["at_s"], sum(map(len, p["slots"]))) for p in result.placements if p["job_id"] == job_id
    ]


def due_said(due_after_s, restart_s=None):
    """What the planner says when the job starts."""
    due = DueDate(AT_S + due_after_s, tuple((1, work) for work in EARLIER), restart_s=restart_s)
    request = job_request("dated", 1, sizes=SIZES, table=TABLES["a"], due=due, time_limit_s=LIMIT_S)
    return due_plan(request, AT_S)


def others(gpus, seconds, at_s=AT_S - 1):
    return TraceJob("other", at_s, gpus, seconds, time_limit_s=1e6)


@pytest.mark.parametrize("due_after_s", [3000.0, 6000.0])
def test_a_job_waits_for_the_size_of_its_plan(due_after_s):
    plan = due_said(due_after_s)
    half = plan.gpus // 2
    long, other = others(8 - plan.gpus, 20_000.0), others(plan.gpus - half, 101.0)
    short = replace(other, job_id="short", time_limit_s=101.0)
    jobs = [*earlier(), long, short, dated_job(1000.0, due_after_s)]
    result = due_run(jobs)
    assert sizes_of(result) == [(AT_S + 100.0, plan.gpus)]
    assert due_numbers(result)["due_met"] == 1.0
    of_long_limit = [*earlier(), long, replace(short, time_limit_s=1e6), jobs[-1]]
    assert sizes_of(due_run(of_long_limit)) == [(AT_S, half)]
    undated = due_run(jobs, "packed:no-due")
    assert undated.settings.label == "packed:no-due"
    assert sizes_of(undated) == [(AT_S, half)]


def test_a_long_job_grows_when_its_plan_says_so_and_is_in_time():
    plan = due_said(6000.0, restart_s=60.0)
    assert plan.growth
    jobs = [*earlier(), others(8 - plan.gpus, 100.0), dated_job(9000.0, 6000.0, elastic=True)]
    result = due_run(jobs, "packed:moves")
    (start, first), (grown, more) = sizes_of(result)[:2]
    assert (start, first) == (AT_S, plan.gpus)
    assert grown == pytest.approx(AT_S + plan.growth[0][0])
    assert more == plan.growth[0][1]
    assert due_numbers(result) == {"due_jobs": 1, "due_met": 1.0, "avg_late_s": 0.0, "late_h": 0.0}
    kept = due_run(jobs, "packed:moves:no-due")
    assert len(sizes_of(kept)) == 1


@pytest.mark.parametrize("runs", [(), tuple((1, work) for work in EARLIER)])
def test_stated_epochs_count_as_live(runs):
    """The limit does for twice the epochs."""
    hints = JobHints({"epochs": (50, 100)})
    due = DueDate(AT_S + 3000.0, runs, epochs=(50, 1, 100.0))
    request = job_request("dated", 1, sizes=SIZES, table=TABLES["a"], due=due, time_limit_s=LIMIT_S)
    planned = due_plan(request, AT_S).gpus
    result = due_run([*(earlier() if runs else []), dated_job(1000.0, 3000.0, hints=hints)])
    assert sizes_of(result) == [(AT_S, planned)]
    unstated = due_run([*(earlier() if runs else []), dated_job(1000.0, 3000.0)])
    assert sizes_of(unstated)[0][1] > planned


def test_a_job_without_earlier_runs_is_sized_as_if_it_had_no_due_date():
    jobs = [others(6, 20_000.0), dated_job(1000.0, 2000.0)]
    for policy in ("packed", "packed:sts"):
        assert [gpus for _, gpus in sizes_of(due_run(jobs, policy))] == sizes_expected(policy)


def sizes_expected(policy):
    """Growth takes the free GPUs in a round; STS gives what is asked for."""
    return [2] if policy == "packed" else [1]


def test_lateness_counts_jobs_that_ended_and_unfinished_ones_are_not_in_time():
    jobs = [
        TraceJob("in time", 0.0, 1, 100.0, deadline_s=150.0),
        TraceJob("late", 0.0, 1, 3700.0, deadline_s=100.0),
        TraceJob("killed", 0.0, 1, 900.0, deadline_s=9000.0, time_limit_s=100.0),
        TraceJob("none", 0.0, 1, 900.0),
    ]
    result = simulate(Trace.of("t", jobs), ONE, SimSettings(policy="packed"))
    assert due_numbers(result) == {
        "due_jobs": 3, "due_met": pytest.approx(1 / 3), "avg_late_s": 1800.0, "late_h": 1.0
    }  # fmt: skip
    assert due_numbers(simulate(Trace.of("t", jobs[3:]), ONE, SimSettings())) == {}


@pytest.mark.parametrize("policy", ["packed:sts", "packed:sts-preempt", "eft:sts"])
@pytest.mark.parametrize("seed", range(3))
def test_sts_does_all_work_and_no_job_that_runs_gets_fewer_gpus(policy, seed):
    trace = with_due_dates(moldable(seed), (1.5, 4.0), seed)
    jobs = [
        replace(job, elastic=i % 4 > 0, time_limit_s=30_000.0) for i, job in enumerate(trace.jobs)
    ]
    result = due_run(jobs, policy, FLAT)
    assert result.done.all()
    np.testing.assert_allclose(result.done_s, [job.duration_s for job in jobs], rtol=1e-9)
    for job in jobs:
        sizes = [gpus for _, gpus in sizes_of(result, job.job_id)]
        if policy != "packed:sts-preempt":
            assert sizes == sorted(set(sizes))
        if not job.elastic:
            assert len(sizes) == 1


def test_by_pressure_a_pressing_job_overtakes_one_with_time():
    """One GPU is free at a time; the later of two jobs has less time to spare."""
    calm = replace(dated_job(1000.0, 60_000.0), job_id="calm", sizes=(1, 2))
    pressed = replace(dated_job(1000.0, 11_500.0), submit_s=AT_S + 1, sizes=(1, 2))
    full = replace(others(7, 50_000.0), job_id="full")
    jobs = [*earlier(), full, others(1, 500.0), calm, pressed]
    for order in ("slurm", "pressure", "together"):
        result = due_run(jobs, order=order)
        starts = {p["job_id"]: p["at_s"] for p in result.placements}
        assert (starts["dated"] < starts["calm"]) == (order != "slurm")
        assert min(starts["dated"], starts["calm"]) == AT_S + 499.0


@pytest.mark.parametrize(("weight", "first"), [(5.0, "dated"), (50.0, "calm")])
def test_a_weight_divides_the_time_to_spare(weight, first):
    calm = dated_job(1000.0, 60_000.0, job_id="calm", weight=weight)
    pressed = dated_job(1000.0, 11_500.0)
    full = replace(others(7, 50_000.0), job_id="full")
    jobs = [replace(job, sizes=(1, 2)) for job in (calm, pressed)]
    result = due_run([*earlier(), full, others(1, 500.0), *jobs], order="pressure")
    starts = {p["job_id"]: p["at_s"] for p in result.placements}
    assert starts[first] == AT_S + 499.0 == min(starts["dated"], starts["calm"])


@pytest.mark.parametrize(("weight", "size"), [(0.01, (AT_S, 1)), (1.0, (AT_S + 299.0, 8))])
def test_sts_postpones_a_job_whose_due_date_has_weight(weight, size):
    """One GPU is free, on which the job is late: as cheap as can be, or worth waiting for eight."""
    full = replace(others(7, 300.0), job_id="full")
    result = due_run([*earlier(), full, dated_job(9000.0, 500.0, weight=weight)], "packed:sts")
    assert sizes_of(result)[0] == size


def test_sts_grows_a_long_job_and_restarts_count():
    jobs = [*earlier(), dated_job(9000.0, 6000.0, elastic=True)]
    result, free = (due_run(jobs, "packed:sts", migration_s=cost_s) for cost_s in (100.0, 0.0))
    sizes = sizes_of(result)
    assert sizes[1][0] < sizes_of(free)[1][0] - 50.0
    assert [gpus for _, gpus in sizes] == sorted({gpus for _, gpus in sizes})
    assert len(sizes) > 1
    assert sizes[0] == (AT_S, 1)
    assert due_numbers(result)["due_met"] == 1.0


def test_due_dates_are_drawn_for_jobs_that_have_none():
    jobs = [
        *(replace(dated_job(800.0, 0.0), job_id=str(i), deadline_s=None) for i in range(200)),
        TraceJob("own", 5.0, 1, 100.0, deadline_s=7.0),
        TraceJob("plain", 5.0, 1, 100.0),
    ]
    found = {job.job_id: job for job in with_due_dates(Trace.of("t", jobs), (2.0, 3.0), 1).jobs}
    assert found["own"].deadline_s == 7.0
    assert 205.0 <= found["plain"].deadline_s <= 305.0
    fastest = 800.0 * (0.01 + 0.99 / 8)
    factors = [(found[str(i)].deadline_s - AT_S) / fastest for i in range(200)]
    assert 2.0 <= min(factors) < 2.1 < 2.9 < max(factors) <= 3.0


@pytest.mark.parametrize("text", ["", "1", "3-1", "0-2", "1-x", "-1-2", "1e9-2", "1-2-3"])
def test_bad_factors_are_refused(text):
    assert parse_factors("1.5-3") == (1.5, 3.0)
    with pytest.raises(RequestError, match="--due"):
        parse_factors(text)
