"""Estimates in the simulator: only runs that have ended count, and kinds differ as they say."""

from dataclasses import replace

import numpy as np
import pytest
from make import replayed

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import plan_stages
from slurm_gpu_aware.simulator import rounds
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, read_csv

ONE = Cluster.uniform(1, 2, same_indices=False)
HISTORY = SimSettings(backfill=True)


def trained(number, submit, work, **more):
    more = {"user": "alice", "name": "train", "time_limit_s": 10_000.0, **more}
    return TraceJob(str(number), submit, 2, work, **more)


@pytest.fixture
def rounds_seen(monkeypatch):
    """(now, queue, cluster) of every round; the planner itself runs."""
    calls = []

    def spy(one, stages):
        calls.append((one.now, list(one.queue), one.cluster, one.settings))
        return plan_stages(one, stages)

    monkeypatch.setattr(rounds, "plan_stages", spy)
    return calls


def estimates_of(seen, job_id):
    return [(now, r.estimate_s) for now, queue, *_ in seen for r in queue if r.job_id == job_id]


def ends_of(seen, job_id):
    return [
        (now, running.expected_end_s)
        for now, _, cluster, _ in seen
        for running in cluster.running
        if running.job_id == job_id
    ]


def test_a_job_that_waits_learns_from_runs_that_end_meanwhile(rounds_seen):
    trace = Trace.of("t", [trained(1, 0, 1000), trained(2, 10, 1000), trained(3, 20, 1000)])
    simulate(trace, ONE, HISTORY)
    assert estimates_of(rounds_seen, "1") == [(0, 10_000.0)]
    of_third = dict(estimates_of(rounds_seen, "3"))
    assert of_third[20] == 10_000.0  # job 1 has not ended
    assert 1000 < of_third[1000] < 2000
    assert of_third[2000] < of_third[1000]


def test_the_work_of_a_run_is_without_the_slowdown_of_its_gpus(rounds_seen):
    scores = {"B": np.full((1, 2), 2.0)}
    slow = replace(ONE, scores=scores)
    jobs = [*(trained(n, 0, 1000) for n in range(8)), trained("late", 12_500, 1000)]
    simulate(Trace.of("t", jobs), slow, HISTORY)
    assert 1000 < estimates_of(rounds_seen, "7")[-1][1] < 1050
    assert 14_000 < dict(ends_of(rounds_seen, "6"))[12_500] < 14_100  # it takes twice its work


def test_a_running_job_is_expected_to_end_by_its_estimate_until_it_outlives_it(rounds_seen):
    first = [trained(n, 0, 1000) for n in range(6)]
    long = trained("long", 6000, 5000)
    later = [trained(f"w{n}", 6500 + 500 * n, 1000) for n in range(4)]
    simulate(Trace.of("t", [*first, long, *later]), ONE, HISTORY)
    ends = dict(ends_of(rounds_seen, "long"))
    assert 7000 < ends[6500] < 7050
    assert ends[7000] == ends[6500]
    assert ends[7500] == ends[8000] == 16_000  # no run was that long: the limit


def test_kinds(rounds_seen):
    trace = Trace.of("t", [trained(1, 0, 1000), trained(2, 10, 700), trained(3, 500, 50)])
    simulate(trace, ONE, HISTORY.put(RunEstimates("limit")))
    assert {e for _, e in estimates_of(rounds_seen, "2")} == {None}
    assert {e for _, e in ends_of(rounds_seen, "1")} == {None}
    rounds_seen.clear()
    simulate(trace, ONE, HISTORY.put(RunEstimates("exact")))
    assert {e for _, e in estimates_of(rounds_seen, "2")} == {700}
    assert {e for _, e in ends_of(rounds_seen, "1")} == {1000}
    no_user = Trace.of("t", [replace(one, user=None) for one in trace.jobs])
    rounds_seen.clear()
    simulate(no_user, ONE, HISTORY)
    assert {e for _, e in estimates_of(rounds_seen, "3")} == {None}
    simulate(no_user, ONE, HISTORY.put(RunEstimates("history")))
    assert estimates_of(rounds_seen, "3")[-1][1] < 2000


def test_a_killed_run_is_a_lower_bound(rounds_seen):
    killed = [trained(n, 0, 2000, time_limit_s=1000.0) for n in range(6)]
    result = simulate(Trace.of("t", [*killed, trained("more", 0, 100)]), ONE, HISTORY)
    assert result.killed.sum() == 6
    assert estimates_of(rounds_seen, "more")[-1][1] == 10_000.0


def test_an_interrupted_job_is_estimated_by_the_work_it_has_left(rounds_seen):
    jobs = [
        trained(1, 0, 9000, time_limit_s=20_000.0),
        trained(2, 5000, 300, time_limit_s=20_000.0),
    ]
    settings = replace(HISTORY, order="las", las_threshold_gpu_s=7200.0).put(RunEstimates("exact"))
    simulate(Trace.of("t", jobs), ONE, settings)
    assert estimates_of(rounds_seen, "1")[0] == (0, 9000)
    assert estimates_of(rounds_seen, "1")[-1][1] == pytest.approx(4000)


def test_recorded_rounds_with_estimates_replay(rounds_seen):
    trace = Trace.of("t", [trained(n, 10 * n, 1000) for n in range(6)])
    simulate(trace, ONE, HISTORY)
    for now, queue, cluster, settings in list(rounds_seen):
        asked = replayed(Round(queue, cluster, settings, now)).asked
        assert [r.estimate_s for r in asked.queue] == [r.estimate_s for r in queue]
        ends = [r.expected_end_s for r in cluster.running]
        assert [r.expected_end_s for r in asked.cluster.running] == ends


def test_a_background_job_counts_once_it_has_ended(rounds_seen):
    held = [
        replace(trained(f"b{n}", 0, 1000), gpus=1, recorded_start_s=0.0, recorded_run_s=1000.0)
        for n in range(2)
    ]
    held = [replace(one, recorded_nodes=("n0",)) for one in held]
    trace = Trace.of("t", [replace(trained(n, 10 + n, 700), gpus=1) for n in range(4)])
    simulate(replace(trace, background=tuple(held)), ONE, HISTORY)
    of_third = dict(estimates_of(rounds_seen, "2"))
    assert of_third[12] == 10_000.0
    assert 1000 < of_third[1000] < 2000


def test_names_and_accounts_of_a_csv():
    head = "job_id,submit_s,gpus,duration_s"
    (one,) = read_csv("t", text=f"{head},user,name,account\n1,0,1,9,al,train,bio\n").jobs
    assert (one.user, one.name, one.account) == ("al", "train", "bio")
    (one,) = read_csv("t", text=f"{head},vc\n1,0,1,9,6214e9\n").jobs
    assert (one.user, one.name, one.account) == (None, None, "6214e9")
