"""The simulator: conservation laws, a hand-written queue, and what moves cost."""

import heapq
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from small_sizes import IDLE_W, POWER, TABLES, check_energy
from small_traces import FLAT, SETTINGS, name, random_scores, random_trace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.topology.machines import machine


@pytest.mark.parametrize("settings", SETTINGS, ids=name)
def test_every_job_ends_once_with_its_work_and_its_energy(settings):
    trace = random_trace(1)
    jobs = tuple(replace(job, table=TABLES["b"]) for job in trace.jobs)
    scores = random_scores(1)
    cluster = Cluster.uniform(4, 4, scores=scores, locality_penalty=1.5, same_indices=False)
    settings = settings.put(POWER)
    result = simulate(replace(trace, jobs=jobs), cluster, settings, keep_placements=True)
    assert result.infeasible == ()
    assert result.done.all()
    assert (result.used_gpus <= 16).all()
    assert result.used_gpus[-1] == 0
    submit = np.array([j.submit_s for j in jobs])
    work = np.array([j.duration_s for j in jobs])
    assert (result.start_s >= submit).all()
    np.testing.assert_allclose(result.done_s, work, rtol=1e-9)
    # no GPU is faster than the best score and none slower than the worst with every penalty
    assert (result.run_s >= work * 0.9 - 1e-6).all()
    restarts = result.preemptions + result.migrations
    assert (result.run_s <= work * 2.0 * 1.5 + 60.0 * (restarts + 1) + 1e-6).all()
    starts = Counter(placed["job_id"] for placed in result.placements)
    assert min(starts[j.job_id] for j in jobs) == 1
    check_energy(result)
    assert result.energy.power_w[-1] == pytest.approx(16 * IDLE_W)
    assert (result.energy.power_w >= 16 * IDLE_W - 1e-6).all()


@pytest.mark.parametrize("policy", ["pal", "packed"])
def test_work_done_equals_work_asked(policy):
    """Without moves, time on GPUs is exactly duration x slowdown of the one placement."""
    trace = random_trace(3)
    cluster = Cluster.uniform(4, 4, scores=random_scores(3), same_indices=False)
    result = simulate(trace, cluster, SimSettings(policy=policy), keep_placements=True)
    slowdown = {p["job_id"]: p["slowdown"] for p in result.placements}
    expected = [j.duration_s * slowdown[j.job_id] for j in trace.jobs]
    np.testing.assert_allclose(result.run_s, expected, rtol=1e-9)


def m_d_c(arrivals, service, servers):
    """Start times of first come, first served on ``servers`` servers, by hand."""
    free = [0.0] * servers
    starts = []
    for arrival, need in zip(arrivals, service, strict=True):
        start = max(arrival, heapq.heappop(free))
        starts.append(start)
        heapq.heappush(free, start + need)
    return starts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["pal", "packed", "random"])
def test_fifo_without_variability_is_a_plain_queue(policy, seed):
    trace = random_trace(seed, n=300, sizes=(1,))
    result = simulate(trace, FLAT, SimSettings(policy=policy))
    arrivals = [j.submit_s for j in trace.jobs]
    expected = m_d_c(arrivals, [j.duration_s for j in trace.jobs], 16)
    np.testing.assert_allclose(result.start_s, expected)


A, B = ("a", 1), ("b", 1)
NOISE = InterferenceProfile({A: 100.0, B: 100.0}, {(A, B): 150.0, (B, A): 200.0})
"""Beside each other a takes 1.5 times as long, b twice."""


def test_a_neighbour_slows_only_while_it_is_there():
    """a: 100 s alone, 100 s of work beside b at 1.5, the rest alone. b: 60 s of work at 2.0."""
    one = Cluster.uniform(1, 4, locality_penalty=1.0)
    jobs = [TraceJob("a", 0, 1, 300, model="a"), TraceJob("b", 100, 1, 60, model="b")]
    result = simulate(Trace.of("t", jobs), one, SimSettings(interference=NOISE))
    assert result.end_s.tolist() == pytest.approx([100 + 120 + (200 - 80), 220])
    np.testing.assert_allclose(result.done_s, [300, 60])
    apart = Cluster.uniform(2, 1, locality_penalty=1.0)
    alone = simulate(Trace.of("t", jobs), apart, SimSettings(interference=NOISE))
    assert alone.end_s.tolist() == [300, 160]


