"""Pace by size and clock, and energy: by hand, and as the integral of the power."""

from dataclasses import replace

import numpy as np
import pytest
from small_traces import FLAT, SETTINGS, name, random_trace

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.declared import SLOWER, EnergyConfig
from slurm_gpu_aware.features.energy.simulated import with_bound
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import LimitedSettings, SizeTable
from slurm_gpu_aware.simulator.active import ActiveJob, EventClock
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.power_meter import PowerMeter
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

IDLE_W = 50.0
APART = Cluster.uniform(4, 4, locality_penalty=1.5, same_indices=False)
POWER = RunPower(idle_w=IDLE_W, max_w=400.0)
TABLE = SizeTable(
    np.array([1, 2, 4, 8]),
    np.array([900, 1410]),
    np.array([[15.0, 10.0], [9.0, 6.0], [6.0, 4.0], [4.5, 3.0]]),
    np.array([[180.0, 300.0], [360.0, 600.0], [720.0, 1200.0], [1440.0, 2400.0]]),
)


def powered(jobs, cluster=FLAT, **settings):
    return simulate(Trace.of("t", jobs), cluster, SimSettings(**settings).put(POWER))


def entered(gpus, clock, job_gpus=1):
    """A state at time 0 with one job of 100 s on ``gpus`` GPUs of a node of 4."""
    job = TraceJob("j", 0.0, job_gpus, 100.0, table=TABLE)
    cluster, settings = Cluster.uniform(1, 4), SimSettings().put(POWER)
    state = ClusterState(cluster, settings, Physics(cluster, settings), EventClock(None))
    state.meter = PowerMeter(4, IDLE_W)
    active = ActiveJob(0, job, Request("j", job_gpus), ((), ""), size=job_gpus)
    slots = tuple(range(gpus))
    state.enter(active, Assignment("j", (0,), (slots,), "packed", 1, "node", 1, clock_mhz=clock), 0)
    return state, active


def test_one_job_at_the_default_clock_draws_what_its_table_says():
    """100 s at 300 W beside three idle GPUs."""
    own = powered([TraceJob("j", 20.0, 1, 100.0, table=TABLE)], Cluster.uniform(1, 4)).summary()
    assert own["energy_kwh"] * 3.6e6 == pytest.approx(100 * (300 + 3 * 50))
    assert own["idle_energy_kwh"] * 3.6e6 == pytest.approx(100 * 3 * 50)
    assert own["peak_power_w"] == pytest.approx(450)


@pytest.mark.parametrize(
    ("gpus", "clock", "ends_s"), [(1, None, 100), (2, None, 60), (4, None, 40), (2, 900, 90)]
)
def test_the_pace_is_that_of_size_and_clock(gpus, clock, ends_s):
    state, active = entered(gpus, clock)
    assert state.clock.pop()[0] == pytest.approx(ends_s)
    assert active.size == gpus


def test_a_power_limit_has_the_pace_and_power_of_its_setting():
    """At 250 W 100 s of work take 105 s at 240 W; 252 W are not in the table, 250 W are nearest."""
    limits = np.array([900, 1410]), np.array([150, 250])
    values = np.array([[16.0, 10.5]]), np.array([[140.0, 240.0]]), np.zeros(2)
    one = SizeTable(np.array([1]), TABLE.clocks_mhz, TABLE.time_s[:1], TABLE.power_w[:1])
    one = replace(one, limited=LimitedSettings(*limits, *values))
    assert one.at(0, 1410, 252) == (10.5, 240.0)
    assert one.at(0, None, None) == (10.0, 300.0)
    job, sections = TraceJob("j", 0.0, 1, 100.0, table=one), {EnergyConfig: EnergyConfig(0.06)}
    known = replace(one, time_error=np.zeros(2))
    settings = SimSettings(sections=sections).put(replace(POWER, known={"app": known}))
    result = simulate(Trace.of("t", [replace(job, model="app")]), Cluster.uniform(1, 1), settings)
    assert result.end_s.tolist() == [pytest.approx(105.0)]
    assert result.energy.job_j.tolist() == [pytest.approx(105 * 240)]


def test_at_default_clocks_no_job_has_a_bound_of_its_own():
    """The job says slower=50: at 900 MHz 100 s of work take 150 s."""
    known = replace(TABLE, time_error=np.zeros(2))
    job = TraceJob("j", 0.0, 1, 100.0, table=known, hints=JobHints({SLOWER.key: 50}))
    trace, site = Trace.of("t", [job]), SimSettings().put(POWER)
    runs = (site, with_bound(site, 0.03), with_bound(site, 0.0))
    ends_s = [float(simulate(trace, Cluster.uniform(1, 1), run).end_s[0]) for run in runs]
    assert ends_s == pytest.approx([150.0, 150.0, 100.0])


