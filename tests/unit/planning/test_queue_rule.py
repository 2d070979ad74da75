"""Order of the queue: shorter jobs first, and the guard of those that they pass."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import plan_round, reasons, replayed

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.queue_order.declared import ORDERS, Passes
from slurm_gpu_aware.features.queue_order.stage import RULE, OrderRule, passes, reordered
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import TIER, Request, Wait
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.planning.stages import plan_stages
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

NOW = 10_000.0
PACKED = PlanSettings(policy="packed")
EXPECTED = OrderRule("expected", run_time_weight=1.0, passed_factor=1000.0, passed_s=1e9)


def asked_job(
    name: str, submit_s: float, run_s: float, priority: float = 0.0, gpus: int = 1
) -> Request:
    times = {"time_limit_s": 10 * run_s, "estimate_s": run_s, "submit_s": submit_s}
    return Request(name, gpus, priority=priority, **times)


def in_order(queue: list[Request], rule: OrderRule, now: float) -> list[Request]:
    return reordered(in_slurm_order(queue), rule, now)


def ids_of(queue: list[Request]) -> list[str]:
    return [request.job_id for request in queue]


def test_run_time_counts_as_age() -> None:
    queue = [
        asked_job("1", 0.0, 500.0),
        asked_job("2", 100.0, 10.0),
        asked_job("3", 600.0, 10.0),
    ]
    assert ids_of(in_order(queue, EXPECTED, NOW)) == ["2", "1", "3"]
    assert ids_of(in_order(queue, replace(EXPECTED, run_time_weight=0.1), NOW)) == ["1", "2", "3"]
    assert ids_of(in_order(queue, replace(EXPECTED, run_time_weight=0.0), NOW)) == ["1", "2", "3"]
    assert ids_of(in_order(queue, replace(EXPECTED, order="backfill"), NOW)) == ["2", "3", "1"]
    assert ids_of(in_order(queue, replace(EXPECTED, order="slurm"), NOW)) == ["1", "2", "3"]


def test_priorities_count_in_the_unit_of_the_age_factor() -> None:
    """A job of 100 points more stands as one that was submitted 1,000 s earlier."""
    rule = replace(EXPECTED, age_per_s=0.1)
    high, low = asked_job("1", 0.0, 1100.0, 200.0), asked_job("2", 0.0, 50.0, 100.0)
    assert ids_of(in_order([high, low], rule, NOW)) == ["2", "1"]
    assert ids_of(in_order([replace(high, estimate_s=1000.0), low], rule, NOW)) == ["1", "2"]
    without = replace(rule, age_per_s=0.0)  # then no priority can be made up for
    assert ids_of(in_order([high, low], without, NOW)) == ["1", "2"]
    equal = replace(low, priority=200.0)
    assert ids_of(in_order([high, equal], without, NOW)) == ["2", "1"]


@pytest.mark.parametrize("order", ORDERS)
def test_no_job_passes_one_of_a_higher_tier(order: str) -> None:
    queue = [asked_job("1", 100.0, 900.0, 3 * TIER), asked_job("2", 0.0, 1.0, 2 * TIER + 50)]
    assert ids_of(in_order(queue, replace(EXPECTED, order=order), NOW)) == ["1", "2"]


def test_equal_jobs_only() -> None:
    rule = replace(EXPECTED, order="equal")
    queue = [
        asked_job("1", 0.0, 90.0),
        asked_job("2", 50.0, 10.0),
        asked_job("3", 130.0, 1.0),
    ]
    assert ids_of(in_order(queue, rule, NOW)) == ["1", "2", "3"]
    assert ids_of(in_order(queue, replace(rule, equal_s=100.0), NOW)) == ["2", "1", "3"]
    aged = replace(rule, age_per_s=0.1)
    some = [
        asked_job("1", 0.0, 90.0, 7.0),
        asked_job("2", 5.0, 10.0, 7.0),
        asked_job("3", 0.0, 1.0, 6.9),
    ]
    assert ids_of(in_order(some, aged, NOW)) == ["2", "1", "3"]
    assert ids_of(in_order(some, replace(aged, age_per_s=0.0), NOW)) == ["2", "1", "3"]


def test_a_job_that_was_put_first_or_back_stands_there() -> None:
    """Priorities of ``priority/basic`` after ``scontrol top`` of job 9, and a nice of job 1."""
    times = {"9": (900.0, 99.0), "2": (200.0, 98.0), "3": (300.0, 97.0), "1": (100.0, 5.0)}
    queue = [asked_job(name, at_s, 10.0, priority) for name, (at_s, priority) in times.items()]
    assert ids_of(in_order(queue, EXPECTED, NOW)) == ["9", "2", "3", "1"]
    longer = [replace(queue[0], estimate_s=50.0), *queue[1:]]
    assert ids_of(in_order(longer, EXPECTED, NOW)) == ["9", "2", "3", "1"]


def test_from_some_wait_on_no_job_passes() -> None:
    rule = replace(EXPECTED, passed_factor=2.0)
    queue = [asked_job("1", 0.0, 500.0), asked_job("2", 100.0, 10.0)]
    assert ids_of(in_order(queue, rule, 999.0)) == ["2", "1"]
    assert ids_of(in_order(queue, rule, 1000.0)) == ["1", "2"]
    assert ids_of(in_order(queue, replace(rule, passed_s=300.0), 300.0)) == ["1", "2"]
    held = [replace(queue[0], wait=Wait(ineligible_s=600.0)), queue[1]]
    assert ids_of(in_order(held, rule, 1599.0)) == ["2", "1"]
    assert ids_of(in_order(held, rule, 1600.0)) == ["1", "2"]
    unknown = [replace(queue[0], estimate_s=None, time_limit_s=math.inf), queue[1]]
    assert ids_of(in_order(unknown, rule, 1e5)) == ["2", "1"]
    assert ids_of(in_order(unknown, replace(rule, passed_s=1e5), 1e5)) == ["1", "2"]


@st.composite
def rules(draw: st.DrawFn) -> OrderRule:
    order = draw(st.sampled_from(ORDERS))
    age = draw(st.sampled_from([None, 0.0, 0.5]))
    weight, window = draw(st.sampled_from([0.0, 0.3, 10.0])), draw(st.sampled_from([0.0, 300.0]))
    factor, longest = draw(st.sampled_from([0.5, 4.0, 999.0])), draw(st.sampled_from([0.0, 700.0]))
    return OrderRule(order, weight, window, factor, longest or 1e9, age)


@st.composite
def queues(draw: st.DrawFn, most: int = 9) -> list[Request]:
    sizes = range(draw(st.integers(0, most)))
    some = st.sampled_from
    return [
        asked_job(
            str(n),
            NOW - draw(some([0.0, 50.0, 400.0, 401.0, 900.0, 5000.0])),
            draw(some([1.0, 10.0, 200.0, 3000.0])),
            TIER * draw(some([0, 0, 1])) + draw(some([0.0, 0.0, 50.0, 400.0])),
        )
        for n in sizes
    ]


@given(queues(), rules())
def test_the_guard_holds_and_nobody_is_lost(queue: list[Request], rule: OrderRule) -> None:
    slurm = in_slurm_order(queue)
    found = in_order(queue, rule, NOW)
    assert sorted(ids_of(found)) == sorted(ids_of(queue))
    place = {name: at for at, name in enumerate(ids_of(found))}
    for before, behind in itertools.combinations(slurm, 2):
        if before.tier != behind.tier or rule.until_s(before) <= NOW:
            assert place[before.job_id] < place[behind.job_id]
    if rule.order == "slurm":
        assert found == slurm
    turns = {name: at for at, name in enumerate(ids_of(slurm))}
    counted = {
        r.job_id: sum(turns[o.job_id] > turns[r.job_id] for o in found[: place[r.job_id]])
        for r in found
    }
    assert passes(found, turns) == {name: count for name, count in counted.items() if count}


def test_the_order_is_the_best_that_the_guard_allows() -> None:
    """Brute force over all orders of 10,000 small queues: the first one by the sorted keys."""
    rng = np.random.default_rng(1)
    for _ in range(10_000):
        queue = [
            asked_job(str(n), NOW - at_s, run_s)
            for n, (at_s, run_s) in enumerate(
                zip(rng.integers(1, 900, 5).tolist(), rng.integers(1, 900, 5).tolist(), strict=True)
            )
        ]
        rule = OrderRule("expected", float(rng.choice([0.2, 1.0, 5.0])), 0.0, 0.9, 600.0)
        slurm = in_slurm_order(queue)
        fixed = {r.job_id for r in slurm if rule.until_s(r) <= NOW}
        keys = {r.job_id: (r.submit_s + rule.run_time_weight * r.expected_s) for r in slurm}
        behind = {
            a.job_id: ids_of(slurm[n + 1 :]) for n, a in enumerate(slurm) if a.job_id in fixed
        }
        allowed = (
            order
            for order in itertools.permutations(ids_of(slurm))
            if all(order.index(a) < order.index(b) for a in behind for b in behind[a])
        )
        best = min(allowed, key=lambda order: [(keys[n], ids_of(slurm).index(n)) for n in order])
        assert tuple(ids_of(in_order(queue, rule, NOW))) == best


def ordered_plan(queue: list[Request], cluster: Cluster, rule: OrderRule, now: float = NOW) -> Plan:
    one = Round(queue, cluster, PACKED, now, {})
    return plan_stages(one.put(RULE, rule), FEATURES)


def busy_node(gpus: int, end_s: float) -> Cluster:
    """A node of four GPUs, some in use."""
    cluster = Cluster.uniform(1, 4)
    cluster.free[0, :gpus] = False
    held = tuple(RunningJob(f"r{g}", ((0, (g,)),), end_s, {0: 1}) for g in range(gpus))
    return replace(cluster, running=held)


def test_who_passes_whom_is_said() -> None:
    queue = [asked_job("1", NOW - 900, 5000.0), asked_job("2", NOW - 100, 60.0)]
    made = ordered_plan(queue, busy_node(3, NOW + 50), replace(EXPECTED, passed_s=3000.0))
    (started,) = made.assignments
    assert started.job_id == "2"
    assert started.why.of(Passes).job_id == "1"
    text = "starts before job 1, as it is shorter (expected 1 min)"
    assert started.why.text.endswith(text)
    assert "; a shorter job may start before it, until " in reasons(made)["1"]
    assert names_of(plan_round(queue, busy_node(3, NOW + 50), PACKED, NOW)) == ["1"]


def names_of(made: Plan) -> list[str]:
    return [one.job_id for one in made.assignments]


def test_shortest_first_behind_the_head_only() -> None:
    """The head keeps its reservation; of two that fit beside it the shorter one starts."""
    rule = OrderRule("backfill")
    head = asked_job("1", NOW - 9, 500.0, gpus=4)
    queue = [head, asked_job("2", NOW - 8, 40.0), asked_job("3", NOW - 7, 4.0)]
    made = ordered_plan(queue, busy_node(3, NOW + 1000), rule)
    assert names_of(made) == ["3"]
    assert "shorter" not in reasons(made)["1"]
    assert "starts before job 2" in made.assignments[0].why.text
    assert names_of(ordered_plan(queue, busy_node(3, NOW + 1000), OrderRule())) == ["2"]
    fits = [replace(head, gpus=1), *queue[1:]]
    assert names_of(ordered_plan(fits, busy_node(3, NOW + 1000), rule)) == ["1"]


@given(queues(most=12), rules(), st.data())
def test_bounds_hold_against_any_stream(
    queue: list[Request], rule: OrderRule, data: st.DataObject
) -> None:
    """One GPU: once a job has waited for its bound, no job behind it in Slurm's order starts."""
    rule = replace(rule, age_per_s=None)
    waiting = [replace(r, priority=0.0) for r in queue]
    now, number = NOW, len(queue)
    for _ in range(12):
        if data.draw(st.booleans()):  # a user who sends short jobs
            number += 1
            waiting.append(asked_job(str(number), now, data.draw(st.sampled_from([1.0, 30.0]))))
        if not waiting:
            return
        (started,) = names_of(ordered_plan(waiting, Cluster.uniform(1, 1), rule, now))
        slurm = in_slurm_order(waiting)
        for before in slurm:
            if before.job_id == started:
                break
            assert rule.until_s(before) > now
        waiting = [r for r in waiting if r.job_id != started]
        now += data.draw(st.sampled_from([1.0, 100.0, 2000.0]))


