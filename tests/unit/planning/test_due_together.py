"""Due dates of jobs that may get GPUs of several models, and of all jobs of a round together."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import plan_round, reasons, sizes, with_fields, with_running
from test_due_rounds import (
    NOW,
    PACKED,
    RUNS,
    TABLE,
    H,
    dated,
    due_job,
    full,
    movable_due,
    of_models,
)

from slurm_gpu_aware.features.due_dates.declared import pressing
from slurm_gpu_aware.features.due_dates.due_date import DUE, DUE_DATE, DueDate, on_model
from slurm_gpu_aware.features.due_dates.queue import accounted, due_accounts, in_order
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.power.power_budget import PowerState
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import TIER, Request
from slurm_gpu_aware.model.size_table import TABLE as OF_ONE
from slurm_gpu_aware.model.size_table import SizeTable

TOGETHER = replace(PACKED, due_order="together")
FAST = replace(TABLE, time_s=TABLE.time_s / 4, power_w=2 * TABLE.power_w)
"""A GPU of model b is four times as fast as one of a, at twice the power: half the energy."""


def of_both(name, due_h, nodes=("a", "a"), runs=RUNS, tables=None, **more):
    """A job that may get GPUs of the models a and b, and ran on these nodes earlier."""
    due = DueDate(NOW + due_h * H, runs, nodes)
    given = {"tables": {"a": TABLE, "b": FAST}} if tables is None else {"tables": tables}
    return due_job(name, **{"table": None, "due": due, **given, **more})


def models_of(plan, cluster):
    return {a.job_id: {cluster.model[node] for node in a.nodes} for a in plan.assignments}


@pytest.mark.parametrize("settings", [PACKED, TOGETHER])
@pytest.mark.parametrize(
    ("b_w", "free", "due_h", "model", "gpus"),
    [
        (2.0, (4, 4), 11.0, "b", 1),  # half the energy
        (8.0, (4, 4), 11.0, "a", 1),  # twice the energy, and a is in time
        (8.0, (4, 4), 3.0, "b", 1),  # only b is in time
        (2.0, (0, 4), 11.0, "b", 1),
    ],
)
def test_a_job_gets_the_gpu_model_at_which_its_due_date_costs_least(
    settings, b_w, free, due_h, model, gpus
):
    tables = {"a": TABLE, "b": replace(FAST, power_w=b_w * TABLE.power_w)}
    cluster = of_models(*free)
    plan = plan_round([of_both("1", due_h, tables=tables)], cluster, settings, NOW)
    assert (models_of(plan, cluster), sizes(plan)) == ({"1": {model}}, {"1": gpus})
    (one,) = plan.assignments
    assert f"on {model}: of 2 GPU models" in one.why.text
    assert plan.get(DUE)["1"].in_time == 1.0


@pytest.mark.parametrize(("settings", "found"), [(PACKED, {"1": {"a"}}), (TOGETHER, {})])
def test_only_together_a_job_waits_for_a_model_that_costs_less(settings, found):
    cluster = of_models(4, 0)
    plan = plan_round([of_both("1", 11.0)], cluster, settings, NOW)
    assert models_of(plan, cluster) == found


def test_two_jobs_take_no_gpu_of_a_model_twice():
    cluster = of_models(4, 1)
    queue = [of_both(name, 11.0, priority=-float(name)) for name in "12"]
    plan = plan_round(queue, cluster, PACKED, NOW)
    assert models_of(plan, cluster) == {"1": {"b"}, "2": {"a"}}


def test_earlier_runs_count_as_on_the_gpus_where_the_job_would_run():
    cluster = of_models(4, 4)
    runs, nodes = ((1, 4 * H), (2, H), (1, math.inf), (3, H), (1, H)), ("a", "b", "b", "a", "gone")
    one = on_model(of_both("1", 11.0, nodes, runs), "b", cluster)
    due = one.get(DUE_DATE)
    assert due.runs == ((1, H), (2, H), (1, math.inf))
    assert (one.nodes.gpu_model, one.get(OF_ONE)) == ("b", FAST)
    assert due.limit_s == 10 * H / 4  # its limit does for a
    assert on_model(of_both("1", 11.0, nodes, runs), "a", cluster).get(DUE_DATE).runs == (
        (1, 4 * H),
        (2, 4 * H),
        (1, math.inf),
    )


@pytest.mark.parametrize(("model", "seconds"), [("a", 2400.0), ("b", 600.0)])
def test_epochs_are_as_long_as_said_on_the_fastest_model(model, seconds):
    one = of_both("1", 11.0)
    one = with_fields(one, due=replace(one.get(DUE_DATE), epochs=(9, 2, 600.0)))
    assert on_model(one, model, of_models(4, 4)).get(DUE_DATE).epochs == (9, 2, seconds)


@pytest.mark.parametrize("settings", [PACKED, TOGETHER])
@pytest.mark.parametrize("more", [{"nodes": ()}, {"nodes": ("x", "y")}, {"due_h": 0.1}])
def test_a_due_date_without_a_part_leaves_the_job_every_model(settings, more):
    cluster = of_models(0, 4)
    job = of_both("1", **{"due_h": 5.0, **more})
    plan = plan_round([job], cluster, settings, NOW)
    assert models_of(plan, cluster) == {"1": {"b"}}
    assert "GPU models" not in plan.assignments[0].why.text


def test_a_running_job_keeps_its_gpu_model():
    cluster = of_models(4, 4)
    here = RunningJob("1", ((1, (0,)),), NOW + 10 * H, start_s=NOW - 0.5 * H, app_class="B")
    cluster = with_running(cluster, here)
    (one,) = accounted([Movable(of_both("1", 3.0), here)], cluster, NOW)
    assert one.request.nodes.gpu_model == "b"
    assert one.account.runs == 1  # half an hour there is two of a


@pytest.mark.parametrize(
    ("pressure_s", "weight", "found"), [(-8.0, 2.0, -4.0), (8.0, 2.0, 16.0), (-8.0, 0.5, -16.0)]
)
def test_a_weight_multiplies_lateness_and_divides_the_time_to_spare(pressure_s, weight, found):
    assert pressing(pressure_s, weight) == found


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, "3214"),
        ({"1": {"weight": 9.0}}, "1324"),
        ({"1": {"priority": TIER + 5.0}}, "1324"),
        ({"2": {"submit_s": NOW - 11 * H}}, "2314"),  # it has waited for longer than it runs
        ({"2": {"due_h": 0.1}}, "1234"),  # it cannot be met
    ],
)
def test_together_neighbours_of_all_users_stand_by_weighted_pressure(changes, order):
    given = {"1": (9.0, 5.0), "2": (6.0, 4.0), "3": (3.0, 3.0)}
    queue = [
        dated(name, **{"due_h": due_h, "priority": p, "user": name, **changes.get(name, {})})
        for name, (due_h, p) in given.items()
    ]
    queue.append(due_job("4", priority=2.0))
    found = in_order(queue, TOGETHER, due_accounts(queue, NOW), NOW)
    assert "".join(one.job_id for one in found) == order


@pytest.mark.parametrize(
    ("free", "restart_s", "found"),
    [
        (4, None, {"1": 2, "2": 2}),  # what each needs
        (3, None, {"1": 2}),  # with one GPU the other would be late: it waits for two
        (1, None, {}),
        (3, 60.0, {"1": 1, "2": 1}),  # they grow later
        (1, 60.0, {"1": 1}),
    ],
)
def test_together_jobs_share_out_what_is_free(free, restart_s, found):
    queue = [dated("1", 6.0, 2.0), dated("2", 6.0, 1.0, user="bob")]
    if restart_s is not None:
        queue = [with_fields(r, due=replace(r.get(DUE_DATE), restart_s=60.0)) for r in queue]
    assert sizes(plan_round(queue, full(free), TOGETHER, NOW)) == found


def test_together_a_job_waits_where_that_costs_less():
    """One GPU would make it late by hours, and the next decision is ten minutes away."""
    queue = [dated("1", 3.6, 1.0)]
    plan = plan_round(queue, full(1, until_h=0.1), TOGETHER, NOW)
    assert sizes(plan) == {}
    assert "4" in reasons(plan)["1"]
    assert sizes(plan_round(queue, full(4), TOGETHER, NOW)) == {"1": 4}


@pytest.mark.parametrize(("gpus", "found"), [(2, {"9": 2, "1": 2}), (5, {"1": 2})])
def test_together_a_job_without_a_due_date_that_stands_before_takes_its_gpus(gpus, found):
    other = Request("9", gpus, time_limit_s=H, priority=1.0)
    assert sizes(plan_round([due_job("1", 6.0), other], full(4), TOGETHER, NOW)) == found


@pytest.mark.parametrize(("priority", "found"), [(1.0, {"9": 6, "1": 1}), (-1.0, {"1": 2})])
def test_together_a_job_of_several_nodes_takes_its_gpus_in_its_turn(priority, found):
    cluster = Cluster.uniform(2, 4)
    wide = Request("9", 8, min_nodes=2, max_nodes=2, time_limit_s=H, priority=priority)
    wide = replace(wide, gpus=6) if priority > 0 else wide
    job = movable_due(6.0) if priority > 0 else due_job("1", 6.0)
    assert sizes(plan_round([job, wide], cluster, TOGETHER, NOW)) == found


def test_together_nodes_that_a_job_may_not_get_count_for_nothing():
    only = np.array([True, False])
    cluster = of_models(1, 4)
    one = movable_due(6.0, eligible=only)
    assert sizes(plan_round([one], cluster, TOGETHER, NOW)) == {"1": 1}


@pytest.mark.parametrize("settings", [PACKED, TOGETHER])
def test_a_job_goes_to_the_gpu_model_where_there_are_cpus_for_it(settings):
    cluster = of_models(4, 4)
    cluster = replace(cluster, free_cpus=np.array([64, 0]))
    one = of_both("1", 11.0)
    one = replace(one, cpus=replace(one.cpus, per_gpu=4))
    plan = plan_round([one], cluster, settings, NOW)
    assert (models_of(plan, cluster), sizes(plan)) == ({"1": {"a"}}, {"1": 1})


@pytest.mark.parametrize("settings", [PACKED, TOGETHER])
@pytest.mark.parametrize("due_h", [0.95, 0.5, 0.3])
def test_no_size_is_chosen_that_only_other_nodes_have(settings, due_h):
    """The node of model b that the job may get has two GPUs, another one has four."""
    cluster = Cluster.build(("a", "b", "c"), np.ones((3, 4), dtype=np.bool_), model=("a", "b", "b"))
    exists, free = cluster.exists.copy(), cluster.free.copy()
    exists[1, 2:] = free[1, 2:] = False
    cluster = replace(cluster, exists=exists, free=free)
    one = of_both("1", due_h).on_nodes(np.array([True, True, False]))
    plan = plan_round([one], cluster, settings, NOW)
    assert [one.infeasible for one in plan.waiting if one.infeasible] == []
    assert sizes(plan).keys() == {"1"}


@pytest.mark.parametrize(("limit_w", "gpus"), [(1200.0, 4), (800.0, 2), (100.0, 1)])
@pytest.mark.parametrize(
    ("settings", "due_h", "free"), [(PACKED, 1.5, 4), (PACKED, 1.5, 5), (TOGETHER, 4.5, 4)]
)
def test_a_size_that_the_power_limit_does_not_leave_is_not_waited_for(
    settings, due_h, free, limit_w, gpus
):
    """A job that exceeds the limit with its least size starts alone."""
    cluster = Cluster.uniform(1, free)
    power = PowerState(np.full((1, free), 300.0), np.full((1, free), 50.0), limit_w + 50 * free)
    plan = plan_round([due_job("1", due_h)], cluster, settings, NOW, power=power)
    assert sizes(plan) == {"1": gpus}


@pytest.mark.parametrize("settings", [PACKED, TOGETHER])
def test_what_has_no_due_date_or_history_is_planned_as_before(settings):
    queue = [due_job("1"), due_job("2", gpus=2), Request("3", 2, time_limit_s=H, priority=-1.0)]
    dated = [with_fields(queue[0], due=DueDate(NOW + H)), *queue[1:]]
    for free in range(5):
        plain = plan_round(queue, full(free), PACKED, NOW)
        assert (plain.get(DUE), plain.wake_s) == ({}, math.inf)
        for given in (queue, dated):
            other = plan_round(given, full(free), settings, NOW)
            assert sizes(other) == sizes(plain)
            assert reasons(other) == reasons(plain)


def test_a_job_due_in_ten_hours_that_one_gpu_ends_in_40_minutes_gets_one():
    job = due_job("1", due=DueDate(NOW + 10 * H, ((1, 2400.0),) * 5), time_limit_s=H)
    for settings in (PACKED, TOGETHER):
        assert sizes(plan_round([job], Cluster.uniform(4, 8), settings, NOW)) == {"1": 1}


@pytest.mark.parametrize("due_h", [3.0, 4.0, 5.0])
def test_together_time_is_kept_for_the_restarts_that_a_job_needs_and_no_more(due_h):
    gpus = np.arange(1, 9)
    table = SizeTable(gpus, TABLE.clocks_mhz, 1 / gpus[:, None] ** 0.7, 300.0 * gpus[:, None])
    due = DueDate(NOW + due_h * H, RUNS * 5, restart_s=900.0)
    job = due_job("1", due=due, sizes=tuple(gpus.tolist()), table=table)
    alone, together = (plan_round([job], Cluster.uniform(1, 8), s, NOW) for s in (PACKED, TOGETHER))
    assert len(alone.get(DUE)["1"].growth) < 7
    assert sizes(together) == sizes(alone)