def test_a_clock_that_changes_changes_pace_and_power_from_then_on():
    """Half of the work in 50 s at 300 W; the rest takes 75 s at 180 W."""
    state, active = entered(1, None)
    state.clock.now = 50.0
    state.set_clock(active, 900)
    assert state.clock.pop()[0] == pytest.approx(125)
    state.clock.now = 125.0
    state.leave(active)
    assert active.finished
    energy = state.meter.read([active])
    assert energy.job_j.tolist() == pytest.approx([50 * 300 + 75 * 180])
    assert energy.at_s.tolist() == [0, 50, 125]
    assert energy.power_w.tolist() == pytest.approx([450, 330, 200])
    assert energy.total_j(0, 125) == pytest.approx(125 * 150 + 50 * 300 + 75 * 180)
    assert energy.total_j(50, 60) == pytest.approx(10 * 330)


def test_gpus_of_a_job_that_restarts_draw_idle_power():
    """A pause of 60 s, left after 40 s; then one that ends."""
    state, active = entered(1, None)
    state.clock.now = 10.0
    state.leave(active)
    at = Assignment("j", (0,), ((1,),), "packed", 1, "node", 1)
    state.enter(active, at, 60.0)
    state.clock.now = 50.0
    state.set_clock(active, 900)
    state.leave(active)
    state.enter(active, at, 60.0)
    state.clock.now = 200.0
    state.leave(active)
    energy = state.meter.read([active])
    assert energy.job_j[0] == pytest.approx(10 * 300 + 40 * 50 + 60 * 50 + 90 * 300)
    assert energy.total_j(0, 200) == pytest.approx(energy.job_j[0] + 200 * 3 * 50)


@pytest.mark.parametrize("settings", SETTINGS[::5], ids=name)
def test_a_table_without_effect_changes_no_result(settings):
    ones = replace(TABLE, time_s=np.ones((4, 2)))
    plain = random_trace(6)
    tabled = replace(plain, jobs=tuple(replace(job, table=ones) for job in plain.jobs))
    a, b = (simulate(trace, APART, settings, keep_placements=True) for trace in (plain, tabled))
    assert a.placements == b.placements
    np.testing.assert_array_equal(a.end_s, b.end_s)
    assert a.energy is None
    assert b.energy is None  # the power of a GPU is not known


def test_energy_is_not_known_if_a_job_has_no_table():
    with_table = TraceJob("j", 0.0, 1, 100.0, table=TABLE)
    own = powered([with_table, TraceJob("k", 0.0, 1, 100.0)]).summary()
    assert own["energy_kwh"] is own["idle_energy_kwh"] is own["peak_power_w"] is None


def test_the_times_of_other_sizes_hold_the_network_that_these_need():
    """8 GPUs need two nodes of four. A job that did its work on one GPU knows that by its table."""
    physics = Physics(APART, SimSettings())
    two, four = ((0, 1), [(0, 1, 2, 3)] * 2), ((0, 1, 2, 3), [(0, 1)] * 4)
    of_eight = TraceJob("j", 0.0, 8, 100.0, sizes=(1, 2, 4, 8), table=TABLE)
    of_one = replace(of_eight, gpus=1)
    for nodes in (two, four):
        assert physics.slowdown(replace(of_eight, table=None), *nodes) == pytest.approx(1.5)
        assert physics.slowdown(of_eight, *nodes) == pytest.approx(1.5)
        assert physics.slowdown(of_one, *nodes) == pytest.approx(1.0)
    pair = (0, 1), [(0, 1)] * 2
    assert physics.slowdown(of_one, *pair) == pytest.approx(1.5)
    assert physics.slowdown(of_eight, (0,), [(0,)]) == pytest.approx(1.5)
    assert physics.longest(of_eight) == pytest.approx(500 * 1.5)


def test_a_limit_of_the_simulator_leaves_time_for_the_slowest_size_and_clock():
    """15 s an iteration with one GPU at 900 MHz, 3 s with eight at the default clock."""
    job = TraceJob("j", 0.0, 8, 100.0, sizes=(1, 2, 4, 8), table=TABLE)
    assert Physics(FLAT, SimSettings()).longest(job) == pytest.approx(500)


def test_a_size_that_the_table_lacks_is_an_error_of_the_trace():
    with pytest.raises(SourceError, match=r"job j: .* 3 GPUs at the default clock"):
        powered([TraceJob("j", 0.0, 3, 100.0, table=TABLE)])
    hole = replace(TABLE, time_s=np.full((4, 2), np.nan))
    with pytest.raises(SourceError, match="has no time"):
        powered([TraceJob("j", 0.0, 1, 100.0, table=hole)])
