"""Moves of running jobs: when they pay, what they must not take, how often they happen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import begun, job_request, plan_moves, plan_round, with_fields, with_running

from slurm_gpu_aware.features.moves.declared import Moved, MoveSettings
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.power.power_budget import PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import LeftToSlurm, Part, Postponement, PreemptionRights, Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings

NOW = 10_000.0
PAL = PlanSettings(policy="pal")
USUAL = MoveSettings()
NON_STICKY = MoveSettings(sticky=False)


def scored(scores, held, *, penalty=1.5):
    """A cluster with these (N, W) scores of class A; ``held``: job id -> its GPUs."""
    table = np.array(scores, dtype=float)
    cluster = Cluster.uniform(*table.shape, locality_penalty=penalty, scores={"A": table})
    running = (
        RunningJob(job_id, tuple(gpus), end_s=NOW + 40_000.0, app_class="A")
        for job_id, gpus in held.items()
    )
    return with_running(cluster, *running)


def movable(cluster, job_id="1", *, left_s=10_000.0, ran_s=5_000.0, **more):
    """The running job as one that allows moves."""
    (job,) = (job for job in cluster.running if job.job_id == job_id)
    job = replace(job, start_s=NOW - ran_s, expected_end_s=NOW + left_s)
    if left_s == math.inf:
        job = replace(job, end_s=math.inf)
    gpus = sum(len(slots) for _, slots in job.gpus)
    request = Request(job_id, gpus, app_class="A", time_limit_s=50_000.0)
    return Movable(request, job, **more)


def moves_of(cluster, jobs, queue=(), settings=PAL, moves=USUAL, **more):
    return plan_moves(jobs, queue, cluster, settings, moves, NOW, **more)


@pytest.mark.parametrize("scores", [[[2.0, 1.0, 1.0]], [[2.0, 1.0]]])
def test_a_job_whose_gpus_slurm_chooses_keeps_no_other_from_moving(scores):
    """It waits, and fits: the move leaves it a GPU, or does not take place."""
    queue = [Request("9", 1, left=LeftToSlurm("place=off", (Part(1, 1),)), time_limit_s=90.0)]
    cluster = scored(scores, {"1": [(0, (0,))]})
    assert len(moves_of(cluster, [movable(cluster)], queue)) == 1


def test_a_job_goes_to_the_faster_gpu():
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    (move,) = moves_of(cluster, [movable(cluster, restart_s=90.0)])
    assert (move.assignment.nodes, move.assignment.slots) == ((1,), ((0,),))
    assert (move.slowdown, move.assignment.slowdown) == (2.0, 1.0)
    assert move.saves_s == pytest.approx(10_000.0 / 2 - 90.0)
    summary = move.assignment.why.text
    assert "from n0 GPU 0 (slowdown 2.00) to n1 GPU 0 (1.00)" in summary
    assert "saves 1 h 21 min of the 2 h 46 min" in summary
    assert "1 min 30 s for the restart" in summary


def test_a_job_on_two_nodes_is_gathered_on_its_own_and_a_free_gpu():
    cluster = scored([[1.0, 1.0], [1.0, 1.0]], {"1": [(0, (0,)), (1, (0,))], "2": [(0, (1,))]})
    (move,) = moves_of(cluster, [movable(cluster)])
    assert (move.assignment.nodes, move.assignment.slots) == ((1,), ((0, 1),))
    assert (move.slowdown, move.assignment.slowdown) == (1.5, 1.0)


@pytest.mark.parametrize(
    ("left_s", "restart_s", "count"),
    [(720.0, 60.0, 0), (722.0, 60.0, 1), (722.0, 70.0, 0), (742.0, 70.0, 1)],
)
def test_the_gain_must_exceed_restart_and_margin(left_s, restart_s, count):
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    assert len(moves_of(cluster, [movable(cluster, left_s=left_s, restart_s=restart_s)])) == count


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ({"ran_s": 599.0}, 0),
        ({"ran_s": 600.0}, 1),
        ({"left_s": 1_499.0}, 0),
        ({"left_s": 1_500.0}, 1),
        ({"moved_s": NOW - 3_599.0}, 0),
        ({"moved_s": NOW - 3_600.0}, 1),
        ({"left_s": math.inf}, 0),
        ({"left_s": -1_499.0}, 0),  # overdue: expected to run on as long
        ({"left_s": -1_500.0}, 1),
    ],
)
def test_first_and_last_minutes_and_the_hour_after_a_move(times, count):
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    moves = MoveSettings(last_s=1_500.0)
    assert len(moves_of(cluster, [movable(cluster, **times)], moves=moves)) == count


def test_without_an_estimate_the_limit_counts():
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    job = movable(cluster)
    job = replace(job, job=replace(job.job, expected_end_s=None))
    (move,) = moves_of(cluster, [job])
    assert move.remaining_s == 40_000.0


def queued(gpus=1, **more):
    return job_request("9", gpus, **{"app_class": "A", "time_limit_s": 60.0, **more})


def test_a_waiting_job_gets_what_the_move_leaves():
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    (move,) = found = moves_of(cluster, [movable(cluster)], [queued()])
    assert move.assignment.nodes == (1,)
    plan = plan_round([queued()], begun(cluster, found, PAL, NOW)[0], PAL, NOW)
    assert (plan.assignments, plan.waiting[0].shadow_start_s) == ((), NOW + 60.0)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"time_limit_s": 4_900.0}, 1),  # it would lose 4,900 s, the move saves 4,940 s
        ({"time_limit_s": 5_000.0}, 0),
        ({"time_limit_s": math.inf}, 0),
        ({"time_limit_s": 50_000.0, "estimate_s": 4_900.0}, 1),
        ({"time_limit_s": 50_000.0, "app_class": "B"}, 1),  # for B all GPUs are equal
    ],
)
def test_a_move_saves_more_gpu_time_than_the_waiting_jobs_lose(more, count):
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    assert len(moves_of(cluster, [movable(cluster)], [queued(**more)])) == count
    anew = moves_of(cluster, [movable(cluster)], [queued(**more)], moves=NON_STICKY)
    assert len(anew) == 1


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"priority": 7.0, "user": "alice"}, 0),
        ({"priority": 7.0, "user": "alice", "app_class": "B"}, 1),  # it loses nothing
        ({"priority": 7.0, "user": "bob"}, 1),
        ({"priority": 5.0, "user": "alice"}, 1),
    ],
)
def test_a_move_gives_no_job_of_another_user_and_a_higher_priority_worse_gpus(more, count):
    """The time limit of the running job is what its user says: it may promise any gain."""
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    one = movable(cluster)
    one = replace(one, request=replace(one.request, user="bob", priority=6.0))
    assert len(moves_of(cluster, [one], [queued(**more)])) == count


@pytest.mark.parametrize(
    ("user", "priority", "count"), [("alice", 7.0, 0), ("alice", 5.0, 1), ("bob", 7.0, 1)]
)
def test_a_move_leaves_jobs_behind_the_head_what_they_start_on(user, priority, count):
    """The head needs both GPUs of n0, the job behind it both of n1, to one of which job 1 goes."""
    cluster = scored([[2.0, 2.0], [1.0, 1.0]], {"1": [(0, (0,))], "2": [(0, (1,))]})
    one = movable(cluster)
    one = replace(one, request=replace(one.request, user="bob", priority=6.0))
    head = queued(2, priority=9.0, user="alice", eligible=np.array([True, False]))
    behind = replace(queued(2, priority=priority, user=user, max_nodes=1), job_id="8")
    assert len(moves_of(cluster, [one], [head, behind])) == count


@pytest.mark.parametrize("moves", [USUAL, NON_STICKY])
def test_what_fits_now_fits_beside_the_move(moves):
    """The waiting job needs both GPUs of n1; job 1 would leave one of n0."""
    cluster = scored([[2.0, 2.0], [1.0, 1.0]], {"1": [(0, (0,))], "2": [(0, (1,))]})
    assert moves_of(cluster, [movable(cluster)], moves=moves) != ()
    assert moves_of(cluster, [movable(cluster)], [queued(2, max_nodes=1)], moves=moves) == ()


def test_a_move_may_let_the_head_start():
    """The waiting job needs both GPUs of n0, of which job 1 holds one."""
    cluster = scored([[2.0, 2.0], [1.0, 1.0]], {"1": [(0, (0,))], "2": [(1, (1,))]})
    head = queued(2, eligible=np.array([True, False]))
    (move,) = moves_of(cluster, [movable(cluster)], [head])
    assert move.assignment.nodes == (1,)


@pytest.mark.parametrize(
    ("left_s", "count"),
    [
        (10_000.0, 0),  # the move saves 4,940 s; the waiting job would end 5,000 s later
        (10_200.0, 1),
        (9_000.0, 0),
    ],
)
def test_a_job_that_waits_by_choice_loses_what_it_waits_for(left_s, count):
    """It waits for both GPUs of n2, one of which is free; now it would run on n0, at 2.0."""
    scores = [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    held = {"1": [(1, (0,))], "2": [(2, (0,))], "3": [(1, (1,))]}
    cluster = scored(scores, held)
    wait = Postponement(NOW - 10.0, NOW + 500.0, NOW + 3_500.0, (("n2", (0, 1)),))
    head = queued(2, time_limit_s=3_000.0, max_nodes=1, postponed=wait)
    assert len(moves_of(cluster, [movable(cluster, left_s=left_s)], [head])) == count
    without = with_fields(head, postponed=None)
    assert len(moves_of(cluster, [movable(cluster, left_s=left_s)], [without])) == 1


def test_an_infeasible_job_keeps_nothing():
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    assert len(moves_of(cluster, [movable(cluster)], [queued(5), queued()])) == 1


def test_a_waiting_job_keeps_its_reservation():
    """The head needs both GPUs of n1, of which one is free, once the other ends in 100 s."""
    cluster = scored(
        [[2.0, 2.0], [1.0, 1.0]], {"1": [(0, (0,))], "2": [(0, (1,))], "3": [(1, (1,))]}
    )
    soon = replace(cluster.running[2], end_s=NOW + 100.0)
    cluster = replace(cluster, running=(*cluster.running[:2], soon))
    head = Request("9", 2, gpus_per_node=2, max_nodes=1, app_class="A", time_limit_s=900.0)
    assert moves_of(cluster, [movable(cluster)]) != ()
    assert moves_of(cluster, [movable(cluster)], [head]) == ()


@pytest.mark.parametrize(("reservations", "moves"), [(1, 1), (2, 0)])
def test_the_second_that_waits_keeps_its_reservation(reservations, moves):
    """The head needs all of n1 in 100 s, the second all of n2, of which one GPU is free, in 200."""
    held = {"1": [(0, (0,))], "2": [(0, (1,))], "3": [(1, (0, 1))], "4": [(2, (1,))]}
    cluster = scored([[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]], held)
    until = {"3": NOW + 100.0, "4": NOW + 200.0}
    running = (replace(j, end_s=until.get(j.job_id, j.end_s)) for j in cluster.running)
    cluster = replace(cluster, running=tuple(running))
    usual = {"gpus_per_node": 2, "max_nodes": 1, "time_limit_s": 9_000.0}
    queue = [job_request(name, 2, app_class="A", **usual) for name in ("8", "9")]
    settings = replace(PAL, reservations=reservations)
    assert len(moves_of(cluster, [movable(cluster)], queue, settings)) == moves


def test_one_move_at_a_time_takes_from_a_node_or_gives_to_it():
    held = {"1": [(0, (0,))], "2": [(0, (1,))], "3": [(1, (0,))]}
    cluster = scored([[2.0, 2.0], [2.0, 2.0], [1.0, 1.0], [1.0, 1.0]], held)
    jobs = [movable(cluster, i, left_s=s) for i, s in (("1", 5e3), ("2", 6e3), ("3", 4e3))]
    assert [move.job_id for move in moves_of(cluster, jobs)] == ["2"]  # all would go to n2
    assert moves_of(cluster, jobs, busy={2}) == ()
    assert moves_of(cluster, jobs[:2], busy={0}) == ()


def test_the_rates_of_the_site():
    held = {str(i): [(i, (0,))] for i in range(4)}
    cluster = scored([[2.0]] * 4 + [[1.0]] * 4, held)
    jobs = [movable(cluster, job_id) for job_id in held]
    apart = [
        replace(one, request=with_fields(one.request, eligible=np.isin(np.arange(8), [i, 4 + i])))
        for i, one in enumerate(jobs)
    ]
    assert len(moves_of(cluster, apart)) == 4
    assert len(moves_of(cluster, apart, moves=MoveSettings(per_round=3))) == 3
    recent = [(NOW - ago_s, "alice") for ago_s in (3_600.0, 3_599.0, 10.0)]
    assert len(moves_of(cluster, apart, recent=recent, moves=MoveSettings(per_hour=3))) == 1
    assert moves_of(cluster, apart, recent=recent, moves=MoveSettings(per_hour=2)) == ()


@pytest.mark.parametrize(("other", "counts"), [("bob", [4, 2]), ("alice", [4, 4, 4])])
def test_no_user_uses_up_the_hour_while_another_has_jobs_that_may_move(other, counts):
    """Fourteen jobs of alice want to move; 14, which is bob's or hers, moved a moment ago."""
    held = {str(i): [(i, (0,))] for i in range(15)}
    cluster = scored([[2.0]] * 15 + [[1.0]] * 15, held)

    def job(i, user, **more):
        one, nodes = movable(cluster, str(i), **more), np.isin(np.arange(30), [i, 15 + i])
        return replace(one, request=with_fields(one.request, user=user, eligible=nodes))

    jobs, recent, begun = [job(i, "alice") for i in range(14)], [], []
    while found := moves_of(cluster, [*jobs, job(14, other, moved_s=NOW)], recent=recent):
        recent += [(NOW, "alice") for _ in found]
        begun.append(len(found))
        gone = {move.job_id for move in found}
        jobs = [one for one in jobs if one.request.job_id not in gone]
    assert begun == counts
    later = moves_of(cluster, [*jobs, job(14, other)], recent=recent)
    assert [move.job_id for move in later] == (["14"] if other == "bob" else [])


