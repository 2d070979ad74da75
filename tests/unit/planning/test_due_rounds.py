"""Due dates in rounds and moves: least sizes, growth at its time, and what it takes from others."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import job_request, place_moved, plan_moves, plan_round, sizes, with_fields, with_running

from slurm_gpu_aware.features.due_dates.declared import DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE, DUE_DATE, DueDate
from slurm_gpu_aware.features.due_dates.queue import (
    accounted,
    due_account,
    due_accounts,
    due_growth,
    in_order,
    next_growth,
    run_times,
    work_done,
)
from slurm_gpu_aware.features.moves import stage as moves
from slurm_gpu_aware.features.moves.declared import MoveSettings
from slurm_gpu_aware.features.moves.front import front_of
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.queue_order.stage import OrderRule, reordered
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import TIER, Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.prefix import in_slurm_order

NOW, H = 1_790_000_000.0, 3600.0
PACKED = PlanSettings(policy="packed")
GPUS = np.array([1, 2, 4])
TABLE = SizeTable(
    GPUS, np.array([1000]), 1 / np.array([[1.0], [1.8], [3.0]]), 300.0 * GPUS[:, None]
)
RUNS = ((1, 4 * H), (1, 2 * H))


def due_job(name, due_h=None, gpus=1, **more):
    given = {"sizes": (1, 2, 4), "table": TABLE, "time_limit_s": 10 * H, **more}
    due = {} if due_h is None else {"due": DueDate(NOW + due_h * H, RUNS)}
    return job_request(name, gpus, **{**due, **given})


def full(free, *, until_h=1.0):
    """A node of 4 GPUs of which so many are free, and the others soon."""
    slots = tuple(range(4 - free))
    other = RunningJob("8", ((0, slots),), NOW + until_h * H, start_s=NOW - H)
    return with_running(Cluster.uniform(1, 4), *([other] if slots else []))


@pytest.mark.parametrize(
    ("due_h", "gpus"), [(None, 1), (11.0, 1), (6.0, 2), (4.5, 4), (1.5, 4), (0.5, 1)]
)
def test_the_least_size_of_a_round_meets_the_due_date(due_h, gpus):
    """Beside a job behind it that leaves no GPU for growth; 0.5 h: it cannot be met."""
    behind = Request("9", 4, time_limit_s=H, priority=-1.0)
    plan = plan_round([due_job("1", due_h), behind], full(4), PACKED, NOW)
    assert sizes(plan) == {"1": gpus}


def test_a_job_waits_for_its_size_only_as_the_last_of_the_queue():
    other = Request("9", 2, time_limit_s=H, priority=-1.0)
    plan = plan_round([due_job("1", 1.5), other], full(2), PACKED, NOW)
    assert sizes(plan) == {"1": 2}
    plan = plan_round([due_job("1", 1.5)], full(2, until_h=0.1), PACKED, NOW)
    assert sizes(plan) == {}
    account = plan.get(DUE)["1"]
    assert (account.gpus, account.in_time) == (4, 1.0)


@pytest.mark.parametrize("until_h", [1.0, -0.1, math.inf])
def test_a_job_does_not_wait_for_gpus_that_come_too_late(until_h):
    """With the two GPUs that are free, one of two earlier runs would have been in time."""
    plan = plan_round([due_job("1", 1.5)], full(2, until_h=until_h), PACKED, NOW)
    assert sizes(plan) == ({} if until_h < 0 else {"1": 2})  # the other job ends at any moment


@pytest.mark.parametrize(("gpus", "found"), [(2, {"9": 2, "1": 2}), (5, {"1": 4})])
def test_a_job_does_not_wait_for_gpus_that_a_job_before_it_gets_now(gpus, found):
    """A job before it that waits itself gets none."""
    other = Request("9", gpus, time_limit_s=H, priority=1.0)
    plan = plan_round([due_job("1", 1.5), other], full(4), PACKED, NOW)
    assert sizes(plan) == found


@pytest.mark.parametrize(
    ("due_h", "scores", "gpus"),
    [
        (None, 1.0, 4),
        (11.0, 1.0, 1),
        (10.5, 1.0, 1),
        (10.5, 1.1, 2),  # on slow GPUs one is not enough
        (6.0, 1.0, 2),
        (0.5, 1.0, 4),  # it cannot be met, so it plays no part
    ],
)
def test_on_an_idle_node_a_job_grows_as_far_as_its_due_date_needs(due_h, scores, gpus):
    cluster = Cluster.uniform(1, 4, scores={"B": np.full((1, 4), scores)})
    plan = plan_round([due_job("1", due_h, app_class="B")], cluster, PACKED, NOW)
    assert sizes(plan) == {"1": gpus}


def of_models(*free):
    """Nodes of 4 GPUs of the models a, b, ..., of which so many are free and the others soon."""
    names = tuple("abcd"[: len(free)])
    cluster = Cluster.build(names, np.ones((len(free), 4), dtype=np.bool_), model=names)
    running = []
    for node, count in enumerate(free):
        if count < 4:
            slots = tuple(range(4 - count))
            running.append(RunningJob(f"8{node}", ((node, slots),), NOW + 0.1 * H))
    return with_running(cluster, *running)


def test_gpus_that_a_job_may_not_get_count_neither_now_nor_later():
    one, other = (due_job(name, 1.5, gpu_model=name) for name in "ab")
    assert sizes(plan_round([one], of_models(2, 4), PACKED, NOW)) == {}
    movable = with_fields(one, due=replace(one.get(DUE_DATE), restart_s=60.0))
    assert sizes(plan_round([movable], of_models(2, 4), PACKED, NOW)) == {"a": 2}
    assert sizes(plan_round([one, other], of_models(4, 4), PACKED, NOW)) == {"a": 4, "b": 4}
    down = of_models(2, 0)
    down.exists[0, 0] = False  # its job ends, but not for another one
    assert sizes(plan_round([one], down, PACKED, NOW)) == {"a": 2}


def test_gpus_that_lie_apart_are_no_size_of_a_job_on_one_node():
    one = due_job("1", 1.5, max_nodes=1)
    assert sizes(plan_round([one], of_models(2, 2), PACKED, NOW)) == {}
    movable = with_fields(one, due=replace(one.get(DUE_DATE), restart_s=60.0))
    assert sizes(plan_round([movable], of_models(2, 2), PACKED, NOW)) == {"1": 2}


def test_a_size_that_is_no_faster_is_not_what_is_left():
    flat = replace(TABLE, time_s=np.array([[1.0], [1.0], [1 / 3]]))
    plan = plan_round([due_job("1", 2.5, table=flat)], full(2, until_h=2.0), PACKED, NOW)
    assert sizes(plan) == {"1": 1}


def test_sizes_that_differ_by_rounding_only_stop_no_round():
    """As a model predicts whose time is not that of its GPUs: their speeds may be equal."""
    least = np.nextafter(1.92, 0)
    assert 1 / least == 1 / 1.92
    flat = replace(TABLE, time_s=np.array([[1.92], [least], [1.0]]))
    plan = plan_round([due_job("1", 1.5, table=flat)], full(4), PACKED, NOW)
    assert sizes(plan) == {"1": 4}


def test_the_account_says_how_likely_it_is():
    late = plan_round([due_job("1", 1.0)], full(4), PACKED, NOW)
    (one,) = late.assignments
    assert one.why.of(DueAccount).in_time == 0.5
    assert "met with 50% by 2 earlier runs" in one.why.lines()["due"]
    assert "with 4 GPUs" in one.why.lines()["due"]
    never = plan_round([due_job("1", 0.5)], full(4), PACKED, NOW).get(DUE)["1"]
    assert never.in_time == 0
    assert "cannot be met by what 2 earlier runs needed" in never.words()
    unknown = with_fields(due_job("1"), due=DueDate(NOW + H))
    assert "no earlier run" in plan_round([unknown], full(4), PACKED, NOW).get(DUE)["1"].words()


def movable_due(due_h, **more):
    return with_fields(
        due_job("1", due_h, **more), due=DueDate(NOW + due_h * H, RUNS * 5, restart_s=60.0)
    )


def test_a_plan_asks_to_be_woken_at_the_growth():
    behind = Request("9", 4, time_limit_s=H, priority=-1.0)
    plan = plan_round([movable_due(3.0), behind], full(4), PACKED, NOW)
    assert sizes(plan) == {"1": 1}
    (at, gpus), *_ = plan.get(DUE)["1"].growth
    assert plan.wake_s == at > NOW
    assert f"{gpus} from" in plan.assignments[0].why.lines()["due"]
    assert plan_round([due_job("1", 3.0), behind], full(4), PACKED, NOW).wake_s == math.inf


def movable_here(due_h, *, since_h, free=4, gpus=1, **more):
    """A job that has run for a while on the first GPUs of a node, and the cluster."""
    slots = tuple(range(4 - free, 4 - free + gpus))
    here = RunningJob("1", ((0, slots),), NOW + 10 * H, start_s=NOW - since_h * H)
    here = replace(here, expected_end_s=NOW + 3 * H, app_class="B")
    request = movable_due(due_h, **more).resized(gpus)
    one = Movable(request, here, restart_s=60.0)
    return one, with_running(full(free), here)


def moves_of(one, cluster, queue=(), **settings):
    given = MoveSettings(**{"margin_s": 1e9, **settings})
    return plan_moves(accounted([one], cluster, NOW), queue, cluster, PACKED, given, NOW)


@pytest.mark.parametrize(("due_h", "sizes_got"), [(20.0, []), (0.5, [2])])
def test_a_move_gives_no_more_gpus_than_a_due_date_needs(due_h, sizes_got):
    """0.5 h: it cannot be met, so the job grows because that ends it sooner."""
    one, cluster = movable_here(due_h, since_h=1.0)
    found = moves_of(one, cluster, margin_s=60.0, first_s=0.0, last_s=0.0)
    assert [move.request.gpus for move in found] == sizes_got


def test_a_job_grows_at_its_time():
    one, cluster = movable_here(3.0, since_h=0.0)
    assert moves_of(one, cluster) == ()
    at = next_growth(accounted([one], cluster, NOW), NOW)
    assert NOW < at < NOW + 3 * H
    one, cluster = movable_here(1.05, since_h=1.0)
    (move,) = moves_of(one, cluster)
    assert (move.due, move.request.gpus) == (True, 4)
    assert move.assignment.why.of(DueAccount) is not None
    assert next_growth(accounted([one], cluster, NOW), NOW) == math.inf


def test_without_gpus_it_grows_as_far_as_it_can():
    one, cluster = movable_here(1.05, since_h=1.0, free=3)
    (move,) = moves_of(one, cluster)
    assert move.request.gpus == 2


@pytest.mark.parametrize(("user", "count"), [("bob", 0), ("alice", 1)])
def test_growth_leaves_moves_of_the_hour_for_another_user(user, count):
    one, cluster = movable_here(1.05, since_h=1.0)
    one = replace(one, request=replace(one.request, user="alice"))
    other = replace(one, request=Request("other", 1, user=user), account=None)
    jobs = [*accounted([one], cluster, NOW), replace(other, moved_s=NOW)]
    recent, given = [(NOW - 9.0, "alice")] * 6, MoveSettings(margin_s=1e9)
    assert len(plan_moves(jobs, (), cluster, PACKED, given, NOW, recent=recent)) == count


def test_a_job_that_may_not_move_never_grows():
    one, cluster = movable_here(1.05, since_h=1.0)
    due = replace(one.request.get(DUE_DATE), restart_s=None)
    still = replace(one, request=with_fields(one.request, due=due))
    assert moves_of(still, cluster) == ()


@pytest.mark.parametrize(("priority", "count"), [(-1.0, 1), (1.0, 0)])
def test_growth_goes_before_the_jobs_behind_it_only(priority, count):
    one, cluster = movable_here(1.05, since_h=1.0)
    waits = Request("9", 3, time_limit_s=H, priority=priority)
    assert len(moves_of(one, cluster, [waits])) == count


def test_it_grows_as_far_as_the_jobs_before_it_allow():
    """All 3 free GPUs would be too many, as the job before it starts on 2 of them."""
    one, cluster = movable_here(1.05, since_h=1.0)
    (move,) = moves_of(one, cluster, [Request("9", 2, time_limit_s=H, priority=1.0)])
    assert move.request.gpus == 2


def test_late_jobs_that_cannot_grow_keep_neither_others_from_it_nor_the_round(monkeypatch):
    """40 of them, on nodes whose other GPUs a waiting job before them gets."""
    cluster, late = Cluster.uniform(41, 4), []
    only = np.eye(41, dtype=np.bool_)
    for node in range(41):
        cluster.take(node, (0,))
        here = RunningJob(str(node), ((node, (0,)),), NOW + 10 * H, start_s=NOW - H)
        here = replace(here, expected_end_s=NOW + 3 * H, app_class="B")
        request = replace(movable_due(1.05, eligible=only[node]), job_id=str(node)).resized(1)
        late.append(Movable(request, here, restart_s=60.0))
    waits = Request("99", 120, gpus_per_node=3, min_nodes=40, max_nodes=40, time_limit_s=H)
    waits = with_fields(waits, priority=1.0, eligible=~only[40])
    cluster = replace(cluster, running=tuple(one.job for one in late))
    fronts = []
    counted = lambda *a, **more: fronts.append(a) or front_of(*a, **more)  # noqa: E731
    monkeypatch.setattr(moves, "front_of", counted)
    moved, most = set(), 0
    for at in np.arange(0, 300, 30):
        fronts.clear()
        given = MoveSettings(margin_s=1e9), NOW + at
        found = plan_moves(accounted(late, cluster, given[1]), [waits], cluster, PACKED, *given)
        moved |= {move.job_id for move in found}
        most = max(most, len(fronts))
    assert moved == {"40"}
    assert most < 100


@pytest.mark.parametrize(("due_h", "count"), [(None, 1), (6.0, 0)])
def test_growth_takes_nothing_from_a_waiting_job_with_a_due_date(due_h, count):
    one, cluster = movable_here(1.05, since_h=1.0)
    due = None if due_h is None else DueDate(NOW + due_h * H)
    waits = job_request("9", 3, time_limit_s=H, priority=-1.0, due=due)
    assert len(moves_of(one, cluster, [waits])) == count


@pytest.mark.parametrize(
    ("user", "priority", "count"), [("alice", 2.0, 0), ("alice", 1.0, 1), ("bob", 2.0, 1)]
)
def test_growth_gives_no_job_of_another_user_and_a_higher_priority_worse_gpus(
    user, priority, count
):
    """Two of the four GPUs are slow; the job that grows takes the fast one."""
    one, cluster = movable_here(1.05, since_h=1.0)
    cluster = replace(cluster, scores={"B": np.array([[1.0, 1.0, 1.5, 1.5]])})
    one = replace(one, request=replace(one.request, user="bob", priority=1.0))
    waits = Request("9", 1, time_limit_s=H, priority=priority, user=user)
    assert len(moves_of(one, cluster, [waits])) == count


@pytest.mark.parametrize(
    ("priority", "limit_s", "count"), [(2.0, H / 2, 0), (0.5, H / 2, 1), (2.0, 99 * H, 1)]
)
def test_growth_leaves_jobs_behind_the_head_what_they_start_on(priority, limit_s, count):
    """Job 8 waits for all four GPUs; job 9 needs the two that are free, and ends before, or not."""
    one, cluster = movable_here(1.05, since_h=1.0, free=3)
    one = replace(one, request=replace(one.request, user="bob", priority=1.0))
    head = Request("8", 4, time_limit_s=H, priority=9.0, user="alice")
    behind = Request("9", 2, time_limit_s=limit_s, priority=priority, user="alice")
    assert len(moves_of(one, cluster, [head, behind])) == count


@pytest.mark.parametrize(
    ("free", "restart_s", "found"),
    [
        (4, 60.0, {"1": 1, "2": 1}),  # each grows when it turns out to be long
        (1, 60.0, {"1": 1}),
        (3, None, {"1": 2, "2": 1}),  # all earlier runs of job 2 would be in time, too
    ],
)
def test_a_job_that_can_grow_later_does_not_wait_for_its_size(free, restart_s, found):
    pair = [dated("1", 6.0, 2.0), dated("2", 6.0, 1.0)]
    pair = [with_fields(one, due=replace(one.get(DUE_DATE), restart_s=restart_s)) for one in pair]
    assert sizes(plan_round(pair, full(free), PACKED, NOW)) == found


def test_growth_counts_for_the_rate():
    one, cluster = movable_here(1.05, since_h=1.0)
    assert moves_of(one, cluster, per_round=0) == ()


def test_a_job_back_from_its_growth_never_gets_fewer_gpus_than_before():
    one, cluster = movable_here(0.78, since_h=1.0, gpus=2)
    (move,) = moves_of(one, cluster)
    assert move.request.gpus == 4
    asked = movable_due(20.0)
    placed, rest, *_ = place_moved({"1": move.assignment}, [asked], full(1), PACKED, NOW)
    assert placed == ()
    assert plan_round(rest, full(1), PACKED, NOW).assignments == ()
    assert sizes(plan_round(rest, full(2), PACKED, NOW)) == {"1": 2}


def dated(name, due_h, priority, weight=1.0, **more):
    one = due_job(name, due_h, **{"priority": priority, "submit_s": NOW, "user": "alice", **more})
    return with_fields(one, due=replace(one.get(DUE_DATE), weight=weight))


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, "32145"),
        ({"1": {"weight": 9.0}}, "13245"),
        ({"2": {"due_h": 0.1}}, "12345"),  # it cannot be met
        ({"2": {"sizes": ()}}, "12345"),  # its due date plays no part
        ({"1": {"priority": TIER + 5.0}}, "13245"),  # a tier of its own
        ({"1": {"submit_s": NOW - 11 * H}}, "13245"),  # it has waited for longer than it runs
        ({"2": {"submit_s": NOW - 11 * H}}, "23145"),
        ({"3": {"user": "bob"}}, "21345"),
        ({"2": {"user": "bob"}}, "12345"),  # the jobs of its user do not pass it either
        ({"2": {"user": "bob", "priority": 5.0}}, "21345"),  # the priority of job 1
        ({"3": {"user": "bob", "weight": 2.0}}, "21345"),  # nor does a weight pass other users
        ({name: {"user": ""} for name in "123"}, "12345"),  # not known: no two are of one user
    ],
)
def test_by_pressure_neighbours_with_due_dates_exchange_places(changes, order):
    """Job 4 has none, so that job 5 does not pass it."""
    given = {"1": (9.0, 5.0), "2": (6.0, 4.0), "3": (3.0, 3.0), "5": (2.0, 1.0)}
    queue = [
        dated(name, **{"due_h": due_h, "priority": priority, **changes.get(name, {})})
        for name, (due_h, priority) in given.items()
    ]
    queue += [due_job("4", priority=2.0)]
    accounts = due_accounts(queue, NOW)
    found = in_order(queue, replace(PACKED, due_order="pressure"), accounts, NOW)
    assert "".join(one.job_id for one in found) == order
    assert in_order(queue, PACKED, accounts, NOW) == in_slurm_order(queue)


@pytest.mark.parametrize(("passed_s", "order"), [(7200.0, "21"), (3600.0, "12")])
def test_a_due_date_passes_no_job_that_is_at_the_bound_of_the_queue(passed_s, order):
    """Job 1 has waited for 1.5 h and runs for longer; its site lets it be passed for 1 h or 2 h."""
    queue = [dated("1", 9.0, 2.0, submit_s=NOW - 1.5 * H), dated("2", 6.0, 1.0)]
    rule = OrderRule("backfill", passed_s=passed_s)
    found = reordered(in_slurm_order(queue), rule, NOW)
    settings = replace(PACKED, due_order="pressure")
    found = in_order(found, settings, due_accounts(queue, NOW), NOW)
    assert "".join(one.job_id for one in found) == order


def test_by_pressure_the_more_urgent_job_starts():
    queue = [dated("1", 9.0, 2.0), dated("2", 6.0, 1.0), Request("3", 4, time_limit_s=H)]
    plans = [
        plan_round(queue, full(2), replace(PACKED, due_order=order), NOW)
        for order in ("slurm", "pressure")
    ]
    assert [next(iter(sizes(plan))) for plan in plans] == ["1", "2"]


@pytest.mark.parametrize(("user", "first"), [("bob", "1"), ("alice", "5")])
def test_an_invented_due_date_passes_no_other_user(user, first):
    """One epoch that just fits: the least time to spare of all."""
    queue = [dated(str(n), 5.0, 41_000.0, submit_s=NOW + n) for n in range(1, 5)]
    due = DueDate(NOW + 180.0, epochs=(1, 1, 160.0))
    invented = due_job("5", priority=1.0, user=user, submit_s=NOW + 5)
    queue.append(with_fields(invented, due=due))
    plan = plan_round(queue, full(1), replace(PACKED, due_order="pressure"), NOW)
    assert sizes(plan) == {first: 1}


@pytest.mark.parametrize(("weight", "first"), [(1.0, "2"), (2.0, "1")])
def test_growth_by_weight_and_pressure(weight, first):
    """Two jobs run with a GPU each, and two GPUs are free."""
    cluster, jobs = Cluster.uniform(1, 4), []
    for slot, (name, due_h) in enumerate((("1", 1.05), ("2", 1.03))):
        cluster.take(0, (slot,))
        here = RunningJob(name, ((0, (slot,)),), NOW + 10 * H, start_s=NOW - H, app_class="B")
        one = replace(movable_due(due_h), job_id=name)
        one = with_fields(
            one, due=replace(one.get(DUE_DATE), weight=weight if name == "1" else 1.0)
        )
        jobs.append(Movable(one, replace(here, expected_end_s=NOW + 3 * H), restart_s=60.0))
        cluster = replace(cluster, running=(*cluster.running, jobs[-1].job))
    jobs = accounted(jobs, cluster, NOW)
    moves = plan_moves(jobs, (), cluster, PACKED, MoveSettings(margin_s=1e9), NOW)
    assert [move.job_id for move in moves] == [first]


def test_growth_of_several_users_by_priority_and_of_each_by_pressure():
    """The job of bob has the least time to spare, and the least priority."""
    found = []
    for name, due_h, user, priority in (
        ("1", 1.05, "alice", 8.0),
        ("2", 1.06, "alice", 8.5),
        ("3", 1.03, "bob", 7.0),
    ):
        one, cluster = movable_here(due_h, since_h=1.0)
        request = replace(one.request, job_id=name, user=user, priority=priority)
        found += accounted([replace(one, request=request)], cluster, NOW)
    assert [one.request.job_id for one in due_growth(found, PACKED, NOW)] == ["1", "2", "3"]
    same = [replace(one, request=replace(one.request, priority=8.0)) for one in found]
    assert [one.request.job_id for one in due_growth(same, PACKED, NOW)] == ["3", "1", "2"]


def test_on_slow_gpus_less_work_is_done_and_the_job_grows_sooner():
    one, _ = movable_here(4.0, since_h=1.0, gpus=2)
    assert work_done(one.request, one.job, 1.25, NOW) == pytest.approx(0.8 * 1.8 * H)
    begun = with_fields(one.request, due=replace(one.request.get(DUE_DATE), done=60.0))
    assert work_done(begun, one.job, 1.0, NOW) == pytest.approx(1.8 * H + 60.0)
    one, cluster = movable_here(4.0, since_h=0.0, gpus=2, app_class="B")
    slow = replace(cluster, scores={"B": np.full((1, 4), 1.1)})
    at, slow_at = (next_growth(accounted([one], c, NOW), NOW) for c in (cluster, slow))
    assert NOW < slow_at < at < math.inf


def test_the_work_of_several_starts_in_times_of_each_size():
    one, _ = movable_here(3.0, since_h=1.0, gpus=2)
    first = run_times(one.request, one.job, 1.25, NOW, {})
    assert first == pytest.approx({1: 0.8 * 1.8 * H, 2: 0.8 * H, 4: 0.8 * 1.8 / 3.0 * H})
    assert run_times(one.request, one.job, 1.25, NOW, {2: H}) == pytest.approx({2: 1.8 * H})
    bare = with_fields(one.request, table=None)
    assert run_times(bare, one.job, 1.25, NOW, {}) == {2: 0.8 * H}
    assert run_times(bare, one.job, 1.25, NOW, {1: H}) == {}


@pytest.mark.parametrize("runs", [(), ((1, 60.0),)])
@pytest.mark.parametrize(("due_s", "words"), [(999.0, "it has passed"), (5000.0, None)])
def test_a_due_date_that_has_passed_is_called_so(runs, due_s, words):
    """Whatever is known: also of a job without a range or a model, which no run is like."""
    account = due_account(job_request("7", 1, time_limit_s=600.0, due=DueDate(due_s, runs)), 1000.0)
    assert account is not None
    assert ("it has passed, so it plays no part" in account.words()) == (words is not None)
    assert account.impossible == (words is not None)