def test_a_recorded_round_has_the_rule() -> None:
    queue = [asked_job("1", NOW - 90, 5000.0), asked_job("2", NOW - 10, 60.0)]
    found = replayed(Round(queue, busy_node(3, NOW + 50), PACKED, NOW, {}).put(RULE, EXPECTED))
    assert found.asked.get(RULE) == EXPECTED
    assert found.placed.keys() == {"2"}


def test_a_simulated_queue_starts_in_the_same_order() -> None:
    """One GPU in use; three jobs come, the shortest last."""
    jobs = [TraceJob("0", 0.0, 1, 50.0)]
    jobs += [TraceJob(str(n), float(n), 1, run_s) for n, run_s in ((1, 900.0), (2, 90.0), (3, 9.0))]
    cluster, trace = Cluster.uniform(1, 1), Trace("queue", tuple(jobs))
    for label, order in (("@expected=10", "0321"), ("@slurm", "0123"), ("@backfill", "0123")):
        settings = parse_policy(
            f"packed{label}", SimSettings(backfill=True).put(RunEstimates("exact"))
        )
        result = simulate(trace, cluster, settings)
        assert "".join(map(str, np.argsort(result.start_s))) == order, label


def test_jobs_that_were_put_back_make_no_other_job_younger() -> None:
    """Old jobs with a nice stand last; the two in front are hours apart as before."""
    old, new = asked_job("1", NOW - 7200, 36_000.0, 9.0), asked_job("2", NOW, 60.0, 8.0)
    rule = replace(EXPECTED, run_time_weight=0.1)
    assert ids_of(in_order([old, new], rule, NOW)) == ["1", "2"]
    back = [asked_job(str(n), NOW - 90_000, 60.0, 1.0) for n in (8, 9)]
    assert ids_of(in_order([old, new, *back], rule, NOW))[:2] == ["1", "2"]


def test_short_jobs_take_none_of_the_depth_of_backfill() -> None:
    """Twenty short jobs of two GPUs come after one that fits beside the head."""
    head = asked_job("1", NOW - 90, 5000.0, gpus=4)
    fits = asked_job("2", NOW - 80, 900.0)
    many = [asked_job(str(n), NOW - 70, 60.0, gpus=2) for n in range(10, 30)]
    shallow = replace(PACKED, backfill_depth=10)
    for order in ("slurm", "backfill", "expected"):
        one = Round([head, fits, *many], busy_node(3, NOW + 20_000), shallow, NOW, {})
        made = plan_stages(one.put(RULE, replace(EXPECTED, order=order)), FEATURES)
        assert [a.job_id for a in made.assignments] == ["2"], order