def test_no_move_to_gpus_that_slurm_would_choose():
    cluster = scored([[2.0], [1.0]], {"1": [(0, (0,))]})
    plain = replace(cluster, indexed=np.array([True, False]))
    assert moves_of(plain, [movable(plain)]) == ()


def test_no_move_beside_a_preemption():
    cluster = scored([[2.0], [1.0], [1.0]], {"1": [(0, (0,))], "2": [(2, (0,))]})
    weak = replace(cluster.running[1], preemptable_by=0.0)
    cluster = replace(cluster, running=(cluster.running[0], weak))
    strong = Request(
        "9", 2, app_class="A", time_limit_s=60.0, preemption=PreemptionRights(tier=1.0)
    )
    assert moves_of(cluster, [movable(cluster)], [strong]) == ()


def test_non_sticky_moves_for_any_gain_and_classes_choose_in_turn():
    cluster = scored([[1.02], [1.01], [1.0]], {"1": [(0, (0,))], "2": [(1, (0,))]})
    other = replace(cluster, scores={**cluster.scores, "B": cluster.scores["A"]})
    one, two = movable(other, "1"), movable(other, "2")
    two = replace(two, request=replace(two.request, app_class="B"))
    assert moves_of(other, [two, one]) == ()
    (move,) = moves_of(other, [two, one], moves=NON_STICKY)
    # Class A takes the fastest; B would take that of n1, where it is.
    assert (move.job_id, move.assignment.nodes) == ("1", (2,))
    assert "for the restart" not in move.assignment.why.text


