"""Sizes, clocks and power of a round: small cases whose result is counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import job_request, plan_round, reasons, sizes, with_fields, with_running

from slurm_gpu_aware.features.power.declared import Grown
from slurm_gpu_aware.features.power.power_budget import PLANNED, PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import PreemptionRights
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import ClockChange, PlanSettings

NOW = 1000.0
PACKED = PlanSettings(policy="packed")
# Per GPU 100 W at 600 MHz, 150 W at 900 (least energy), 300 W at 1200; 2 GPUs are 1.8 x faster.
TABLE = SizeTable(
    gpus=np.array([1, 2, 4]),
    clocks_mhz=np.array([600, 900, 1200]),
    time_s=np.array([[2.0, 1.2, 1.0]]) / np.array([[1.0], [1.8], [3.24]]),
    power_w=np.array([[100.0, 150.0, 300.0]]) * np.array([[1.0], [2.0], [4.0]]),
    source="measured",
)


def state(limit_w, shape=(1, 4), **running):
    return PowerState(np.full(shape, 300.0), np.full(shape, 50.0), limit_w, running)


def tabled(number, gpus=1, **more):
    given = {"table": TABLE, "clock": "auto", "time_limit_s": 3600.0, "priority": -number}
    return job_request(str(number), gpus, **{**given, **more})


def with_jobs(cluster, *jobs):
    """The cluster with running jobs, each (id, slots of node 0, end)."""
    running = (RunningJob(name, ((0, slots),), end, start_s=0.0) for name, slots, end in jobs)
    return with_running(cluster, *running)


def plan_of(queue, cluster, power=None, settings=PACKED, **more):
    return plan_round(queue, cluster, settings, NOW, power=power, **more)


def clocks(plan):
    return {a.job_id: a.clock_mhz for a in plan.assignments}


def test_a_moldable_job_gets_its_least_size_if_others_can_use_the_rest():
    queue = [tabled(0, 4, sizes=(1, 2, 4)), tabled(1), tabled(2), tabled(3)]
    assert sizes(plan_of(queue, Cluster.uniform(1, 4))) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_a_moldable_job_doubles_on_gpus_that_no_job_can_use():
    queue = [tabled(0, 1, sizes=(1, 2, 4)), tabled(1)]
    plan = plan_of(queue, Cluster.uniform(1, 4))
    assert sizes(plan) == {"0": 2, "1": 1}
    assert plan.assignments[0].why.of(Grown).least_gpus == 1
    assert sizes(plan_of(queue[:1], Cluster.uniform(1, 4))) == {"0": 4}


def test_growth_counts_by_the_share_of_the_jobs_own_time():
    """Two GPUs save a sixth of the iterations that take ten times as long."""
    scales_badly = replace(TABLE, time_s=np.full((1, 3), 10.0) / np.array([[1.0], [1.2], [1.4]]))
    queue = [tabled(0, sizes=(1, 2), table=scales_badly), tabled(1, sizes=(1, 2))]
    assert sizes(plan_of(queue, Cluster.uniform(1, 3))) == {"0": 1, "1": 2}


def test_without_a_table_a_moldable_job_keeps_its_number():
    queue = [tabled(0, 2, sizes=(1, 2, 4), table=None)]
    assert sizes(plan_of(queue, Cluster.uniform(1, 4))) == {"0": 2}


def test_growth_leaves_the_gpus_that_are_reserved_for_the_head():
    # The head needs 3 GPUs in 500 s, when one more becomes free: two of the free ones are its own.
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (3,), NOW + 500))
    queue = [tabled(0, 1, sizes=(1, 2, 4), priority=1), tabled(1, 3)]
    plan = plan_of(queue, cluster)
    assert sizes(plan) == {"0": 1}
    assert "next in line" in reasons(plan)["1"]


@pytest.mark.parametrize("behind", [1, 0])
@pytest.mark.parametrize("settings", [{}, {"backfill": True}])
def test_behind_a_head_by_choice_growth_leaves_the_gpus_of_the_first_that_does_not_fit(
    behind, settings
):
    """Job 0 waits for the faster GPU of node 0, and keeps no other one from growth."""
    scores = np.array([[1.0] * 4, [1.5] * 4])
    cluster = with_jobs(
        Cluster.uniform(2, 4, scores={"B": scores}),
        ("soon", (0,), NOW + 600),
        ("late", (1, 2, 3), NOW + 5000),
    )
    queue = [tabled(0), tabled(1, sizes=(1, 2, 4), estimate_s=60.0), tabled(2, 8)][: 2 + behind]
    plan = plan_of(queue, cluster, settings=PlanSettings(policy="eft", **settings))
    assert plan.waiting[0].postponed
    assert sizes(plan) == {"1": 1 if behind else 4}


def test_growth_over_a_slow_network_is_not_taken():
    cluster = Cluster.uniform(2, 1, locality_penalty=2.0)
    assert sizes(plan_of([tabled(0, 1, sizes=(1, 2))], cluster)) == {"0": 1}
    cluster = Cluster.uniform(2, 1, locality_penalty=1.2)
    assert sizes(plan_of([tabled(0, 1, sizes=(1, 2))], cluster)) == {"0": 2}


def test_clocks_rise_up_to_the_limit_and_not_above():
    # Idle GPUs take 200 W; at 900 MHz the job adds 100 W, at 1200 MHz 250 W.
    at = {
        limit: clocks(plan_of([tabled(0)], Cluster.uniform(1, 4), state(limit)))["0"]
        for limit in (300, 449, 450, 2000)
    }
    assert at == {300: 900, 449: 900, 450: 1200, 2000: 1200}


def test_a_job_that_lacks_only_power_waits_for_it():
    # 200 W idle, 100 W for each job at its most efficient clock: the third has none.
    plan = plan_of([tabled(0), tabled(1), tabled(2)], Cluster.uniform(1, 4), state(400.0))
    assert clocks(plan) == {"0": 900, "1": 900}
    words = reasons(plan)["2"]
    assert words.startswith("next in line: waits for power: it needs 100 W, and the limit leaves 0")
    assert plan.get(PLANNED).planned_w == pytest.approx(400.0)
    assert not plan.get(PLANNED).unmet


def test_a_job_that_exceeds_the_limit_starts_alone_at_its_lowest_clock():
    queue = [tabled(0, 4), tabled(1)]
    plan = plan_of(queue, Cluster.uniform(2, 4), state(500.0, shape=(2, 4)))
    assert clocks(plan) == {"0": 600}
    assert plan.get(PLANNED).unmet
    assert plan.get(PLANNED).planned_w == pytest.approx(400 + 4 * 50)
    later = with_jobs(Cluster.uniform(2, 4), ("0", (0, 1, 2, 3), NOW + 100))
    power = state(500.0, shape=(2, 4), **{"0": PoweredJob(4, 1200.0, TABLE, 600)})
    plan = plan_of(queue[1:], later, power)
    assert not plan.assignments
    assert plan.waiting[0].shadow_start_s == NOW + 100


def test_jobs_of_others_count_and_keep_no_job_of_ours_for_ever():
    # A job of another owner takes all power and has no end: ours starts all the same, one by one.
    cluster = with_jobs(Cluster.uniform(1, 4), ("other", (0, 1), math.inf))
    plan = plan_of([tabled(0), tabled(1)], cluster, state(500.0))
    assert clocks(plan) == {"0": 600}
    assert "waits for power" in reasons(plan)["1"]


@pytest.mark.parametrize(("limit_w", "started"), [(649.0, {"0"}), (650.0, {"0", "1"})])
def test_gpus_in_use_by_jobs_that_are_not_known_count_with_their_limits(limit_w, started):
    cluster = Cluster.uniform(1, 4)
    cluster.take(0, (3,))
    assert clocks(plan_of([tabled(0), tabled(1)], cluster, state(limit_w))).keys() == started


def test_a_job_on_a_move_draws_power_once():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500), ("r", (1,), NOW + 500))
    power = state(550.0, r=PoweredJob(1, 300.0, TABLE, 1200))
    assert clocks(plan_of([tabled(0)], cluster, power)) == {"0": 900}
    assert not plan_of([tabled(0)], cluster, replace(power, limit_w=549.0)).assignments


def test_a_job_without_a_table_counts_with_the_limit_of_its_gpus():
    queue = [tabled(0, table=None), tabled(1, table=None)]
    plan = plan_of(queue, Cluster.uniform(1, 4), state(699.0))
    assert clocks(plan) == {"0": None}
    assert "it needs 250 W, and the limit leaves 249 W" in reasons(plan)["1"]


@pytest.mark.parametrize(
    ("clock", "auto", "mhz"),
    [("auto", False, 1200), (None, True, 1200), (None, False, None), (900, True, 900)],
)
def test_only_a_free_clock_is_chosen(clock, auto, mhz):
    settings = replace(PACKED, auto_clocks=auto)
    plan = plan_of([tabled(0, clock=clock)], Cluster.uniform(1, 4), state(1200.0), settings)
    assert clocks(plan) == {"0": mhz}


def test_a_running_clock_falls_so_that_a_job_can_start():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500))
    power = state(450.0, r=PoweredJob(1, 300.0, TABLE, 1200, adjustable=True))
    plan = plan_of([tabled(0)], cluster, power)
    assert clocks(plan) == {"0": 900}
    assert plan.clocks == (ClockChange("r", 900, 150.0),)
    assert plan.get(PLANNED).after_lowering == {"0"}
    assert plan.get(PLANNED).planned_w == pytest.approx(400.0)
    # A clock that nothing can change keeps its power, and the job waits.
    fixed = state(450.0, r=PoweredJob(1, 300.0, TABLE, 1200))
    plan = plan_of([tabled(0)], cluster, fixed)
    assert not plan.assignments
    assert not plan.clocks
    assert "waits for power" in reasons(plan)["0"]


def test_a_running_clock_rises_when_power_is_left():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500))
    power = state(450.0, r=PoweredJob(1, 300.0, TABLE, 600, adjustable=True))
    plan = plan_of([], cluster, power)
    assert [(c.job_id, c.clock_mhz) for c in plan.clocks] == [("r", 1200)]
    assert not plan.get(PLANNED).after_lowering


def test_a_job_that_fits_beside_the_present_clocks_starts_at_once():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500))
    power = state(550.0, r=PoweredJob(1, 300.0, TABLE, 1200, adjustable=True))
    plan = plan_of([tabled(0), tabled(1)], cluster, power)
    assert clocks(plan) == {"0": 900, "1": 900}
    assert [c.clock_mhz for c in plan.clocks] == [900]
    assert plan.get(PLANNED).after_lowering == {"1"}


def test_a_lowered_limit_lowers_running_clocks_below_the_efficient_one():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0, 1), NOW + 500))
    power = state(310.0, r=PoweredJob(2, 600.0, TABLE, 900, adjustable=True))
    plan = plan_of([], cluster, power)
    assert [c.clock_mhz for c in plan.clocks] == [600]
    assert not plan.get(PLANNED).unmet


@pytest.mark.parametrize(("limit_w", "mhz"), [(400.0, [900, 900]), (250.0, [600, 600])])
def test_no_clock_waits_until_another_has_fallen_far_enough(limit_w, mhz):
    """Regression: after the limit fell by more than a job saves, each waited for the other."""
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500), ("s", (1,), NOW + 500))
    one = PoweredJob(1, 300.0, TABLE, 1200, adjustable=True)
    plan = plan_of([], cluster, state(limit_w, r=one, s=one))
    assert [c.clock_mhz for c in plan.clocks] == mhz
    assert not plan.get(PLANNED).after_lowering
    assert plan.get(PLANNED).unmet is (limit_w < 300.0)


def test_a_waiting_job_that_exceeds_the_limit_takes_no_power_of_those_that_run():
    """Regression: they got their lowest clocks, although most of the power stayed unused."""
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500))
    power = state(500.0, r=PoweredJob(1, 300.0, TABLE, 1200, adjustable=True))
    plan = plan_of([tabled(0, 2, clock="max")], cluster, power)
    assert "waits for power: it needs 500 W" in reasons(plan)["0"]
    assert [c.clock_mhz for c in plan.clocks] == [900]


def test_a_job_behind_the_head_does_not_take_the_power_of_the_head():
    """The head waits 100 s for power; a longer job behind it would take that power."""
    cluster = with_jobs(Cluster.uniform(1, 8), ("r", (0, 1), NOW + 100))
    power = state(900.0, shape=(1, 8), r=PoweredJob(2, 600.0, TABLE, 900))
    # 400 W idle, 200 W of r: 300 W are left. The head needs 400 W.
    queue = [tabled(0, 4), tabled(1, time_limit_s=200.0), tabled(2, time_limit_s=50.0)]
    plan = plan_of(queue, cluster, power)
    assert plan.waiting[0].shadow_start_s == NOW + 100
    assert clocks(plan).keys() == {"1", "2"}  # at the head's start 500 - 400 = 100 W are left
    plan = plan_of([*queue, tabled(3, time_limit_s=200.0)], cluster, power)
    assert clocks(plan).keys() == {"1", "2"}
    assert "has this power reserved" in reasons(plan)["3"]


def test_no_job_is_preempted_for_power():
    cluster = with_jobs(Cluster.uniform(1, 4), ("r", (0,), NOW + 500))
    running = (replace(cluster.running[0], preemptable_by=1.0),)
    cluster = replace(cluster, running=running)
    power = state(450.0, r=PoweredJob(1, 300.0, TABLE, 1200))
    plan = plan_of([tabled(0, preemption=PreemptionRights(tier=5.0))], cluster, power)
    assert not plan.assignments
    assert "waits for power" in reasons(plan)["0"]


def test_the_account_says_what_a_step_more_would_have_brought():
    # At 350 W the limit leaves 150 W: two GPUs need 200 W, and 1200 MHz 250 W.
    plan = plan_of([tabled(0, sizes=(1, 2, 4))], Cluster.uniform(1, 4), state(350.0))
    why = plan.assignments[0].why
    assert why.plain()["power"] == {
        "gpus": 1,
        "power_w": 150.0,
        "clock_mhz": 900,
        "model": "measured",
        "more_gpus": {"gpus": 2, "sooner_percent": 44.4, "energy_percent": 11.1},
        "more_mhz": {"clock_mhz": 1200, "sooner_percent": 16.7, "energy_percent": 66.7},
    }
    assert why.text.endswith(
        "1 GPU at 900 MHz (150 W); 2 GPUs would end it 44% sooner for 11% more energy;"
        " 1200 MHz would end it 17% sooner for 67% more energy"
    )


def test_a_table_without_power_state_and_sizes_changes_nothing():
    queue = [tabled(i, 2) for i in range(3)]
    bare = [with_fields(request, table=None) for request in queue]
    cluster = Cluster.uniform(1, 4)
    assert plan_of(queue, cluster) == plan_of(bare, cluster)
    assert plan_of(queue, cluster, state(math.inf)) == plan_of(bare, cluster)