@pytest.mark.parametrize(("scope", "ends"), [("socket", [300, 160]), ("machine", [340, 220])])
def test_a_neighbour_on_the_other_socket_slows_only_by_machine(scope, ends):
    """One GPU on each socket."""
    graph = machine("ibm-minsky-4xp100")
    one = Cluster.uniform(1, 4, graph=graph)
    exists = np.array([[True, False, True, False]])
    one = replace(one, exists=exists, free=exists.copy())
    jobs = [TraceJob("a", 0, 1, 300, model="a"), TraceJob("b", 100, 1, 60, model="b")]
    settings = SimSettings(interference=NOISE, interference_scope=scope)
    result = simulate(Trace.of("t", jobs), one, settings)
    assert result.end_s.tolist() == pytest.approx(ends)


def test_neighbours_in_preemptive_runs_do_the_work_that_was_asked():
    dice = random.Random(4)
    jobs = [
        TraceJob(str(i), 40.0 * i, 1, dice.uniform(50, 900), model=dice.choice("ab"))
        for i in range(40)
    ]
    settings = SimSettings(interference=NOISE, order="srtf", migration_s=5.0)
    cluster = Cluster.uniform(2, 4, locality_penalty=1.0, same_indices=False)
    result = simulate(Trace.of("t", jobs), cluster, settings)
    assert result.preemptions.sum() > 0
    assert result.done.all()
    work = np.array([job.duration_s for job in jobs])
    np.testing.assert_allclose(result.done_s, work, rtol=1e-9)
    assert (result.run_s > work * 1.2).any()


def test_bandwidth_slows_sensitive_jobs_by_their_share_of_communication():
    """Four DGX-1 GPUs are taken: for a ring of two GPUs nothing but PCIe pairs may be left."""
    graph = machine("dgx-1-v100")
    free = (0, 5)  # joined by PCIe only
    best = max(graph.gbps[0, 1:])
    ratio = best / graph.gbps[free]
    assert ratio > 1
    exists = np.zeros((1, 8), dtype=bool)
    exists[0, list(free)] = True
    cluster = Cluster.uniform(1, 8, graph=graph)
    cluster = replace(cluster, exists=exists, free=exists.copy())
    jobs = [
        TraceJob("general", 0, 2, 100, bandwidth_sensitive=True),
        TraceJob("own", 1000, 2, 100, bandwidth_sensitive=True, communication_share=0.4),
        TraceJob("insensitive", 2000, 2, 100, communication_share=0.4),
        TraceJob("known", 3000, 2, 100, model="VGG-16", bandwidth_sensitive=True),
        TraceJob("unknown", 4000, 2, 100, model="mine", bandwidth_sensitive=True),
    ]
    trace = Trace.of("t", jobs)
    result = simulate(trace, cluster, SimSettings(communication_share=0.1))
    general = 0.9 + 0.1 * ratio
    expected = [general, 0.6 + 0.4 * ratio, 1.0, 0.368 + 0.632 * ratio, general]
    assert result.slowdown().tolist() == pytest.approx(expected)
    off = simulate(trace, cluster, SimSettings())
    assert off.slowdown().tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", ["first", "second", "third"]),
        ("priority", ["third", "first", "second"]),
        ("edf", ["second", "third", "first"]),
        ("srtf", ["third", "second", "first"]),
    ],
)
def test_orders_say_which_job_is_first(order, expected):
    """Three jobs wait for all GPUs, which a fourth holds."""
    jobs = [
        TraceJob("holds", 0, 16, 10, deadline_s=1, priority=9),
        TraceJob("first", 1, 16, 300, priority=5),
        TraceJob("second", 2, 16, 200, priority=5, deadline_s=1000),
        TraceJob("third", 3, 16, 100, priority=7, deadline_s=2000),
    ]
    trace = Trace.of("t", jobs)
    result = simulate(trace, FLAT, SimSettings(order=order))
    ids = np.array([job.job_id for job in trace.jobs])
    assert ids[np.argsort(result.start_s)].tolist() == ["holds", *expected]


def test_rounds_start_jobs_at_their_multiples_only():
    trace = random_trace(5)
    result = simulate(trace, FLAT, SimSettings(round_s=300.0))
    assert set(np.mod(result.start_s, 300.0)) == {0.0}


def test_the_same_input_gives_the_same_result():
    settings = SimSettings(policy="random", policy_options={"seed": 7}, order="las", round_s=300.0)
    first, second = (simulate(random_trace(6), FLAT, settings) for _ in range(2))
    np.testing.assert_array_equal(first.end_s, second.end_s)
    assert first.summary() == second.summary()


def test_las_lets_a_newcomer_in_and_the_old_job_pays_for_coming_back():
    jobs = [TraceJob("old", 0, 16, 10_000), TraceJob("new", 1000, 16, 100)]
    settings = SimSettings(order="las", round_s=100.0, migration_s=60.0)
    result = simulate(Trace.of("t", jobs), FLAT, settings)
    assert result.end_s[1] == 1100.0
    assert result.preemptions.tolist() == [1, 0]
    assert result.end_s[0] == pytest.approx(1100 + 60 + 9000)
    free = simulate(Trace.of("t", jobs), FLAT, replace(settings, migration_s=0.0))
    assert free.end_s[0] == pytest.approx(10_100)