def test_non_sticky_waits_for_gpus_that_another_job_still_holds():
    """Anew, 1 would take the fastest GPU, which 2 holds, and 2 the second, which is free."""
    cluster = scored([[1.0], [1.2], [1.5]], {"1": [(2, (0,))], "2": [(0, (0,))]})
    other = replace(cluster, scores={**cluster.scores, "B": cluster.scores["A"]})
    one, two = movable(other, "1"), movable(other, "2")
    two = replace(two, request=replace(two.request, app_class="B"))
    assert moves_of(other, [one, two], moves=NON_STICKY) == ()


TABLE = SizeTable(
    gpus=np.array([1, 2, 4]),
    clocks_mhz=np.array([900, 1200]),
    time_s=np.array([[1.2, 1.0], [0.7, 0.6], [0.5, 0.4]]),
    power_w=np.full((3, 2), 100.0),
)


def moldable(cluster, *, table=TABLE, sizes=(1, 2, 4), **more):
    one = movable(cluster, **more)
    return replace(one, request=with_fields(one.request, sizes=sizes, table=table))


def test_a_moldable_job_grows_when_that_saves_more_than_the_restart():
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    (move,) = moves_of(cluster, [moldable(cluster, restart_s=90.0)])
    assert move.assignment.slots == ((0, 1, 2, 3),)
    assert (move.request.gpus, move.grows) == (4, True)
    assert move.saves_s == pytest.approx(10_000.0 * (1 - 0.4) - 90.0)
    assert move.assignment.why.of(Moved).gpus == 4
    assert "2.50 times as fast by their number" in move.assignment.why.text
    held = [job.gpus for job in begun(cluster, [move], PAL, NOW)[0].running]
    assert ((0, (0, 1, 2, 3)),) in held
    assert moves_of(cluster, [moldable(cluster, left_s=601.0, restart_s=61.0)]) == ()


