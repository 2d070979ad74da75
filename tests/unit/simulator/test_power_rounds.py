"""Rounds with sizes and a power limit: the simulator runs what the planner plans."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request, plan_round
from small_sizes import IDLE_W, MAX_W, POWER, TABLES, check_energy, moldable
from small_traces import FLAT

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.features.power.power_budget import PLANNED, PowerState
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

LIMITS = [0.35, 0.5, 0.8, np.inf]


def packed(trace, *sections, **settings):
    base = SimSettings(policy="eft", overrun="extend")
    base = replace(base, **settings).put(RunEstimates("exact"), POWER, *sections)
    return simulate(trace, FLAT, base, keep_placements=True)


PLANNED_ROUNDS = [{}, {"backfill": True, "round_s": 120.0}, {"order": "las", "round_s": 120.0}]
SIZED_ROUNDS = [
    {"policy": "packed", "mode": mode, "round_s": round_s}
    for mode in ("powerflow", "afs")
    for round_s in (None, 120.0)
]


@pytest.mark.parametrize("eta", LIMITS)
@pytest.mark.parametrize("settings", PLANNED_ROUNDS + SIZED_ROUNDS)
def test_all_jobs_end_and_the_power_stays_below_the_limit(settings, eta):
    trace = moldable(1)
    result = packed(trace, replace(POWER, eta=eta), **settings)
    assert result.done.all()
    assert (result.used_gpus <= 16).all()
    np.testing.assert_allclose(result.done_s, [job.duration_s for job in trace.jobs], rtol=1e-9)
    assert result.energy.power_w.max() <= eta * 16 * MAX_W + 1e-6
    check_energy(result)
    if settings in PLANNED_ROUNDS[:2]:
        assert result.migrations.sum() == 0  # the size of a job stays while it runs


@pytest.mark.parametrize("eta", LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_the_first_round_is_that_of_the_planner(eta, seed):
    rng = np.random.default_rng(seed)
    names = rng.choice(sorted(TABLES), 8)
    jobs = [
        TraceJob(str(i), 0.0, 2, 100.0 * (i + 1), model=n, sizes=(1, 2, 4, 8), table=TABLES[n])
        for i, n in enumerate(names)
    ]
    power = replace(POWER, eta=eta)
    result = packed(Trace.of("t", jobs), power)
    requests = [
        job_request(
            job.job_id,
            1,
            sizes=job.sizes,
            table=job.table,
            estimate_s=job.duration_s * float(job.table.time_s[0, -1] / job.table.time_s[1, -1]),
        )
        for job in jobs
    ]
    each = np.ones((4, 4))
    state = PowerState(MAX_W * each, IDLE_W * each, eta * 16 * MAX_W)
    settings = PlanSettings(policy="eft", backfill=False, auto_clocks=True)
    plan = plan_round(
        requests, FLAT, settings, 0.0, explain=False, power=state if np.isfinite(eta) else None
    )
    expected = {}
    for chosen in plan.assignments:
        table = jobs[int(chosen.job_id)].table
        row, column = table.row(chosen.size), table.column(chosen.clock_mhz)
        pace = table.time_s[row, column] / table.time_s[1, -1]
        expected[chosen.job_id] = (chosen.slots, pytest.approx(pace))
    first = {
        p["job_id"]: (tuple(map(tuple, p["slots"])), p["slowdown"])
        for p in result.placements
        if p["at_s"] == 0
    }
    assert first == expected
    if np.isfinite(eta):
        assert result.energy.power_w[0] == pytest.approx(plan.get(PLANNED).planned_w, abs=0.01)


def test_clocks_of_running_jobs_rise_when_power_becomes_free():
    """Two jobs share a limit that is enough for one at the default clock."""
    jobs = [
        TraceJob(n, 0.0, 4, d, model="a", table=TABLES["a"]) for n, d in (("p", 1e4), ("q", 100.0))
    ]
    limit = 12 * IDLE_W + 4 * 391.0  # a GPU at the default clock draws 391 W
    result = packed(Trace.of("t", jobs), replace(POWER, eta=limit / (16 * MAX_W)))
    assert result.start_s.tolist() == [0, 0]
    slow, fast = result.placements[0]["slowdown"], 1.0
    assert slow > 1.1
    end = float(result.end_s[1])
    assert end > 100.0
    assert result.end_s[0] == pytest.approx(end + (1e4 - end / slow) * fast)


def test_the_planner_may_know_another_table_than_the_one_that_runs():
    """It believes that more GPUs bring nothing, and leaves the job at one."""
    job = TraceJob("p", 0.0, 1, 1000.0, model="a", sizes=(1, 2, 4, 8), table=TABLES["a"])
    assert packed(Trace.of("t", [job])).end_s[0] < 200
    flat = replace(TABLES["a"], time_s=np.ones_like(TABLES["a"].time_s))
    result = packed(Trace.of("t", [job]), replace(POWER, known={"a": flat}))
    assert result.end_s[0] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("eta", "elastic", "grows"),
    [(np.inf, True, True), (np.inf, False, False), (0.8, True, True), (0.5, True, True)],
)
def test_elastic_jobs_grow_by_moves_as_live(eta, elastic, grows):
    moves = MovesConfig(first_s=60.0, again_s=300.0, margin_s=60.0)
    trace = moldable(4, elastic=elastic)
    result = packed(
        trace,
        moves,
        replace(POWER, eta=eta),
        mode="moves",
        migration_s=10.0,
    )
    assert result.done.all()
    sizes = {}
    for placed in result.placements:
        sizes.setdefault(placed["job_id"], []).append(sum(map(len, placed["slots"])))
    assert all(sorted(each) == each for each in sizes.values())
    assert any(each[0] < each[-1] for each in sizes.values()) == grows
    assert result.energy.power_w.max() <= eta * 16 * MAX_W + 1e-6