def test_las_without_rounds_sees_the_threshold_being_crossed():
    """The old job has had 3600 GPU s after 225 s; nothing else happens then."""
    jobs = [TraceJob("old", 0, 16, 10_000), TraceJob("new", 100, 16, 50)]
    result = simulate(Trace.of("t", jobs), FLAT, SimSettings(order="las", migration_s=0.0))
    assert result.start_s.tolist() == pytest.approx([0, 225])
    assert result.end_s.tolist() == pytest.approx([10_050, 275])
    assert result.preemptions.tolist() == [1, 0]


MINSKY = Cluster.uniform(2, 4, graph=machine("ibm-minsky-4xp100"), same_indices=False)


def test_whether_a_job_can_ever_run_depends_on_its_options():
    jobs = [
        TraceJob("one machine", 0, 8, 10, options={"single_node": True}),
        TraceJob("two", 0, 8, 10, options={"single_node": False}),
    ]
    result = simulate(Trace.of("t", jobs), MINSKY, SimSettings(policy="topo-aware"))
    assert [job for job, _ in result.infeasible] == ["one machine"]
    assert result.end_s[1] > 0


@pytest.mark.parametrize("round_s", [None, 300.0])
def test_a_postponed_job_starts_when_it_asks_for_little_enough(round_s):
    """One GPU leaves half a socket free: utility 0.5, whatever happens. 0.9 falls to that in
    4/9 of the hour, and no arrival or end tells of it."""
    options = {"minimal_utility": 0.9, "patience_s": 3600.0}
    trace = Trace.of("t", [TraceJob("1", 0, 1, 100, options=options)])
    settings = SimSettings(policy="topo-aware-p", round_s=round_s)
    result = simulate(trace, MINSKY, settings)
    assert result.infeasible == ()
    if round_s is None:
        assert result.start_s[0] == pytest.approx(1600, abs=1)
        assert result.start_s[0] >= 1600
    else:
        assert result.start_s[0] == 1800
    stubborn = replace(trace.jobs[0], options={**options, "patience_s": math.inf})
    infeasible = simulate(Trace.of("t", [stubborn]), MINSKY, settings).infeasible
    assert infeasible == (("1", "no round placed it"),)


def test_backfill_uses_holes_without_delaying_the_head():
    jobs = [
        TraceJob("long", 0, 12, 1000, time_limit_s=1000),
        TraceJob("head", 1, 16, 100, time_limit_s=100),
        TraceJob("short", 2, 4, 900, time_limit_s=900),
        TraceJob("late", 3, 4, 1000, time_limit_s=1000),
    ]
    trace = Trace.of("t", jobs)
    result = simulate(trace, FLAT, SimSettings(backfill=True))
    assert result.start_s.tolist() == [0, 1000, 2, 1100]
    plain = simulate(trace, FLAT, SimSettings())
    assert plain.start_s.tolist() == [0, 1000, 1100, 1100]


def test_a_job_larger_than_the_cluster_is_reported_and_blocks_no_other():
    jobs = [TraceJob("giant", 0, 17, 10), TraceJob("small", 1, 1, 10)]
    result = simulate(Trace.of("t", jobs), FLAT, SimSettings())
    assert [job for job, _ in result.infeasible] == ["giant"]
    assert math.isnan(result.end_s[0])
    assert result.end_s[1] == 11.0
    assert result.summary()["jobs"] == 1


def test_jobs_run_on_the_truth_while_the_planner_sees_bins():
    scores = {"B": np.ones((4, 4))}
    truth = {"B": np.full((4, 4), 1.3)}
    seen = Cluster.uniform(4, 4, scores=scores, same_indices=False)
    trace = Trace.of("t", [TraceJob("1", 0, 2, 100)])
    assert simulate(trace, seen, SimSettings(), truth=truth).end_s[0] == pytest.approx(130)
    off = SimSettings(variability=False)
    assert simulate(trace, seen, off, truth=truth).end_s[0] == pytest.approx(100)


def test_utilization_counts_gpu_seconds():
    trace = Trace.of("t", [TraceJob("1", 0, 8, 100), TraceJob("2", 0, 4, 50)])
    result = simulate(trace, FLAT, SimSettings())
    assert result.summary()["utilization"] == pytest.approx((800 + 200) / (16 * 100))


def test_progress_adds_up_to_all_jobs():
    seen = []
    simulate(random_trace(8), FLAT, SimSettings(), progress=seen.append)
    assert sum(seen) == 30