def test_a_job_grows_to_the_size_that_saves_most_where_it_lies():
    # On the slow GPUs 2 and 3 four GPUs would be slower than the two fast ones.
    cluster = scored([[1.0, 1.0, 2.0, 2.0]], {"1": [(0, (0,))]})
    (move,) = moves_of(cluster, [moldable(cluster)])
    assert move.assignment.slots == ((0, 1),)


@pytest.mark.parametrize("more", [{"sizes": ()}, {"table": None}, {"sizes": (1,)}])
def test_without_a_range_or_a_table_a_job_does_not_grow(more):
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    assert moves_of(cluster, [moldable(cluster, **more)]) == ()


def test_a_job_does_not_shrink_for_itself():
    cluster = scored([[1.0] * 4], {"1": [(0, (0, 1, 2, 3))]})
    slower_with_more = replace(TABLE, time_s=TABLE.time_s[::-1].copy())
    assert moves_of(cluster, [moldable(cluster, table=slower_with_more)]) == ()


@pytest.mark.parametrize(
    ("queue", "count"),
    [
        ((), 4),
        ((queued(1),), 2),  # it fits beside two GPUs, not beside four
        ((queued(1), replace(queued(2), job_id="8")), 1),
        ((queued(5),), 4),  # infeasible here
        ((queued(4),), 1),  # it waits for all four
        ((queued(1), replace(queued(4), job_id="8")), 1),
    ],
)
def test_a_job_grows_only_while_every_waiting_job_starts(queue, count):
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    jobs = [moldable(cluster, sizes=(1, 2)), moldable(cluster)]
    found = {move.request.gpus for job in jobs for move in moves_of(cluster, [job], queue)}
    assert max(found, default=1) == count


