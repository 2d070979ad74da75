"""Due dates, whatever runs and waits: no job loses GPUs, and those without one change nothing."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from make import begun, job_request, plan_moves, plan_round, with_fields
from test_move_properties import NOW, scaling, sites

from slurm_gpu_aware.features.due_dates.declared import DUE, EPOCHS
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.due_dates.queue import (
    accounted,
    due_account,
    due_accounts,
    in_order,
)
from slurm_gpu_aware.features.due_dates.stage import with_due_sizes
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.features.moves.declared import MoveSettings
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.model.request import TIER
from slurm_gpu_aware.planning.plan import PlanSettings

PACKED = PlanSettings(policy="packed")
times = st.floats(0.0, 20_000.0)
runs = st.lists(st.tuples(st.sampled_from([1, 2, 4]), times), max_size=4).map(tuple)


@st.composite
def dated(draw, request):
    """The request with a due date; without earlier runs nothing may come of it."""
    due_s = NOW + draw(st.floats(-1_000.0, 20_000.0))
    due = DueDate(due_s, draw(runs), restart_s=draw(st.none() | st.floats(0.0, 900.0)))
    return with_fields(request, due=due)


@given(sites(), st.data())
def test_no_decision_takes_gpus_from_a_running_job(site, data):
    cluster, movable, queue = site
    movable = [replace(one, request=data.draw(dated(one.request))) for one in movable]
    movable = accounted(movable, cluster, NOW)
    moves = plan_moves(movable, queue, cluster, PACKED, MoveSettings(), NOW)
    assert len({move.job_id for move in moves}) == len(moves)
    for move in moves:
        assert move.request.gpus >= move.of.request.gpus
        assert not move.due or move.request.gpus > move.of.request.gpus
        assert not move.due or move.of.request.get(DUE_DATE).restart_s is not None
    begun(cluster, moves, PACKED, NOW)  # raises if a GPU is taken twice


@given(sites(), st.floats(0.2, 1.0), st.data())
def test_with_gpus_for_all_a_job_gets_at_least_the_size_that_its_due_date_needs(
    site, exponent, data
):
    cluster, _, queue = site
    plain = [with_fields(r, gpus=1, sizes=(1, 2, 4), table=scaling(exponent)) for r in queue]
    queue = [data.draw(dated(request)) for request in plain]
    least = {request.job_id: due_account(request, NOW) for request in queue}
    plan = plan_round(queue, cluster, PACKED, NOW)
    needs = [max(least[request.job_id].gpus, 1) for request in queue]
    fixed = [with_fields(r, gpus=n, sizes=(), due=None) for r, n in zip(plain, needs, strict=True)]
    enough = len(plan_round(fixed, cluster, PACKED, NOW).assignments) == len(queue)
    for one in plan.assignments:
        account = least[one.job_id]
        needed = account.gpus if account.in_time and enough else 1
        assert sum(map(len, one.slots)) >= needed


@given(sites(), st.floats(-0.2, 1.0), st.floats(0.0, 30_000.0), st.data())
def test_a_job_gets_a_size_that_its_nodes_have_or_waits_for_gpus_that_come(
    site, exponent, later_s, data
):
    cluster, _, queue = site
    masks = [None, *(np.array(mask) for mask in ([True, True, False, False], [False] * 3 + [True]))]
    plain = [
        with_fields(
            request,
            gpus=1,
            sizes=(1, 2, 4),
            table=scaling(exponent),
            eligible=data.draw(st.sampled_from(masks)),
        )
        for request in queue
    ]
    cluster.exists[data.draw(st.integers(0, 3))] = False
    cluster = replace(cluster, free=cluster.free & cluster.exists)
    queue = [data.draw(dated(request)) for request in plain]
    now = NOW + later_s
    sized = with_due_sizes(queue, due_accounts(queue, now), cluster, now, None)
    for asked, request in zip(queue, sized, strict=True):
        nodes = slice(None) if request.nodes.eligible is None else request.nodes.eligible
        free, least = np.count_nonzero(cluster.free[nodes]), request.sizes[0]
        if least > max(free, 1):
            assert request is sized[-1]
            assert asked.get(DUE_DATE).restart_s is None
            ends = [
                job.until_s
                for job in cluster.running
                for gpu in job.each_gpu
                if cluster.exists[gpu]
                and (asked.nodes.eligible is None or asked.nodes.eligible[gpu[0]])
            ]
            assert now < asked.get(DUE_DATE).due_s
            assert sorted(ends)[least - free - 1] < asked.get(DUE_DATE).due_s


@given(sites(), st.floats(0.2, 1.0), st.sampled_from(["pressure", "together"]), st.data())
def test_by_pressure_no_job_passes_one_of_another_kind(site, exponent, order, data):
    _, _, queue = site
    plain = [with_fields(r, gpus=1, sizes=(1, 2, 4), table=scaling(exponent)) for r in queue]
    some = [data.draw(st.just(request) | dated(request)) for request in plain]
    some = [replace(r, submit_s=NOW - data.draw(st.floats(0.0, 2 * r.expected_s))) for r in some]
    before, after = (
        in_order(some, replace(PACKED, due_order=each), due_accounts(some, NOW), NOW)
        for each in ("slurm", order)
    )
    assert sorted(r.job_id for r in before) == sorted(r.job_id for r in after)
    for place, one in enumerate(after):
        passed = {r.job_id for r in before[: before.index(one)]} - {r.job_id for r in after[:place]}
        if one.get(DUE_DATE) is None:
            assert not passed
        for other in before[: before.index(one)]:
            if other.job_id in passed:
                assert other.get(DUE_DATE) is not None
                assert NOW - other.submit_s < other.expected_s


COMMENTS = (
    st.sampled_from(["due=3m,epochs=1x160s", "due=20m,epochs=1x1s", "due=9h,epochs=2x1h", "due=2d"])
    | st.builds(
        "due={}{},epochs={}x{}s".format,
        st.integers(1, 366),
        st.sampled_from(["m", "h", "d"]),
        st.integers(1, 100_000),
        st.integers(1, 90_000),
    )
    | st.just("class=A")
)
"""What a user writes, whatever is true."""
LIMITS = st.sampled_from([300.0, 864_000.0, 864_000.0, math.inf])
TIERS = st.sampled_from([0, 0, 0, 1])


@st.composite
def written(draw, number):
    """A waiting job of some user and priority with a comment, and earlier runs made for it."""
    gpus = draw(st.sampled_from([1, 2, 4]))
    request = job_request(
        str(number),
        gpus,
        time_limit_s=draw(LIMITS),
        user=draw(st.sampled_from(["alice", "bob", "carol", ""])),
        priority=TIER * draw(TIERS) + draw(st.sampled_from([1.0, 2.0, 41_000.0])),
        submit_s=NOW - draw(st.floats(0.0, 900.0)),
        sizes=draw(st.sampled_from([tuple(sorted({gpus, 8}))] * 3 + [()])),
        table=scaling(0.9),
    )
    hints = parse_comment(draw(COMMENTS), HINTS, {"classes": "ABC"})
    work, due_s = hints.get(EPOCHS), hints.get(DUE)
    if due_s is None:
        return request
    epochs = None if work is None else (work[0], gpus, float(work[1]))
    short = st.sampled_from([(), ((1, 1.0),), ((2, 60.0), (4, 2_000.0))])
    due = DueDate(request.submit_s + float(due_s), draw(short), epochs)
    return with_fields(request, due=replace(due, weight=draw(st.sampled_from([1.0, 1.0, 2.0]))))


queues = st.integers(0, 9).flatmap(lambda n: st.tuples(*map(written, range(n))))


@given(queues)
def test_by_pressure_no_user_passes_another_of_higher_priority(queue):
    accounts = due_accounts(queue, NOW)
    found = in_order(queue, replace(PACKED, due_order="pressure"), accounts, NOW)
    assert sorted(one.job_id for one in found) == sorted(one.job_id for one in queue)
    for place, other in enumerate(found):
        for one in found[:place]:  # which stands before the other
            assert one.priority >= other.priority or one.user == other.user != ""
            assert one.tier >= other.tier


@given(queues)
def test_by_pressure_users_keep_the_places_of_their_jobs(queue):
    """Where each job has a priority of its own."""
    queue = [replace(one, priority=float(n)) for n, one in enumerate(queue)]
    accounts = due_accounts(queue, NOW)
    found = in_order(queue, replace(PACKED, due_order="pressure"), accounts, NOW)
    assert [one.user for one in found] == [one.user for one in reversed(queue)]


@given(sites(), st.floats(0.2, 1.0), st.data())
def test_beside_others_a_job_without_due_date_or_history_is_untouched(site, exponent, data):
    cluster, _, queue = site
    plain = [with_fields(r, gpus=1, sizes=(1, 2, 4), table=scaling(exponent)) for r in queue]
    some = [data.draw(st.just(request) | dated(request)) for request in plain]
    sized = with_due_sizes(some, due_accounts(some, NOW), cluster, NOW, None)
    for asked, one in zip(some, sized, strict=True):
        if asked.get(DUE_DATE) is None or not asked.get(DUE_DATE).runs:
            assert one is asked


@given(sites(), st.data())
def test_without_history_plans_are_identical(site, data):
    cluster, movable, queue = site
    bare = DueDate(NOW + data.draw(times))
    plain = plan_round(queue, cluster, PACKED, NOW)
    other = plan_round([with_fields(r, due=bare) for r in queue], cluster, PACKED, NOW)
    places = [[(a.job_id, a.nodes, a.slots) for a in plan.assignments] for plan in (plain, other)]
    assert places[0] == places[1]
    assert [w.reason for w in plain.waiting] == [w.reason for w in other.waiting]
    movable = [  # one with a due date never shrinks
        replace(one, request=one.request.from_size(one.request.gpus)) for one in movable
    ]
    unmoved = [replace(one, request=with_fields(one.request, due=bare)) for one in movable]
    found = [
        [
            (move.job_id, move.assignment.slots)
            for move in plan_moves(
                accounted(jobs, cluster, NOW), queue, cluster, PACKED, MoveSettings(), NOW
            )
        ]
        for jobs in (movable, unmoved)
    ]
    assert found[0] == found[1]
