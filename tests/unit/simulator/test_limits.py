"""Time limits: who is killed, who counts, and reservations that come true."""

import random
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.simulator.engine import Simulator, simulate
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.result import compared
from slurm_gpu_aware.simulator.settings import LIMIT_MARGIN, SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.topology.machines import machine

TWO = Cluster.uniform(2, 4, locality_penalty=1.7, same_indices=False)
SLOW = {"B": np.full((2, 4), 1.4)}
KILL, EXTEND = SimSettings(), SimSettings(overrun="extend")


def one(job, settings=KILL, cluster=TWO, truth=SLOW):
    return simulate(Trace.of("t", [job]), cluster, settings, truth=truth)


def test_a_job_ends_at_its_limit_with_work_left():
    result = one(TraceJob("1", 5, 8, 100, time_limit_s=150))
    assert result.end_s[0] == 155
    assert result.killed.tolist() == [True]
    assert result.done.tolist() == [False]
    assert result.done_s[0] == pytest.approx(150 / (1.7 * 1.4))
    assert result.summary()["killed"] == 1
    assert result.summary()["jobs"] == 0


@pytest.mark.parametrize("duration_s", [0.001, 0.5, 3, 40, 200])
@pytest.mark.parametrize("submit_s", [0.3, 1_795_550_000.3])
def test_a_short_job_at_unix_times_is_done(submit_s, duration_s):
    """Unix times are exact to 0.2 us, which is more than 1e-9 of a run of minutes."""
    jobs = [TraceJob(str(i), submit_s + 7 * i, 1, duration_s, time_limit_s=3600) for i in range(20)]
    slow = {"B": np.full((2, 4), 1.37)}
    assert simulate(Trace.of("t", jobs), TWO, KILL, truth=slow).done.all()


def test_a_job_that_ends_exactly_at_its_limit_is_done():
    result = one(TraceJob("1", 0, 8, 100, time_limit_s=100 * 1.7 * 1.4))
    assert result.done.tolist() == [True]


def test_longer_limits_let_it_end():
    result = one(TraceJob("1", 0, 8, 100, time_limit_s=150), EXTEND)
    assert result.end_s[0] == pytest.approx(100 * 1.7 * 1.4)
    assert result.done.tolist() == [True]


def test_a_limit_that_the_simulator_sets_kills_no_job():
    truth = {"B": np.full((2, 4), 9.0)}
    result = one(TraceJob("1", 0, 8, 100), truth=truth)
    assert result.end_s[0] == pytest.approx(100 * 1.7 * 9.0)
    assert result.done.tolist() == [True]


def test_a_recorded_timeout_ends_at_its_limit_again_and_counts():
    job = TraceJob(
        "1", 0, 8, 100, time_limit_s=150, recorded_start_s=0.0, recorded_run_s=151.0,
        recorded_nodes=("a", "b"),
    )  # fmt: skip
    for settings in (KILL, EXTEND):
        result = one(job, settings)
        assert result.end_s[0] == 151
        assert result.done.tolist() == [True]


def test_the_limit_counts_from_a_restart_without_its_cost():
    """At 3,600 GPU seconds a job falls behind in las; it comes back with its whole limit."""
    flat = Cluster.uniform(1, 1)
    jobs = [TraceJob("old", 0, 1, 5000, time_limit_s=5000), TraceJob("new", 4000, 1, 100)]
    result = simulate(Trace.of("t", jobs), flat, SimSettings(order="las", migration_s=2000))
    assert result.preemptions.tolist() == [1, 0]
    assert result.end_s.tolist() == [4100 + 2000 + 1000, 4100]
    assert not result.killed.any()


def test_killed_jobs_are_in_no_comparison():
    jobs = [TraceJob("1", 0, 8, 100, time_limit_s=150), TraceJob("2", 1000, 1, 100)]
    trace = Trace.of("t", jobs)
    both = [simulate(trace, TWO, s, truth=SLOW) for s in (KILL, EXTEND)]
    runs = compared(both)
    assert [run["killed"] for run in runs] == [1, 0]
    assert [run["avg_jct_s"] for run in runs] == [pytest.approx(140.0)] * 2


def busy_trace(seed, limit):
    dice = random.Random(seed)
    at, jobs = 0.0, []
    for i in range(60):
        at += dice.expovariate(1 / 100)
        work = dice.uniform(10, 3000)
        jobs.append(TraceJob(str(i), at, dice.choice((1, 1, 2, 4, 8)), work))
        jobs[-1] = replace(jobs[-1], time_limit_s=limit * work)
    return Trace.of("t", jobs)


@pytest.mark.parametrize("overrun", ["kill", "extend"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_head_starts_no_later_than_it_was_promised(overrun, seed):
    """Of limits that are too short every job would once have run on, past its neighbours' plans."""
    rng = np.random.default_rng(seed)
    truth = {"B": rng.choice([1.0, 1.3, 2.5], size=(2, 4))}
    settings = SimSettings(backfill=True, overrun=overrun)
    run = Simulator(busy_trace(seed, 1.2), TWO, settings, truth=truth)
    promised, plan = [], run.rounds.next

    def next_round():
        due = plan()
        waiting = () if due is None else due.plan.waiting
        promised.extend((w.job_id, s) for w in waiting if (s := w.shadow_start_s) is not None)
        return due

    run.rounds.next = next_round
    result = run.run()
    assert promised
    start = dict(zip((job.job_id for job in result.trace.jobs), result.start_s, strict=True))
    assert all(start[job_id] <= at + 1e-6 for job_id, at in promised)
    assert result.killed.any() == (overrun == "kill")


def test_no_set_and_no_neighbour_exceeds_the_worst_slowdown():
    rng = np.random.default_rng(3)
    truth = {"B": rng.uniform(0.9, 2.0, (3, 8))}
    graph = machine("dgx-1-v100")
    cluster = Cluster.uniform(3, 8, locality_penalty=1.3, graph=graph, same_indices=False)
    pair = InterferenceProfile({("m", 2): 10.0}, {(("m", 2), ("m", 2)): 14.0})
    settings = SimSettings(communication_share=0.4, interference=pair)
    physics = Physics(replace(cluster, scores=truth), settings)
    job = TraceJob("1", 0, 2, 100, model="m", bandwidth_sensitive=True)
    worst = physics.worst(job)
    beside = physics.interference(job, [job] * 3)
    for _ in range(200):
        if rng.random() < 0.3:
            nodes, slots = (0, 1), [(int(rng.integers(8)),), (int(rng.integers(8)),)]
        else:
            nodes = (int(rng.integers(3)),)
            slots = [tuple(sorted(rng.choice(8, 2, replace=False).tolist()))]
        assert physics.slowdown(job, nodes, slots) * beside <= worst + 1e-9
    assert worst <= 2.0 * max(1.3, 0.6 + 0.4 * 50 / 12) * (1 + 7 * 0.4)
    assert LIMIT_MARGIN > 1


def test_links_slow_no_job_that_spans_nodes():
    graph = machine("dgx-1-v100")
    cluster = Cluster.uniform(2, 8, locality_penalty=1.7, graph=graph, same_indices=False)
    physics = Physics(cluster, SimSettings(communication_share=0.4))
    job = TraceJob("1", 0, 4, 100, bandwidth_sensitive=True)
    assert physics.slowdown(job, (0, 1), [(0, 5), (0, 5)]) == pytest.approx(1.7)
    inside = physics.slowdown(replace(job, gpus=2), (0,), [(0, 5)])
    assert inside == pytest.approx(0.6 + 0.4 * graph.gbps[0, 1:].max() / graph.gbps[0, 5])