def test_no_job_grows_beside_a_waiting_job_that_it_does_not_delay():
    cluster = scored([[1.0] * 4, [1.0] * 4], {"1": [(0, (0,))], "other": [(1, (0, 1, 2, 3))]})
    elsewhere = with_fields(queued(1), eligible=np.array([False, True]))
    assert moves_of(cluster, [moldable(cluster)], [elsewhere]) == ()
    assert len(moves_of(cluster, [moldable(cluster)])) == 1


def limited(limit_w, clock_mhz=None, *, adjustable=False):
    """Power of a node of four GPUs on which job 1 runs: 100 W for each GPU at 900 MHz."""
    running = {"1": PoweredJob(1, 300.0, HUNGRY, clock_mhz, adjustable=adjustable)}
    return PowerState(np.full((1, 4), 300.0), np.full((1, 4), 50.0), limit_w, running)


HUNGRY = replace(TABLE, power_w=np.array([[100.0, 250.0], [200.0, 500.0], [400.0, 1000.0]]))
AUTO = replace(PAL, auto_clocks=True)


@pytest.mark.parametrize(
    ("limit_w", "gpus"), [(399.0, 2), (400.0, 4), (299.0, 1), (math.inf, 4), (150.0, 1)]
)
def test_under_a_power_limit_a_job_grows_as_far_as_there_is_power(limit_w, gpus):
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    one = moldable(cluster, table=HUNGRY)
    found = moves_of(cluster, [one], settings=AUTO, power=limited(limit_w, 900))
    assert max((move.request.gpus for move in found), default=1) == gpus
    for move in found:
        kept_w = 50.0 * gpus if limit_w < math.inf else 0.0
        assert move.power_w == pytest.approx(kept_w)
        assert move.assignment.clock_mhz == (900 if limit_w < math.inf else None)


