"""Running jobs that give GPUs back: when that pays, which jobs start, and what it must not take."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import begun, place_moved, plan_round, with_fields
from test_moves import AUTO, HUNGRY, NOW, PAL, TABLE, moldable, moves_of, queued, scored

from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.moves.declared import Moved, MoveSettings
from slurm_gpu_aware.features.power.power_budget import PoweredJob, PowerState
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import TIER, PreemptionRights

FULL = {"1": [(0, (0, 1, 2, 3))]}
RESTART_S = 60.0
HALF_S = 10_000.0 * (0.6 / 0.4 - 1) + RESTART_S
"""What two GPUs instead of four cost a job with 10,000 s left."""


def one_big(**more):
    """A node with one job of four GPUs, which alone would end in 10,000 s."""
    cluster = scored([[1.0] * 4], FULL)
    one = moldable(cluster, **more)
    return replace(cluster, running=(one.job,)), one


def beside_another(slots, left_s, **more):
    """Another node, on which job 2 holds these slots and ends then; and the job that may shrink."""
    cluster = scored([[1.0] * 4, [1.0] * 4], {**FULL, "2": [(1, slots)]})
    one = moldable(cluster, **more)
    other = replace(cluster.running[1], expected_end_s=NOW + left_s)
    return replace(cluster, running=(one.job, other)), one


def test_a_job_shrinks_when_a_waiting_job_gains_more_than_it_loses():
    cluster, one = one_big()
    (move,) = found = moves_of(cluster, [one], [queued()])
    assert (move.request.gpus, move.assignment.size, move.grows) == (2, 2, False)
    assert move.saves_s == pytest.approx(-HALF_S)
    assert (move.others_s, move.starts) == (pytest.approx(10_000.0 - RESTART_S), ("9",))
    summary = move.assignment.why.text
    assert "from n0 GPUs 0,1,2,3" in summary
    assert "0.67 times as fast by their number" in summary
    assert "which takes 1 h 24 min more than the 2 h 46 min that it still needed" in summary
    assert "on what it gives back job 9 can start, 2 h 45 min sooner" in summary
    moved = move.assignment.why.of(Moved)
    assert (moved.gpus_before, moved.gpus, moved.starts) == (4, 2, ("9",))
    later, _ = begun(cluster, found, PAL, NOW)
    plan = plan_round([queued()], later, PAL, NOW)
    assert plan.waiting[0].shadow_start_s == NOW + RESTART_S


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ({"left_s": 840.0}, 1),  # 780 s sooner; 480 s later
        ({"left_s": 837.0}, 0),
        ({"left_s": 837.0, "restart_s": 59.0}, 1),
        ({"left_s": 599.0, "restart_s": 0.0}, 0),
        ({"ran_s": 599.0}, 0),
        ({"moved_s": NOW - 3_599.0}, 0),
        ({"moved_s": NOW - 3_600.0}, 1),
        ({"left_s": math.inf}, 0),
        ({"sizes": ()}, 0),
        ({"sizes": (4,)}, 0),
        ({"sizes": (1, 4)}, 0),
        ({"table": None}, 0),
    ],
)
def test_margin_times_and_sizes_are_kept(times, count):
    cluster, one = one_big(**times)
    moves = MoveSettings(margin_s=299.0)
    assert len(moves_of(cluster, [one], [queued()], moves=moves)) == count


@pytest.mark.parametrize(
    "queue", [(), (queued(3),), (queued(5),), (queued(1, eligible=np.array([False])),)]
)
def test_it_keeps_its_gpus_if_no_job_would_start(queue):
    cluster, one = one_big()
    assert moves_of(cluster, [one], queue) == ()


@pytest.mark.parametrize(
    "more",
    [{"busy": {7}}, {"moves": MoveSettings(sticky=False)}, {"moves": MoveSettings(shrink=False)}],
)
def test_it_keeps_its_gpus_beside_another_move_and_where_the_site_has_it_so(more):
    cluster, one = one_big()
    assert moves_of(cluster, [one], [queued()], **more) == ()


def test_a_job_with_a_due_date_never_shrinks():
    cluster, one = one_big()
    due = with_fields(one.request, due=DueDate(NOW + 1e6, restart_s=60.0))
    assert moves_of(cluster, [replace(one, request=due)], [queued()]) == ()


@pytest.mark.parametrize(
    ("limit_s", "known", "count"),
    [
        (10_000.0 + HALF_S, True, 1),
        (10_000.0 + HALF_S - 1.0, True, 0),
        (10_000.0 + HALF_S - 1.0, False, 1),  # no job is expected to need all of its limit
    ],
)
def test_no_job_shrinks_to_be_killed_at_its_time_limit(limit_s, known, count):
    cluster, one = one_big()
    end_s = NOW + 10_000.0
    job = replace(one.job, end_s=end_s, expected_end_s=end_s if known else None)
    one = replace(one, job=job, request=replace(one.request, time_limit_s=limit_s))
    cluster = replace(cluster, running=(job,))
    assert len(moves_of(cluster, [one], [queued()])) == count


@pytest.mark.parametrize(("left_s", "count"), [(60.0, 0), (61.0, 1)])
def test_no_job_shrinks_for_a_start_that_comes_as_soon_without_it(left_s, count):
    """Also where its table says that fewer GPUs are faster."""
    slower = replace(TABLE, time_s=TABLE.time_s[::-1])
    cluster, one = beside_another((0, 1, 2, 3), left_s, table=slower)
    assert len(moves_of(cluster, [one], [queued()])) == count


def test_the_gain_of_all_that_start_counts():
    """A GPU is free in 4,000 s in any case: half of the GPUs are too many for one job."""
    cluster, one = beside_another((0, 1, 2, 3), 4_000.0)
    first, second = queued(), replace(queued(), job_id="8", submit_s=1.0)
    assert moves_of(cluster, [one], [first]) == ()
    (move,) = moves_of(cluster, [one], [first, second])
    assert (move.starts, move.others_s) == (("9", "8"), pytest.approx(2 * (4_000.0 - RESTART_S)))
    assert "jobs 9, 8 can start, the first of them 1 h 5 min sooner" in move.assignment.why.text


def test_a_job_that_fits_now_does_not_count():
    """Behind the head, which needs three GPUs, it starts on the free one without any move."""
    cluster, one = beside_another((0, 1, 2), 4_000.0)
    small = replace(queued(), job_id="8", submit_s=1.0)
    assert moves_of(cluster, [one], [queued(3, max_nodes=2, gpus_per_node=1), small]) == ()
    assert moves_of(cluster, [one], [queued(2, max_nodes=1), small]) == ()


QOS = {"preemption": PreemptionRights(groups=frozenset({"low"}))}
OWN = {"user": "alice"}


@pytest.mark.parametrize(
    ("own", "other", "starts"),
    [
        ({"priority": 2 * TIER}, {"priority": 2 * TIER + 7.0}, True),
        ({"priority": 2 * TIER + 7.0}, {"priority": 2 * TIER}, False),
        ({"priority": 2 * TIER + 7.0, **OWN}, {"priority": 2 * TIER, **OWN}, True),
        ({"priority": 2 * TIER + 7.0, **OWN}, {"priority": 2 * TIER, "user": "bob"}, False),
        ({"priority": 2 * TIER, **OWN}, {"priority": 2 * TIER, "user": "bob"}, True),
        ({"priority": 2 * TIER, **OWN}, {"priority": 2 * TIER - 1.0, **OWN}, False),
        ({"priority": 2 * TIER}, {"priority": 3 * TIER}, True),
        ({"priority": 2 * TIER}, {"priority": 2 * TIER - 1.0}, False),
        (QOS, {"preemption": PreemptionRights(own_group="low")}, False),
        (QOS, {"preemption": PreemptionRights(own_group="high")}, True),
        ({}, {"preemption": PreemptionRights(own_group="low")}, True),
        ({}, {"refused": True}, False),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_no_job_shrinks_for_one_below_it_or_for_one_that_did_not_start(own, other, starts, first):
    """Nor does it count behind another one."""
    cluster, one = one_big()
    one = replace(one, request=replace(one.request, **own))
    head = queued(priority=9 * TIER)
    behind = replace(queued(**{"priority": 0.0, **other}), job_id="8")
    queue = [behind] if first else [head, behind]
    found = {name for move in moves_of(cluster, [one], queue) for name in move.starts}
    assert found == ({"8"} if starts else set()) | (set() if first else {"9"})


def test_a_job_of_a_site_that_preempts_by_tier_shrinks_for_one_of_its_own_tier():
    """Only a waiting job that may preempt one that runs takes what is not known."""
    cluster, one = one_big()
    cluster = replace(cluster, running=(replace(one.job, preemptable_by=1.0),))
    one = replace(one, job=cluster.running[0])
    found = [
        moves_of(cluster, [one], [queued(preemption=PreemptionRights(tier=tier))])
        for tier in (1.0, 2.0)
    ]
    assert [len(moves) for moves in found] == [1, 0]


@pytest.mark.parametrize(
    ("left_s", "queue", "shrinks"),
    [
        (9_000.0, [queued()], {"2": ("9",)}),  # the one that loses least
        (10_000.0, [replace(queued(2), job_id=str(i), submit_s=i) for i in (7, 8)], {"1": ("7",)}),
    ],
)
def test_of_several_jobs_one_shrinks_at_a_time(left_s, queue, shrinks):
    cluster = scored([[1.0] * 4, [1.0] * 4], {**FULL, "2": [(1, (0, 1, 2, 3))]})
    jobs = [moldable(cluster, job_id="1"), moldable(cluster, job_id="2", left_s=left_s)]
    cluster = replace(cluster, running=tuple(one.job for one in jobs))
    assert {move.job_id: move.starts for move in moves_of(cluster, jobs, queue)} == shrinks


@pytest.mark.parametrize(("limit_w", "gpus"), [(450.0, 2), (399.0, 4), (800.0, 4)])
def test_under_a_power_limit_the_power_that_it_gives_back_counts(limit_w, gpus):
    """At 900 MHz a GPU draws 50 W more than idle. With four free GPUs only power is missing."""
    cluster = scored([[1.0] * 8], FULL)
    one = moldable(cluster, table=HUNGRY, sizes=(2, 4))
    cluster = replace(cluster, running=(one.job,))
    running = {"1": PoweredJob(4, 1200.0, HUNGRY, 900)}
    power = PowerState(np.full((1, 8), 100.0), np.full((1, 8), 25.0), limit_w, running)
    found = moves_of(cluster, [one], [queued()], settings=AUTO, power=power)
    assert min((move.request.gpus for move in found), default=4) == gpus


def smaller():
    """The target of a job that had four GPUs, as the ledger gives it back."""
    moved = {"from": "n0", "slowdown_before": 1.0, "saves_s": 0.0, "remaining_s": 0.0}
    moved |= {"restart_s": 0.0, "gpus": 2, "gpus_before": 4}  # of an earlier release
    why = Facts.read({"summary": "moved", "moved": moved})
    return Assignment("1", (0,), ((0, 1),), "", 0.0, "", 0.0, why=why)


@pytest.mark.parametrize(("taken", "slots"), [((), (0, 1)), ((0,), (1, 2)), ((0, 1), (2, 3))])
def test_it_comes_back_with_the_smaller_number(taken, slots):
    cluster, one = one_big()
    cluster = scored([[1.0] * 4], {"2": [(0, taken)]} if taken else {})
    queue = [one.request, queued()]
    (placed,), rest, *_ = place_moved({"1": smaller()}, queue, cluster, PAL, NOW)
    assert (placed.slots, rest) == ((slots,), queue[1:])


@pytest.mark.parametrize(
    ("taken", "limit_w", "sizes", "gpus"),
    [
        ((), math.inf, (2, 4), 4),
        ((0,), math.inf, (2, 4), 2),  # the job that waited has started
        ((), math.inf, (2,), 2),  # its owner has changed the range
        ((), 1_199.0, (2, 4), 2),  # at 300 W
        ((), 1_200.0, (2, 4), 4),
    ],
)
def test_if_no_job_waits_any_more_it_comes_back_with_all(taken, limit_w, sizes, gpus):
    _, one = one_big()
    cluster = scored([[1.0] * 4], {"2": [(0, taken)]} if taken else {})
    power = PowerState(np.full((1, 4), 300.0), np.full((1, 4), 25.0), limit_w, {})
    request = with_fields(one.request, gpus=sizes[-1], sizes=sizes, table=None)
    (placed,), rest, *_ = place_moved({"1": smaller()}, [request], cluster, PAL, NOW, power=power)
    assert (placed.size, rest) == (gpus, [])
    assert ("no job waits" in placed.why.text) == (gpus == 4)


def test_if_too_few_gpus_are_free_it_waits_for_the_smaller_number():
    _, one = one_big()
    cluster = scored([[1.0] * 4], {"2": [(0, (0, 1, 2))]})
    placed, (first,), *_ = place_moved({"1": smaller()}, [one.request], cluster, PAL, NOW)
    assert (placed, first.sizes) == ((), (2, 4))
    assert first.priority > 1e12
    later = scored([[1.0] * 4], {"2": [(0, (0, 1))]})
    (started,) = plan_round([first], later, PAL, NOW).assignments
    assert started.size == 2