def test_until_it_runs_again_the_larger_of_both_powers_is_kept_for_a_job():
    """One GPU at the default clock draws 200 W above idle, two at the efficient one 100 W."""
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    one = moldable(cluster, table=HUNGRY, sizes=(1, 2))
    (move,) = moves_of(cluster, [one], settings=AUTO, power=limited(1000.0))
    assert (move.request.power_w, move.power_w) == (100.0, 200.0)


@pytest.mark.parametrize(("adjustable", "ratio"), [(True, 0.5 / 1.2), (False, 0.5 / 1.0)])
def test_the_gain_counts_at_the_clocks_of_the_power(adjustable, ratio):
    """A clock that cannot be changed is lost; its power is kept until the restart."""
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    power = limited(401.0, 1200, adjustable=adjustable)
    (move,) = moves_of(cluster, [moldable(cluster, table=HUNGRY)], settings=AUTO, power=power)
    assert move.assignment.why.of(Moved).time_ratio == pytest.approx(ratio, abs=1e-4)
    assert (move.power_w, move.request.power_w) == (200.0, 200.0)


@pytest.mark.parametrize(("more", "count"), [({"table": HUNGRY}, 1), ({}, 0)])
def test_power_that_a_waiting_job_needs_is_not_taken(more, count):
    """Of 250 W growth needs 50; the waiting job 50, or without a table all of it."""
    cluster = scored([[1.0] * 4], {"1": [(0, (0,))]})
    one = moldable(cluster, table=HUNGRY, sizes=(1, 2))
    queue = [with_fields(queued(1), **more)]
    found = moves_of(cluster, [one], queue, settings=AUTO, power=limited(500.0, 900))
    assert len(found) == count


def test_moves_of_one_round_do_not_share_the_power_that_is_left():
    """There is power for two more GPUs at 900 MHz: enough for one of the jobs to grow."""
    cluster = scored([[1.0] * 2, [1.0] * 2], {"1": [(0, (0,))], "2": [(1, (0,))]})
    jobs = [moldable(cluster, job_id=i, table=HUNGRY, sizes=(1, 2)) for i in "12"]
    running = {i: PoweredJob(1, 300.0, HUNGRY, 900) for i in "12"}
    power = PowerState(np.full((2, 2), 300.0), np.full((2, 2), 50.0), 370.0, running)
    assert len(moves_of(cluster, jobs, settings=AUTO, power=power)) == 1
    power = replace(power, limit_w=400.0)
    assert len(moves_of(cluster, jobs, settings=AUTO, power=power)) == 2
